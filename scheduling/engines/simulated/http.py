"""HTTP/1.1 for the simulated engine: a parser, a connection, nothing else. One request at a time per connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, cast

import httptools

MAX_BODY_BYTES = 64 * 1024 * 1024
KEEP_ALIVE_S = 5.0  # vLLM's default; a client's pool has to live with a server that closes idle connections


@dataclass(slots=True)
class Request:
    method: str
    path: str  # without the query
    authorization: str
    body: bytes
    keep_alive: bool
    name: str = ""  # its X-Request-Id


class Exchange(Protocol):
    """Whoever answers a request over time, and wants to know when nobody listens any more."""

    def lost(self) -> None: ...


Handler = Callable[["Connection", Request], None]

_HEADS: dict[tuple[int, str], bytes] = {}


def _head(status: int, content_type: str) -> bytes:
    head = _HEADS.get((status, content_type))
    if head is None:
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n".encode()
        _HEADS[(status, content_type)] = head
    return head


@dataclass(slots=True)
class _Incoming:
    path: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: list[bytes] = field(default_factory=list)
    size: int = 0


class Connection(asyncio.Protocol):
    """One client. The handler answers through :meth:`respond`, or :meth:`begin_stream` .. :meth:`end_stream`."""

    def __init__(self, handler: Handler, register: set[Connection], loop: asyncio.AbstractEventLoop) -> None:
        self._handler = handler
        self._register = register
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = _Incoming()
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.exchange: Exchange | None = None
        self.transport: asyncio.Transport | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._register.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._register.discard(self)
        self._waiting.clear()
        if self._idle is not None:
            self._idle.cancel()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lost()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.abort()
        except (httptools.HttpParserError, ValueError):
            if self._current is not None:  # another request's answer is under way: nothing fits between
                self.abort()
                return
            self._current = Request("", "", "", b"", keep_alive=False)
            self.respond(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8")

    # --- httptools

    def on_message_begin(self) -> None:
        self._incoming = _Incoming()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def on_url(self, url: bytes) -> None:
        self._incoming.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._incoming.headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._incoming.size += len(body)
        if self._incoming.size > MAX_BODY_BYTES:
            raise ValueError("body too large")
        self._incoming.body.append(body)

    def on_message_complete(self) -> None:
        incoming = self._incoming
        request = Request(
            method=self._parser.get_method().decode(),
            path=incoming.path.partition(b"?")[0].decode("latin-1"),
            authorization=incoming.headers.get(b"authorization", b"").decode("latin-1"),
            body=b"".join(incoming.body),
            keep_alive=self._parser.should_keep_alive(),
            name=incoming.headers.get(b"x-request-id", b"").decode("latin-1"),
        )
        if self._current is None:
            self._begin(request)
        else:
            self._waiting.append(request)

    # --- answering

    def _begin(self, request: Request) -> None:
        self._current = request
        self._handler(self, request)

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer."""
        if self._current is None:
            return
        close = b"" if self._current.keep_alive else b"connection: close\r\n"
        self.write(b"%bcontent-length: %d\r\n%b\r\n%b" % (_head(status, content_type), len(body), close, body))
        self._done()

    def begin_stream(self) -> None:
        """The head of an answer that comes in chunks; each :meth:`write` must be a chunk."""
        assert self._current is not None
        close = b"" if self._current.keep_alive else b"connection: close\r\n"
        self.write(_head(200, "text/event-stream; charset=utf-8") + close + b"transfer-encoding: chunked\r\n\r\n")

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def end_stream(self) -> None:
        self.write(b"0\r\n\r\n")
        self._done()

    def abort(self) -> None:
        """Cuts the connection without a word."""
        if self.transport is not None:
            self.transport.abort()

    def _done(self) -> None:
        current, self._current, self.exchange = self._current, None, None
        if self.transport is None or self.transport.is_closing():
            return
        if current is not None and not current.keep_alive:
            self.transport.close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._idle = self._loop.call_later(KEEP_ALIVE_S, self.transport.close)
