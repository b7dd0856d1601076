"""``python tiny_models.py KIND OUT [MODEL]``: tiny random models for what the tiny Qwen2 is not for.

``whisper`` writes recordings down (nonsense, of real length); ``classifier`` is MODEL with a head for three classes.
Runs in the environment of the vLLM that serves it, which has torch and transformers. Needs no network.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

WHISPER, CLASSIFIER = "whisper", "classifier"
WORDS = 512  # of the recogniser, before its special tokens
TIMES = 1501  # tokens of times, every 20 ms of half a minute
SEED = 0


def _recogniser_tokens(languages: list[str]) -> Any:
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import WhisperTokenizer

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator((line for name in sorted(topics) for line in topics[name].splitlines() if line), trainer)
    learned = json.loads(bpe.to_str())["model"]
    tokenizer = WhisperTokenizer(vocab=learned["vocab"], merges=[tuple(pair) for pair in learned["merges"]])
    said = ["endoftext", "startoftranscript", *languages, "translate", "transcribe", "startoflm", "startofprev"]
    said += ["nospeech", "notimestamps", *(f"{n * 0.02:.2f}" for n in range(TIMES))]
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{word}|>" for word in said]})
    return tokenizer


def whisper(out: Path) -> None:
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    tokenizer = _recogniser_tokens(list(LANGUAGES))
    end, start = (tokenizer.convert_tokens_to_ids(f"<|{word}|>") for word in ("endoftext", "startoftranscript"))
    torch.manual_seed(SEED)
    config = WhisperConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64, num_mel_bins=80, d_model=128, max_target_positions=448,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=256, decoder_ffn_dim=256, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=start, suppress_tokens=[], begin_suppress_tokens=[], dtype="bfloat16",
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).to(torch.bfloat16)
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[end:] = 0  # never likely: what it writes is words, to the bound
    tokenizer.save_pretrained(out)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(out)
    model.save_pretrained(out)


def classifier(out: Path, base: Path) -> None:
    import torch
    from transformers import AutoConfig, Qwen2ForSequenceClassification

    shutil.copytree(base, out)
    config = AutoConfig.from_pretrained(base)
    config.num_labels = 3
    torch.manual_seed(SEED)
    Qwen2ForSequenceClassification(config).to(torch.bfloat16).save_pretrained(out)


if __name__ == "__main__":
    if sys.argv[1] == WHISPER:
        whisper(Path(sys.argv[2]))
    else:
        classifier(Path(sys.argv[2]), Path(sys.argv[3]))
