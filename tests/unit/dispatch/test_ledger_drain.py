"""What a leader learns of ended requests on their way to the database."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.ledger.record import LedgerRecord
from scheduling.dispatch.ledger_drain import LedgerDrain
from scheduling.state.types import LedgerEntry
from tests.support.dispatch_world import Inline, Telemetry, on_virtual_time
from tests.support.state_world import ledger


class Store:
    pool_id = "p"

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self.count = 0
        self.now_ms = 1_700_000_000_000

    def ends(self, name: str) -> None:
        self.count += 1
        self.entries.append(LedgerEntry(f"{self.now_ms}-{self.count + 7}", ledger(name)))

    async def ledger_read(self, count: int) -> list[LedgerEntry]:
        return self.entries[:count]

    async def ledger_delete(self, ids: Sequence[str]) -> None:
        self.entries = [entry for entry in self.entries if entry.id not in ids]


class Away(Telemetry):
    down = True

    def write_ledger(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        if self.down:
            raise OSError("no database")
        super().write_ledger(pool, records)


def drain_of(store: Store, telemetry: Telemetry, told: list[str]) -> LedgerDrain:
    return LedgerDrain(
        store,  # type: ignore[arg-type]
        telemetry,
        Inline(),
        lambda records: told.extend(record.request_id for record in records),
        lambda entries: None,
    )


def test_what_ended_counts_once_however_often_the_database_refuses_it() -> None:
    """A few requests told again and again would be taken for a thousand, and KV caches reserved by them."""

    async def run() -> None:
        told: list[str] = []
        store, telemetry = Store(), Away()
        drain = drain_of(store, telemetry, told)
        store.ends("a")
        store.ends("b")
        for _ in range(5):
            assert await drain.drain_once() == 0
        store.ends("c")
        assert await drain.drain_once() == 0
        telemetry.down = False
        assert await drain.drain_once() == 3
        store.ends("d")
        assert await drain.drain_once() == 1
        assert told == ["a", "b", "c", "d"]

    on_virtual_time(run)


def test_what_ends_counts_although_redis_was_flushed_and_its_clock_set_back() -> None:
    async def run() -> None:
        told: list[str] = []
        store = Store()
        drain = drain_of(store, Telemetry(), told)
        store.ends("a")
        assert await drain.drain_once() == 1
        store.now_ms -= 3_600_000
        store.ends("b")
        assert await drain.drain_once() == 1
        assert told == ["a", "b"]

    on_virtual_time(run)
