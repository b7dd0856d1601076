"""A gateway is cut off from Redis for longer than a lease, and serves on: the leader gives its requests up as lost,
and the ledger is put right when it comes back, once, whichever way it tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest

from scheduling.core.outcomes import Reason
from scheduling.gateway.config import GatewayConfig
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import LedgerEntry
from tests.support.gateway_world import World, gateway_world, until
from tests.support.lossy_redis import LossyRedis, lossy_redis

CONFIG = GatewayConfig(renew_every_s=0.2)


class Parted(NamedTuple):
    world: World
    way: LossyRedis
    store: PoolStore  # of the leader, who is not cut off

    async def give_up(self) -> str:
        """The leader's sweep, once the lease has run out; of which request."""
        [request_id] = self.world.app._in_flight.calls
        resp = self.store._resp
        await resp.call(b"ZADD", f"qm:{{{self.world.pool.id}}}:leases", b"XX", b"1", request_id)
        [swept] = await self.store.sweep(self.world.epoch)
        return swept.request_id

    async def ends(self, count: int) -> list[LedgerEntry]:
        async with asyncio.timeout(20):
            while len(entries := await self.store.ledger_read(100)) < count:
                await asyncio.sleep(0.02)
        return entries


@pytest.fixture
async def parted(redis_url: str, pool_id: str) -> AsyncIterator[Parted]:
    resp = RespConnection(redis_url, name="test-far-leader")
    await resp.start()
    async with lossy_redis(redis_url) as way, gateway_world(way.url, pool_id, config=CONFIG) as world:
        world.granting = False
        yield Parted(world, way, PoolStore(resp, pool_id))
        way.cut = False
    await resp.close()


async def ask(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "stream": True} | changes
    return await client.post("/v1/chat/completions", json=body)


async def test_an_answer_that_ended_while_its_gateway_was_cut_off_is_put_right_in_the_ledger(parted: Parted):
    world, way, store = parted
    world.engines[0].script.pause_s = 0.05
    async with world.http() as client:
        running = asyncio.create_task(ask(client, max_tokens=20))
        await until(lambda: world.engines[0].open == 1)
        way.cut_off()
        await parted.give_up()
        assert (await running).text.endswith("data: [DONE]\n\n")
    way.cut = False
    lost, said = await parted.ends(2)
    assert lost.record is not None
    assert said.record is not None
    assert (lost.record.reason, lost.record.output_tokens) == ("gateway_lost", 0)
    assert (said.record.reason, said.record.output_tokens) == ("length", 20)
    assert said.record.request_id == lost.record.request_id
    assert said.took == 0, "its charge was taken when it was given up"
    await world.settled()
    again = await store.finish(said.record.request_id, 1, Reason.LENGTH, 20, True, said.record)
    await store.record([said.record])
    assert again.status.value == "ended"
    assert len(await store.ledger_read(100)) == 2


async def test_a_stream_that_is_ended_for_its_lost_lease_is_paid_as_far_as_it_came(parted: Parted):
    world, way, _ = parted
    world.engines[0].script.pause_s = 0.05
    async with world.http() as client:
        running = asyncio.create_task(ask(client, max_tokens=400))
        await until(lambda: world.engines[0].open == 1)
        way.cut_off()
        await parted.give_up()
        way.cut = False
        assert "lease_lost" in (await running).text
    _, said = await parted.ends(2)
    assert said.record is not None
    assert said.record.reason == "lease_lost"
    assert said.record.output_tokens > 0


async def test_an_end_that_is_told_again_after_it_was_given_up_is_put_right(parted: Parted):
    """A replica took over that lacked it, and its lease ran out there before its gateway came."""
    world, _, store = parted
    world.engines[0].script.pause_s = 0.05
    async with world.http() as client:
        running = asyncio.create_task(ask(client, max_tokens=5))
        await until(lambda: world.engines[0].open == 1)
        lease = f"qm:{{{world.pool.id}}}:"
        [request_id] = world.app._in_flight.calls
        held = await store._resp.call(b"HGET", f"{lease}held", request_id)
        await running
    [told] = await parted.ends(1)
    assert told.record is not None
    await store._resp.call(b"DEL", f"{lease}ended:{request_id}", f"{lease}ledger")
    await store._resp.call(b"HSET", f"{lease}held", request_id, held)
    await store._resp.call(b"ZADD", f"{lease}leases", b"1", request_id)
    assert len(await store.sweep(world.epoch)) == 1
    assert await store.record([told.record]) == set()
    assert await store.record([told.record]) == set()
    reasons = [e.record.reason for e in await store.ledger_read(100) if e.record is not None]
    assert reasons == ["gateway_lost", "length"]
