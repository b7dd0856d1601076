"""One leader per pool: who may write decisions, and until when.

Question: do I lead this pool right now, and under which epoch?

Redis lends the leadership for 2 s (``LEADER_MS``). It is extended from 0.5 s after the last success on, tried again
each 0.25 s; 0.5 s before the lease would end the leader stops itself on its own monotonic clock, whatever it believes
of Redis (client-go's lease, renew deadline and retry period: 2, 1.5, 0.25). What a paused leader still sends is refused
by its epoch. Meanwhile nobody's slots stay empty: scripts hand them out themselves (``docs/internals/state.md``).
A process that stalled past its lease asks once before it stops: where nobody has led since, it goes on under its epoch,
with the term it has. A busy machine then costs no more than the stall.
The epoch's floor is kept in the database, so that a Redis that lost its state cannot give out an old epoch again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from scheduling.dispatch.ports import EpochFloor
from scheduling.state.store import PoolStore
from scheduling.state.types import Election, StateUnavailable

log = logging.getLogger("quartermaster.dispatch")

RENEW_AFTER_S = 0.5  # first attempt after a success
RETRY_S = 0.25  # between attempts, and between candidacies
MARGIN_S = 0.5  # a leader stops this long before its lease would end
SOONEST_S = 0.02  # between candidacies where the lease of another is about to end
FLOOR_TIMEOUT_S = 2.0  # the database may be away: lead without it

T = TypeVar("T")


class Leadership:
    """One process's candidacy for one pool. ``holder`` must be unique per process start."""

    def __init__(
        self,
        store: PoolStore,
        holder: str,
        floor: EpochFloor,
        executor: Executor,
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        """``may_lead``: whether this process may stand at all, or go on (:mod:`scheduling.dispatch.installation`)."""
        self._store = store
        self._holder = holder
        self._book = floor
        self._executor = executor
        self._may_lead = may_lead
        self._busy: asyncio.Future[Any] | None = None
        self._known_floor = 0
        self._database_well = True  # by the last question; one log line per change
        self._booked = 0  # the highest epoch that is surely in the database
        self._never_led: bool | None = None  # None: the database has not said yet
        self._until = 0.0
        self._left_s = 0.0  # of another's lease, as it was answered last
        self._free = asyncio.Event()
        self.epoch = 0

    @property
    def leads(self) -> bool:
        """Whether writes may be sent now. Turns false by time alone."""
        return self.epoch > 0 and asyncio.get_running_loop().time() < self._until

    async def win(self) -> int:
        """Stands for election until it is won; the epoch. Redis being away only delays it."""
        self.epoch = 0
        if self._never_led is None:
            floor = await self._ask(lambda: self._book.read(self._store.pool_id))
            self._never_led = floor == 0
            self._known_floor = max(self._known_floor, floor or 0)
        while True:
            self._free.clear()
            self._left_s = RETRY_S
            try:
                epoch = await self._stand() if self._may_lead() else 0
            except StateUnavailable:
                epoch = 0
            if epoch:
                self.epoch = epoch
                return epoch
            try:
                async with asyncio.timeout(min(RETRY_S, self._left_s + SOONEST_S)):
                    await self._free.wait()
            except TimeoutError:
                pass

    def given_back(self) -> None:
        """Somebody has resigned: a candidate stands at once."""
        self._free.set()

    async def keep(self) -> None:
        """Extends the leadership; returns when it has ended."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(RENEW_AFTER_S)
        while self._until:
            if not self._may_lead():
                await self.resign()
                break
            pause = RETRY_S
            late_s = loop.time() - self._until
            try:
                election = await self._elect()
                if not election.leader or election.epoch != self.epoch:
                    break
                pause = RENEW_AFTER_S
                if late_s > 0:
                    log.warning(
                        "pool %s: this process stalled %.1f s past its time as a leader; nobody has led since, so it "
                        "goes on (epoch %d)",
                        self._store.pool_id,
                        late_s,
                        self.epoch,
                    )
            except StateUnavailable:
                if loop.time() >= self._until:
                    break
            if self._booked < self.epoch:
                await self._raise_floor(self.epoch)
            await asyncio.sleep(max(0.0, min(pause, self._until - loop.time())))
        self.lost()

    def lost(self) -> None:
        """Stops leading at once; called when a write was fenced."""
        self._until = 0.0

    async def resign(self) -> None:
        """Gives the leadership back, so that another need not wait for its end. Best effort."""
        if self.epoch == 0:
            return
        self.lost()
        try:
            await self._store.resign(self._holder)
        except StateUnavailable:
            log.info("pool %s: the leadership could not be given back and will run out", self._store.pool_id)

    async def _elect(self) -> Election:
        asked = asyncio.get_running_loop().time()  # before the call: the lease can only be longer than we think
        election = await self._store.elect(
            self._holder, max(self._known_floor, self.epoch), first_start=bool(self._never_led)
        )
        self._left_s = election.ttl_s
        if election.leader:
            self._until = asked + election.ttl_s - MARGIN_S
        self._never_led = False  # from now on an empty Redis is a lost one
        return election

    async def _stand(self) -> int:
        election = await self._elect()
        if not election.leader:
            return 0
        floor = await self._ask(lambda: self._book.read(self._store.pool_id))
        if floor is not None and floor >= election.epoch and floor > self._booked:
            # Redis forgot, and others have led since this process last looked: take an epoch above theirs.
            self._known_floor = floor
            await self._store.resign(self._holder)
            election = await self._elect()
            if not election.leader:
                return 0
        epoch = election.epoch
        self._known_floor = max(self._known_floor, epoch)
        await self._raise_floor(epoch)
        if asyncio.get_running_loop().time() < self._until:
            return epoch
        # A slow database has used up the lease. Where nobody has led meanwhile it is extended under its epoch.
        election = await self._elect()
        return epoch if election.leader and election.epoch == epoch else 0

    async def _raise_floor(self, epoch: int) -> None:
        def write() -> bool:
            self._book.raise_to(self._store.pool_id, epoch)
            return True

        if await self._ask(write):
            self._booked = epoch

    async def _ask(self, question: Callable[[], T]) -> T | None:
        """Asks the database in a thread; None when it does not answer in time. Never more than one thread is stuck."""
        if self._busy is not None and not self._busy.done():
            return None
        asked = asyncio.get_running_loop().run_in_executor(self._executor, question)
        asked.add_done_callback(lambda late: late.cancelled() or late.exception())  # an answer nobody waits for
        self._busy = asked
        done, _ = await asyncio.wait({asked}, timeout=FLOOR_TIMEOUT_S)
        error = asked.exception() if done else TimeoutError()
        if self._database_well != (error is None):
            self._database_well = error is None
            if error is None:
                log.info("pool %s: the database keeps the epoch floor again", self._store.pool_id)
            else:
                log.warning(
                    "pool %s: the database does not keep the epoch floor (%s); leading without it, tried again each "
                    "renewal",
                    self._store.pool_id,
                    type(error).__name__,
                )
        return asked.result() if error is None else None
