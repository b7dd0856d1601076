"""The reward of studies: what was asked and kept, tier by tier, the tail as a tie-break, and nobody who pays for it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.simulator.result import Outcome
from scheduling.tuning import merit
from scheduling.tuning.merit import Merit, TierMerit, merit_of, plain_reward, reward
from scheduling.tuning.reward import Felt


def tier(kept: int, asked: int = 100, weight: float = 1.0, tail: float = 0.5) -> TierMerit:
    return TierMerit(weight, asked, kept, tail)


def outcome(took_s: float, *, late: bool, refused: str = "") -> Outcome:
    return Outcome(0, "a", "", True, False, 10, 10, 0.0, 0.0, took_s, took_s, late, refused)


tiers = st.builds(
    TierMerit, st.floats(0.1, 100.0), st.just(200), st.integers(0, 200), st.floats(0.0, 1.0)
)  # fmt: skip
settings_of_a_pool = st.dictionaries(st.sampled_from(["premium", "standard", "batch"]), tiers, min_size=3)


def test_a_refused_request_counts_as_one_whose_promise_was_broken():
    felt = [Felt("a", 1.0, 1.0, 2.0), Felt("a", 1.0, float("inf"), 2.0)]
    found = merit_of(felt, [outcome(1.0, late=False), outcome(float("inf"), late=True, refused="queue_full")])
    assert (found["a"].asked, found["a"].kept, found["a"].tail) == (2, 1, 1.0)


def test_the_tail_is_the_mean_of_the_worst_tenth():
    took = [0.0] * 18 + [1.0, 3.0]
    felt = [Felt("a", 1.0, s, 1.0) for s in took]
    found = merit_of(felt, [outcome(s, late=False) for s in took])
    assert found["a"].tail == pytest.approx((0.5 + 0.75) / 2)


def test_tiers_count_by_weight_and_not_by_how_much_they_ask():
    heavy, light = tier(100, weight=3.0, tail=1.0), tier(0, asked=5000, weight=1.0, tail=1.0)
    assert plain_reward({"a": heavy, "b": light}) == pytest.approx(0.75)


def test_the_tail_decides_only_between_alike_attainments():
    best_tail, worst_tail = {"a": tier(90, tail=0.0)}, {"a": tier(90, tail=1.0)}
    assert reward(best_tail) > reward(worst_tail)
    assert reward({"a": tier(92, tail=1.0)}) > reward(best_tail)


@given(settings_of_a_pool, settings_of_a_pool, st.floats(0.01, 0.2))
def test_a_setting_that_starves_a_tier_is_never_better_than_what_serves(now: Merit, other: Merit, drop: float):
    """Whatever the others gain: weights of the pair are those of what serves."""
    lost = max((now[name].kept - other[name].kept) / now[name].asked for name in now)  # one rounding, as theirs
    if lost > drop:
        assert reward(other, [now], drop) < plain_reward(now)
    else:
        assert reward(other, [now], drop) == plain_reward(other)


def test_small_losses_one_after_the_other_are_held_against_what_a_new_pool_has():
    default = {"premium": tier(90), "batch": tier(10)}
    now, then = {"premium": tier(86), "batch": tier(60)}, {"premium": tier(82), "batch": tier(90)}
    assert reward(now, [default], 0.05) == plain_reward(now)
    assert reward(then, [now], 0.05) == plain_reward(then)
    assert reward(then, [now, default], 0.05) < min(plain_reward(now), plain_reward(default))


def test_one_request_of_a_small_tier_is_no_starvation_and_all_of_it_is():
    now = {"small": tier(5, asked=5), "large": tier(500, asked=1000)}
    one = {"small": tier(4, asked=5), "large": tier(900, asked=1000)}
    none = {"small": tier(0, asked=5), "large": tier(900, asked=1000)}
    assert reward(one, [now], 0.05) == plain_reward(one)
    assert reward(none, [now], 0.05) < plain_reward(now)


@given(settings_of_a_pool)
def test_what_is_stored_of_a_merit_is_read_as_it_was(found: Merit):
    assert merit.from_json(json.loads(json.dumps(merit.as_json(found)))) == found


def test_several_runs_add_up():
    whole = merit.added([{"a": tier(10, asked=20, tail=0.2)}, {"a": tier(80, asked=80, tail=0.7)}])
    assert (whole["a"].asked, whole["a"].kept, whole["a"].tail) == (100, 90, pytest.approx(0.6))
