"""A gateway process is killed in mid-stream (docs/reference/promises.md, 5): engines at once, slots by their lease."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from scheduling.core.types import BackendSpec
from scheduling.gateway.config import GatewayConfig
from tests.support.dispatch_world import catalog_of, dispatching, until, until_await
from tests.support.gateway_process import gateway_process
from tests.support.gateway_world import gateway_world

ENGINES_S, SLOTS_S = 20.0, 60.0  # promised are 2 s and 15 s; a busy machine is no reason to fail


async def killed(redis_url: str, pool_id: str, streams: int) -> None:
    async with gateway_world(redis_url, pool_id, lead=False, config=GatewayConfig()) as world:
        engine = world.engines[0]
        engine.script.pause_s = 0.5
        backend = BackendSpec(f"{pool_id}-b0", pool_id, engine.url, streams, 10_000_000)
        await world.configure(pool={"backends": (backend,)})
        async with (
            dispatching(redis_url, catalog_of(world.pool, world.entitlement), over_http=True),
            gateway_process(world, GatewayConfig()) as (process, port),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):

            async def ready() -> bool:
                return any(b.ready for b in (await world.store.view()).backends.values())

            await until_await(ready, 60)

            async def stream() -> None:
                body = {"model": "demo", "prompt": "x", "max_tokens": 4_000, "stream": True}
                headers = {"authorization": f"Bearer {world.key}"}
                url = f"http://127.0.0.1:{port}/v1/completions"
                async with session.post(url, json=body, headers=headers) as answer:
                    await answer.read()

            running = [asyncio.create_task(stream()) for _ in range(streams)]
            await until(lambda: engine.open == streams, timeout_s=60)
            assert await world.running() == (streams, 0)
            began = time.monotonic()
            process.kill()
            await until(lambda: engine.open == 0, timeout_s=ENGINES_S)
            engines_s = time.monotonic() - began

            async def free() -> bool:
                return await world.running() == (0, 0)

            await until_await(free, SLOTS_S)
            slots_s = time.monotonic() - began
            ended = await asyncio.gather(*running, return_exceptions=True)
            assert all(isinstance(e, aiohttp.ClientError) for e in ended), "a client was told of a whole answer"
    print(f"\n{streams} streams: engines free {engines_s:.2f} s after SIGKILL, slots {slots_s:.1f} s")


async def test_engines_of_a_killed_gateway_are_free_at_once_and_its_slots_with_their_leases(
    redis_url: str, pool_id: str
) -> None:
    await killed(redis_url, pool_id, 60)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_hundred_streams_of_a_killed_gateway(redis_url: str, pool_id: str) -> None:
    await killed(redis_url, pool_id, 200)
