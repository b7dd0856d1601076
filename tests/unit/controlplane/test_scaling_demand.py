"""What the planner is told that one more replica adds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controlplane.scaling.demand import DemandWindow
from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.capacity.planner import Demand
from scheduling.core.engine.calibration import StepFit
from scheduling.core.types import BackendSpec, PoolView
from scheduling.dispatch.ports import BackendStatus, Sample, StepStatus
from tests.support.logged_steps import TRUTH
from tests.support.state_world import pool_spec
from tests.support.telemetry_world import NOW, entitlement, record, refused


def sample(configured: float = 0.0, believed: bool = True) -> Sample:
    backends = tuple(
        BackendSpec(name, "llama", f"http://{name}", 16, 100_000, tokens_per_s=configured) for name in "ab"
    )
    steps = [StepStatus(StepFit(step, 0.05, 900), believed, None, 0) for step in (TRUTH, TRUTH.slowed(2.0))]
    facts = EngineFacts(step_tokens=1024)
    statuses = [
        BackendStatus(name, "ready", "", NOW, slots=16, engine_facts=facts, steps=status)
        for name, status in zip("ab", steps, strict=True)
    ]
    return Sample(NOW, pool_spec(backends=backends), "me", 1, "fifo@1", PoolView({}), {}, 0.0, {}, statuses)


def added(now: Sample, *, served: bool = True) -> float:
    window = DemandWindow(60.0)
    if served:
        window.add([record(n, input_tokens=200, output_tokens=100, done_s=NOW - 1) for n in (1, 2)])
    window.look(now)
    return window.demand(now, {}).replica.tokens_per_s


def test_tokens_per_second_that_nobody_configured_are_what_the_slowest_engines_steps_say_of_the_requests_lately() -> (
    None
):
    assert added(sample()) == pytest.approx(TRUTH.slowed(2.0).tokens_per_s(200, 100, 16, 1024))
    other = replace(sample(), backends=[])
    assert not 0 < added(other) < math.inf, "no engine logs its steps"


def test_what_is_configured_holds_and_what_predicts_badly_is_not_planned_by() -> None:
    assert added(sample(configured=900.0)) == 900.0
    assert not 0 < added(sample(believed=False)) < math.inf
    assert not 0 < added(sample(), served=False) < math.inf, "nothing says how long requests are"


def test_requests_of_several_answers_call_for_as_many_places_whether_they_wait_or_were_refused() -> None:
    own = entitlement("acme-llama", "acme", pool=pool_spec().id)

    def demand(sequences: int) -> Demand:
        window = DemandWindow(60.0)
        window.add([record(1, granted_s=NOW - 3, done_s=NOW - 1)])
        window.add([refused(2, reason="queue_full", done_s=NOW - 1, sequences=sequences)])
        waits = replace(sample(), waiting={"acme-llama": 2}, waiting_sequences={"acme-llama": 1 + sequences})
        window.look(waits)
        return window.demand(waits, {own.id: own})

    one, four = demand(1), demand(4)
    assert (one.waiting.slots, four.waiting.slots) == (2, 5)
    assert four.refused.slots == pytest.approx(4 * one.refused.slots)
    assert one.refused.slots > 0


@pytest.mark.parametrize("reason", ["superseded", "queue_timeout"])
def test_what_waited_until_it_was_refused_calls_for_no_second_place(reason: str) -> None:
    """An entitlement whose late requests give their places to newer ones asks for no more than its places."""
    own = replace(entitlement("acme-llama", "acme", pool=pool_spec().id), concurrency=4)
    window = DemandWindow(60.0)
    full = replace(sample(), waiting={"acme-llama": 4}, waiting_sequences={"acme-llama": 4})
    for second in range(60):
        at_s = NOW - 59 + second
        window.add([refused(second, reason=reason, queued_s=at_s - 5, done_s=at_s)])
        window.look(replace(full, at_s=at_s))
    asked = window.demand(full, {own.id: own})
    assert asked.used.slots + asked.waiting.slots + asked.refused.slots == pytest.approx(4)
