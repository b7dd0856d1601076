"""How control calls reach an engine: as gateways do, at the first address that answers, after a lookup of its name that
is asked once for all. What a resolver takes (5 s and more where the first name server is dead) says nothing of the
engine, so it is no part of the time that a call may take.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

from scheduling.connecting import race
from scheduling.lookup import addresses

LOOKUP_TIMEOUT_S = 15.0
HEAD_BYTES = 16 * 1024  # in which an answer's head has to end; early ones (103) count with it

_limit: ContextVar[asyncio.Timeout | None] = ContextVar("limit", default=None)
_wire: ContextVar[Wire | None] = ContextVar("wire", default=None)
_closing: set[asyncio.Task[None]] = set()


class Wire:
    """How many more bytes one answer may have as it comes, with all that frames it. Time alone bounds no work: in two
    seconds an engine nearby sends a hundred megabytes of early heads."""

    def __init__(self) -> None:
        self.left = HEAD_BYTES


@contextmanager
def counted_bytes() -> Iterator[Wire]:
    """For one call: reading stops where its answer has more bytes than ``left`` says."""
    wire = Wire()
    before = _wire.set(wire)
    try:
        yield wire
    finally:
        _wire.reset(before)


@asynccontextmanager
async def answered_within(timeout_s: float) -> AsyncIterator[None]:
    """For a call that may take so long, besides :data:`LOOKUP_TIMEOUT_S` at most for a lookup. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s) as limit:
        before = _limit.set(limit)
        try:
            yield
        finally:
            _limit.reset(before)


@contextmanager
def _not_counted() -> Iterator[None]:
    limit = _limit.get()
    ends_s = None if limit is None else limit.when()
    if limit is None or ends_s is None:
        yield
        return
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(ends_s + loop.time() - began_s)


class _Counted(httpcore.AsyncNetworkStream):
    """A connection that counts what is read of an answer."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 httpcore's name
        wire = _wire.get()
        if wire is None:
            return await self._stream.read(max_bytes, timeout)
        if wire.left <= 0:
            raise httpcore.RemoteProtocolError("its answer has more bytes around it than any has")
        data = await self._stream.read(min(max_bytes, wire.left), timeout)
        wire.left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        return _Counted(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Reach(httpcore.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._by_address = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 httpcore's name
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            with _not_counted():
                hosts = await addresses(host, LOOKUP_TIMEOUT_S)
            stream = await race(
                hosts,
                lambda at: self._by_address.connect_tcp(at, port, timeout, local_address, socket_options),
                _close,
            )
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return _Counted(stream)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _close(stream: httpcore.AsyncNetworkStream) -> None:
    task = asyncio.ensure_future(stream.aclose())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


class Transport(httpx.AsyncHTTPTransport):
    """Connections to one replica. ``kept``: how many stay open between calls."""

    def __init__(self, tls: ssl.SSLContext, kept: int) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=64,
            max_keepalive_connections=kept,
            keepalive_expiry=4.0,
            network_backend=_Reach(),
        )
