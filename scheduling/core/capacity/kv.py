"""How much KV cache a token needs, and what sequences hold of it together.

``bytes = 2 * layers * kv_heads * head_dim * bytes``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BLOCK_TOKENS = 16  # vLLM's default block on a GPU

_BYTES_BY_DTYPE = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


def blocks(tokens: int, block: int = BLOCK_TOKENS) -> int:
    """How many blocks hold ``tokens``."""
    return -(-tokens // block)


class SharedBlocks:
    """Blocks of prompts by how many running sequences hold them: beginnings in common are in the cache once.

    Ids are chained: who holds a block holds all before it.
    """

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}

    def held(self, ids: Sequence[int]) -> int:
        """How many of them, from the beginning, somebody holds."""
        return next((at for at, block in enumerate(ids) if block not in self._holders), len(ids))

    def hold(self, ids: Sequence[int]) -> int:
        """One sequence more holds them; how many others hold already."""
        holders, others = self._holders, 0
        for block in ids:
            before = holders.get(block, 0)
            others += before > 0
            holders[block] = before + 1
        return others

    def let_go(self, ids: Sequence[int]) -> int:
        """One sequence fewer holds them; how many others still hold."""
        holders, others = self._holders, 0
        for block in ids:
            left = holders[block] - 1
            if left:
                holders[block] = left
                others += 1
            else:
                del holders[block]
        return others


def kv_bytes_per_token(config: Mapping[str, Any], kv_dtype: str = "auto") -> int:
    """KV-cache bytes of one token, from a Hugging Face ``config.json``.

    ``kv_dtype`` "auto" means the model's own type, as vLLM's ``--kv-cache-dtype`` does. Models with latent attention
    (DeepSeek's MLA) keep one compressed vector per layer instead of keys and values. Sliding windows are not
    subtracted: the result is an upper bound there. Raises ValueError naming what is missing.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):  # multimodal models keep the language model's shape one level down
        config = {**config, **text}
    layers = _positive(config, "num_hidden_layers")
    name = kv_dtype
    if name == "auto":
        name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in _BYTES_BY_DTYPE:
        raise ValueError(f"unknown KV cache type {name!r}; known: {', '.join(sorted(_BYTES_BY_DTYPE))}")
    size = _BYTES_BY_DTYPE[name]
    if config.get("kv_lora_rank"):
        return layers * (_positive(config, "kv_lora_rank") + _positive(config, "qk_rope_head_dim")) * size
    heads = _positive(config, "num_attention_heads")
    kv_heads = _positive(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    if config.get("head_dim") is not None:
        head_dim = _positive(config, "head_dim")
    else:
        head_dim = _positive(config, "hidden_size") // heads
    return 2 * layers * kv_heads * head_dim * size


def kv_notes(config: Mapping[str, Any]) -> list[str]:
    """What of a model's attention the figure of :func:`kv_bytes_per_token` rests on, for people."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    notes = []
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if config.get("kv_lora_rank"):
        notes.append("latent attention: one compressed vector per layer in place of keys and values")
    elif kv_heads is not None and heads is not None and kv_heads < heads:
        notes.append(f"grouped-query attention: {heads} heads share {kv_heads} pairs of keys and values")
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        notes.append(
            f"a sliding window of {config['sliding_window']} tokens is not subtracted: long contexts need less"
        )
    other = {kind for kind in config.get("layer_types") or () if kind not in ("full_attention", "sliding_attention")}
    if other:
        notes.append(f"layers without a growing cache ({', '.join(sorted(other))}) are counted as if they had one")
    return notes


def _positive(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {key} must be a whole number above 0, not {value!r}")
    return value
