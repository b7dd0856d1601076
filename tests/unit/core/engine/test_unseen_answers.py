"""What is taken to be generated of an answer that nobody saw."""

from __future__ import annotations

import pytest

from scheduling.core.engine.unseen_answers import UNKNOWN_S, AnswerPace


def test_an_answer_that_nobody_saw_had_what_others_had_after_as_long() -> None:
    pace = AnswerPace()
    for _ in range(10):
        pace.add(200, 1, 2.0)
    assert pace.token_s == pytest.approx(0.01)
    assert pace.tokens(1, 3.0, 1_000) == 300
    assert pace.tokens(4, 3.0, 10_000) == 1_200, "four at once, each at this pace"


def test_it_is_no_more_than_was_asked_for_and_never_less_than_nothing() -> None:
    pace = AnswerPace()
    pace.add(200, 1, 2.0)
    assert pace.tokens(1, 1e9, 64) == 64
    assert pace.tokens(1, -1.0, 64) == 0
    assert pace.tokens(1, 60.0, 0) == 0, "it generates nothing"


def test_several_answers_at_once_say_how_long_one_of_them_takes() -> None:
    pace = AnswerPace()
    pace.add(400, 4, 1.0)
    assert pace.token_s == pytest.approx(0.01)


def test_before_there_was_an_answer_a_pace_is_assumed() -> None:
    pace = AnswerPace()
    pace.add(0, 1, 5.0)  # vectors
    pace.add(10, 1, 0.0)
    assert pace.token_s == UNKNOWN_S
    assert pace.tokens(1, 10 * UNKNOWN_S, 1_000) == 10


def test_a_pool_that_became_slower_is_known_within_two_hundred_answers() -> None:
    pace = AnswerPace()
    for _ in range(200):
        pace.add(100, 1, 1.0)
    for _ in range(200):
        pace.add(100, 1, 5.0)
    assert pace.token_s == pytest.approx(0.05, rel=0.1)
