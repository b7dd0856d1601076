"""A pool's sleeping replicas: which are woken or added when requests wait, and in how long one serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.core.types import Phase, PoolSpec
from scheduling.dispatch.replicas.phases import Phases, slots_wanted
from scheduling.dispatch.replicas.watched import WHY_CHARS, WatchedBackend, serves
from scheduling.engines.client import EngineError
from scheduling.state.store import PoolStore

log = logging.getLogger("quartermaster.dispatch")

OVERDUE = 3.0  # times as long as usual: a wake has failed, or a replica that was to be added does not come
WAKE_AGAIN_S = 10.0  # after it could not be woken
SLEEP_AGAIN_S = 600.0  # after it could not be put to sleep


@dataclass(slots=True)
class Coming:
    """The replica that somebody adds to a pool without any: since when it is waited for, how long it took last."""

    since_s: float | None = None
    took_s: float = 0.0  # 0: not seen yet

    def asked(self, now_s: float) -> None:
        if self.since_s is None:
            self.since_s = now_s

    def came(self, now_s: float) -> None:
        """One serves."""
        if self.since_s is not None:
            self.took_s, self.since_s = max(1.0, now_s - self.since_s), None

    def given_up(self) -> None:
        """Nobody waits for it any more, and none is on its way."""
        self.since_s = None

    def in_s(self, expected_s: float, now_s: float) -> float:
        """Expected time until it is awake [s], by the time it usually takes; 0 once three times that has passed."""
        usual_s = self.took_s or expected_s
        waited_s = 0.0 if self.since_s is None else now_s - self.since_s
        if waited_s >= OVERDUE * max(usual_s, expected_s):
            return 0.0
        return max(usual_s - waited_s, usual_s / 4, 1.0)


def wake_fails(backend: WatchedBackend, now_s: float) -> bool:
    """Whether requests wait, or waited, for a sleeping replica that does not come back."""
    if backend.state != "asleep":
        return False
    overdue = backend.woken_s is not None and now_s - backend.woken_s > OVERDUE * backend.wake_s
    return backend.refused_wake or overdue


class PoolSleep:
    """The sleep of one pool's replicas for one term of leadership. Times are the loop's."""

    def __init__(
        self,
        store: PoolStore,
        epoch: int,
        backends: Mapping[str, WatchedBackend],
        phases: Phases,
        begin: Callable[[Coroutine[Any, Any, None], str], object],
        change: Callable[[WatchedBackend, str, str], Awaitable[None]],
    ) -> None:
        """``backends``: the monitor's own. ``begin`` starts a task of this term, ``change`` sets a replica's state."""
        self._store = store
        self._epoch = epoch
        self._backends = backends
        self._phases = phases
        self._begin = begin
        self._change = change
        self._pool: PoolSpec | None = None
        self._idle_since_s: float | None = None  # nothing runs and nothing waits
        self._coming = Coming()
        self.told_ms = 0  # what shared state says

    def configure(self, pool: PoolSpec) -> None:
        self._pool = pool

    @property
    def serves(self) -> bool:
        """Whether any replica may get work."""
        return any(self._phases.answers(backend) for backend in self._backends.values())

    @property
    def wakes_in_s(self) -> float:
        """In how long the pool is expected to serve again, where no replica does and one can be woken, or would be
        added; 0: none would be, or some serve."""
        if self.serves:
            return 0.0
        now_s = asyncio.get_running_loop().time()
        asleep = [b for b in self._backends.values() if b.state == "asleep" and not b.spec.draining]
        expected = [b.wake_s if b.woken_s is None else max(1.0, b.wake_s - (now_s - b.woken_s)) for b in asleep]
        return min(expected, default=self.added_in_s(now_s))

    def added_in_s(self, now_s: float) -> float:
        """Seconds until a replica serves that a scaler adds or that is starting; 0: none would be added, or the present
        ones have failed."""
        pool = self._pool
        if pool is None or not pool.scaling.to_zero:
            return 0.0
        if any(b.state != "probing" for b in self._backends.values() if not b.spec.draining):
            return 0.0
        return self._coming.in_s(pool.wakes_in_s, now_s)

    def wake(self, waiting: int) -> None:
        """Requests wait: wakes as many sleeping replicas as they need slots beyond those that serve."""
        if not self.serves:
            self._coming.asked(asyncio.get_running_loop().time())
        slots = {phase: slots_wanted(self._backends.values(), phase) for phase in Phase}
        now_s = asyncio.get_running_loop().time()
        for backend in self._backends.values():
            if backend.state != "asleep" or backend.spec.draining or backend.dozing or backend.woken_s is not None:
                continue
            if slots[backend.spec.phase] < waiting and now_s >= backend.wake_again_s:
                backend.woken_s = now_s
                slots[backend.spec.phase] += backend.spec.slots
                self._begin(self._wake(backend), f"wake-{backend.spec.id}")

    def not_wanted(self) -> None:
        """Nobody waits."""
        if all(backend.spec.draining for backend in self._backends.values()):
            self._coming.given_up()

    async def _wake(self, backend: WatchedBackend) -> None:
        log.info("backend %s: woken, as requests wait", backend.spec.id)
        try:
            await backend.control.wake()
        except EngineError as error:
            log.warning("backend %s: could not be woken: %s", backend.spec.id, error)
            backend.woken_s, backend.refused_wake = None, True
            backend.wake_again_s = asyncio.get_running_loop().time() + WAKE_AGAIN_S
            backend.why = f"asleep; it could not be woken: {error}"[:WHY_CHARS]
        backend.nudge.set()

    def rest(self, idle: bool) -> None:
        """Once a second; ``idle``: nothing runs and nothing waits. After the pool's time of that replicas that can
        sleep do."""
        now_s = asyncio.get_running_loop().time()
        if not idle or self._pool is None or not self._pool.sleep_after_s:
            self._idle_since_s = None
            return
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        if now_s - self._idle_since_s < self._pool.sleep_after_s:
            return
        self._idle_since_s = None
        for backend in self._backends.values():
            if serves(backend) and backend.kind.sleeps and now_s >= backend.wake_again_s:
                self._begin(self._sleep(backend), f"sleep-{backend.spec.id}")

    async def _sleep(self, backend: WatchedBackend) -> None:
        """Puts an engine to sleep. It leaves the ready replicas first, so that what was granted meanwhile ends
        before."""
        backend.dozing = True
        await self._change(backend, "asleep", "put to sleep: nothing ran or waited")
        try:
            await backend.control.sleep()
        except EngineError as error:
            log.warning("backend %s: could not be put to sleep: %s", backend.spec.id, error)
            backend.wake_again_s = asyncio.get_running_loop().time() + SLEEP_AGAIN_S
        finally:
            backend.dozing = False
        backend.nudge.set()

    async def tell_waking(self) -> None:
        """Tells shared state in how long the pool is expected to serve, so that requests may wait for that."""
        if self.serves:
            self._coming.came(asyncio.get_running_loop().time())
        ms = round(self.wakes_in_s) * 1000
        if ms != self.told_ms:
            await self._store.set_waking(self._epoch, ms)
            self.told_ms = ms
