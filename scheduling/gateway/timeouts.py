"""The clock that watches all open requests.

Time limits cost nothing per request: no timer, no extra task. One coroutine looks at every open call ten times a
second, interrupts those whose limit has passed, and starts listening for a disconnect only on calls that live longer
than a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from scheduling.core.outcomes import Reason
from scheduling.gateway.stages import Call

log = logging.getLogger(__name__)

TICK_S = 0.1
SLEPT_S = 0.5  # a look that comes so much too late: the process did not run (stopped, swapped out, a laptop's lid)
TOLD_S = 2.0  # of such a time somebody should know
SILENCE = (Reason.BACKEND_STALLED, Reason.SLOW_READER)  # limits that blame somebody for saying nothing
LISTEN_AFTER_S = 0.2  # shorter calls are over before a disconnect could be acted upon


class Timeouts:
    """The clock over all open calls."""

    def __init__(self, every_second: Callable[[], None]) -> None:
        self.calls: set[Call] = set()
        self._every_second = every_second
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway-watch")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_second = before = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            try:
                if now - before > TICK_S + SLEPT_S:
                    self._slept(now - before - TICK_S)
                before = now
                next_second = self._tick(now, next_second)
            except Exception:
                log.exception("a look at the open requests failed")  # time limits must not end with it

    def _slept(self, slept_s: float) -> None:
        """This process did not run for ``slept_s`` and could hear nothing: limits on others' silence are extended by
        that. What arrived meanwhile is read after this."""
        for call in self.calls:
            if call.deadline_reason in SILENCE:
                call.put_off(slept_s)
        if slept_s > TOLD_S:
            log.warning("this process did not run for %.1f s", slept_s)

    def _tick(self, now: float, next_second: float) -> float:
        for call in self.calls:
            if now >= call.deadline and call.overdue(now):
                call.interrupt(call.deadline_reason)
            elif now >= call.last_deadline:
                call.interrupt(Reason.DEADLINE)
            elif call.listener is None and call.body_read and now - call.started_loop > LISTEN_AFTER_S:
                call.listen()
        if now >= next_second:
            next_second = now + 1.0
            self._every_second()
        return next_second
