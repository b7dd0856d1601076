"""An engine that stops in the middle of an answer: it has preempted it, or it hangs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx

from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world, until

CONFIG = GatewayConfig(first_token_timeout_s=60.0, idle_token_timeout_s=0.3, renew_every_s=0.05)


async def ask(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 3, "stream": True})


async def begun(world: World) -> None:
    await until(lambda: any(c.call.responding for c in world.app._in_flight.calls.values()))


async def test_an_answer_goes_on_after_a_silence_where_its_replica_works(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as world, world.http() as client:
        world.engines[0].script = replace(world.engines[0].script, pause_s=1.5)
        answer = await ask(client)
        assert answer.text.endswith("[DONE]\n\n")
        assert (await world.ledger_of(1))[0].outcome == "completed"


async def test_an_answer_whose_silent_replica_is_taken_out_is_given_up(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as world, world.http() as client:
        world.engines[0].script = replace(world.engines[0].script, stall_after=1)
        asked = asyncio.create_task(ask(client))
        await begun(world)
        await asyncio.sleep(1.0)
        assert not asked.done(), "its replica works"
        await world.store.set_ready(world.epoch, world.pool.backends[0].id, None, ejected=True)
        async with asyncio.timeout(10):
            assert "backend_stalled" in (await asked).text
