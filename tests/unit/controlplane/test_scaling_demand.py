"""What the planner is told that one more replica adds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controlplane.scaling.demand import DemandWindow
from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.engine.calibration import StepFit
from scheduling.core.types import BackendSpec, PoolView
from scheduling.dispatch.ports import BackendStatus, Sample, StepStatus
from tests.support.logged_steps import TRUTH
from tests.support.state_world import pool_spec
from tests.support.telemetry_world import NOW, record


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
