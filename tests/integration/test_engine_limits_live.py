"""A replica whose slots were typed too large: nothing of ours waits inside its engine. Real gateway, leader and Redis,
a simulated engine over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from scheduling.core.types import BackendSpec, OverLimit
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tests.support.dispatch_world import catalog_of, dispatching, until_await
from tests.support.gateway_world import TIER, World, gateway_world

ASKED = 40
RUNS = 4  # what the engine runs at once
PATIENT = replace(TIER, over_limit=OverLimit.WAIT, max_wait_s=600.0)


async def waiting_inside(world: World, server: SimulatedServer) -> tuple[int, int]:
    """How many of :data:`ASKED` requests stood in the engine's own queue and in the pool's, at most."""
    inside = outside = 0
    async with world.sdk() as client:
        asked = [
            asyncio.ensure_future(client.completions.create(model="demo", prompt=f"{n}", max_tokens=8))
            for n in range(ASKED)
        ]
        while not all(task.done() for task in asked):
            inside = max(inside, server.engine.waiting)
            outside = max(outside, (await world.running())[1])
            await asyncio.sleep(0.02)
        await asyncio.gather(*asked)
    return inside, outside


@pytest.mark.parametrize(
    "says", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["it says its limit", "it was seen to"]
)
async def test_slots_typed_too_large_do_not_move_the_queue_into_the_engine(
    redis_url: str, pool_id: str, says: bool
) -> None:
    options = EngineOptions(model="fake-upstream", slots=RUNS, kv_tokens=8192, speed=2.0, dev_mode=says)
    async with serving(options) as server, gateway_world(redis_url, pool_id, lead=False) as world:
        one = BackendSpec(f"{pool_id}-b0", pool_id, server.url, 1000, 10**9)
        world.entitlement = replace(world.entitlement, tier=PATIENT)
        await world.configure(pool={"backends": (one,)})
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True):

            async def slots() -> int:
                seen = (await world.store.view()).backends.get(one.id)
                return seen.slots if seen is not None and seen.ready else 0

            async def offered() -> bool:
                return 0 < await slots() <= RUNS

            if says:
                await until_await(offered)
            else:  # it learns from the first requests, which were let in
                await until_await(lambda: ready(slots))
                async with world.sdk() as client:
                    first = [
                        asyncio.ensure_future(
                            client.completions.create(
                                model="demo", prompt="x", max_tokens=900, extra_body={"ignore_eos": True}
                            )
                        )
                        for _ in range(4 * RUNS)
                    ]
                    await until_await(offered, 60)
                    for task in first:
                        task.cancel()
                    await asyncio.gather(*first, return_exceptions=True)
                await until_await(lambda: empty(server))
            inside, outside = await waiting_inside(world, server)
            assert inside <= 2
            assert outside >= ASKED - RUNS - 2, "they wait where the policy reaches them"


async def ready(slots: object) -> bool:
    return await slots() > 0  # type: ignore[operator]


async def empty(server: SimulatedServer) -> bool:
    return not server.engine.running and not server.engine.waiting
