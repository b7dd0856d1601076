"""How an answer leaves: its head, and what it is written to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from scheduling.gateway.headers import NO_SNIFFING

# How an answer in one write begins: with bytes that are there already, this header costs nothing.
ANSWER_LINES = {status: b"%b%b: %b\r\n" % (line, *NO_SNIFFING) for status, line in STATUS_LINE.items()}
_CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKED_LINES = {status: line + _CHUNKED for status, line in ANSWER_LINES.items()}
_KEPT, _CLOSED = b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"


def head_of(cycle: RequestResponseCycle, begin: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The head of an answer after ``begin``, which has two lines or three; None for a value with a line end, which
    uvicorn refuses."""
    lines = (*cycle.default_headers, *headers)
    head = b"%b%b%b" % (begin, b"\r\n".join(map(b": ".join, lines)), _KEPT if cycle.keep_alive else _CLOSED)
    return head if head.count(b"\n") == begin.count(b"\n") + len(lines) + 2 - cycle.keep_alive else None


class HeadWithBody:
    """What a response writes to: its head waits for the first bytes of the body, until the loop's next turn at most."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
        """``end`` closes the connection once everything is written."""
        self._transport = transport
        self._end = end
        self._loop = loop
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.write(self._head + data)
            self._head = b""
            self.write = self._transport.write  # type: ignore[method-assign]
        else:
            self._head = data
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._end()


class WithoutChunks(HeadWithBody):
    """For a client of HTTP/1.0, which knows no chunks (RFC 9112, 6.1) and asks once: an answer without a length ends
    with the connection. Takes the head, then whole chunks, as they are written to others."""

    _begun = _chunked = False

    def write(self, data: bytes) -> None:
        if not self._begun:
            self._begun, self._chunked = True, _CHUNKED in data
            data = data.replace(_CHUNKED, b"", 1)
        elif self._chunked:
            data = b"".join(_unchunked(data))
        self._transport.write(data)


def _unchunked(data: bytes) -> Iterator[bytes]:
    while data:
        digits, _, data = data.partition(b"\r\n")
        size = int(digits, 16)
        yield data[:size]
        data = data[size + 2 :]
