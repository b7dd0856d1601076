"""Retry budget, catalog cache, ledger backlog: small parts, alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from scheduling.catalog import CatalogCache
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.core.types import Catalog
from scheduling.gateway.engine.retries import RetryBudget
from scheduling.gateway.ledger.outbox import Outbox
from scheduling.gateway.ledger.unstored import Ending, Unstored
from scheduling.state.store import PoolStore
from scheduling.state.types import FinishResult, FinishStatus, LedgerProgress, StateError, StateUnavailable
from tests.support.state_world import ledger


def test_retries_stay_within_a_share_of_the_requests() -> None:
    budget = RetryBudget(0.2, 3, 0.0)
    granted = 0
    for _ in range(1000):
        budget.earn()
        granted += budget.spend(0.0)
    assert granted == 203


def test_a_quiet_gateway_gets_its_floor_back() -> None:
    budget = RetryBudget(0.2, 3, 0.0)
    assert [budget.spend(0.0) for _ in range(4)] == [True, True, True, False]
    assert not budget.spend(10.0)
    assert [budget.spend(80.0) for _ in range(4)] == [True, True, True, False]


# --- the catalog


class Database:
    def __init__(self) -> None:
        self.version = 1
        self.down = False
        self.looks = 0
        self.loads = 0

    def look(self) -> int:
        self.looks += 1
        if self.down:
            raise OSError("down")
        return self.version

    def load(self) -> Catalog:
        self.loads += 1
        return Catalog(self.version, {}, {}, {})


async def follow(database: Database, test: Callable[[CatalogCache], Any]) -> None:
    cache = CatalogCache(database.load, database.look, poll_s=0.05)
    await cache.start()
    try:
        async with asyncio.timeout(20):
            await test(cache)
    finally:
        await cache.close()


async def test_the_catalog_follows_the_version_and_tells_its_listeners() -> None:
    database = Database()
    seen: list[int] = []

    async def test(cache: CatalogCache) -> None:
        cache.on_change(lambda catalog: seen.append(catalog.version))
        assert seen == [1]
        database.version = 2
        while seen != [1, 2]:
            await asyncio.sleep(0.01)
        assert cache.current.version == 2
        assert database.loads == 2

    await follow(database, test)


async def test_many_unknown_keys_make_few_queries() -> None:
    database = Database()

    async def test(cache: CatalogCache) -> None:
        before = database.looks
        await asyncio.gather(*(cache.refreshed(5) for _ in range(500)))
        assert database.looks - before <= 3

    await follow(database, test)


async def test_a_refresh_sees_what_was_written_before_it() -> None:
    database = Database()

    async def test(cache: CatalogCache) -> None:
        for version in range(2, 6):
            database.version = version
            await cache.refreshed(5)
            assert cache.current.version == version

    await follow(database, test)


async def test_without_a_database_the_old_catalog_stays_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database()

    async def test(cache: CatalogCache) -> None:
        database.down = True
        for _ in range(3):
            await cache.refreshed(5)
        assert cache.current.version == 1
        database.down = False
        database.version = 9
        await cache.refreshed(5)
        assert cache.current.version == 9

    await follow(database, test)
    said = [r.getMessage() for r in caplog.records if r.name == "scheduling.catalog"]
    assert len(said) == 2


async def test_a_start_without_a_database_is_a_start() -> None:
    database = Database()
    database.down = True

    async def test(cache: CatalogCache) -> None:
        assert not cache.loaded
        with pytest.raises(LookupError):
            _ = cache.current
        database.down = False
        while not cache.loaded:
            await asyncio.sleep(0.01)

    await follow(database, test)


# --- the outbox


class Store:
    """Shared state that can be away, and that can find a record unbearable."""

    def __init__(self) -> None:
        self.up = True
        self.poison = ""
        self.stale_at = 0
        self.finished: list[tuple[str, int]] = []
        self.recorded: list[str] = []

    async def finish(self, request_id: str, attempt: int, *_: Any) -> FinishResult:
        if not self.up:
            raise StateUnavailable("away")
        if request_id == self.poison:
            raise StateError("no")
        if attempt == self.stale_at:
            return FinishResult(FinishStatus.STALE)
        self.finished.append((request_id, attempt))
        return FinishResult(FinishStatus.OK)

    async def record(self, records: list[LedgerRecord]) -> None:
        if not self.up:
            raise StateUnavailable("away")
        assert len(records) <= 100
        self.recorded += [r.request_id for r in records]


def outbox_on(store: Store, limit: int = 1000) -> Outbox:
    def stores(_: str) -> PoolStore:
        return store  # type: ignore[return-value]

    return Outbox(stores, 0.01, limit)


def ending(name: str, attempt: int = 1) -> Ending:
    return Ending("p", name, attempt, Reason.STOP, 10, True, ledger(name))


async def test_what_redis_did_not_take_is_said_again_when_it_is_back() -> None:
    store = Store()
    store.up = False
    outbox = outbox_on(store)
    outbox.start()
    for i in range(5):
        await outbox.finish(ending(f"e{i}"))
    for i in range(250):
        outbox.refused(ledger(f"r{i}"))
    await asyncio.sleep(0.1)
    assert outbox.waiting == 255
    store.up = True
    outbox.available()
    async with asyncio.timeout(20):
        while outbox.waiting:
            await asyncio.sleep(0.01)
    assert store.finished == [(f"e{i}", 1) for i in range(5)]
    assert store.recorded == [f"r{i}" for i in range(250)]
    await outbox.stop()


async def test_a_lost_answer_of_a_requeue_does_not_hide_the_request() -> None:
    store = Store()
    store.stale_at = 1
    outbox = outbox_on(store)
    await outbox.finish(ending("e"))
    assert store.finished == [("e", 2)]


async def test_a_cancelled_finish_is_said_later() -> None:
    class Slow(Store):
        async def finish(self, request_id: str, attempt: int, *args: Any) -> FinishResult:
            if not self.finished:
                self.finished.append(("asked", 0))
                await asyncio.sleep(3600)
            return await super().finish(request_id, attempt, *args)

    store = Slow()
    outbox = outbox_on(store)
    task = asyncio.create_task(outbox.finish(ending("e")))
    async with asyncio.timeout(20):
        while not store.finished:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await outbox.stop()
    assert store.finished == [("asked", 0), ("e", 1)]


async def test_one_record_that_cannot_be_written_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    store.poison = "bad"
    outbox = outbox_on(store)
    outbox.keep(ending("bad"))
    outbox.keep(ending("good"))
    await outbox.stop()
    assert store.finished == [("good", 1)]
    assert "rejected" in caplog.text


async def test_the_backlog_has_a_limit_and_gives_up_refusals_first() -> None:
    store = Store()
    store.up = False
    outbox = outbox_on(store, limit=10)
    for i in range(8):
        outbox.keep(ending(f"e{i}"))
    for i in range(8):
        outbox.refused(ledger(f"r{i}"))
    assert outbox.waiting == 10
    assert outbox.dropped == 6
    for i in range(8, 14):
        outbox.keep(ending(f"e{i}"))
    store.up = True
    await outbox.stop()
    assert store.recorded == []
    assert store.finished == [(f"e{i}", 1) for i in range(4, 14)]


async def test_a_pool_whose_first_request_ends_while_the_others_are_looked_at_holds_up_none_of_them() -> None:
    looked: list[str] = []

    class Store:
        def __init__(self, pool: str) -> None:
            self._pool = pool

        async def ledger_progress(self) -> LedgerProgress:
            looked.append(self._pool)
            unstored.took(ledger("r9", pool=f"new beside {self._pool}"))
            return LedgerProgress((1, 0), None, b"data")

    unstored = Unstored(lambda pool: cast(PoolStore, Store(pool)), lambda records: None, 100)
    for name in ("a", "b", "c"):
        unstored.took(ledger("r1", pool=name))
    await unstored.round()
    assert looked == ["a", "b", "c"]
    await unstored.round()
    assert looked[3:] == ["a", "b", "c", *(f"new beside {name}" for name in ("a", "b", "c"))]
