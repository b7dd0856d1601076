"""How fast a replica prefills, from what its engine counted."""

from __future__ import annotations

import pytest

from scheduling.core.prefill_credit import Counters
from scheduling.core.prefill_speed import SURE_S, PrefillSpeed


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
