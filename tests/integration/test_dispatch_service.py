"""The dispatch service: pools come and go, outages at start, its thread, and its place in a Celery worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import redis
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker

from scheduling.core.types import Catalog
from scheduling.dispatch import leader, runner
from scheduling.dispatch.bootstep import host_dispatch
from scheduling.dispatch.leader import Leadership
from scheduling.dispatch.runner import DispatchService, DispatchSetup
from scheduling.dispatch.term import Term
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import Fenced
from tests.support.dispatch_world import Engines, Floors, Telemetry, until, until_await
from tests.support.redis_server import RedisServer
from tests.support.state_world import backend, pool_spec


class FixedPools:
    """The database: a catalog, or nothing while it is down."""

    def __init__(self, *pools: str) -> None:
        self.version, self.down = 1, False
        self.pools = {name: pool_spec(name, backends=(backend("b1", pool=name),)) for name in pools}

    def current(self) -> int:
        if self.down:
            raise ConnectionError("database away")
        return self.version

    def load(self) -> Catalog:
        return Catalog(self.current(), dict(self.pools), {}, {})

    def change(self, *pools: str) -> None:
        self.version += 1
        self.pools = FixedPools(*pools).pools


def setup_of(url: str, catalog: FixedPools, telemetry: Telemetry | None = None) -> DispatchSetup:
    return DispatchSetup(
        url, catalog.load, catalog.current, telemetry or Telemetry(), Floors(), "test", Engines().factory
    )


@asynccontextmanager
async def serving(setup: DispatchSetup) -> AsyncIterator[DispatchService]:
    service = DispatchService(setup)
    task = asyncio.create_task(service.serve())
    try:
        yield service
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pools_are_served_as_they_come_and_go(redis_url: str, pool_id: str, resp: RespConnection):
    a, b = f"{pool_id}-a", f"{pool_id}-b"
    catalog = FixedPools(a)
    async with serving(setup_of(redis_url, catalog)) as service:
        await until(lambda: set(service.leading()) == {a})
        catalog.change(a, b)
        await resp.call("PUBLISH", "qm:catalog", "2")
        await until(lambda: set(service.leading()) == {a, b})
        catalog.change(b)
        await resp.call("PUBLISH", "qm:catalog", "3")
        await until(lambda: set(service.leading()) == {b})
        store = PoolStore(resp, a)

        async def given_back() -> bool:
            return (await store.view()).leader == ""

        await until_await(given_back)


async def test_telemetry_is_told_which_pools_there_are_but_nothing_while_the_catalog_is_unread(
    redis_url: str, pool_id: str, resp: RespConnection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "ROLL_CALL_S", 0.02)
    catalog, telemetry = FixedPools(f"{pool_id}-a", f"{pool_id}-b"), Telemetry()
    catalog.down = True
    async with serving(setup_of(redis_url, catalog, telemetry)) as service:
        await asyncio.sleep(0.3)
        assert telemetry.rolls == []
        catalog.down = False
        await until(lambda: len(service.leading()) == 2)
        await until(lambda: telemetry.rolls[-1:] == [frozenset(catalog.pools)])
        catalog.change(f"{pool_id}-b")
        await resp.call("PUBLISH", "qm:catalog", "2")
        await until(lambda: telemetry.rolls[-1] == {f"{pool_id}-b"})
        catalog.down = True
        told = len(telemetry.rolls)
        await until(lambda: len(telemetry.rolls) > told + 3)
        assert telemetry.rolls[-1] == {f"{pool_id}-b"}, "the last catalog stays in force"


async def test_a_changed_pool_reaches_its_dispatcher(redis_url: str, pool_id: str):
    catalog = FixedPools(pool_id)
    async with serving(setup_of(redis_url, catalog)) as service:
        await until(lambda: service.leading() and service.dispatchers[pool_id].term)
        catalog.version += 1
        catalog.pools = {pool_id: replace(catalog.pools[pool_id], policy="fifo", policy_version=4)}
        await until(lambda: service.dispatchers[pool_id].term.policy == "fifo@4")  # type: ignore[union-attr]


async def test_redis_and_database_away_at_start_only_delay_it(private_redis: RedisServer):
    private_redis.kill()
    catalog = FixedPools("p")
    catalog.down = True
    async with serving(setup_of(private_redis.url, catalog)) as service:
        await asyncio.sleep(0.2)
        assert service.leading() == {}
        catalog.down = False
        private_redis.start()
        await until(lambda: service.leading() == {"p": 1})


async def test_a_follower_leads_at_once_when_the_leader_stops(
    redis_url: str, pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    """It is told: the looks are a minute apart here."""
    catalog = FixedPools(pool_id)
    async with serving(setup_of(redis_url, catalog)) as first:
        await until(lambda: first.leading())
        monkeypatch.setattr(leader, "RETRY_S", 60.0)
        monkeypatch.setattr(leader, "SOONEST_S", 60.0)
        async with serving(setup_of(redis_url, catalog)) as second:
            await until(lambda: second.dispatchers.get(pool_id))
            await asyncio.sleep(0.5)  # it has asked once
            assert not second.leading()
            first.begin_stop()
            await until(lambda: second.leading(), timeout_s=20.0)


@pytest.fixture
def not_nicer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in this process would make it, and every later test with it, give way to all others."""
    monkeypatch.setattr("controlplane.celery.os.nice", lambda _: 0)


@pytest.mark.usefixtures("not_nicer")
def test_a_worker_that_is_told_to_end_gives_its_leadership_back_before_its_tasks_have_ended(
    redis_server: RedisServer, pool_id: str
):
    """Celery says so when the signal arrives; the step is stopped last, after up to half a minute of tasks."""
    telemetry = Telemetry()
    app = Celery("test", broker="memory://", backend="cache+memory://", set_as_current=False)
    host_dispatch(app, lambda: setup_of(redis_server.url, FixedPools(pool_id), telemetry))
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        for _ in range(3000):
            if telemetry.samples:
                break
            threading.Event().wait(0.01)
        signals.worker_shutting_down.send(sender=None, sig="SIGTERM", how="Warm", exitcode=0)
        for _ in range(3000):
            if not [t for t in threading.enumerate() if t.name == "dispatch"]:
                break
            threading.Event().wait(0.01)
        with redis.Redis.from_url(redis_server.url) as client:
            assert client.hget(f"qm:{{{pool_id}}}:meta", "leader") is None


def test_the_service_runs_in_a_thread_and_stops(redis_server: RedisServer, pool_id: str):
    telemetry = Telemetry()
    service = DispatchService(setup_of(redis_server.url, FixedPools(pool_id), telemetry))
    service.start()
    with pytest.raises(RuntimeError, match="already started"):
        service.start()
    for _ in range(3000):
        if telemetry.samples:
            break
        threading.Event().wait(0.01)
    assert telemetry.samples[0].pool.id == pool_id
    assert service.stop()
    assert service.stop()
    assert not [t for t in threading.enumerate() if t.name == "dispatch"]


def test_a_service_stops_also_while_its_term_ends_by_itself(
    redis_server: RedisServer, pool_id: str, monkeypatch: pytest.MonkeyPatch
):
    """It resigns first, so that the next write is fenced and ends the term; only then it is cancelled."""
    loops, resign, resigned = Term.loops, Leadership.resign, asyncio.Event()

    async def give_back(leadership: Leadership) -> None:
        await resign(leadership)
        resigned.set()
        await asyncio.sleep(0.1)

    async def write() -> None:
        await resigned.wait()
        raise Fenced

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)

    monkeypatch.setattr(Leadership, "resign", give_back)
    monkeypatch.setattr(Term, "loops", lambda term: loops(term) | {"write": write(), "linger": linger()})
    telemetry = Telemetry()
    service = DispatchService(setup_of(redis_server.url, FixedPools(pool_id), telemetry))
    service.start()
    for _ in range(3000):
        if telemetry.samples:
            break
        threading.Event().wait(0.01)
    assert service.stop()
    assert not [t for t in threading.enumerate() if t.name == "dispatch"]


def test_a_service_stopped_before_its_thread_ran_ends(redis_server: RedisServer, pool_id: str):
    service = DispatchService(setup_of(redis_server.url, FixedPools(pool_id)))
    service.stop()
    service.start()
    assert service.stop()


@pytest.mark.usefixtures("not_nicer")
def test_a_celery_worker_hosts_the_service_and_stops_it(redis_server: RedisServer, pool_id: str):
    telemetry = Telemetry()
    app = Celery("test", broker="memory://", backend="cache+memory://", set_as_current=False)
    host_dispatch(app, lambda: setup_of(redis_server.url, FixedPools(pool_id), telemetry))
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
        for _ in range(3000):
            if telemetry.samples:
                break
            threading.Event().wait(0.01)
        assert telemetry.samples[0].pool.id == pool_id
    assert not [t for t in threading.enumerate() if t.name == "dispatch"]
