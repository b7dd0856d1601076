"""One live connection to Redis, on which everybody's calls are pipelined. :mod:`scheduling.state.resp` keeps one up."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from scheduling.state.script import Script
from scheduling.state.types import StateUnavailable

Word = str | bytes | int | float
pack: Callable[[tuple[Word, ...]], bytes] = cast(Any, hiredis.pack_command)  # its stub says: tuples of length one

LOOK_AGAIN_S = 0.02
PING = pack(("PING",))
AT_ONCE = 16  # calls in one command: a millisecond or two, in which the server does nothing else


class Answered(StateUnavailable):
    """The server is there, and says why it cannot be used now."""


class NotLetIn(Answered):
    """Its password, certificate or kind is not what this process was told: somebody has to change a setting."""


class Together:
    """Calls of one script that leave as one command. Like a future that shares its result out among the calls' own."""

    __slots__ = ("_known", "_wire", "args", "futures", "prefix", "script")

    def __init__(self, wire: Wire, script: Script, prefix: bytes) -> None:
        self._wire = wire
        self._known = True  # to the server, as far as was heard
        self.script = script
        self.prefix = prefix
        self.args: list[Word] = []
        self.futures: list[asyncio.Future[Any]] = []

    def packed(self) -> bytes:
        verb, text = (b"EVALSHA", self.script.sha) if self._known else (b"EVAL", self.script.source)
        return pack((verb, text, b"1", self.prefix, *self.args))

    def done(self) -> bool:
        return False

    def set_result(self, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            if self._known and str(reply).startswith("NOSCRIPT"):
                self._known = False  # it has not run, so sending it again is not a retry
                self._wire.send_for(self, self.packed())
                return
            reply = [reply] * len(self.futures)
        if len(reply) != len(self.futures):
            self.set_exception(StateUnavailable(f"Redis: {len(reply)} answers to {len(self.futures)} calls"))
            return
        for future, answer in zip(self.futures, reply, strict=True):
            if not future.done():
                future.set_result(answer)

    def set_exception(self, error: BaseException) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
                future.exception()

    def exception(self) -> None:
        """Retrieved, as far as asyncio is concerned."""


class Wire(asyncio.Protocol):
    """One live connection: framing, pipelining, time limits. Dies once, then is thrown away.

    ``timeout`` bounds each call [s]; ``silence`` is for how long nothing at all may come back while calls wait [s].
    """

    __slots__ = ("_ended", "_flush_due", "_groups", "_heard", "_loop", "_on_lost", "_on_push", "_out", "_overdue",
                 "_pending", "_prober", "_reader", "_silence", "_timeout", "_timer", "_transport")  # fmt: skip

    def __init__(
        self,
        timeout: float,
        on_lost: Callable[[Wire, str], None],
        on_push: Callable[[Any], None] | None = None,
        silence: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._silence = timeout if silence is None else min(timeout, silence)
        self._heard = float("-inf")  # when anything came back last
        self._on_lost = on_lost
        self._on_push = on_push
        self._reader = hiredis.Reader()
        self._pending: deque[tuple[asyncio.Future[Any] | Together, float]] = deque()  # and when each was sent
        self._groups: dict[tuple[bytes, bytes], Together] = {}  # by script and key, until the next flush
        self._out: list[bytes] = []
        self._flush_due = False
        self._overdue: asyncio.Future[Any] | Together | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._prober: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: tuple[type[StateUnavailable], str] | None = None  # of which kind, and why

    @property
    def closed(self) -> bool:
        return self._ended is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Queues one command; its future gets the reply (``hiredis.ReplyError`` as a value)."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._ended is not None:
            future.set_exception(why_of(*self._ended))
            return future
        self.send_for(future, packed)
        return future

    def send_for(self, waiting: asyncio.Future[Any] | Together, packed: bytes) -> None:
        """Queues one command for who waits for its reply."""
        now = self._loop.time()
        self._pending.append((waiting, now))
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._silence, self._check)
        self.write(packed)

    def together(self, script: Script, prefix: bytes, args: Sequence[Word]) -> asyncio.Future[Any]:
        """One call of a script that takes many; its future gets the reply, as that of ``send`` does."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._ended is not None:
            future.set_exception(why_of(*self._ended))
            return future
        key = script.sha, prefix
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Together(self, script, prefix)
            self._flush_soon()
        group.args += (len(args), *args)
        group.futures.append(future)
        if len(group.futures) == AT_ONCE:
            self.send_for(self._groups.pop(key), group.packed())
        return future

    def probe_every(self, every: float) -> None:
        """From now on asks so often [s] whether the other side is there, unless a call that waits does so already."""
        if not self.closed:
            if not self._pending:
                self.send(PING)
            self._prober = self._loop.call_later(every, self.probe_every, every)

    def write(self, packed: bytes) -> None:
        self._out.append(packed)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        groups, self._groups = self._groups, {}
        for group in groups.values():
            self.send_for(group, group.packed())
        self._flush_due = False
        out, self._out = self._out, []
        if self._transport is not None and not self.closed:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _check(self) -> None:
        """Replies come in order and all limits are equal, so only the oldest call has to be watched."""
        self._timer = None
        if not self._pending:
            return
        future, sent = self._pending[0]
        now = self._loop.time()
        limit = sent + self._timeout
        due = min(limit, max(sent, self._heard) + self._silence)
        if due > now:
            self._timer = self._loop.call_at(due, self._check)
        elif future is not self._overdue:
            # If it was this process that slept, the answer lies in the socket: let the loop read once more. Where it
            # was kept from looking in time, so was perhaps the server from answering: it gets as much time again.
            self._overdue = future
            self._timer = self._loop.call_later(max(LOOK_AGAIN_S, min(now - due, self._timeout)), self._check)
        elif due < limit:
            self.close(f"nothing came back for {self._silence:g} s")
        else:
            self.close(f"no answer within {self._timeout:g} s")

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        self._heard = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if self._on_push is not None:
                    self._on_push(reply)
                    continue
                if not pending and isinstance(reply, hiredis.ReplyError):  # its last word, as of one client too many
                    self.close(str(reply), NotLetIn)
                    return
                future, _ = pending.popleft()
                if not future.done():  # a cancelled caller's reply is dropped here
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close("the server does not speak RESP")

    def connection_lost(self, exc: Exception | None) -> None:
        kind = NotLetIn if isinstance(exc, ssl.SSLError) else StateUnavailable  # the server judges a certificate late
        self.close(f"connection lost: {exc}" if exc else "connection closed by the server", kind)

    def close(self, why: str, kind: type[StateUnavailable] = StateUnavailable) -> None:
        """Fails every open call with ``kind``. Safe to call twice."""
        if self.closed:
            return
        self._ended = kind, why
        for timer in (self._timer, self._prober):
            if timer is not None:
                timer.cancel()
        self._timer = self._prober = None
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = [waiting for waiting, _ in self._pending], deque()
        pending += self._groups.values()
        self._groups = {}
        for future in pending:
            if not future.done():
                future.set_exception(why_of(kind, why))
                future.exception()  # retrieved: a caller that was cancelled meanwhile must not cause a warning
        self._on_lost(self, why)


def why_of(kind: type[StateUnavailable], why: str) -> StateUnavailable:
    return kind(f"Redis: {why}")
