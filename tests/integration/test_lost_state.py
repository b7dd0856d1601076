"""Redis loses its data, by FLUSHALL or a start without persistence: what gateways and the ledger know is not lost.

The ledger's records come back from the gateways, running requests go on, buckets begin with what the ledger says was
used; everybody is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.web.health import LOOK_AGAIN_S, Readiness
from scheduling.core.admission.budget import debts
from scheduling.core.outcomes import Reason
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.ledger import unstored
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import BucketDebit, Fenced
from tests.reference.pool import ReferencePool
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until_await
from tests.support.gateway_world import World, gateway_world, until
from tests.support.pool_gateway import make_gateway, ready
from tests.support.redis_server import RedisServer
from tests.support.state_world import entitlement, ledger

CONFIG = GatewayConfig(renew_every_s=0.2)


@pytest.fixture
async def alone(private_redis: RedisServer, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(private_redis.url, pool_id, config=CONFIG) as made:
        yield made


async def ask(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5} | changes
    return await client.post("/v1/chat/completions", json=body)


async def lose(server: RedisServer, how: str) -> None:
    if how == "FLUSHALL":
        server.flush()
        return
    server.kill()
    await asyncio.to_thread(server.start)


async def lead_again(world: World) -> None:
    await until(lambda: world.resp.available and world.app._resp.available)
    await world.lead()


async def drain(world: World, count: int) -> set[str]:
    """The leader stores the oldest entries: they leave the stream."""
    entries = await world.store.ledger_read(count)
    await world.store.ledger_delete([e.id for e in entries])
    return {e.record.request_id for e in entries if e.record is not None}


@pytest.mark.parametrize("how", [pytest.param("FLUSHALL", marks=pytest.mark.slow), "SIGKILL"])
async def test_records_that_were_not_stored_yet_survive_the_loss_of_redis(
    alone: World, private_redis: RedisServer, how: str
):
    engine = alone.engines[0]
    async with alone.http() as client:
        for _ in range(8):
            assert (await ask(client)).status_code == 200
        assert (await ask(client, model="unknown")).status_code == 404
        await alone.ledger_of(9)
        await until(lambda: alone.metrics.gauges.get("unstored_records") == 9)
        stored = await drain(alone, 5)
        await until(
            lambda: alone.metrics.gauges.get("unstored_records") == 9
        )  # it cannot tell records of one look apart
        engine.script.pause_s = 0.1
        running = [asyncio.create_task(ask(client, stream=True, max_tokens=40)) for _ in range(3)]
        await until(lambda: engine.open == 3)
        await lose(private_redis, how)
        await lead_again(alone)
        for answer in await asyncio.gather(*running):
            assert answer.text.endswith("data: [DONE]\n\n")
    await alone.settled()

    async def back() -> bool:
        return len(stored | {r.request_id for r in await alone.ledger()}) == 12

    await until_await(back)
    counted = Counter(r.request_id for r in await alone.ledger())
    assert set(counted.values()) == {1}, "a record is on the stream twice"


@pytest.mark.slow
async def test_without_the_records_that_gateways_keep_they_would_be_lost(
    alone: World, private_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """The broken variant: what the test above would see."""
    monkeypatch.setattr(unstored.Unstored, "took", lambda self, record: None)
    async with alone.http() as client:
        for _ in range(3):
            assert (await ask(client)).status_code == 200
        await alone.ledger_of(3)
        private_redis.flush()
        await alone.lead()
        assert (await ask(client)).status_code == 200
        await asyncio.sleep(2 * unstored.EVERY_S)
    assert len(await alone.ledger()) == 1


async def test_what_is_stored_is_let_go_and_not_sent_again(alone: World, private_redis: RedisServer):
    gauges = alone.metrics.gauges
    async with alone.http() as client:
        for _ in range(4):
            assert (await ask(client)).status_code == 200
        await alone.ledger_of(4)
        await until(lambda: gauges.get("unstored_records") == 4)
        await asyncio.sleep(2 * unstored.EVERY_S)
        assert gauges["unstored_records"] == 4
        await drain(alone, 4)
        await until(lambda: gauges["unstored_records"] == 0)
        private_redis.flush()
        await alone.lead()
        assert (await ask(client)).status_code == 200
        await alone.ledger_of(1)
        await asyncio.sleep(2 * unstored.EVERY_S)
        await alone.ledger_of(1)


async def test_what_is_kept_is_bounded(private_redis: RedisServer, pool_id: str):
    config = GatewayConfig(renew_every_s=0.2, backlog_limit=5)
    async with gateway_world(private_redis.url, pool_id, config=config) as world, world.http() as client:
        for _ in range(12):
            assert (await ask(client)).status_code == 200
        await until(lambda: world.metrics.gauges.get("unstored_records") == 5)


async def test_a_replica_that_took_over_without_the_last_records_gets_them_again(alone: World):
    """The same data set, a second older: replication is asynchronous."""
    async with alone.http() as client:
        assert (await ask(client)).status_code == 200
        [first] = await alone.ledger_of(1)
        assert (await ask(client)).status_code == 200
        (entry,) = (await alone.store.ledger_read(9))[1:]
        assert entry.record is not None
        prefix = f"qm:{{{alone.pool.id}}}:"
        await alone.resp.call("XDEL", prefix + "ledger", entry.id)
        await alone.resp.call("DEL", f"{prefix}ended:{entry.record.request_id}")
        assert [r.request_id for r in await alone.ledger()] == [first.request_id]
        wire = alone.app._resp._wire
        assert wire is not None
        wire.close("another node took over")
        assert {r.request_id for r in await alone.ledger_of(2)} == {first.request_id, entry.record.request_id}


async def state_of(world: World) -> dict[bytes, bytes]:
    """What a replica has of the pool now."""
    keys = await world.resp.call("KEYS", f"qm:{{{world.pool.id}}}:*")
    return {key: await world.resp.call("DUMP", key) for key in keys}


BECOME = """
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end
for i = 2, #ARGV, 2 do redis.call('RESTORE', ARGV[i], 0, ARGV[i + 1]) end
"""


async def take_over(world: World, state: dict[bytes, bytes]) -> None:
    """A replica that had nothing after ``state`` becomes the node that everybody asks."""
    wire = world.app._resp._wire
    assert wire is not None
    words = [word for pair in state.items() for word in pair]
    await world.resp.call("EVAL", BECOME, 0, f"qm:{{{world.pool.id}}}:*", *words)
    wire.close("another node took over")


async def test_a_replica_that_took_over_before_a_request_ended_is_told_its_end(alone: World):
    """It has the lease, which would end as ``gateway_lost``, without tokens."""
    engine = alone.engines[0]
    engine.script.pause_s = 0.05
    async with alone.http() as client:
        running = asyncio.create_task(ask(client, stream=True, max_tokens=20))
        await until(lambda: engine.open == 1)
        before = await state_of(alone)
        assert (await running).text.endswith("data: [DONE]\n\n")
        await alone.settled()
        await take_over(alone, before)
        assert await alone.running() == (1, 0)
        [record] = await alone.ledger_of(1)
        assert (record.reason, record.output_tokens) == ("length", 20)
        assert await alone.running() == (0, 0)


async def test_a_stream_goes_on_where_a_replica_took_over_that_still_has_it_waiting(alone: World):
    engine, [backend] = alone.engines[0], alone.pool.backends
    engine.script.pause_s = 0.05
    await alone.store.set_ready(alone.epoch, backend.id, replace(backend, slots=1))
    alone.granting = False
    async with alone.http() as client:
        streams = [asyncio.create_task(ask(client, stream=True, max_tokens=60)) for _ in range(2)]

        async def one_waits() -> bool:
            return await alone.running() == (1, 1)

        await until_await(one_waits)
        before = await state_of(alone)
        await alone.store.set_ready(alone.epoch, backend.id, replace(backend, slots=2))
        alone.granting = True
        await until(lambda: engine.open == 2)
        alone.granting = False
        await take_over(alone, before)

        async def both_run() -> bool:
            return await alone.running() == (2, 0)

        await until_await(both_run)
        for answer in await asyncio.gather(*streams):
            assert answer.text.endswith("data: [DONE]\n\n")
    assert [r.reason for r in await alone.ledger_of(2)] == ["length", "length"]
    await alone.settled()


async def test_a_loss_is_logged_and_told_to_readyz_and_dashboards(
    private_redis: RedisServer, pool_id: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    telemetry = Telemetry()
    resp = RespConnection(private_redis.url)
    await resp.start()
    spec = entitlement("acme", pool_id)
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={pool_id: None}))
    readiness = Readiness(cast(Any, catalog), private_redis.url)
    await readiness.start()
    async with (
        make_gateway(private_redis.url, resp, pool_id) as gateway,
        dispatching(private_redis.url, catalog_of(gateway.pool, spec), telemetry=telemetry) as dispatcher,
    ):
        await ready(dispatcher, gateway.store)
        assert (await gateway.store.view()).lost_ms == 0
        assert (await readiness.look())[1]["pools"][pool_id]["state_lost"] is None
        private_redis.flush()

        async def told() -> bool:
            return (await gateway.store.view()).lost_ms > 0

        await until_await(told)
        await ready(dispatcher, gateway.store)
        await until(lambda: bool(telemetry.samples) and telemetry.samples[-1].state_lost_s > 0)
        await asyncio.sleep(LOOK_AGAIN_S * 1.1)
        assert (await readiness.look())[1]["pools"][pool_id]["state_lost"]
        assert len([r for r in caplog.records if "Redis lost its data" in r.getMessage()]) == 1
    await readiness.stop()
    await resp.close()


# --- buckets


@pytest.mark.parametrize(
    "restored",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["", "broken variant: nothing is debited"],
)
async def test_buckets_begin_with_what_the_ledger_says_was_used(
    private_redis: RedisServer, pool_id: str, restored: bool, monkeypatch: pytest.MonkeyPatch
):
    if not restored:
        monkeypatch.setattr(Telemetry, "bucket_debts", lambda *_: {})
    telemetry = Telemetry()
    resp = RespConnection(private_redis.url)
    await resp.start()
    spec = entitlement("acme", pool_id, tokens_per_s=0.5, burst_tokens=1000.0)
    idle = entitlement("idle", pool_id, tokens_per_s=0.5, burst_tokens=1000.0)
    async with (
        make_gateway(private_redis.url, resp, pool_id) as gateway,
        dispatching(private_redis.url, catalog_of(gateway.pool, spec, idle), telemetry=telemetry) as dispatcher,
    ):
        await ready(dispatcher, gateway.store)
        for n in range(4):
            await gateway.admit(f"r{n}", spec)
            record = ledger(f"r{n}", pool=pool_id, entitlement="acme", received_s=time.time(), done_s=time.time())
            await gateway.store.finish(f"r{n}", 1, Reason.STOP, 140, True, record)
        await until(lambda: len(telemetry.records) == 4)
        used = sum(r.input_tokens + r.output_tokens for r in telemetry.records)
        before = (await gateway.store.view()).entitlements["acme"].level_tokens
        assert before is not None
        assert 1000 - before == pytest.approx(4 * 140, abs=10)
        private_redis.flush()
        await ready(dispatcher, gateway.store)

        async def admits() -> bool:
            view = await gateway.store.view()
            return view.lost_ms > 0 and not view.rebuilding_ms

        await until_await(admits)
        level = (await gateway.admit("next", spec)).level_tokens
        assert level is not None
        if restored:
            assert level == pytest.approx(1000 - used - 150, abs=15)
            assert (await gateway.admit("other", idle)).level_tokens == pytest.approx(850, abs=5)
        else:
            assert level == pytest.approx(850, abs=5), "a second burst"
    await resp.close()


async def test_a_bucket_is_debited_once_whoever_leads(pool_store: PoolStore, pool_id: str):
    reference = ReferencePool(pool_id, lambda: 1_700_000_000_000)
    for pool in (pool_store, reference):

        async def call(name: str, *args: Any, pool: Any = pool) -> Any:
            found = getattr(pool, name)(*args)
            return await found if asyncio.iscoroutine(found) else found

        epoch = (await call("elect", "leader", 0, False)).epoch
        debits = [BucketDebit(f"e{n}", 100.0 + n, 0.001, 1000.0) for n in range(3)]
        with pytest.raises(Fenced):
            await call("debit", epoch + 1, 0, debits)
        assert await call("debit", epoch, 0, debits[:2]) == 2
        assert await call("debit", epoch, 0, debits[:2]) == 2
        assert await call("debit", epoch, 2, debits[2:]) == 3
        levels = {n: e.level_tokens for n, e in (await call("view")).entitlements.items()}
        assert levels == {f"e{n}": pytest.approx(900.0 - n, abs=0.1) for n in range(3)}


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 400)), max_size=30),
    st.floats(0.1, 200),
    st.floats(10, 2000),
)
def test_what_a_bucket_lacks_is_what_a_bucket_would_have_lacked(
    taken: list[tuple[float, int]], rate: float, depth: float
):
    level, now_s, times = depth, 0.0, []
    for gap_s, tokens in taken:
        now_s += gap_s
        level = min(depth, level + rate * gap_s) - tokens
        times.append((now_s, tokens))
    found = debts([("e", now_s - at_s, tokens) for at_s, tokens in reversed(times)], {"e": (rate, depth)})
    assert found.get("e", 0.0) == pytest.approx(min(depth, depth - level), abs=1e-6)


@pytest.mark.parametrize("how", ["FLUSHALL", pytest.param("SIGKILL", marks=pytest.mark.slow)])
async def test_a_repeated_request_is_not_run_again_after_a_loss(alone: World, private_redis: RedisServer, how: str):
    headers = {"Idempotency-Key": "order-7"}
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    async with alone.http() as client:
        assert (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        pools = alone.app._outbox.unstored._pools
        await until(lambda: alone.pool.id in pools and bool(pools[alone.pool.id].born))
        await lose(private_redis, how)
        await lead_again(alone)

        async def told() -> bool:
            return bool(await alone.resp.call("KEYS", "qm:idem:*:done"))

        await until_await(told)
        again = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_done")
    assert len(alone.engines[0].bodies) == 1
