"""An engine that stops in the middle of an answer: it has preempted it, or it hangs."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import httpx
import pytest

from scheduling.gateway import in_flight
from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world, until
from tests.support.redis_server import RedisServer

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


async def test_an_answer_is_given_up_where_nobody_knows_whether_its_replica_works(
    private_redis: RedisServer, pool_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Redis: a leader may have taken it out since this gateway looked."""
    monkeypatch.setattr(in_flight, "KNOWN_S", 2.0)
    async with gateway_world(private_redis.url, pool_id, config=CONFIG) as world, world.http() as client:
        world.engines[0].script = replace(world.engines[0].script, stall_after=1)
        asked = asyncio.create_task(ask(client))
        await begun(world)
        await asyncio.sleep(1.0)
        assert not asked.done(), "it was seen to work"
        private_redis.freeze()
        try:
            async with asyncio.timeout(10):
                assert "backend_stalled" in (await asked).text
        finally:
            private_redis.thaw()


async def test_a_machine_that_is_gone_is_missed_although_its_stream_may_be_silent(redis_url: str, pool_id: str) -> None:
    """The kernel asks it; that it may not answer for 20 s was measured with a network that was taken away."""
    async with gateway_world(redis_url, pool_id, config=CONFIG) as world, world.http() as client:
        world.engines[0].script = replace(world.engines[0].script, pause_s=1.0)
        asked = asyncio.create_task(ask(client))
        await begun(world)
        [submitted] = world.app._in_flight.calls.values()
        assert submitted.connection is not None
        assert submitted.connection._transport is not None
        option = submitted.connection._transport.get_extra_info("socket").getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        asks = [option(socket.IPPROTO_TCP, o) for o in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)]
        assert asks[0] + asks[1] * asks[2] == 20
        await asked
