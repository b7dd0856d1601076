"""The simulated engine's tokens and lengths."""

from __future__ import annotations

import json
import statistics

import pytest

from scheduling.engines.simulated import text
from scheduling.engines.simulated.__main__ import parse_options


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("", 0),
        ("  \n ", 0),
        ("one", 1),
        ("two words\tthree\nfour", 4),
        ("exactly12byt", 1),
        ("thirteenbytes", 4),
        ("ünïcödé-wörd", 5),  # 13 bytes and more count by bytes
    ],
)
def test_tokens_are_words_and_long_words_count_by_bytes(words: str, tokens: int) -> None:
    assert text.count_tokens(words) == tokens
    assert len(text.token_ids(words)) == tokens


def test_a_generated_text_has_as_many_tokens_as_were_generated() -> None:
    for start in (0, 17, 1000):
        said = text.generated_text(start, 300)
        assert text.count_tokens(said) == 300


def test_the_words_need_no_escaping_in_json() -> None:
    for word in text.VOCABULARY:
        assert json.loads(b'"' + word + b'"') == word.decode()


def test_lengths_depend_on_prompt_and_seed_alone_and_follow_the_trace() -> None:
    lengths = [text.natural_output_tokens(text.fingerprint(f"prompt {i}"), 7) for i in range(4000)]
    assert lengths[:10] == [text.natural_output_tokens(text.fingerprint(f"prompt {i}"), 7) for i in range(10)]
    assert lengths[:50] != [text.natural_output_tokens(text.fingerprint(f"prompt {i}"), 8) for i in range(50)]
    assert statistics.median(lengths) == pytest.approx(129, rel=0.1)
    assert statistics.mean(lengths) == pytest.approx(211, rel=0.15)


def test_the_command_line_has_vllms_names_too() -> None:
    options = parse_options(["--model", "m", "--max-num-seqs", "3", "--max-num-batched-tokens", "77"])
    assert (options.slots, options.token_budget, options.port) == (3, 77, 8100)
