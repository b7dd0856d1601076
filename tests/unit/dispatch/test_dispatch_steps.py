"""The leader reads what the schedulers inside its engines log, and goes by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from scheduling.core.capacity.prefill_credit import USUAL_BUDGET
from scheduling.core.types import BackendView, PoolView
from scheduling.dispatch.ports import StepStatus
from scheduling.dispatch.replicas import step_logs
from tests.support.dispatch_world import until
from tests.support.logged_steps import TRUTH, steps
from tests.unit.dispatch.test_dispatch_health import Ward


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_logs, "STEPS_S", 0.01)


@asynccontextmanager
async def watching(kind: str = "vllm_plugin") -> AsyncIterator[Ward]:
    async with asyncio.TaskGroup() as group:
        ward = Ward(group, "b1")
        ward.pool = replace(ward.pool, engine=kind)
        ward.monitor.update(ward.pool)
        try:
            yield ward
        finally:
            ward.monitor.update(replace(ward.pool, backends=()))


def said(ward: Ward) -> StepStatus | None:
    return ward.monitor.statuses()[0].steps


async def test_logged_steps_become_step_times_and_the_prefill_speed_that_was_not_measured() -> None:
    async with watching() as ward:
        ward.engines["b1"].log += steps(300)
        found = await until(lambda: (status := said(ward)) and status.fit and status)
        assert found.believed
        assert found.fit.step_time.t0 == pytest.approx(TRUTH.t0, rel=0.1)
        view = PoolView({"b1": BackendView("b1", 8, 1000)})
        ward.monitor.mask(view)
        assert view.backends["b1"].prefill_per_s == pytest.approx(TRUTH.prefill_per_s(USUAL_BUDGET), rel=0.1)


async def test_each_step_is_read_once_and_those_of_a_new_process_from_its_beginning() -> None:
    async with watching() as ward:
        engine = ward.engines["b1"]
        engine.log += steps(100)
        await until(lambda: ward.monitor._backends["b1"].steps.seen == 100)
        engine.log += steps(50, seed=2)
        await until(lambda: ward.monitor._backends["b1"].steps.seen == 150)
        engine.log, engine.log_began = list(steps(30, seed=3)), "2"
        await until(lambda: ward.monitor._backends["b1"].steps.seen == 180)


async def test_an_engine_that_became_slower_is_fitted_again_without_help() -> None:
    async with watching() as ward:
        engine = ward.engines["b1"]
        engine.log += steps(640)
        await until(lambda: (status := said(ward)) and status.fit)
        engine.log += steps(640, TRUTH.slowed(2.0), seed=2)
        found = await until(lambda: (s := said(ward)) and s.fit and s.fit.step_time.t0 > 1.7 * TRUTH.t0 and s)
        assert found.drifts >= 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seconds", [5e-324, 1e-300])
async def test_steps_to_which_nothing_can_be_fitted_end_no_watch_and_a_later_log_is_fitted(seconds: float) -> None:
    async with watching() as ward:
        odd = [replace(step, seconds=seconds * (1 + number % 3)) for number, step in enumerate(steps(300))]
        ward.engines["b1"].log += odd
        await until(lambda: ward.monitor._backends["b1"].steps.seen >= 300)
        ward.engines["b1"].log, ward.engines["b1"].log_began = list(steps(1300)), "2"
        found = await until(lambda: (s := said(ward)) and s.fit and s.fit.step_time.t0 > 0.1 * TRUTH.t0 and s)
        assert found.fit.step_time.t0 == pytest.approx(TRUTH.t0, rel=0.2)
        assert ward.state("b1") == "ready"


async def test_a_log_that_cannot_be_read_is_said_and_takes_nothing_from_the_replica() -> None:
    async with watching() as ward:
        ward.engines["b1"].logs = False
        status = await until(lambda: (s := said(ward)) and s.why and s)
        assert "did not answer" in status.why
        assert status.fit is None
        assert ward.state("b1") == "ready"
        ward.engines["b1"].logs = True
        await until(lambda: (s := said(ward)) is not None and not s.why)


async def test_engines_of_other_kinds_are_not_asked() -> None:
    async with watching("vllm") as ward:
        await until(lambda: ward.state("b1") == "ready")
        assert said(ward) is None
        assert ward.monitor._backends["b1"].reading is None
