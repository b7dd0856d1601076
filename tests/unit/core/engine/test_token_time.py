"""How fast a replica is beside the others of its pool, from what engines count of the times between tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.engine.token_time import FORGOTTEN_S, SLOWEST, TokenTime, compare
from scheduling.core.types import FULL_SPEED


class Engine:
    """Its answers make ``rate`` tokens a second in all, each ``token_s`` after the one before."""

    def __init__(self, token_s: float, rate: float = 1000.0, measured: int = FULL_SPEED) -> None:
        self.token_s, self.rate, self.measured = token_s, rate, measured
        self.seconds = self.tokens = 0.0
        self.time = TokenTime()

    def works(self, at_s: float) -> None:
        self.tokens += self.rate
        self.seconds += self.rate * self.token_s
        self.time.seen(at_s, self.seconds, self.tokens)


CLOCK: Iterator[int] = iter(range(1, 10**6))


def works(*engines: Engine, seconds: int = 60) -> None:
    for _ in range(seconds):
        at_s = float(next(CLOCK))
        for engine in engines:
            engine.works(at_s)
        compare(at_s, [(engine.time, engine.measured) for engine in engines])


def test_a_replica_whose_tokens_take_three_times_as_long_has_a_third_of_the_speed():
    fast, slow = Engine(0.02), Engine(0.06)
    works(fast, slow)
    assert (fast.time.speed, fast.time.token_us) == (FULL_SPEED, 0)
    assert (slow.time.speed, slow.time.token_us) == (333, 60_000)


def test_replicas_of_one_kind_are_alike_whatever_they_happen_to_run():
    one, other = Engine(0.02), Engine(0.038)
    works(one, other)
    assert {one.time.speed, other.time.speed} == {FULL_SPEED}
    assert other.time.token_us == 0


def test_one_that_gets_slower_and_well_again_is_followed_and_not_to_and_fro():
    fast, slow = Engine(0.02), Engine(0.02)
    works(fast, slow)
    slow.token_s = 0.05
    works(fast, slow, seconds=400)
    assert slow.time.speed == pytest.approx(400, abs=20)
    slow.token_s = 0.036  # 0.56 of the other's speed: between the two limits
    works(fast, slow, seconds=400)
    assert slow.time.speed == pytest.approx(556, abs=30)
    slow.token_s = 0.032
    works(fast, slow, seconds=400)
    assert (slow.time.speed, slow.time.token_us) == (FULL_SPEED, 0)


def test_of_one_that_was_measured_to_be_slower_a_smaller_difference_is_enough():
    fast, slow = Engine(0.02), Engine(0.03, measured=500)
    works(fast, slow)
    assert (slow.time.speed, slow.time.token_us) == (667, 30_000)
    same = Engine(0.022, measured=500)
    works(fast, same)
    assert (same.time.speed, same.time.token_us) == (FULL_SPEED, 0), "it is as fast as the others now"


def test_what_is_said_stands_while_it_moves_by_less_than_a_twentieth():
    fast, slow = Engine(0.02), Engine(0.06)
    works(fast, slow)
    said = slow.time.speed, slow.time.token_us
    slow.token_s = 0.062
    works(fast, slow, seconds=400)
    assert (slow.time.speed, slow.time.token_us) == said


def test_of_one_alone_and_of_too_few_tokens_nothing_is_known():
    alone, few = Engine(0.06), Engine(0.02, rate=1.0)
    works(alone)
    assert alone.time.speed == 0
    works(alone, few, seconds=10)
    assert (alone.time.speed, few.time.speed) == (0, 0)


def test_an_engine_that_counts_no_such_times_leaves_nothing_known_of_it():
    silent = TokenTime()
    for at_s in range(60):
        silent.seen(float(at_s), None, 0.0)
    assert silent.mean_s == 0


def test_another_process_is_measured_anew():
    fast, slow = Engine(0.02), Engine(0.06)
    works(fast, slow)
    slow.seconds = slow.tokens = 0.0  # it was started again
    slow.token_s = 0.02
    works(fast, slow, seconds=1)
    assert slow.time.speed == 0
    works(fast, slow, seconds=10)
    assert slow.time.speed == FULL_SPEED


def test_a_slow_one_that_gets_no_work_is_forgotten_and_tried_again():
    fast, slow = Engine(0.02), Engine(0.4)
    works(fast, slow)
    assert slow.time.speed == SLOWEST
    slow.rate = 0.0
    works(fast, slow, seconds=int(FORGOTTEN_S) - 10)
    assert slow.time.speed == SLOWEST, "for a while it is taken for what it was"
    works(fast, slow, seconds=20)
    assert slow.time.speed == 0


def test_one_that_has_been_away_is_no_measure_for_the_others_and_is_measured_anew():
    fast, slow, third = Engine(0.02), Engine(0.06), Engine(0.06)
    works(fast, slow, third)
    for _ in range(int(FORGOTTEN_S) + 10):  # the fast one does not answer
        at_s = float(next(CLOCK))
        slow.works(at_s), third.works(at_s)
        compare(at_s, [(engine.time, FULL_SPEED) for engine in (fast, slow, third)])
    assert (slow.time.speed, slow.time.token_us) == (FULL_SPEED, 0)
    assert fast.time.speed == 0
    fast.token_s = 0.06
    works(fast, slow, third, seconds=2)
    assert {engine.time.speed for engine in (fast, slow, third)} == {FULL_SPEED}


def test_one_that_was_measured_to_be_slower_is_not_taken_to_and_fro_for_alike():
    fast, slow = Engine(0.02), Engine(0.02 / 0.8, measured=500)
    works(fast, slow)
    said = []
    for turn in range(20):
        slow.token_s = 0.02 / (0.89 if turn % 2 else 0.81)
        works(fast, slow, seconds=120)
        said.append(slow.time.speed)
    assert max(said) < FULL_SPEED
    slow.token_s = 0.0205
    works(fast, slow, seconds=400)
    assert slow.time.speed == FULL_SPEED


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-1e18, 1e18), st.floats(-1e18, 1e18)), max_size=30))
def test_no_figure_that_an_engine_can_report_makes_it_anything_but_a_speed(looks: list[tuple[float, float, float]]):
    odd, usual, at_s = TokenTime(), Engine(0.02), 0.0
    for elapsed_s, seconds, tokens in looks:
        at_s += elapsed_s
        odd.seen(at_s, seconds, tokens)
        usual.works(at_s)
        compare(at_s, [(odd, FULL_SPEED), (usual.time, FULL_SPEED)])
        assert odd.speed == 0 or SLOWEST <= odd.speed <= FULL_SPEED
        assert 0 <= odd.token_us <= 60_000_000
