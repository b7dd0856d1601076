"""What an estimate costs, by the function calls it takes: each costs 0.1 us and more, and every request pays them.

The bounds are what was counted on 2026-12-01 with CPython 3.11 and a tenth more. Who needs more calls for something
worth it raises the bound and says why in ``docs/internals/estimates.md``, *CPU*.
"""

from __future__ import annotations

import random

import pytest

from scheduling.gateway.estimate.forecasts import PoolForecasts
from tests.bench.bench_estimates import call_of, full, look, prompts
from tests.support.call_counts import calls_each

NEW = 86.0  # counted: 78; one word of each is met for the first time, which takes 7
KNOWN = 6.0  # counted: 5
ASKED = 200


@pytest.fixture(scope="module")
def pool() -> PoolForecasts:
    taught = full(count=1_500)
    for text in prompts(100, 55):
        look(taught, call_of(text))
    return taught


def _calls(pool: PoolForecasts, texts: list[str]) -> float:
    return calls_each(lambda call: look(pool, call), [call_of(text) for text in texts])


def test_a_new_prompt_takes_no_more_calls_than_it_did(pool: PoolForecasts) -> None:
    assert _calls(pool, list(prompts(ASKED, 99))) <= NEW


def test_a_prompt_that_was_asked_before_takes_next_to_none(pool: PoolForecasts) -> None:
    assert _calls(pool, [next(prompts(1, 7))] * ASKED) <= KNOWN


def test_a_prompt_of_20000_words_takes_no_more_than_a_short_one(pool: PoolForecasts) -> None:
    words = " ".join(prompts(400, 3)).split()[:20_000]
    assert len(words) == 20_000
    texts = [" ".join(words[n:] + words[:n]) for n in range(20)]  # of words that are known by then
    look(pool, call_of(texts[0]))
    assert _calls(pool, texts[1:]) <= NEW


@pytest.mark.parametrize("letters", ["漢字書文章説明質問回答", "абвгдежзиклмнопрст", "ابتثجحخدذرز"])
def test_other_scripts_take_no_more_once_their_letters_are_known(pool: PoolForecasts, letters: str) -> None:
    rng = random.Random(4)
    texts = [" ".join("".join(rng.choices(letters, k=4)) for _ in range(60)) for _ in range(ASKED)]
    known = {word for text in texts for word in text.split()}
    look(pool, call_of(" ".join(letters)))
    for word in known:
        pool._embedder.embed(word)
    assert _calls(pool, texts) <= NEW
