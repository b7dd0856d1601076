"""When the next decision is due, and what a decision is said to take."""

from __future__ import annotations

import pytest

from scheduling.dispatch.decision_clock import (
    CREDIT_TICK_S,
    LEAST_TO_ENGINE_S,
    MAX_DECISION_S,
    MEASURED,
    TICK_S,
    TO_ENGINE_S,
    DecisionClock,
)


def test_who_waits_for_credit_is_looked_at_when_less_is_predicted_to_count():
    clock = DecisionClock()
    assert clock.wait(10.0, for_credit=False) == TICK_S
    clock.credit_falls_s = 0.02
    assert clock.wait(10.0, for_credit=True) == 0.02
    assert clock.wait(10.0, for_credit=False) == TICK_S
    clock.granted(10.0)
    assert clock.wait(10.0, for_credit=True) == CREDIT_TICK_S


def test_a_decision_takes_from_when_it_was_due_not_from_when_it_might_have_come():
    clock = DecisionClock()
    before = clock.turnaround_s
    clock.wait(10.0, for_credit=False)
    clock.due(10.1)  # a notification, before the tick
    clock.due(10.12)  # another one: the decision was due already
    clock.granted(10.13)
    assert clock.turnaround_s == pytest.approx(before + 0.05 * (0.03 - (before - TO_ENGINE_S)))


def test_what_a_decision_is_said_to_take_is_bounded():
    clock = DecisionClock()
    for second in range(500):
        clock.due(float(second))
        clock.granted(second + 30.0)
    assert clock.turnaround_s == pytest.approx(MAX_DECISION_S + TO_ENGINE_S)


def test_the_first_assumption_is_not_handed_on_as_a_measurement():
    clock = DecisionClock()
    for second in range(MEASURED):
        assert clock.measured_s is None
        clock.wait(float(second), for_credit=False)
        clock.due(float(second))
        clock.granted(second + 0.02)
    assert clock.measured_s == clock.turnaround_s == pytest.approx(0.02 + TO_ENGINE_S, abs=0.003)


def test_the_way_to_the_engine_counts_as_measured_and_is_never_nothing():
    clock = DecisionClock()
    clock.measured_lag(0.013)
    assert clock.turnaround_s == pytest.approx(CREDIT_TICK_S + 0.013)
    clock.measured_lag(0.0)
    assert clock.turnaround_s == pytest.approx(CREDIT_TICK_S + LEAST_TO_ENGINE_S)
