"""No leader, no idle slots: while nobody leads, free slots go to who waits, and a leader that comes back is in step."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controlplane.web import health
from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementSpec, OverLimit, ServiceClass
from scheduling.state import codec
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import GRANTS_AT_ONCE, AdmissionStatus, GrantItem, RenewStatus, gateway_channel
from tests.support.dispatch_world import catalog_of, dispatching, until, until_await
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, pool_spec, request, tier

POOL = pool_spec(queue_limit=5000, queue_bytes=10**9)
OWNER = entitlement(
    "owner",
    concurrency=1,
    tier=tier(service_class=ServiceClass.GUARANTEED, over_limit=OverLimit.WAIT, queue_limit=2000),
)
SPOT = entitlement(
    "spot", concurrency=8, tier=tier(service_class=ServiceClass.SPOT, over_limit=OverLimit.WAIT, queue_limit=2000)
)
ELASTIC = entitlement("elastic", concurrency=1, tier=tier(over_limit=OverLimit.WAIT, queue_limit=2000))


class Pool:
    """One pool, of which a test decides whether anybody leads it."""

    def __init__(self, store: PoolStore, resp: RespConnection) -> None:
        self.store, self.resp = store, resp
        self.granted: list[str] = []

    async def led(self, slots: int = 1, kv_tokens: int = 100_000) -> int:
        epoch = (await self.store.elect("leader-a", 0, first_start=True)).epoch
        await self.store.set_ready(epoch, "b1", backend(slots=slots, kv_tokens=kv_tokens))
        await leads_on(self.store)
        return epoch

    async def left(self) -> None:
        await self.store.resign("leader-a")

    async def admit(
        self, name: str, spec: EntitlementSpec, tokens: int = 100, gateway: str = "gw-1"
    ) -> AdmissionStatus:
        est = estimate(tokens)
        asked = request(name, spec, est, gateway=f"{gateway}-{self.store.pool_id}")
        return (await self.store.admit(spec, POOL, asked, est, 300, FACTS)).status

    async def finish(self, name: str) -> None:
        await self.store.finish(name, 1, Reason.STOP, 10, True, ledger(name))

    async def running(self) -> list[str]:
        flat = await self.resp.call(b"HKEYS", self.store._key("held"))
        return sorted(name.decode() for name in flat)

    def heard(self, _channel: str, payload: bytes) -> None:
        notice = codec.decode_notice(payload)
        self.granted.append(notice.request_id)


@pytest.fixture
async def pool(pool_store: PoolStore, resp: RespConnection, redis_url: str):
    made = Pool(pool_store, resp)
    ear = Subscriber(redis_url, [gateway_channel(f"gw-1-{pool_store.pool_id}")], made.heard)
    await ear.start()
    while not await pool_store.listening([f"gw-1-{pool_store.pool_id}"]):
        await asyncio.sleep(0.01)
    yield made
    await ear.close()


async def test_a_slot_that_becomes_free_without_a_leader_goes_to_waiting_requests_owners_first(pool: Pool):
    await pool.led()
    for name, spec in (("r0", SPOT), ("spot", SPOT), ("elastic", ELASTIC), ("owner", OWNER), ("spot-2", SPOT)):
        await pool.admit(name, spec)
    await pool.left()
    order = ["owner", "elastic", "spot", "spot-2"]
    for name, follows in zip(["r0", *order], order, strict=False):
        await pool.finish(name)
        assert await pool.running() == [follows]
    await until(lambda: pool.granted == order)  # and their gateway was told


async def test_nothing_is_handed_out_while_somebody_leads(pool: Pool):
    epoch = await pool.led()
    await pool.admit("r0", SPOT)
    await pool.admit("r1", SPOT)
    await pool.finish("r0")
    await pool.store.renew(f"gw-1-{pool.store.pool_id}", [("r1", 1, 0)])
    assert await pool.running() == []
    assert await pool.store.grant(epoch, [GrantItem("r1", 1, "b1", 8)]) == ["ok"]


async def test_slots_that_are_free_already_are_handed_out_by_the_next_arrival_and_by_renewals(pool: Pool):
    epoch = await pool.led(slots=1)
    for n in range(4):
        await pool.admit(f"r{n}", SPOT)
    await pool.store.set_ready(epoch, "b1", backend(slots=2))
    await pool.left()
    (renewal,) = await pool.store.renew(f"gw-1-{pool.store.pool_id}", [("r1", 1, 0)])
    assert renewal.status is RenewStatus.WAITS
    assert await pool.running() == ["r0", "r1"]
    await pool.store.set_ready(epoch, "b1", backend(slots=3))
    assert await pool.admit("late", SPOT) is AdmissionStatus.QUEUED, "who waited goes first"
    assert await pool.running() == ["r0", "r1", "r2"]


async def test_a_leader_that_was_killed_is_missed_at_once_and_another_elected(pool: Pool, redis_url: str):
    """Its lease is far from over: that it no longer listens says that it died."""
    ear = Subscriber(redis_url, ["qm:leader:leader-a"], lambda *_: None)
    await ear.start()

    async def listens() -> bool:
        return (await pool.resp.call(b"PUBSUB", b"NUMSUB", b"qm:leader:leader-a"))[1] == 1

    await until_await(listens)
    await pool.led()
    await pool.admit("r0", SPOT)
    await pool.admit("r1", SPOT)
    assert not (await pool.store.elect("leader-b", 0, first_start=False)).leader
    await ear.close()

    async def silent() -> bool:
        return not await listens()

    await until_await(silent)
    await pool.finish("r0")
    assert await pool.running() == ["r1"]
    assert (await pool.store.elect("leader-b", 0, first_start=False)).epoch == 2


async def test_slots_are_handed_out_until_a_new_leader_has_decided_for_the_first_time(pool: Pool):
    """It reads the queue first, and asks the database, which may take its time."""
    await pool.led()
    for n in range(3):
        await pool.admit(f"r{n}", SPOT)
    await pool.left()
    epoch = (await pool.store.elect("leader-b", 0, first_start=False)).epoch
    await pool.finish("r0")
    assert await pool.running() == ["r1"]
    await leads_on(pool.store)
    await pool.store.set_stuck(epoch, 0)
    await pool.finish("r1")
    assert await pool.running() == []


async def test_a_thousand_waiting_at_their_cap_hold_up_nobody_and_cost_a_call_nothing(pool: Pool):
    await pool.led(slots=2)
    await pool.admit("elastic-0", SPOT)
    await pool.admit("owner-0", OWNER)
    for n in range(1, 1001):
        await pool.admit(f"owner-{n}", OWNER)
    await pool.admit("spot", SPOT)
    await pool.left()
    await pool.finish("elastic-0")
    assert await pool.running() == ["owner-0", "spot"]


async def test_one_call_hands_out_a_bounded_number_and_the_next_goes_on(pool: Pool):
    epoch = await pool.led(slots=1)
    wide = entitlement("wide", concurrency=500, tier=SPOT.tier)
    for n in range(40):
        await pool.admit(f"r{n:02}", wide)
    await pool.store.set_ready(epoch, "b1", backend(slots=31))
    await pool.left()
    gateway = f"gw-1-{pool.store.pool_id}"
    for calls in (1, 2, 3):
        await pool.store.renew(gateway, [("r39", 1, 0)])
        assert len(await pool.running()) == 1 + calls * GRANTS_AT_ONCE
    assert await pool.running() == [f"r{n:02}" for n in range(31)], "in order of arrival"


async def test_requests_of_a_dead_gateway_are_passed_and_come_back_with_it(pool: Pool, redis_url: str):
    await pool.led()
    await pool.admit("r0", SPOT)
    for n in range(20):
        await pool.admit(f"dead-{n}", SPOT, gateway="gw-2")
    await pool.admit("lives", SPOT)
    await pool.left()
    gateway = f"gw-1-{pool.store.pool_id}"

    async def runs() -> bool:
        await pool.store.renew(gateway, [("lives", 1, 0)])
        return await pool.running() == ["lives"]

    await pool.finish("r0")
    for _ in range(6):  # so many of them are passed at a time
        if await runs():
            break
    assert await pool.running() == ["lives"]
    other = f"gw-2-{pool.store.pool_id}"
    ear = Subscriber(redis_url, [gateway_channel(other)], pool.heard)
    await ear.start()
    while not await pool.store.listening([other]):
        await asyncio.sleep(0.01)
    await pool.store.renew(other, [("dead-7", 1, 0)])
    await pool.finish("lives")
    assert await pool.running() == ["dead-7"]
    await ear.close()


async def test_who_lacks_kv_cache_holds_up_neither_others_nor_arrivals(pool: Pool):
    await pool.led(slots=2, kv_tokens=1000)
    await pool.admit("r0", SPOT)
    await pool.admit("r1", SPOT)
    await pool.admit("large", ELASTIC, tokens=890)  # needs more than is left beside r1
    await pool.admit("small", SPOT)
    await pool.left()
    await pool.finish("r0")
    assert await pool.running() == ["r1", "small"]
    await pool.finish("small")
    assert await pool.admit("new", SPOT) is AdmissionStatus.GRANTED


async def test_a_leader_that_comes_back_is_in_step_with_what_was_handed_out(pool: Pool, redis_url: str):
    pool_id = pool.store.pool_id
    spec = pool_spec(pool_id, backends=(backend("b1", slots=2, pool=pool_id),), policy="fifo")
    spot = entitlement("spot", pool_id, concurrency=8, tier=SPOT.tier)
    async with dispatching(redis_url, catalog_of(spec, spot)) as first:

        async def serves() -> bool:
            return first.term is not None and any(b.ready for b in (await pool.store.view()).backends.values())

        await until_await(serves)
        for n in range(6):
            await pool.admit(f"r{n}", spot)
        await until(lambda: first.term is not None and len(first.term.scheduler) == 4)
        term = first.term
        # It hangs, and its time is over: scripts go on without it.
        await pool.resp.call(b"HSET", pool.store._key("meta"), b"leader_until", b"1")
        await pool.finish("r0")

        async def handed() -> bool:
            return "r2" in await pool.running()

        await until_await(handed)
        await until(lambda: term is not None and "r2" not in term.scheduler)
        for n in range(1, 4):
            await pool.finish(f"r{n}")

            async def next_runs(n: int = n) -> bool:
                return await pool.running() == sorted([f"r{n + 1}", f"r{n + 2}"])

            await until_await(next_runs)
        assert sorted(pool.granted) == ["r2", "r3", "r4", "r5"], "a request was granted twice"
        assert (await pool.store.view()).differences() == []


async def test_nothing_is_handed_out_before_leases_of_a_lost_state_were_announced_again(pool: Pool):
    """Who runs without being known would be overrun."""
    await pool.led()
    await pool.admit("r0", SPOT)
    await pool.admit("r1", SPOT)
    meta = pool.store._key("meta")
    await pool.resp.call(b"HSET", meta, b"rebuild_until", str(10**14).encode())
    await pool.left()
    await pool.finish("r0")
    assert await pool.running() == []
    await pool.resp.call(b"HDEL", meta, b"rebuild_until")
    await pool.store.renew(f"gw-1-{pool.store.pool_id}", [("r1", 1, 0)])
    assert await pool.running() == ["r1"]


async def test_a_process_stays_ready_while_its_pool_changes_hands_and_not_for_longer(
    pool: Pool, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={pool.store.pool_id: None}))
    readiness = health.Readiness(cast(Any, catalog), redis_url)
    await readiness.start()
    monkeypatch.setattr(health, "LOOK_AGAIN_S", -1.0)
    monkeypatch.setattr(health, "LEADER_GONE_S", 3600.0)
    await pool.led()
    assert (await readiness.look())[0]
    await pool.left()
    ready, report = await readiness.look()
    assert (ready, report["pools"][pool.store.pool_id]["leader"]) == (True, False)
    monkeypatch.setattr(health, "LEADER_GONE_S", -1.0)
    ready, report = await readiness.look()
    assert (ready, report["waiting_for"]) == (False, ["a worker: no pool has a leader"])
    await readiness.stop()


async def test_a_pool_that_lost_its_leader_is_named_beside_one_without_replicas(pool: Pool, redis_url: str):
    await pool.led()
    await pool.left()
    name = pool.store.pool_id
    empty = PoolStore(pool.resp, f"{name}-empty")
    await empty.elect("leader-a", 0, first_start=True)
    await leads_on(empty)
    catalog = SimpleNamespace(loaded=True, current=SimpleNamespace(pools={name: None, empty.pool_id: None}))
    readiness = health.Readiness(cast(Any, catalog), redis_url)
    await readiness.start()
    ready, report = await readiness.look()
    assert (ready, report["waiting_for"]) == (False, [f"a worker: pool {name} has no leader"])
    await readiness.stop()


async def test_what_an_older_version_left_waiting_gets_its_place_when_a_leader_compares(pool: Pool):
    epoch = await pool.led()
    await pool.admit("r0", SPOT)
    await pool.admit("r1", SPOT)
    await pool.resp.call(b"DEL", pool.store._key("order"))
    await pool.resp.call(b"ZADD", pool.store._key("order"), b"0", b"spot 000000000000001 gone")
    assert await pool.store.rebuild(epoch) == [], "it is no fault"
    await pool.left()
    await pool.finish("r0")
    assert await pool.running() == ["r1"]
