"""One pool's dispatcher over the real scripts: decisions, succession, loss of state, sweeping, the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from scheduling.core.outcomes import Reason
from scheduling.core.types import Catalog, EntitlementSpec, OverLimit, ServiceClass
from scheduling.dispatch.replicas.monitor import BackendMonitor
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import (
    AdmissionStatus,
    Fenced,
    GrantItem,
    PoolSnapshot,
)
from tests.support.dispatch_world import Engines, Floors, Telemetry, catalog_of, dispatching, until, until_await
from tests.support.pool_gateway import Gateway, listening, make_gateway, ready
from tests.support.redis_server import RedisServer
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, request, tier


def tiered(
    name: str, pool_id: str, rank: int, service_class: ServiceClass = ServiceClass.SPOT, **changes: object
) -> EntitlementSpec:
    given = {
        "tier": tier(
            service_class=service_class, name=f"tier{rank}", rank=rank, over_limit=OverLimit.WAIT, queue_limit=1000
        )
    }
    return entitlement(name, pool_id, **(given | changes))


@pytest_asyncio.fixture
async def gateway(redis_url: str, resp: RespConnection, pool_id: str) -> AsyncIterator[Gateway]:
    async with make_gateway(redis_url, resp, pool_id) as g:
        yield g


def simple(gateway: Gateway, **changes: object) -> tuple[Catalog, EntitlementSpec]:
    spec = tiered("acme", gateway.pool.id, 1)
    return catalog_of(replace(gateway.pool, **changes), spec), spec


async def test_queued_requests_are_granted_in_policy_order(gateway: Gateway):
    specs = {rank: tiered(f"t{rank}", gateway.pool.id, rank) for rank in (0, 1, 2)}
    async with dispatching(gateway.url, catalog_of(gateway.pool, *specs.values())) as dispatcher:
        await ready(dispatcher, gateway.store)
        assert (await gateway.admit("first", specs[2])).status is AdmissionStatus.GRANTED
        for n, rank in enumerate((2, 1, 0, 2, 1, 0)):
            answer = await gateway.admit(f"r{rank}-{n}", specs[rank])
            assert answer.status is AdmissionStatus.QUEUED
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 6)
        await gateway.finish("first")
        assert await gateway.serve_all(6) == ["r0-2", "r0-5", "r1-1", "r1-4", "r2-0", "r2-3"]
        notice = gateway.notices[0]
        assert notice.policy == "priority@1"
        assert notice.why.startswith("rank 0, oldest arrival; waited ")
        assert (await gateway.store.view()).running == 0


async def test_an_uncontended_pool_sends_no_notification(gateway: Gateway, resp: RespConnection):
    catalog, spec = simple(gateway)
    async with dispatching(gateway.url, catalog) as dispatcher:
        await ready(dispatcher, gateway.store)
        for n in range(50):
            assert (await gateway.admit(f"r{n}", spec)).status is AdmissionStatus.GRANTED
            await gateway.finish(f"r{n}")
        assert await resp.call("XLEN", f"qm:{{{gateway.pool.id}}}:events") == 0


async def test_an_entitlement_over_its_concurrency_waits_and_others_pass(gateway: Gateway):
    full, other = (
        tiered("full", gateway.pool.id, 0, ServiceClass.GUARANTEED, concurrency=1),
        tiered("other", gateway.pool.id, 2),
    )
    gateway.pool = replace(gateway.pool, backends=(backend("b1", slots=2, pool=gateway.pool.id),))
    async with dispatching(gateway.url, catalog_of(gateway.pool, full, other)) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("f1", full)
        assert (await gateway.admit("f2", full)).status is AdmissionStatus.QUEUED
        assert (await gateway.admit("o1", other)).status is AdmissionStatus.GRANTED  # a free slot is not withheld
        await gateway.finish("f1")
        await until(lambda: gateway.granted() == ["f2"])


async def test_a_sample_is_of_one_moment(gateway: Gateway, monkeypatch: pytest.MonkeyPatch):
    """Between the look at Redis and the sample replicas are asked. What came meanwhile is in the next one."""
    spec, telemetry = tiered("acme", gateway.pool.id, 2, concurrency=100), Telemetry()
    gateway.pool = replace(gateway.pool, policy="unified")
    reconcile, came = BackendMonitor.reconcile, iter(range(1, 20))

    async def slow(monitor: BackendMonitor, snapshot: PoolSnapshot) -> None:
        await reconcile(monitor, snapshot)
        await gateway.admit(f"r{next(came)}", spec)
        await asyncio.sleep(0.3)

    async with dispatching(gateway.url, catalog_of(gateway.pool, spec), telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("r0", spec)
        monkeypatch.setattr(BackendMonitor, "reconcile", slow)
        await until(lambda: telemetry.samples and sum(telemetry.samples[-1].waiting.values()) >= 3)
    told = [(sum(sample.parts.values()), sum(sample.waiting.values())) for sample in telemetry.samples]
    assert [parts for parts, _ in told] == [waiting for _, waiting in told]


async def keeps(store: PoolStore, slots: int) -> bool:
    """The leader has said that so many are kept."""
    return (await store.view()).kept == slots


async def test_automatic_headroom_is_a_share_of_the_slots_in_force(gateway: Gateway):
    """256 slots are configured, of which 43 are kept, and the engine runs 8: idle, it serves who has no baseline."""
    spec = tiered("acme", gateway.pool.id, 2)
    offers = (backend("b1", slots=8, pool=gateway.pool.id),)
    gateway.pool = replace(gateway.pool, backends=offers, headroom_slots=43, headroom_most=128)
    telemetry = Telemetry()
    async with dispatching(gateway.url, catalog_of(gateway.pool, spec), telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        await until_await(lambda: keeps(gateway.store, 1))
        await until(lambda: telemetry.samples and telemetry.samples[-1].headroom == 1)
        said = [(await gateway.admit(f"r{n}", spec)).status for n in range(8)]
        assert said == [AdmissionStatus.GRANTED] * 7 + [AdmissionStatus.QUEUED], "an idle engine serves them at once"
        await asyncio.sleep(1.2)
        assert not gateway.granted(), "a sixth of 8 is 1"
        await gateway.finish("r0")
        await until(lambda: gateway.granted() == ["r7"])


async def test_a_raised_concurrency_frees_what_waits(gateway: Gateway):
    spec = tiered("acme", gateway.pool.id, 1, ServiceClass.GUARANTEED, concurrency=1)
    gateway.pool = replace(gateway.pool, backends=(backend("b1", slots=4, pool=gateway.pool.id),))
    async with dispatching(gateway.url, catalog_of(gateway.pool, spec)) as dispatcher:
        await ready(dispatcher, gateway.store)
        for n in range(3):
            await gateway.admit(f"r{n}", spec)
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 2)
        dispatcher.update(catalog_of(gateway.pool, replace(spec, concurrency=3), version=2))
        await until(lambda: sorted(gateway.granted()) == ["r1", "r2"])


async def test_a_policy_change_loses_nothing_and_reorders_the_queue(gateway: Gateway):
    gateway.pool = replace(gateway.pool, policy="fifo")
    specs = [tiered(f"t{rank}", gateway.pool.id, rank) for rank in (2, 0, 1)]
    async with dispatching(gateway.url, catalog_of(gateway.pool, *specs)) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("first", specs[0])
        for n in range(60):
            await gateway.admit(f"r{specs[n % 3].tier.rank}-{n:02d}", specs[n % 3])
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 60)
        await gateway.finish("first")
        await gateway.serve_all(5)
        assert gateway.granted() == ["r2-00", "r0-01", "r1-02", "r2-03", "r0-04"]
        changed = replace(gateway.pool, policy="priority", policy_version=2)
        dispatcher.update(catalog_of(changed, *specs, version=2))
        order = await gateway.serve_all(60)
        assert len(set(order)) == 60
        assert order[6:] == sorted(order[6:])  # ranks first, arrivals within them; the sixth was already running
        assert gateway.notices[-1].policy == "priority@2"
        assert (await gateway.store.view()).waiting == 0


async def test_a_policy_that_does_not_exist_leaves_the_one_in_force(gateway: Gateway, caplog: pytest.LogCaptureFixture):
    catalog, spec = simple(gateway)
    async with dispatching(gateway.url, catalog) as dispatcher:
        await ready(dispatcher, gateway.store)
        term = await until(lambda: dispatcher.term)  # a starved process may lose it in between, and gets it again
        dispatcher.update(catalog_of(replace(gateway.pool, policy="fifi", policy_version=2), spec, version=2))
        assert dispatcher.term is term
        assert term.policy == "priority@1"
        assert "unknown ordering policy 'fifi', did you mean 'fifo'" in caplog.text


async def test_a_second_process_follows_and_takes_over_when_the_first_leaves(gateway: Gateway):
    catalog, spec = simple(gateway)
    floors = Floors()
    async with dispatching(gateway.url, catalog, holder="leader-b", floors=floors) as second:
        async with dispatching(gateway.url, catalog, holder="leader-a", floors=floors) as first:
            leader = await until(lambda: next((d for d in (first, second) if d.epoch), None))
            await ready(leader, gateway.store)
            await gateway.admit("r0", spec)
            await gateway.admit("r1", spec)
            assert [bool(d.epoch) for d in (first, second)].count(True) == 1
        await until(lambda: second.epoch and second.term)
        await gateway.finish("r0")
        await until(lambda: gateway.granted() == ["r1"])
        assert floors.rows[gateway.pool.id] == second.epoch


async def test_a_leader_that_was_overtaken_is_fenced_and_its_grants_count_for_nothing(
    gateway: Gateway, resp: RespConnection
):
    catalog, spec = simple(gateway)
    async with dispatching(gateway.url, catalog, holder="leader-a") as first:
        await ready(first, gateway.store)
        old_epoch = first.epoch
        await gateway.admit("r0", spec)
        await gateway.admit("r1", spec)
        # As if it had been paused past its lease: Redis has given the leadership to another meanwhile.
        await resp.call("HSET", f"qm:{{{gateway.pool.id}}}:meta", "leader_until", "1")
        usurper = await gateway.store.elect("leader-b", old_epoch, first_start=False)
        assert usurper.epoch == old_epoch + 1
        await leads_on(gateway.store)
        with pytest.raises(Fenced):
            await gateway.store.grant(old_epoch, [GrantItem("r1", 1, "b1", 8)])
        await gateway.finish("r0")
        await until(lambda: first.term is None)  # its next write told it
        assert gateway.granted() == []
        assert (await gateway.store.grant(usurper.epoch, [GrantItem("r1", 1, "b1", 8)])) == ["ok"]
        await gateway.store.resign("leader-b")
        await until(lambda: first.epoch == old_epoch + 2)


class SlowFloors(Floors):
    """A database that answers within the time it may take, but two answers outlast a lease."""

    def read(self, pool: str) -> int:
        time.sleep(1.2)
        return super().read(pool)

    def raise_to(self, pool: str, epoch: int) -> None:
        time.sleep(1.2)
        super().raise_to(pool, epoch)


async def test_a_slow_database_keeps_nobody_from_leading(gateway: Gateway):
    catalog, _ = simple(gateway)
    floors = SlowFloors()
    async with dispatching(gateway.url, catalog, floors=floors) as dispatcher:
        await ready(dispatcher, gateway.store)
        assert dispatcher.epoch == 1
        assert floors.rows[gateway.pool.id] == 1


async def test_after_a_flush_the_view_is_rebuilt_and_the_epoch_is_higher(private_redis: RedisServer, pool_id: str):
    resp = RespConnection(private_redis.url)
    await resp.start()
    async with make_gateway(private_redis.url, resp, pool_id) as gateway:
        catalog, spec = simple(gateway)
        async with dispatching(gateway.url, catalog) as dispatcher:
            await ready(dispatcher, gateway.store)
            epoch = dispatcher.epoch
            await gateway.admit("r0", spec)
            await gateway.admit("r1", spec)
            private_redis.flush()
            await until(lambda: dispatcher.epoch > epoch)
            await ready(dispatcher, gateway.store)
            refused = await gateway.admit("r2", spec)
            assert refused.reason is Reason.REBUILDING
            waits = request("r1", spec, gateway=gateway.name)
            await gateway.store.announce(spec, gateway.pool, waits, estimate(), 300, FACTS, "")
            await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 1)
            await asyncio.sleep(1.0)
            assert gateway.granted() == []  # the replica only looks free: what it runs has not been announced yet
            runs = request("r0", spec, gateway=gateway.name)
            await gateway.store.announce(spec, gateway.pool, runs, estimate(), 300, FACTS, "b1")
            await gateway.finish("r0")
            await until(lambda: gateway.granted() == ["r1"])
            assert (await gateway.store.view()).running == 1
    await resp.close()


async def test_redis_killed_and_back_needs_no_restart(private_redis: RedisServer, pool_id: str):
    resp = RespConnection(private_redis.url)
    await resp.start()
    async with make_gateway(private_redis.url, resp, pool_id) as gateway:
        catalog, spec = simple(gateway)
        async with dispatching(gateway.url, catalog) as dispatcher:
            await ready(dispatcher, gateway.store)
            private_redis.kill()
            await until(lambda: dispatcher.term is None)
            private_redis.start()
            await until(lambda: resp.available)
            await ready(dispatcher, gateway.store)

            async def admitted() -> bool:
                return (await gateway.admit("r0", spec)).status is AdmissionStatus.GRANTED

            await until_await(admitted)
    await resp.close()


async def test_what_a_dead_gateway_left_is_swept_and_recorded(gateway: Gateway, resp: RespConnection):
    catalog, spec = simple(gateway)
    telemetry = Telemetry()
    async with dispatching(gateway.url, catalog, telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("r0", spec)
        await gateway.admit("r1", spec)
        prefix = f"qm:{{{gateway.pool.id}}}:"
        await resp.call("ZADD", prefix + "leases", "1", "r0")  # as if not renewed for 10 s
        await resp.call("ZADD", prefix + "waiting", "1", "r1")
        await until(lambda: len(telemetry.records) == 2)
        assert {(r.request_id, r.reason, r.backend) for r in telemetry.records} == {
            ("r0", "gateway_lost", "b1"),
            ("r1", "gateway_lost", ""),
        }
        snapshot = await gateway.store.view()
        assert (snapshot.running, snapshot.waiting) == (0, 0)
        assert len(dispatcher.term.scheduler) == 0  # type: ignore[union-attr]


async def test_a_gateway_that_does_not_listen_gets_no_slot_and_stands_in_nobodys_way(
    gateway: Gateway, resp: RespConnection
):
    catalog, spec = simple(gateway)
    other = Gateway(gateway.url, gateway.pool, gateway.store, f"gone-{gateway.pool.id}")
    async with dispatching(gateway.url, catalog) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("r0", spec)
        for n in range(150):  # more than one batch of decisions, all before the one that can run
            await other.admit(f"gone-{n}", spec)
        await gateway.admit("r1", spec)
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == 151)
        await gateway.finish("r0")
        await until(lambda: gateway.granted() == ["r1"])
        scheduler = dispatcher.term.scheduler  # type: ignore[union-attr]
        assert len(scheduler) == 0  # nobody is asked about in vain at every tick
        await gateway.admit("r2", spec)
        await gateway.finish("r1")
        await until(lambda: gateway.granted() == ["r1", "r2"])
        await gateway.finish("r2")
        snapshot = await gateway.store.view()
        assert (snapshot.running, snapshot.waiting) == (0, 150)
        async with listening(other):  # it had only lost its subscription
            await until(lambda: other.granted() == ["gone-0"])
            assert len(scheduler) == 149


async def test_hundreds_that_a_dead_gateway_left_are_ended_in_one_round(gateway: Gateway, resp: RespConnection):
    catalog, spec = simple(gateway)
    telemetry = Telemetry()
    async with dispatching(gateway.url, catalog, telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        for n in range(801):
            await gateway.admit(f"r{n}", spec)
        waiting = f"qm:{{{gateway.pool.id}}}:waiting"
        left: list[int] = []
        await resp.call("ZADD", waiting, *(word for n in range(1, 801) for word in ("1", f"r{n}")))
        monitor = dispatcher.term.monitor  # type: ignore[union-attr]

        async def look(snapshot: PoolSnapshot, reconcile=monitor.reconcile) -> None:
            left.append(snapshot.waiting)
            await reconcile(snapshot)

        monitor.reconcile = look  # type: ignore[method-assign]
        await until(lambda: left and left[-1] == 0)
        assert set(left) <= {800, 0}  # never a part: the next round of housekeeping finds nothing


async def test_the_ledger_is_written_once_although_the_database_fails_twice(gateway: Gateway):
    catalog, spec = simple(gateway)
    telemetry = Telemetry(failures=2)
    async with dispatching(gateway.url, catalog, telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        for n in range(30):
            await gateway.admit(f"r{n}", spec)
            await gateway.finish(f"r{n}")

        async def drained() -> bool:
            return (await gateway.store.view()).ledger_waiting == 0

        await until_await(drained)
        assert telemetry.calls >= 3
        assert sorted(r.request_id for r in telemetry.records) == sorted(f"r{n}" for n in range(30))


async def test_a_ledger_of_many_batches_is_drained_in_order(gateway: Gateway):
    catalog, _ = simple(gateway)
    telemetry = Telemetry()
    await gateway.store.record([ledger(f"r{n:04d}", Reason.CONCURRENCY) for n in range(2500)])
    async with dispatching(gateway.url, catalog, telemetry=telemetry):
        await until(lambda: len(telemetry.records) == 2500)
        assert [r.request_id for r in telemetry.records] == [f"r{n:04d}" for n in range(2500)]
        assert telemetry.calls == 3


async def test_an_expired_request_is_not_granted(gateway: Gateway):
    catalog, spec = simple(gateway)
    async with dispatching(gateway.url, catalog) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("r0", spec)
        await gateway.admit("late", spec, expires_s=1_700_000_100.0)  # long ago by Redis time
        await gateway.admit("r1", spec)
        await gateway.finish("r0")
        await until(lambda: gateway.granted() == ["r1"])


async def test_a_suspected_dead_replica_is_taken_out_and_its_work_goes_elsewhere(gateway: Gateway):
    pool_id = gateway.pool.id
    engines = Engines()
    gateway.pool = replace(gateway.pool, backends=tuple(backend(name, slots=1, pool=pool_id) for name in ("b1", "b2")))
    catalog, spec = simple(gateway)
    async with dispatching(gateway.url, catalog, engines=engines) as dispatcher:
        await ready(dispatcher, gateway.store)

        async def both() -> bool:
            return sum(b.ready for b in (await gateway.store.view()).backends.values()) == 2

        await until_await(both)
        failed = await gateway.admit("r0", spec)
        engines[failed.backend].reachable = False
        await gateway.store.suspect(failed.backend, "connect")

        async def one() -> bool:
            return not await both()

        await until_await(one)
        again = await gateway.store.requeue(
            request("r0", spec, gateway=gateway.name), 300, FACTS, exclude_backend=failed.backend
        )
        assert (again.status, again.attempt) == (AdmissionStatus.GRANTED, 2)
        assert again.backend != failed.backend


async def test_samples_say_what_is_there(gateway: Gateway):
    catalog, spec = simple(gateway)
    telemetry = Telemetry()
    async with dispatching(gateway.url, catalog, telemetry=telemetry) as dispatcher:
        await ready(dispatcher, gateway.store)
        for n in range(3):
            await gateway.admit(f"r{n}", spec)
        await until(lambda: telemetry.samples and telemetry.samples[-1].waiting == {"acme": 2})
        sample = telemetry.samples[-1]
        assert (sample.pool.id, sample.leader, sample.epoch) == (gateway.pool.id, "leader-a", dispatcher.epoch)
        assert sample.policy == "priority@1"
        assert sample.view.backends["b1"].running == 1
        assert sample.view.running_by_entitlement == {"acme": 1}
        assert [b.state for b in sample.backends] == ["ready"]
        assert sample.oldest_wait_s > 0


async def test_lost_notifications_are_made_up_for(
    gateway: Gateway, resp: RespConnection, monkeypatch: pytest.MonkeyPatch
):
    """The stream is bounded: what was cut off it is found by comparing counts."""
    monkeypatch.setattr("scheduling.dispatch.waiting.DRIFT_GAP_S", 0.0)
    monkeypatch.setattr("scheduling.dispatch.waiting.DRIFT_TICKS", 1)
    catalog, spec = simple(gateway)
    async with dispatching(gateway.url, catalog) as dispatcher:
        await ready(dispatcher, gateway.store)
        await gateway.admit("r0", spec)
        term = dispatcher.term
        assert term is not None
        term._apply = lambda event: None  # type: ignore[method-assign]
        await gateway.admit("r1", spec)
        await until(lambda: len(term.scheduler) == 1)
        await gateway.finish("r0")
        await until(lambda: gateway.granted() == ["r1"])


async def test_a_stopped_dispatcher_leaves_no_task_behind(gateway: Gateway):
    catalog, _ = simple(gateway)
    before = len(asyncio.all_tasks())
    async with dispatching(gateway.url, catalog) as dispatcher:
        await ready(dispatcher, gateway.store)
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert (await gateway.store.view()).leader == ""
