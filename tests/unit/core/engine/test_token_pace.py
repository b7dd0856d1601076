"""How long answers take for each token: most of the latest, whatever else came."""

from __future__ import annotations

import pytest

from scheduling.core.engine.token_pace import ENOUGH, KEPT, LEAST_S, MANY_TOKENS, MOST_S, TokenPace


def told(*means_s: float, tokens: int = 50) -> TokenPace:
    pace = TokenPace()
    for mean_s in means_s:
        pace.add(tokens, mean_s * (tokens - 1))
    return pace


def test_nine_of_ten_answers_are_no_slower() -> None:
    means = [0.001 * n for n in range(10, 110)]
    assert told(*means).token_s == pytest.approx(0.001 * 99, rel=0.02)


def test_it_is_not_known_before_enough_answers_ended() -> None:
    assert told(*[0.05] * (ENOUGH - 1)).token_s == 0.0
    assert told(*[0.05] * ENOUGH).token_s == pytest.approx(0.05)


def test_answers_of_a_few_tokens_and_times_that_cannot_be_say_nothing() -> None:
    pace = told(*[0.05] * ENOUGH)
    for _ in range(KEPT):
        pace.add(MANY_TOKENS - 1, 9.0)
        pace.add(50, -1.0)
        pace.add(50, 0.0)
    assert pace.token_s == pytest.approx(0.05)


def test_it_follows_the_engines_and_is_bounded() -> None:
    assert told(*[0.05] * KEPT, *[0.006] * KEPT).token_s == pytest.approx(0.006)
    assert told(*[1e-9] * KEPT).token_s == LEAST_S
    assert told(*[1e9] * KEPT).token_s == MOST_S
