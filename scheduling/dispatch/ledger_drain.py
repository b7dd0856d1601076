"""From the pool's ledger stream to the database: in bulk, once, and never on a request's path."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from scheduling.core.ledger.record import LedgerRecord
from scheduling.dispatch.ports import TelemetryPort
from scheduling.state.store import PoolStore
from scheduling.state.types import LedgerEntry, StateUnavailable

log = logging.getLogger("quartermaster.dispatch")

BATCH = 1000
IDLE_S = 0.5
BACKOFF_S = (0.5, 1.0, 2.0, 5.0)
NOTHING = (0, 0)  # a place before all entries


class LedgerDrain:
    """Moves ended requests of one pool. Entries are deleted only after the write, which is idempotent by request.

    ``ended`` is told once of each entry, however often its write fails; ``read`` of all that is read, each time.
    """

    def __init__(
        self,
        store: PoolStore,
        telemetry: TelemetryPort,
        thread: Executor,
        ended: Callable[[list[LedgerRecord]], None],
        read: Callable[[Sequence[LedgerEntry]], None],
    ) -> None:
        self._ended = ended
        self._read = read
        self._store = store
        self._telemetry = telemetry
        self._thread = thread
        self._told = NOTHING  # the last entry that ``ended`` was told of, of those that are still there
        self._failures = 0
        self._stored_s = time.time()  # what had ended by then is stored

    @property
    def behind_since_s(self) -> float | None:
        """Since when requests that ended are not stored, because the database does not take them [epoch s]; None: all
        are, as far as is known."""
        return self._stored_s if self._failures else None

    async def run(self) -> None:
        """Drains until cancelled. Redis or the database being away only delays it."""
        while True:
            try:
                moved = await self.drain_once()
            except StateUnavailable:
                moved = 0
            if self._failures:
                await asyncio.sleep(BACKOFF_S[min(self._failures, len(BACKOFF_S)) - 1])
            elif moved < BATCH:
                await asyncio.sleep(IDLE_S)

    def _tell(self, entries: Sequence[LedgerEntry]) -> None:
        new = [entry for entry in entries if _place(entry) > self._told]
        if new:
            self._told = _place(new[-1])
            self._ended([entry.record for entry in new if entry.record is not None])

    async def drain_once(self) -> int:
        """Moves at most ``BATCH`` entries; how many are gone from the stream now."""
        now_s = time.time()
        entries = await self._store.ledger_read(BATCH)
        self._read(entries)
        if not entries:
            self._stored_s = now_s
            return 0
        records = [entry.record for entry in entries if entry.record is not None]
        self._tell(entries)
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._telemetry.write_ledger, self._store.pool_id, records
            )
        except Exception as error:
            if not self._failures:
                log.warning(
                    "pool %s: the ledger cannot be written (%s: %s); its entries wait in Redis",
                    self._store.pool_id,
                    type(error).__name__,
                    error,
                )
            self._failures += 1
            return 0
        if self._failures:
            log.info("pool %s: the ledger is written again", self._store.pool_id)
            self._failures = 0
        if len(entries) < BATCH:
            self._stored_s = now_s
        if unread := [entry for entry in entries if entry.record is None]:
            log.error(
                "pool %s: %d ledger entries cannot be read and are set aside in ledger:unread; the first (%s): %s",
                self._store.pool_id,
                len(unread),
                unread[0].id,
                unread[0].why,
            )
            await self._store.ledger_set_aside(unread)
        await self._store.ledger_delete([entry.id for entry in entries])
        self._told = NOTHING
        return len(entries)


def _place(entry: LedgerEntry) -> tuple[int, int]:
    """In its stream."""
    at_ms, _, number = entry.id.partition("-")
    return int(at_ms), int(number or 0)
