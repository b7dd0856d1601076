"""A leader goes on from how far the one before had replicas reserved beyond their KV caches."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from tests.support.dispatch_world import Floors, catalog_of, dispatching, until_await
from tests.support.pool_gateway import make_gateway, ready
from tests.support.state_world import backend, entitlement


@pytest.mark.parametrize("times", [1, 4])
async def test_what_was_offered_under_the_leader_before_is_offered_on(
    redis_url: str, resp: RespConnection, pool_id: str, times: int
):
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        (one,) = gateway.pool.backends
        catalog, floors = catalog_of(gateway.pool, entitlement("acme", pool_id)), Floors()

        async def offered() -> int:
            return (await gateway.store.view()).backends[one.id].kv_tokens

        async with dispatching(redis_url, catalog, floors=floors) as first:
            await ready(first, gateway.store)
            await gateway.store.set_ready(first.epoch, one.id, replace(one, kv_tokens=times * one.kv_tokens))
            await first.resign()
        async with dispatching(redis_url, catalog, holder="leader-b", floors=floors) as second:
            await until_await(lambda: _leads(second))
            await asyncio.sleep(2.5)  # it has looked at the replica and told what it offers
            assert await offered() == times * one.kv_tokens


async def test_a_replica_that_was_full_is_not_offered_what_another_had_room_for(
    redis_url: str, resp: RespConnection, pool_id: str
):
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        roomy, full = (backend(name, pool=pool_id) for name in ("b1", "b2"))
        gateway.pool = replace(gateway.pool, backends=(roomy, full))
        catalog, floors = catalog_of(gateway.pool, entitlement("acme", pool_id)), Floors()

        async def offered() -> list[float]:
            there = (await gateway.store.view()).backends
            return [there[one.id].kv_tokens / one.kv_tokens for one in (roomy, full)]

        async with dispatching(redis_url, catalog, floors=floors) as first:
            await until_await(lambda: _are_ready(gateway.store, 2))
            for one, times in ((roomy, 7), (full, 2)):
                await gateway.store.set_ready(first.epoch, one.id, replace(one, kv_tokens=times * one.kv_tokens))
            await first.resign()
        async with dispatching(redis_url, catalog, holder="leader-b", floors=floors) as second:
            await until_await(lambda: _leads(second))
            await asyncio.sleep(2.5)  # it has looked at the replicas and told what they offer
            of_roomy, of_full = await offered()
            assert of_roomy == pytest.approx(7.0, abs=0.1)
            assert 2.0 <= of_full < 5.0, "calm, so it gets a tenth of the pool's overcommit back every 5 s"


async def _leads(dispatcher: object) -> bool:
    return getattr(dispatcher, "term", None) is not None


async def _are_ready(store: PoolStore, count: int) -> bool:
    return sum(b.ready for b in (await store.view()).backends.values()) == count
