"""Makes a tiny random Qwen2 model with a tokenizer trained on the spot. Runs in vLLM's environment, needs no network.

    tiny_model.py FOLDER [SEED]

Its answers are nonsense; its costs, limits and streams are real.
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

VOCABULARY = 2048
CONTEXT = 4096
LAYERS, HEADS, KV_HEADS = 2, 4, 2
# vLLM's CPU attention knows head sizes 32, 64, 80, 96, 112 and 128. With another it starts, answers /health, and the
# first request kills it.
HEAD_DIM = 32
END, BEGIN_TURN, END_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{%- for turn in messages -%}"
    "{{ '<|im_start|>' + turn['role'] + '\n' + turn['content'] + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


def make_tokenizer() -> Any:
    """Byte-level BPE, so that any text has tokens, with merges learned from the English every CPython carries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, BEGIN_TURN, END_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((line for name in sorted(topics) for line in topics[name].splitlines() if line), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_TURN,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: Any, seed: int) -> Any:
    """Random weights, as many embeddings as tokens (in whole 64s), so that every sampled id is a text."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=HEADS * HEAD_DIM,
        intermediate_size=2 * HEADS * HEAD_DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.convert_tokens_to_ids(END),
        eos_token_id=tokenizer.convert_tokens_to_ids(END_TURN),
        pad_token_id=tokenizer.convert_tokens_to_ids(END),
        dtype="bfloat16",
    )
    return Qwen2ForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    folder = Path(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer, seed).save_pretrained(folder)


if __name__ == "__main__":
    main()
