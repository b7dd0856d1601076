"""A pool whose engines sleep: requests wait, are told how long where they would not, and are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx

from scheduling.core.types import BackendSpec, PoolSpec, ScalingMode, ScalingSpec
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until, until_await
from tests.support.gateway_world import World, gateway_world

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@dataclass
class Sleeper:
    world: World
    engine: SimulatedServer
    dispatcher: PoolDispatcher
    telemetry: Telemetry

    def state(self) -> str:
        assert self.dispatcher._term is not None
        return self.dispatcher._term.monitor.statuses()[0].state

    async def falls_asleep(self, http: httpx.AsyncClient) -> None:
        """As somebody puts it to sleep beside us."""
        answer = await http.post(self.engine.url + "/sleep?level=1&mode=wait")
        assert answer.json() == {"status": "sleeping", "level": 1}
        await until(lambda: self.state() == "asleep")


@asynccontextmanager
async def sleeper(
    redis_url: str, pool_id: str, *, max_wait_s: float, sleep_after_s: float = 0.0
) -> AsyncIterator[Sleeper]:
    options = EngineOptions(model="upstream", slots=8, kv_tokens=400_000, speed=10.0, dev_mode=True)
    async with serving(options) as engine, gateway_world(redis_url, pool_id, engines=0, lead=False) as world:
        world.granting = False
        pool = replace(
            world.pool,
            backends=(BackendSpec(f"{pool_id}-1", pool_id, engine.url, 8, 400_000),),
            upstream_model="upstream",
            sleep_after_s=sleep_after_s,
        )
        world.pool = pool
        world.entitlement = replace(world.entitlement, tier=replace(world.entitlement.tier, max_wait_s=max_wait_s))
        await world.configure()
        telemetry = Telemetry()
        catalog = catalog_of(pool, world.entitlement)
        async with dispatching(redis_url, catalog, telemetry=telemetry, over_http=True) as dispatcher:
            made = Sleeper(world, engine, dispatcher, telemetry)
            await until(lambda: dispatcher._term is not None and bool(dispatcher._term.monitor.statuses()))
            await until(lambda: made.state() == "ready")
            yield made


async def test_requests_to_a_model_that_sleeps_wake_it_and_are_served(redis_url: str, pool_id: str):
    async with sleeper(redis_url, pool_id, max_wait_s=60.0) as made, made.world.http() as client:
        async with httpx.AsyncClient(trust_env=False) as control:
            await made.falls_asleep(control)
        asked = [client.post("/v1/chat/completions", json=CHAT) for _ in range(3)]
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert made.engine.api is not None
        assert not made.engine.api.asleep
        assert all(float(answer.headers["x-quartermaster-queue-ms"]) > 0 for answer in answers)
        records = await until(lambda: made.telemetry.records if len(made.telemetry.records) == 3 else None)
        assert {record.outcome for record in records} == {"completed"}


async def test_who_would_not_wait_so_long_is_told_when_to_come_back_and_it_is_woken_meanwhile(
    redis_url: str, pool_id: str
):
    async with sleeper(redis_url, pool_id, max_wait_s=2.0) as made, made.world.http() as client:
        async with httpx.AsyncClient(trust_env=False) as control:
            await made.falls_asleep(control)
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503
        assert refused.headers["x-quartermaster-reason"] == "waking"
        assert float(refused.headers["retry-after"]) >= 2.0
        assert int(refused.headers["x-quartermaster-wakes-s"]) >= 2
        assert "asleep and is being woken" in refused.json()["error"]["message"]
        await until(lambda: made.state() == "ready")

        async def served() -> bool:  # shared state hears of it a moment after the leader's own
            return (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200

        await until_await(served)


async def test_an_idle_pool_goes_to_sleep_where_its_pool_says_so_and_wakes_for_the_next_request(
    redis_url: str, pool_id: str
):
    async with sleeper(redis_url, pool_id, max_wait_s=60.0, sleep_after_s=2.0) as made, made.world.http() as client:
        await until(lambda: made.state() == "asleep")
        assert made.engine.api is not None
        await until(lambda: made.engine.api is not None and made.engine.api.asleep)
        await until(lambda: bool(made.telemetry.samples) and made.telemetry.samples[-1].wakes_in_s > 0)
        assert not made.telemetry.samples[-1].wanted
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_requests_for_a_pool_without_any_replica_wait_until_somebody_adds_one(redis_url: str, pool_id: str):
    async with sleeper(redis_url, pool_id, max_wait_s=60.0) as made, made.world.http() as client:
        full = made.world.pool

        async def now(pool: PoolSpec) -> None:
            made.world.pool = pool
            await made.world.configure()
            made.dispatcher.update(catalog_of(pool, made.world.entitlement))

        to_zero = ScalingSpec(ScalingMode.AUTOMATIC, 0, 1, "local", idle_s=60.0)
        await now(replace(full, backends=(), wakes_in_s=30.0, scaling=to_zero))
        await until(lambda: made.telemetry.samples and made.telemetry.samples[-1].wakes_in_s == 30.0)
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await until(lambda: made.telemetry.samples[-1].wanted)
        assert sum(made.telemetry.samples[-1].waiting.values()) == 1
        await now(replace(full, wakes_in_s=30.0, scaling=to_zero))
        answer = await asked
        assert answer.status_code == 200
        assert answer.headers["x-quartermaster-wakes-s"] == "30", "what part of its wait was for"
        await until(lambda: not made.telemetry.samples[-1].wakes_in_s)
        after = await client.post("/v1/chat/completions", json=CHAT)
        assert "x-quartermaster-wakes-s" not in after.headers
