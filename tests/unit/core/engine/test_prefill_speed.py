"""How fast a replica prefills, from what its engine counted."""

from __future__ import annotations

import pytest

from scheduling.core.capacity.prefill_credit import Counters
from scheduling.core.engine.prefill_speed import SURE_S, PrefillSpeed
from scheduling.core.engine.step_time import load_preset

BUDGET = 1024


def fed(rate: float, seconds: int, *, limited: bool, waiting: int = 0) -> PrefillSpeed:
    speed = PrefillSpeed()
    for second in range(seconds + 1):
        speed.seen(Counters(float(second), None, rate * second, 0.0, waiting), limited, BUDGET)
    return speed


def test_the_speed_is_what_was_computed_while_prompts_were_at_hand():
    assert fed(2_500.0, 20, limited=True).tokens_per_s == pytest.approx(2_500.0)
    assert fed(40_000.0, 20, limited=False, waiting=1).tokens_per_s == pytest.approx(40_000.0)


def test_a_replica_that_had_nothing_to_do_says_nothing_of_its_speed():
    assert fed(300.0, 100, limited=False).tokens_per_s == 0.0
    assert fed(3_000.0, int(SURE_S) - 1, limited=True).tokens_per_s == 0.0


def test_a_restart_is_no_speed():
    speed = fed(2_500.0, 20, limited=True)
    speed.seen(Counters(21.0, None, 10.0, -1.0, 0), True, BUDGET)
    assert speed.tokens_per_s == pytest.approx(2_500.0)


def prompts_of(seconds: int, rate: float = 5_000.0, looks: int = 60, lost: int = 0) -> PrefillSpeed:
    """Prompts that take so long each, one after the other; an engine counts each when it is done. ``lost``: length of
    prompts that leave before their end, beside each."""
    speed, done = PrefillSpeed(), 0.0
    for second in range(looks):
        if second % seconds == seconds // 2:
            done += rate * seconds
        if lost and second % seconds == 0:
            speed.lost(lost)
        speed.seen(Counters(float(second), None, done, float(second), 0), True, BUDGET)
    return speed


@pytest.mark.parametrize("seconds", [1, 2, 4, 8])
def test_a_prompt_of_several_seconds_is_not_the_work_of_the_second_in_which_it_is_counted(seconds: int):
    assert prompts_of(seconds).tokens_per_s == pytest.approx(5_000.0)


def test_nothing_is_learned_while_what_was_computed_is_not_counted():
    """Clients left."""
    assert prompts_of(4, looks=20, lost=20_000).tokens_per_s == 0.0
    assert prompts_of(4, looks=20, lost=100).tokens_per_s == pytest.approx(5_000.0)


def test_where_long_prompts_are_taken_back_their_steps_were_full():
    """Only what is short is counted then, and what long prompts left in the cache when they go on."""
    speed = PrefillSpeed()
    for second in range(60):
        speed.taken_back()
        speed.seen(Counters(float(second), 5.0 * second, 300.0 * second, 20.0 * second, 0), True, BUDGET)
    assert speed.tokens_per_s == pytest.approx(5.0 * BUDGET - 20.0)


def test_what_an_engine_finds_of_a_prompt_when_it_begins_is_no_restart():
    """Engines count hits in their cache at once, and the prompt when it is done."""
    speed, computed = PrefillSpeed(), 0.0
    for second in range(60):
        computed += -18_000.0 if second % 2 else 28_000.0
        speed.seen(Counters(float(second), None, computed, float(second), 0), True, BUDGET)
    assert speed.tokens_per_s == pytest.approx(5_000.0)


@pytest.mark.parametrize(("share", "known"), [(1.0, True), (0.8, True), (0.5, False), (0.2, False)])
def test_a_full_step_is_not_said_to_take_longer_than_it_does_however_empty_steps_were(share: float, known: bool):
    """Prompts wait for credit and steps are part full: such steps cost more by the token than full ones."""
    engine, speed, decodes = load_preset("llama-3-8b-a100").step_time, PrefillSpeed(), 16
    prefill = int(share * BUDGET) - decodes
    step_s = engine.step(prefill, decodes, decodes * 1500.0)
    for second in range(60):
        steps = second / step_s
        speed.seen(Counters(float(second), steps, steps * prefill, steps * decodes, 0), True, BUDGET)
    full_s = engine.step(BUDGET - decodes, decodes, decodes * 1500.0)
    found_s = speed.full_step_s(BUDGET)
    assert found_s <= 1.05 * full_s
    assert (found_s >= 0.95 * full_s) is known
    assert BUDGET / speed.tokens_per_s >= found_s


def test_how_long_a_full_step_takes_is_not_known_of_an_engine_that_counts_none():
    assert fed(2_500.0, 20, limited=True).full_step_s(BUDGET) == 0.0
    assert PrefillSpeed().full_step_s(BUDGET) == 0.0
