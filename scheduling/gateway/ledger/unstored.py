"""Ledger records stay here until they are in the database: a Redis that loses its data loses no record of a gateway.

Redis takes a record at a request's end and the leader moves it to the database within about a second. Until it is gone
from the ledger stream it is kept here as well, and sent again

* where the pool was born anew (``meta.born``): Redis was flushed, or started without its data, and
* after every reconnect, what was sent in the last minute: a replica that took over may lack what came last. It may
  still have the lease of a request that ended then, so such an end is told as a whole.

Sending again is harmless: shared state takes each request once, the database as well. How far the leader is costs three
small commands a second and pool, nothing per request. Bounded: the oldest are let go first, Redis has them too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.state.store import PoolStore
from scheduling.state.types import StateError, StateUnavailable

log = logging.getLogger(__name__)

EVERY_S = 1.0
AGAIN_S = 60.0  # what was taken longer ago has reached a replica, and is still known as ended (``ENDED_MS``)

EntryId = tuple[int, int]  # of a stream: ms, number


class Ending(msgspec.Struct, frozen=True):
    """A request's end as shared state must hear it; saying it twice is harmless."""

    pool: str
    request_id: str
    attempt: int
    reason: Reason
    actual_tokens: int
    ran: bool
    record: LedgerRecord


@dataclass(slots=True)
class _Pool:
    born: bytes = b""  # what names the data set; empty: not seen yet
    doubtful: bool = False  # the connection was lost since the last look
    fresh: list[LedgerRecord | Ending] = field(default_factory=list)  # taken since the last look
    marked: deque[tuple[EntryId, float, list[LedgerRecord | Ending]]] = field(default_factory=deque)
    """Taken before a look: the newest entry of the stream then, when that was [monotonic s], and the records."""

    def __len__(self) -> int:
        return len(self.fresh) + sum(len(records) for _, _, records in self.marked)


class Unstored:
    """The records of one gateway that Redis has and the database may not have yet."""

    def __init__(
        self, stores: Callable[[str], PoolStore], again: Callable[[Sequence[LedgerRecord | Ending]], None], limit: int
    ) -> None:
        """``again`` sends them once more, and tells :meth:`took` of them."""
        self._stores = stores
        self._again = again
        self._limit = limit
        self.on_lost: Callable[[], None] = lambda: None  # Redis lost the data of a pool
        self._pools: dict[str, _Pool] = {}
        self._well = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway-unstored")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def __len__(self) -> int:
        return sum(map(len, self._pools.values()))

    def took(self, record: LedgerRecord | Ending) -> None:
        """Redis has taken a record, alone or with the end of its request."""
        pool = self._pools.get(record.pool)
        if pool is None:
            pool = self._pools[record.pool] = _Pool()
        pool.fresh.append(record)

    def available(self) -> None:
        """Redis answers again: it may be another one."""
        for pool in self._pools.values():
            pool.doubtful = True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.round()
                self._well = True
            except StateUnavailable:
                continue
            except Exception:
                if self._well:  # one line per change
                    log.exception("how far the ledger was written cannot be read; records are kept")
                self._well = False

    async def round(self) -> None:
        """Looks once at the pools in which something ended. Raises :class:`StateUnavailable`."""
        for name, pool in list(self._pools.items()):  # others may begin meanwhile
            await self._look(name, pool)
        while (over := len(self) - self._limit) > 0:
            fullest = max(self._pools.values(), key=len)
            oldest = fullest.marked[0][2] if fullest.marked else fullest.fresh
            del oldest[:over]
            if fullest.marked and not oldest:
                fullest.marked.popleft()

    async def _look(self, name: str, pool: _Pool) -> None:
        asked_s, doubtful = time.monotonic(), pool.doubtful
        asked, pool.fresh = pool.fresh, []
        try:
            progress = await self._stores(name).ledger_progress()
        except (StateUnavailable, StateError):
            pool.fresh[:0] = asked
            raise
        if not progress.born:  # no leader since the data was lost; the first one will name the new data set
            pool.fresh[:0] = asked
            return
        lost = pool.born not in (b"", progress.born)
        pool.born = progress.born
        if lost or doubtful:
            pool.doubtful = False
            since_s = float("-inf") if lost else asked_s - AGAIN_S
            kept = [r for _, taken_s, records in pool.marked if taken_s >= since_s for r in records] + asked
            pool.marked.clear()
            if lost:
                log.warning("pool %s: Redis lost its data; %d ledger records are sent again", name, len(kept))
                self.on_lost()
            if kept:
                self._again(kept)
            return
        if asked and progress.newest is not None:
            pool.marked.append((progress.newest, asked_s, asked))
        while pool.marked and (progress.oldest is None or progress.oldest > pool.marked[0][0]):
            pool.marked.popleft()
