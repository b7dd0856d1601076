"""Replicas of unlike speed: work counts by how long it takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.placement.rule import SLOWEST, Warmth, place, relative_speed
from scheduling.core.types import FULL_SPEED, BackendView

FAST, SLOW = FULL_SPEED, 200


def replica(name: str, speed: int, work: float = 0.0) -> BackendView:
    return BackendView(name, 64, 10**6, work_tokens=work, speed=speed)


def test_of_work_that_comes_one_by_one_a_replica_gets_as_much_as_it_is_fast():
    fast, slow = replica("fast", FAST), replica("slow", SLOW)
    for _ in range(60):
        chosen = place([fast, slow])
        assert chosen is not None
        chosen.work_tokens += 100
        chosen.running += 1
    assert (fast.running, slow.running) == (50, 10)


def test_an_idle_slow_replica_is_passed_over_only_while_the_fast_one_is_sooner():
    assert place([replica("fast", FAST, 400), replica("slow", SLOW, 100)]).id == "fast"  # type: ignore[union-attr]
    assert place([replica("fast", FAST, 600), replica("slow", SLOW, 100)]).id == "slow"  # type: ignore[union-attr]


def test_the_skew_of_a_prompt_that_is_cached_counts_by_speed_as_well():
    warm = Warmth(1000, "seed", {"slow": 5000})
    assert place([replica("fast", FAST), replica("slow", SLOW, 150)], warm).id == "slow"  # type: ignore[union-attr]
    assert place([replica("fast", FAST), replica("slow", SLOW, 250)], warm).id == "fast"  # type: ignore[union-attr]


def test_replicas_of_which_one_was_not_measured_are_taken_for_equals():
    assert relative_speed(900.0, [900.0, 0.0]) == FULL_SPEED
    assert relative_speed(0.0, [900.0, 0.0]) == FULL_SPEED
    assert relative_speed(300.0, [900.0, 300.0]) == 333
    assert relative_speed(900.0, [900.0, 300.0]) == FULL_SPEED
    assert relative_speed(1.0, [1e9, 1.0]) == SLOWEST, "measuring may go wrong, and it stays in use"
    assert relative_speed(1.0, [float("inf"), 1.0]) == FULL_SPEED


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(SLOWEST, FULL_SPEED),
)
def test_where_all_are_equally_slow_nothing_changes(loads: list[tuple[int, int]], speed: int):
    def views(of: int) -> list[BackendView]:
        return [BackendView(f"b{n}", 64, 10**6, run, 0, float(work), speed=of) for n, (work, run) in enumerate(loads)]

    same, usual = place(views(speed)), place(views(FULL_SPEED))
    assert same is not None
    assert usual is not None
    assert same.id == usual.id
