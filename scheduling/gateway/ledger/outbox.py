"""Nothing that ended is forgotten: refusals go to the ledger in batches, endings are repeated until Redis took them,
and what Redis took is kept until it is stored (:mod:`scheduling.gateway.ledger.unstored`).

Everything here is bounded. When Redis stays away for so long that the limit is reached, the oldest refusals are dropped
first (they held nothing), then the oldest endings (their leases expire by themselves), and the log says how many.
A process that is killed takes with it what Redis had not taken: refusals of ``flush_every_s``, or those of an outage.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from scheduling.core.ledger.record import LedgerRecord
from scheduling.gateway.ledger.unstored import Ending, Unstored
from scheduling.state.store import PoolStore
from scheduling.state.types import BATCH, FinishStatus, StateError, StateUnavailable

log = logging.getLogger(__name__)

RETRY_S = 0.5


class Outbox:
    """Records for the next flush (refusals, and what is sent again), and endings that Redis has not taken yet."""

    def __init__(self, stores: Callable[[str], PoolStore], flush_every_s: float, limit: int) -> None:
        self._stores = stores
        self._flush_every_s = flush_every_s
        self._limit = limit
        self._records: deque[LedgerRecord | Ending] = deque()
        self._endings: deque[Ending] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0
        self.unstored = Unstored(stores, self._again, limit)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway-outbox")
        self.unstored.start()

    async def stop(self) -> None:
        """Writes what can be written now, then stops."""
        await self.unstored.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._round()
        if self.waiting:
            log.error("gateway stops with %d ledger records that Redis did not take", self.waiting)

    @property
    def waiting(self) -> int:
        return len(self._records) + len(self._endings)

    def refused(self, record: LedgerRecord) -> None:
        """A request that never had shared state has ended."""
        self._records.append(record)
        self._notify()

    def _again(self, taken: Sequence[LedgerRecord | Ending]) -> None:
        """What Redis took and may have lost: each request is written once, whoever sends it."""
        self._records.extend(taken)
        self._notify()

    def keep(self, ending: Ending) -> None:
        """An ending that Redis has not confirmed."""
        self._endings.append(ending)
        self._notify()

    async def finish(self, ending: Ending) -> None:
        """Ends a request in shared state now; kept for later if that fails or is cancelled."""
        try:
            await self._say(ending)
        except StateUnavailable:
            self.keep(ending)
        except asyncio.CancelledError:
            self.keep(ending)
            raise

    def available(self) -> None:
        """Redis is back: no need to wait for the next round."""
        self.unstored.available()
        self._wake.set()

    def _notify(self) -> None:
        while self.waiting > self._limit:
            (self._records or self._endings).popleft()
            self.dropped += 1
        if not self._wake.is_set():
            self._wake.set()

    async def _say(self, ending: Ending) -> None:
        store = self._stores(ending.pool)
        for attempt in (ending.attempt, ending.attempt + 1):
            # a lost reply of ``requeue`` leaves the request at the next attempt
            result = await store.finish(
                ending.request_id, attempt, ending.reason, ending.actual_tokens, ending.ran, ending.record
            )
            if result.status is not FinishStatus.STALE:
                self.unstored.took(ending)
                return

    async def _record(self, pool: str, batch: Sequence[LedgerRecord | Ending]) -> None:
        in_flight = await self._stores(pool).record([r.record if isinstance(r, Ending) else r for r in batch])
        for record in batch:
            if isinstance(record, Ending) and record.request_id in in_flight:
                await self._say(record)  # the node that took over has its lease, and not its end
            else:
                self.unstored.took(record)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._flush_every_s)
            self._wake.clear()
            try:
                done = await self._round()
            except Exception:
                log.exception("ledger records could not be written")
                done = False
            if not done:
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _round(self) -> bool:
        """Writes everything that waits; False when Redis did not take all of it."""
        try:
            while self._endings:
                ending = self._endings[0]
                await self._guarded(self._say(ending))
                if self._endings and self._endings[0] is ending:
                    self._endings.popleft()
            while self._records:
                pool = self._records[0].pool
                batch: list[LedgerRecord | Ending] = []
                while self._records and len(batch) < BATCH and self._records[0].pool == pool:
                    batch.append(self._records.popleft())
                try:
                    await self._guarded(self._record(pool, batch))
                except BaseException:
                    self._records.extendleft(reversed(batch))
                    raise
        except StateUnavailable:
            return False
        if self.dropped:
            log.error("gateway dropped %d ledger records while Redis was away", self.dropped)
            self.dropped = 0
        return True

    async def _guarded(self, writing: Awaitable[None]) -> None:
        """A record that Redis rejects as such must not hold up the others."""
        try:
            await writing
        except StateError:
            log.exception("shared state rejected a ledger record")
