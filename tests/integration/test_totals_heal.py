"""Totals are sums over leases and queue. What goes wrong with one, by whatever hand, its leader puts right."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.web.health import LOOK_AGAIN_S, Readiness
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import AdmissionStatus
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until, until_await
from tests.support.pool_gateway import make_gateway, ready
from tests.support.state_world import entitlement


async def sound(store: PoolStore) -> bool:
    return (await store.view()).differences() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": 99},
        {"run": 1, "e:acme:run": 1, "b:b1:run": 1},  # as a lease that was dropped without its sums
        {"e:acme:run": 99},
        {"b:b1:run": 99},
        {"wait": 7, "able": 7},
        {"run": -3},
        {"run": "many"},
    ],
    ids=str,
)
async def test_a_wrong_total_is_rewritten_and_grants_go_on(
    redis_url: str,
    resp: RespConnection,
    pool_id: str,
    wrong: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    figure: Callable[[str], None],
):
    spec, telemetry = entitlement("acme", pool_id), Telemetry()
    async with (
        make_gateway(redis_url, resp, pool_id) as gateway,
        dispatching(redis_url, catalog_of(gateway.pool, spec), telemetry=telemetry) as dispatcher,
    ):
        await ready(dispatcher, gateway.store)
        words = [word for name, value in wrong.items() for word in (name, str(value))]
        await resp.call("HSET", f"qm:{{{pool_id}}}:totals", *words)  # at once: the leader looks each second
        began = asyncio.get_running_loop().time()

        async def healed() -> bool:
            return (await gateway.store.view()).rebuilt == 1

        with caplog.at_level(logging.ERROR, "quartermaster.dispatch"):
            await until_await(healed)
        figure(f"{' '.join(words)}: right after {asyncio.get_running_loop().time() - began:.1f} s")
        assert await sound(gateway.store)
        assert await resp.call("HGETALL", f"qm:{{{pool_id}}}:totals") == []
        assert (await gateway.admit("r1", spec)).status is AdmissionStatus.GRANTED
        assert (await gateway.admit("r2", spec)).status is AdmissionStatus.QUEUED
        await gateway.finish("r1")
        assert await gateway.serve_all(1) == ["r2"]
        assert (await gateway.store.view()).running == 0
        await until(lambda: telemetry.samples[-1].totals_rebuilt == 1)
        assert next(iter(wrong)) in caplog.text


async def test_a_new_leader_compares_every_total_at_once(redis_url: str, resp: RespConnection, pool_id: str):
    """KV and work have no count that they could be compared with each second."""
    spec = entitlement("acme", pool_id)
    key = f"qm:{{{pool_id}}}:totals"
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        catalog = catalog_of(gateway.pool, spec)
        async with dispatching(redis_url, catalog) as dispatcher:
            await ready(dispatcher, gateway.store)
            await gateway.admit("r1", spec)
        before = dict(await totals(resp, key))
        await resp.call("HSET", key, "b:b1:kv", "10000000", "due", "5")
        async with dispatching(redis_url, catalog, holder="leader-b"):

            async def same() -> bool:
                return await totals(resp, key) == before

            await until_await(same)


async def test_every_total_is_compared_now_and_then(
    redis_url: str, resp: RespConnection, pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("scheduling.dispatch.totals.COMPARE_S", 1.0)
    spec = entitlement("acme", pool_id)
    key = f"qm:{{{pool_id}}}:totals"
    async with (
        make_gateway(redis_url, resp, pool_id) as gateway,
        dispatching(redis_url, catalog_of(gateway.pool, spec)) as dispatcher,
    ):
        await ready(dispatcher, gateway.store)
        await gateway.admit("r1", spec)
        before = await totals(resp, key)
        await resp.call("HSET", key, "b:b1:work", "10000000", "e:acme:kv", "-4")

        async def same() -> bool:
            return await totals(resp, key) == before

        await until_await(same)


async def test_entries_and_expiries_without_each_other_end(redis_url: str, resp: RespConnection, pool_id: str):
    """An entry without expiry was never swept; an expiry without entry stopped every sweep."""
    prefix, spec = f"qm:{{{pool_id}}}:", entitlement("acme", pool_id)
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        epoch = (await gateway.store.elect("leader", 0, first_start=True)).epoch
        await gateway.store.set_ready(epoch, "b1", gateway.pool.backends[0])
        await gateway.admit("r1", spec)
        await gateway.admit("r2", spec)
        await resp.call("DEL", prefix + "leases")
        await resp.call("ZADD", prefix + "waiting", 1, "nobody")
        assert {"leases", "waiting"} == set(await gateway.store.rebuild(epoch))
        assert float(await resp.call("ZSCORE", prefix + "leases", "r1")) > 0
        assert await resp.call("ZRANGE", prefix + "waiting", 0, -1) == [b"r2"]
        assert await sound(gateway.store)


async def test_readyz_names_totals_that_differ(redis_url: str, resp: RespConnection, pool_id: str):
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={pool_id: None}))
    readiness = Readiness(cast(Any, catalog), redis_url)
    await readiness.start()
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        epoch = (await gateway.store.elect("leader", 0, first_start=True)).epoch
        await gateway.store.set_ready(epoch, "b1", gateway.pool.backends[0])
        assert (await readiness.look())[0]
        await resp.call("HSET", f"qm:{{{pool_id}}}:totals", "run", 16)
        await asyncio.sleep(LOOK_AGAIN_S * 1.1)
        serves, report = await readiness.look()
        assert not serves
        assert f"the state of pool {pool_id}: run is 16, leases 0" in report["waiting_for"]
        await gateway.store.rebuild(epoch)
        await asyncio.sleep(LOOK_AGAIN_S * 1.1)
        serves, report = await readiness.look()
        assert serves
        assert report["pools"][pool_id]["totals_rebuilt"]["count"] == 1
    await readiness.stop()


async def totals(resp: RespConnection, key: str) -> dict[bytes, bytes]:
    flat = await resp.call("HGETALL", key)
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize(
    ("wrong", "left"),
    [
        ({"level": "1e12"}, 1000.0),
        ({"at": "99999999999999"}, 850.0),
        ({"level": "nothing"}, None),
        ({"depth": ""}, None),
        ({"level": "nan"}, None),
    ],
    ids=str,
)
async def test_a_bucket_that_cannot_be_true_is_put_right(
    resp: RespConnection, redis_url: str, pool_id: str, wrong: dict[str, str], left: float | None
):
    spec = entitlement("acme", pool_id, tokens_per_s=0.001, burst_tokens=1000.0)
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        epoch = (await gateway.store.elect("leader", 0, first_start=True)).epoch
        await gateway.store.set_ready(epoch, "b1", gateway.pool.backends[0])
        assert (await gateway.admit("r1", spec)).level_tokens == pytest.approx(850, abs=1)
        assert await gateway.store.rebuild(epoch) == []
        for name, value in wrong.items():
            await resp.call("HSET", f"qm:{{{pool_id}}}:buckets", f"acme:{name}", value)
        assert await gateway.store.rebuild(epoch) == ["bucket:acme"]
        assert await gateway.store.rebuild(epoch) == []
        level = (await gateway.store.view()).entitlements["acme"].level_tokens
        assert level == (left if left is None else pytest.approx(left, abs=1))
