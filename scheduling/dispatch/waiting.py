"""What waits in a pool, as its leader knows it: the scheduler's requests, and those that are parked.

A waiting request belongs to its gateway, which ends it; this is a copy that notifications keep up to date. One that was
missed or came twice costs latency only: when Redis knows of more requests than are here, the queue is read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

from scheduling.core.admission.rule import limited
from scheduling.core.placement.rule import read_points
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import EntitlementSpec, QueuedRequest
from scheduling.dispatch.parked import Parked
from scheduling.state.store import PoolStore
from scheduling.state.types import LEASE_MS, PoolSnapshot

log = logging.getLogger("quartermaster.dispatch")

DRIFT_TICKS = 10  # so many looks in a row that find more waiting in Redis than here: read the queue again
DRIFT_GAP_S = 30.0
PLACES_ASKED = 500  # prompts of which is asked at once where they ran; the oldest of more are placed by work
RENEWED_S = LEASE_MS / 1000 + 1.0  # whose gateway neither hears nor renews was swept by then


class Waiting:
    """One term's copy of its pool's queue. ``notify`` is called when there is something to decide."""

    def __init__(
        self,
        store: PoolStore,
        pool_id: str,
        scheduler: Scheduler,
        specs: Mapping[str, EntitlementSpec],
        notify: Callable[[], None],
    ) -> None:
        self._store = store
        self._pool_id = pool_id
        self._notify = notify
        self._specs = specs
        self.scheduler = scheduler
        self.parked = Parked()
        self.entitlements: dict[str, None] = {}  # of what waits; some may have left since the last second
        self.stale = True  # the queue must be read again
        self.loaded = asyncio.Event()
        self.last_event = "0-0"
        self._unplaced: deque[str] = deque(maxlen=PLACES_ASKED)  # prompts of which it was not asked where they ran
        self._drifted = 0
        self._read_at = 0.0
        self._clock_offset_s = 0.0

    def __len__(self) -> int:
        """Requests that wait, parked ones included."""
        return len(self.scheduler) + len(self.parked)

    # --- time

    def set_clock(self, now_ms: int) -> float:
        """Redis time [epoch s] is the pool's clock; between looks it goes on with the loop's."""
        now_s = now_ms / 1000.0
        self._clock_offset_s = now_s - asyncio.get_running_loop().time()
        return now_s

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() + self._clock_offset_s

    # --- who waits

    def configure(self, specs: Mapping[str, EntitlementSpec]) -> None:
        """New limits by entitlement: what waits follows them."""
        self._specs = specs
        now_s = self.now_s()
        for request in [r for r in self.scheduler if limited(r, specs.get(r.entitlement)) is not r]:
            self.offer(request, now_s)

    def offer(self, request: QueuedRequest, now_s: float) -> None:
        if self.parked.holds(request.gateway):
            self.parked.park(request, asyncio.get_running_loop().time())
            return
        self.entitlements[request.entitlement] = None
        if request.prefixes and self.scheduler.learns_places:
            self._unplaced.append(request.prefixes)
        self.scheduler.offer(limited(request, self._specs.get(request.entitlement)), now_s)

    def withdraw(self, request_id: str) -> None:
        self.scheduler.withdraw(request_id)
        self.parked.withdraw(request_id)

    def park(self, request: QueuedRequest) -> None:
        """A gateway does not listen: this request and its others are set aside until it does."""
        now_s = asyncio.get_running_loop().time()
        if not self.parked.holds(request.gateway):
            log.info("pool %s: gateway %s does not listen, its requests are parked", self._pool_id, request.gateway)
            for other in [r for r in self.scheduler if r.gateway == request.gateway]:
                self.scheduler.withdraw(other.id)
                self.parked.park(other, now_s)
        self.parked.park(request, now_s)

    def note_entitlements(self) -> None:
        """Drops entitlements that have nothing waiting."""
        self.entitlements = {request.entitlement: None for request in self.scheduler}

    async def learn_places(self) -> None:
        """Reads where prompts like those that began to wait ran before: the script granted most of them on arrival."""
        if self._unplaced:
            points = {name: None for text in self._unplaced for name, _ in read_points(text)[1]}
            self._unplaced.clear()
            self.scheduler.learn(await self._store.places(list(points)))

    # --- keeping in step with shared state

    async def read(self) -> None:
        """Reads the whole queue."""
        self.last_event, waiting = await self._store.load_queue()
        self.parked.clear()
        queued = {request.id for request in waiting}
        for request in list(self.scheduler):
            if request.id not in queued:
                self.scheduler.withdraw(request.id)
        now_s = self.now_s()
        for request in waiting:
            self.offer(request, now_s)
        self.stale = False
        self._read_at = asyncio.get_running_loop().time()

    def compare(self, snapshot: PoolSnapshot) -> None:
        """Notifications can be lost, since the stream is bounded: the queue is read again when Redis keeps knowing of
        more requests than are here.

        The other way round needs no care: a grant for something that left is answered ``gone``.
        """
        self._drifted = self._drifted + 1 if snapshot.waiting > len(self) else 0
        now_s = asyncio.get_running_loop().time()
        if self._drifted >= DRIFT_TICKS and now_s - self._read_at >= DRIFT_GAP_S:
            self._drifted = 0
            self.read_again()

    def read_again(self) -> None:
        self.stale = True
        self._notify()

    async def call_back(self) -> None:
        """Returns parked requests whose gateways listen again.

        After a whole heartbeat what is parked is either swept or of a gateway that renews and does not hear: the queue
        is read again, and whoever left unnoticed is forgotten.
        """
        if not len(self.parked):
            return
        if self.parked.longest_s(asyncio.get_running_loop().time()) > RENEWED_S:
            self.read_again()
            return
        back = await self._store.listening(self.parked.gateways)
        now_s = self.now_s()
        for gateway in back:
            for request in self.parked.back(gateway):
                self.offer(request, now_s)
        if back:
            self._notify()
