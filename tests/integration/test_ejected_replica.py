"""A replica hangs under a real gateway and a real leader: what it holds without a byte runs elsewhere."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from controlplane import sse
from scheduling.core.types import BackendSpec
from scheduling.engines.simulated.server import EngineOptions, serving
from scheduling.gateway.config import GatewayConfig
from tests.support.dispatch_world import catalog_of, dispatching, until
from tests.support.gateway_world import World, gateway_world

CONFIG = GatewayConfig(first_token_timeout_s=110.0, idle_token_timeout_s=8.0, retry_floor=20)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in place of a quarter of a minute; what they mean is tested on virtual time."""
    monkeypatch.setattr("scheduling.dispatch.replicas.progress.STALLED_S", 1.5)
    monkeypatch.setattr("scheduling.dispatch.replicas.progress.DOUBTFUL_S", 1.5)
    monkeypatch.setattr("scheduling.dispatch.replicas.watched.PROBE_TIMEOUT_S", 1.0)


async def ask(client: httpx.AsyncClient, stream: bool, tokens: int) -> httpx.Response:
    body = {"model": "demo", "prompt": "x", "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return await client.post("/v1/completions", json=body)


def runs_at(world: World, backend: str, *, responding: bool) -> int:
    return sum(c.backend == backend and c.call.responding is responding for c in world.app._in_flight.calls.values())


def error_of(answer: httpx.Response) -> str:
    frames = [event for event in sse.events_of(answer.text) if event != sse.DONE]
    return frames[-1].get("error", {}).get("code", "")


async def test_what_a_hung_replica_holds_without_a_byte_completes_elsewhere(redis_url: str, pool_id: str):
    options = EngineOptions(model="fake-upstream", slots=16, kv_tokens=65536)
    async with (
        serving(options) as ill,
        serving(options) as well,
        gateway_world(redis_url, pool_id, engines=0, lead=False, config=CONFIG) as world,
        world.http() as client,
    ):
        names = {server: f"{pool_id}-{name}" for server, name in ((ill, "ill"), (well, "well"))}
        backends = tuple(BackendSpec(name, pool_id, server.url, 16, 65536) for server, name in names.items())
        await world.configure(pool={"backends": backends})
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True) as dispatcher:

            def states() -> set[str]:
                return {s.state for s in dispatcher.term.monitor.statuses()} if dispatcher.term else set()

            await until(lambda: states() == {"ready"})
            begun = [asyncio.create_task(ask(client, True, 600)) for _ in range(4)]
            await until(lambda: runs_at(world, names[ill], responding=True) == 2)
            await until(lambda: runs_at(world, names[well], responding=True) == 2)
            async with httpx.AsyncClient() as control:
                await control.post(ill.url + "/sim/fault", json={"hang": True, "stall": True})
            late = [asyncio.create_task(ask(client, n % 2 == 0, 20)) for n in range(12)]
            await until(lambda: runs_at(world, names[ill], responding=False) >= 4)

            answers = await asyncio.gather(*late)
            assert [a.status_code for a in answers] == [200] * 12
            assert [error_of(a) for a in answers[::2]] == [""] * 6
            assert "ejected" in states()
            ends = [error_of(a) for a in await asyncio.gather(*begun)]
            assert sorted(ends) == ["", "", "backend_stalled", "backend_stalled"]
            records = await until(lambda: world.metrics.records if len(world.metrics.records) == 16 else None)
            moved = [r for r in records if r.attempts == 2]
            assert len(moved) >= 4
            assert {(r.backend, r.outcome) for r in moved} == {(names[well], "completed")}
            assert not ill.engine.running
