"""How fast a replica prefills, from what its engine counted."""

from __future__ import annotations

import pytest

from scheduling.core.prefill_credit import Counters
from scheduling.core.prefill_speed import SURE_S, PrefillSpeed
from scheduling.core.step_time import load_preset


def fed(rate: float, seconds: int, *, limited: bool, waiting: int = 0) -> PrefillSpeed:
    speed = PrefillSpeed()
    for second in range(seconds + 1):
        speed.seen(Counters(float(second), None, rate * second, 0.0, waiting), limited)
    return speed


def test_the_speed_is_what_was_computed_while_prompts_were_at_hand():
    assert fed(2_500.0, 20, limited=True).tokens_per_s == pytest.approx(2_500.0)
    assert fed(40_000.0, 20, limited=False, waiting=1).tokens_per_s == pytest.approx(40_000.0)


def test_a_replica_that_had_nothing_to_do_says_nothing_of_its_speed():
    assert fed(300.0, 100, limited=False).tokens_per_s == 0.0
    assert fed(3_000.0, int(SURE_S) - 1, limited=True).tokens_per_s == 0.0


def test_a_restart_is_no_speed():
    speed = fed(2_500.0, 20, limited=True)
    speed.seen(Counters(21.0, None, 10.0, 0.0, 0), True)
    assert speed.tokens_per_s == pytest.approx(2_500.0)


BUDGET = 1024


@pytest.mark.parametrize(("share", "known"), [(1.0, True), (0.8, True), (0.5, False), (0.2, False)])
def test_a_full_step_is_not_said_to_take_longer_than_it_does_however_empty_steps_were(share: float, known: bool):
    """Prompts wait for credit and steps are part full: such steps cost more by the token than full ones."""
    engine, speed, decodes = load_preset("llama-3-8b-a100").step_time, PrefillSpeed(), 16
    prefill = int(share * BUDGET) - decodes
    step_s = engine.step(prefill, decodes, decodes * 1500.0)
    for second in range(60):
        steps = second / step_s
        speed.seen(Counters(float(second), steps, steps * prefill, steps * decodes, 0), True)
    full_s = engine.step(BUDGET - decodes, decodes, decodes * 1500.0)
    found_s = speed.full_step_s(BUDGET)
    assert found_s <= 1.05 * full_s
    assert (found_s >= 0.95 * full_s) is known
    assert BUDGET / speed.tokens_per_s >= found_s


def test_how_long_a_full_step_takes_is_not_known_of_an_engine_that_counts_none():
    assert fed(2_500.0, 20, limited=True).full_step_s(BUDGET) == 0.0
    assert PrefillSpeed().full_step_s(BUDGET) == 0.0
