"""Health over HTTP: the simulated engine hangs, dies and comes back while the leader watches it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from scheduling.core.types import BackendSpec, Catalog
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.engines.client import control_http
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tests.support.dispatch_world import catalog_of, dispatching, until
from tests.support.state_world import pool_spec


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in place of a quarter of a minute; what they mean is tested on virtual time."""
    monkeypatch.setattr("scheduling.dispatch.replicas.progress.STALLED_S", 1.5)
    monkeypatch.setattr("scheduling.dispatch.replicas.watched.PROBE_TIMEOUT_S", 1.0)


def served_by(server: SimulatedServer, pool_id: str) -> Catalog:
    spec = BackendSpec("sim-1", pool_id, server.url, 8, 8192)
    return catalog_of(pool_spec(pool_id, upstream_model="demo", backends=(spec,)))


def state(dispatcher: PoolDispatcher) -> str:
    return dispatcher.term.monitor.statuses()[0].state if dispatcher.term is not None else ""


@asynccontextmanager
async def busy(server: SimulatedServer, http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Long generations, one after the other."""

    async def generate() -> None:
        while True:
            ask = {"model": "demo", "prompt": "x", "max_tokens": 500, "ignore_eos": True}
            await http.post(server.url + "/v1/completions", json=ask, timeout=60)

    tasks = [asyncio.create_task(generate()) for _ in range(4)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_hung_engine_is_ejected_and_returns_after_a_generation(redis_url: str, pool_id: str):
    async with (
        serving(EngineOptions(model="demo", slots=8, kv_tokens=8192)) as server,
        control_http() as http,
        dispatching(redis_url, served_by(server, pool_id), over_http=True) as dispatcher,
    ):
        await until(lambda: state(dispatcher) == "ready")
        async with busy(server, http):
            await until(lambda: server.engine.running)
            await http.post(server.url + "/sim/fault", json={"stall": True})
            await until(lambda: state(dispatcher) == "ejected")
            assert (await http.get(server.url + "/health")).status_code == 200
            assert "no token moved" in dispatcher.term.monitor.statuses()[0].why  # type: ignore[union-attr]
        await http.post(server.url + "/sim/fault", json={"stall": 0})
        await until(lambda: state(dispatcher) == "ready")


async def test_a_busy_engine_stays_and_its_figures_are_seen(redis_url: str, pool_id: str):
    async with (
        serving(EngineOptions(model="demo", slots=8, kv_tokens=8192)) as server,
        control_http() as http,
        dispatching(redis_url, served_by(server, pool_id), over_http=True) as dispatcher,
    ):
        await until(lambda: state(dispatcher) == "ready")
        async with busy(server, http):
            await until(lambda: (dispatcher.term.monitor.statuses()[0].output_tokens_per_s or 0) > 0)  # type: ignore[union-attr]
            await asyncio.sleep(3.0)
            status = dispatcher.term.monitor.statuses()[0]  # type: ignore[union-attr]
            assert status.state == "ready"
            assert status.engine_running == 4
            assert status.gpu_util is not None
            assert status.gpu_mem_total_bytes is not None


async def test_a_dead_server_is_ejected_and_its_successor_admitted(redis_url: str, pool_id: str):
    options = EngineOptions(model="demo", slots=8, kv_tokens=8192)
    async with serving(options) as server:
        catalog = served_by(server, pool_id)
        dispatching_it = dispatching(redis_url, catalog, over_http=True)
        dispatcher = await dispatching_it.__aenter__()
        await until(lambda: state(dispatcher) == "ready")
    try:
        await until(lambda: state(dispatcher) == "ejected")
        async with serving(options) as successor:
            dispatcher.update(served_by(successor, pool_id))
            await until(lambda: state(dispatcher) == "ready")
    finally:
        await dispatching_it.__aexit__(None, None, None)
