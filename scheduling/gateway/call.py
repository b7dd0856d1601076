"""One request as long as it is open, and the clock that watches all of them.

Time limits cost nothing per request: no timer, no extra task. One coroutine looks at every open call ten times a
second, interrupts those whose limit has passed, and starts listening for a disconnect only on calls that live longer
than a moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from scheduling.core.outcomes import Reason
from scheduling.gateway.guard import Receive, Scope, Send
from scheduling.gateway.stages import Estimated, Identified, Submitted

log = logging.getLogger(__name__)

TICK_S = 0.1
SLEPT_S = 0.5  # a look that comes so much too late: the process did not run (stopped, swapped out, a laptop's lid)
TOLD_S = 2.0  # of such a time somebody should know
SILENCE = (Reason.BACKEND_STALLED, Reason.SLOW_READER)  # limits that blame somebody for saying nothing
LISTEN_AFTER_S = 0.2  # shorter calls are over before a disconnect could be acted upon
NEVER = float("inf")
PEER = "quartermaster.peer"  # ASGI extension of our server: where the connection comes from, be it a proxy
ABORT = "quartermaster.abort"  # ASGI extension of our server: drops the connection without waiting for its reader
# ASGI extension of our server: writes a further piece of a streamed body at once. False: its reader is slow, ``send``
# is to be asked, which waits for it
WRITE = "quartermaster.write"


class Call:
    """One open request as its connection and the clock see it. Times are epoch seconds unless named loop."""

    __slots__ = (
        "body_read",
        "closed",
        "deadline",
        "deadline_reason",
        "estimated",
        "id",
        "identified",
        "last_deadline",
        "listener",
        "loop",
        "receive",
        "received_s",
        "responding",
        "scope",
        "send",
        "started_loop",
        "status",
        "streaming",
        "submitted",
        "task",
        "why",
    )

    def __init__(
        self, request_id: str, scope: Scope, receive: Receive, send: Send, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.id = request_id
        self.scope = scope
        self.receive = receive
        self.send = send
        self.task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        self.received_s = time.time()
        self.loop = loop
        self.started_loop = loop.time()
        self.deadline = NEVER  # loop time; passed: interrupted with ``deadline_reason``
        self.deadline_reason = Reason.DEADLINE
        self.last_deadline = NEVER  # loop time: the limit of the whole request
        self.why: Reason | None = None  # set once, by the first interruption
        self.closed = False  # the end has begun: no more interruptions
        self.body_read = False
        self.listener: asyncio.Task[None] | None = None
        # the furthest of these is what is known of it (``scheduling.gateway.stages``)
        self.identified: Identified | None = None
        self.estimated: Estimated | None = None
        self.submitted: Submitted | None = None
        # the answer
        self.responding = False  # the response has begun
        self.streaming = False
        self.status = 0

    def now_s(self) -> float:
        """The time as this request's times are told [epoch s]: when it came, and since then by a clock nobody sets."""
        return self.received_s + (self.loop.time() - self.started_loop)

    def limit(self, reason: Reason, at_loop: float) -> None:
        """From now on the call ends with ``reason`` unless it gets further by ``at_loop``."""
        self.deadline_reason = reason
        self.deadline = at_loop

    def interrupt(self, reason: Reason) -> None:
        """Ends the call from outside: its task is cancelled where it waits, and ends with ``reason``. Once only."""
        if self.why is None and not self.closed:
            self.why = reason
            self.task.cancel()

    def forgive(self) -> None:
        """Takes an interruption back: its cause was dealt with."""
        self.why = None
        self.task.uncancel()

    async def abort_client(self) -> None:
        """Drops the client's connection without waiting for it to read (where the server allows it). Returns when the
        server knows: to it, an answer that ends early is a fault."""
        extensions = self.scope.get("extensions")
        abort = extensions.get(ABORT) if extensions else None
        if abort is not None:
            abort()
            await asyncio.sleep(0)

    def listen(self) -> None:
        """Starts to wait for the client's disconnect. Only once the body has been read."""
        self.listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.interrupt(Reason.CLIENT_LEFT)


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
        """While this process did not run it could hear nobody: whose silence it would take for a fault gets that time
        back. What came meanwhile is read after this look."""
        for call in self.calls:
            if call.deadline_reason in SILENCE:
                call.deadline += slept_s
        if slept_s > TOLD_S:
            log.warning("this process did not run for %.1f s", slept_s)

    def _tick(self, now: float, next_second: float) -> float:
        for call in self.calls:
            if now >= call.deadline:
                call.interrupt(call.deadline_reason)
            elif now >= call.last_deadline:
                call.interrupt(Reason.DEADLINE)
            elif call.listener is None and call.body_read and now - call.started_loop > LISTEN_AFTER_S:
                call.listen()
        if now >= next_second:
            next_second = now + 1.0
            self._every_second()
        return next_second
