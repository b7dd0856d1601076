"""KV bytes per token of known models."""

from __future__ import annotations

import pytest

from scheduling.core.capacity.kv import blocks, kv_bytes_per_token, kv_notes

LLAMA_3_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def test_grouped_heads_count_only_their_keys_and_values() -> None:
    assert kv_bytes_per_token(LLAMA_3_8B) == 131_072


def test_models_without_grouping_have_as_many_kv_heads_as_heads() -> None:
    assert kv_bytes_per_token({"num_hidden_layers": 40, "num_attention_heads": 40, "hidden_size": 5120}) == 819_200


def test_a_head_size_of_its_own_wins_over_hidden_size() -> None:
    qwen3_32b = {
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "hidden_size": 5120,
        "head_dim": 128,
        "dtype": "bfloat16",
    }
    assert kv_bytes_per_token(qwen3_32b) == 262_144


def test_an_fp8_cache_is_half_as_large() -> None:
    assert kv_bytes_per_token(LLAMA_3_8B, "fp8") == 65_536


def test_latent_attention_keeps_one_vector_per_layer() -> None:
    deepseek = {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert kv_bytes_per_token(deepseek) == 61 * 576 * 2


def test_multimodal_models_keep_the_shape_one_level_down() -> None:
    assert kv_bytes_per_token({"text_config": LLAMA_3_8B}) == 131_072


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="num_hidden_layers"):
        kv_bytes_per_token({})
    with pytest.raises(ValueError, match="int3"):
        kv_bytes_per_token(LLAMA_3_8B, "int3")


def test_a_begun_block_is_a_whole_block() -> None:
    assert [blocks(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_what_the_figure_rests_on_is_said() -> None:
    assert kv_notes({"num_attention_heads": 40, "num_key_value_heads": 40}) == []
    assert kv_notes(LLAMA_3_8B) == ["grouped-query attention: 32 heads share 8 pairs of keys and values"]
    assert "latent attention" in kv_notes({"kv_lora_rank": 512, "num_attention_heads": 128})[0]
    window = {"sliding_window": 4096, "num_attention_heads": 8}
    assert "4096 tokens is not subtracted" in kv_notes(window)[0]
    assert kv_notes({**window, "use_sliding_window": False}) == []
    assert "(linear_attention)" in kv_notes({"text_config": {"layer_types": ["full_attention", "linear_attention"]}})[0]
