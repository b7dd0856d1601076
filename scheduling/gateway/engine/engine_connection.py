"""One connection to an engine, and the exchange that has it: what is sent, what comes, and whether it is used again.

HTTP/1.1 has no mark by which a late or second answer could be told from the answer to the next request. vLLM names its
answers by the ``X-Request-Id`` that it was sent. So a connection is used again only after an answer that named its
request, and from then on every answer on it has to (:meth:`Connection.proves`); an engine that does not name answers
gets a new connection for each request. What arrives unasked closes a connection, before it is used again as well.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from scheduling.core.engine.status import NOT_ADMITTED

HIGH_WATER = 32 * 1024  # of a stream nobody reads yet: reading from the engine pauses
RECEIVED = 16 * 1024  # asked of the kernel, which takes twice as much: one read from an engine is no larger than that
MAX_HEAD_BYTES = 64 * 1024
# A silent engine may work; one whose machine, or the way to it, is gone is missed after 20 s.
_KEEPALIVE = [
    (getattr(socket, option), value)  # macOS has other names
    for option, value in (("TCP_KEEPIDLE", 8), ("TCP_KEEPINTVL", 4), ("TCP_KEEPCNT", 3))
    if hasattr(socket, option)
]
TAIL_S = 1.0  # how long the end of a complete stream may take to arrive
TOO_LARGE = "the answer is too large"
FRAMING = 2  # times its body is what a whole answer may take on the wire, its framing included
STREAM_FRAMING = 8  # bytes around one of a stream: chunks of a single letter have five
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d{1,6}) *\r\n", re.IGNORECASE)
_OURS = re.compile("req_[0-9a-f]{24}")  # a request of a gateway (``app.new_request_id``)


class UpstreamError(Exception):
    """The exchange cannot go on. ``connect``: it never began."""

    def __init__(self, why: str, *, connect: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.connect = connect


class Stale(Exception):
    """A kept-alive connection was closed by the engine before it answered one byte."""


class Owner(Protocol):
    """Whose connections they are: what a connection needs of it."""

    named: bool

    def opened(self, connection: Connection) -> None: ...

    def put_back(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One socket to one replica, and the exchange that has it."""

    __slots__ = (
        "_asked",
        "_bodied",
        "_body",
        "_buffered",
        "_complete",
        "_error",
        "_head",
        "_head_bytes",
        "_headers_done",
        "_idle_since",
        "_input",
        "_keep",
        "_limit",
        "_loop",
        "_owner",
        "_parser",
        "_paused",
        "_pieces",
        "_proved",
        "_received",
        "_started",
        "_surplus",
        "_tail_timer",
        "_take",
        "_transport",
        "_used",
        "_waiter",
        "_whole",
        "on_body",
        "status",
    )

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._used = False
        self._paused = False
        self._take: Callable[[bytes], bool] | None = None
        self._tail_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._input: select.poll | None = None
        self._body: list[bytes] = []  # pieces of it that were not handed out
        self.on_body = self._body.append  # called for each chunk of a stream, so it is no function of ours
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self._body.clear()
        self._pieces = 0  # of the body of an answer that is complete
        self._buffered = 0
        self._head = b""  # of an answer that says when to come back
        self._head_bytes = 0
        self._complete = False
        self._started = False
        self._headers_done = False
        self._whole = False
        self._keep = False
        self._limit = 0
        self._error: str | None = None
        self._asked = ""
        self._proved = False
        self._received = self._bodied = 0
        self._surplus = False  # more than one answer has come

    # --- the exchange's side

    @property
    def reused(self) -> bool:
        """Whether another exchange had it before."""
        return self._used

    def proves(self, answer_id: str) -> bool:
        """Whether an answer with this id is the answer to what was sent, as far as can be known.

        False means that it is another request's: it names another request of ours, or does not name this one on a
        connection on which answers did. True without a name is possible on a new connection only, which then is not
        used again.
        """
        if self._asked in answer_id:
            self._proved = True
            return True
        return not self._used and _OURS.search(answer_id) is None

    def send(self, name: str, head: bytes, body: bytes, *, whole: bool, limit: int = 0) -> None:
        """Starts an exchange. ``whole``: the reader wants the complete body at once, at most ``limit`` bytes."""
        self._reset()
        self._asked = name
        self._whole = whole
        self._limit = limit
        if self._parser is None:  # the one of the answer before has come to its end, as only that lets it be reused
            self._parser = httptools.HttpResponseParser(self)
        transport = self._transport
        if transport is None or transport.is_closing():
            self._error = "the connection was closed"
            return
        transport.write(head + body)

    async def ready(self) -> None:
        """Waits for the head (and, if ``whole`` was asked for, the complete body)."""
        while not (self._complete or self._error is not None or (self._headers_done and not self._whole)):
            waiter = self._waiter = self._loop.create_future()  # as in ``_wait``, of which each answer has one
            try:
                await waiter
            finally:
                self._waiter = None
        if self._error is not None and not self._complete:
            if self._used and not self._started:
                raise Stale
            raise UpstreamError(self._error)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which an engine that admits nothing wants to be asked again; None where it does not say."""
        match = _RETRY_AFTER.search(self._head.partition(b"\r\n\r\n")[0] + b"\r\n")
        return None if match is None else float(match[1])

    def whole_body(self) -> bytes:
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    async def read(self) -> bytes:
        """What has arrived since the last call, at least one byte; b"" when the body is complete."""
        while not self._body:
            if self._complete:
                return b""
            if self._error is not None:
                raise UpstreamError(self._error)
            await self._wait()
        body = self._body
        data = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return data

    async def follow(self, take: Callable[[bytes], bool]) -> None:
        """Hands what arrives to ``take`` as it arrives, without waking a task for it: half of what a paced stream
        costs. Returns when ``take`` says False (it has what it was given), or when ``read`` has something to say.
        ``take`` must not raise."""
        if self._body or self._complete or self._error is not None:
            return
        self._take = take
        try:
            await self._wait()
        finally:
            self._take = None

    @property
    def finished(self) -> bool:
        """Whether everything was received and handed out."""
        return self._complete and not self._body

    def release(self, *, tail: bool = False) -> None:
        """Gives the connection back, or closes it where the exchange is not over. ``tail``: the stream's last frame was
        seen, only the end of the message may be missing; it has a second to arrive."""
        if self._complete:
            self._body.clear()
            self._owner.put_back(self)
        elif tail and self._error is None:
            self._body.clear()
            self._tail_timer = self._loop.call_later(TAIL_S, self.abort)
        else:
            self.abort()

    def abort(self) -> None:
        """Closes the socket now: the engine sees it and stops generating."""
        if self._tail_timer is not None:
            self._tail_timer.cancel()
            self._tail_timer = None
        if self._error is None:
            self._error = "closed here"
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            self._input = select.poll()
            self._input.register(sock.fileno(), select.POLLIN)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._input = None  # its number may be another socket's now
        if self._tail_timer is not None:
            self._tail_timer.cancel()
            self._tail_timer = None
        if not self._complete and self._error is None:
            self._error = "the connection was lost"
        self._parser = None  # a cycle through bound methods otherwise
        self._owner.lost(self)
        self._wake()

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None or self._complete:
            self._unasked()
            return
        in_head, early = not self._headers_done, False
        if not self._started:
            self._started = True
            early = self._transport is not None and self._transport.get_write_buffer_size() > 0
        self._received += len(data)
        pieces = self._body
        held = len(pieces)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._complete:
                self._fail("the answer is not HTTP")
                return
            self._surplus = True
        if self._surplus:
            del pieces[self._pieces :]  # of another answer
        size = sum(map(len, pieces[held:] if held else pieces))
        self._buffered += size
        self._bodied += size
        if in_head:
            if self.status in NOT_ADMITTED and not self._head:
                self._head = data[:MAX_HEAD_BYTES]
            if early and self.status == 200:  # an error may come before the whole request was read, an answer cannot
                self._fail("it answered before it had the request")
                return
            if not self._headers_done:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._fail("the answer's head is too large")
                return
        if self._whole:
            if self._buffered > self._limit or self._received > FRAMING * self._limit + MAX_HEAD_BYTES:
                self._fail(TOO_LARGE)
            elif self._complete:
                self._wake()
            return
        if self._received > (1 + STREAM_FRAMING) * self._bodied + MAX_HEAD_BYTES:
            self._fail("the answer is framed by too much")  # nothing to hand on, so reading it would never pause
            return
        if self._tail_timer is not None:
            if self._body:
                self.abort()  # more of a stream that was complete
            elif self._complete:
                self._tail_timer.cancel()
                self._tail_timer = None
                self._owner.put_back(self)
            return
        take = self._take
        if take is not None and self._body:
            body = self._body
            arrived = body[0] if len(body) == 1 else b"".join(body)
            body.clear()
            self._buffered = 0
            if take(arrived):
                if self._complete:
                    self._wake()
                return
            self._take = None  # what comes until its task runs is kept for ``read``
        elif self._buffered > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        parser = self._parser
        if parser is not None and self._started and not self._complete:
            # a body without length or chunks ends with the connection; engines never send one, so it was cut
            self._error = "the answer was cut"
        return False

    def _unasked(self) -> None:
        """Something came while nothing was asked, or after the whole answer. An answer that is complete stays so; the
        connection is closed."""
        self._surplus = True
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        if self._error is None:
            self._error = why
        self._complete = False
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # --- httptools' side

    def on_message_begin(self) -> None:
        if self._complete:
            self._surplus = True

    def on_headers_complete(self) -> None:
        if self._complete:
            self._surplus = True
            return
        self.status = self._parser.get_status_code()
        self._headers_done = self.status >= 200  # 100 Continue and its like are not the answer
        self._keep = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        if self._headers_done and not self._complete:
            self._complete = True
            self._pieces = len(self._body)

    # --- the pool's side

    @property
    def reusable(self) -> bool:
        transport = self._transport
        return (
            self._complete
            and self._keep
            and (self._proved or not self._owner.named)
            and not self._surplus
            and self._error is None
            and transport is not None
            and not transport.is_closing()
        )

    def rest(self, now: float) -> None:
        self._used = True
        self._idle_since = now
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    @property
    def quiet(self) -> bool:
        """Whether a resting connection may be used: it is open and nothing has arrived, not even in the kernel."""
        transport = self._transport
        return (
            not self._surplus
            and transport is not None
            and not transport.is_closing()
            and (self._input is None or not self._input.poll(0))
        )

    def rested(self, now: float) -> float:
        return now - self._idle_since
