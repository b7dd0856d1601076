"""A lean HTTP/1.1 client for engines: one request at a time on a kept-alive connection; cancelling closes the socket.

Measured against the alternatives (``docs/results/benchmarks.md``): 11 us a request, where aiohttp takes 52 and httpx
1,000 at 32 connections. It can do so little because an engine's answers are known: a head, then a body with a length or
in chunks. A connection whose exchange did not end cleanly is never used again (``docs/reference/promises.md``, 4).

Nor is one whose engine may still say something on it (:mod:`scheduling.gateway.engine.engine_connection`).
"""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from scheduling.connecting import connect
from scheduling.core.types import BackendSpec
from scheduling.gateway.engine.engine_connection import Connection, Stale, UpstreamError
from scheduling.lookup import addresses
from scheduling.tls import authorities, refused

MAX_IDLE = 512  # kept-alive connections per replica
MAX_IDLE_S = 4.0  # uvicorn, and so vLLM, closes after 5 s: leave before
LOOKUP_TIMEOUT_S = 15.0  # of its name, before the time to connect begins: a dead first name server takes 5 s or more


def _unknown(host: str, error: OSError) -> str:
    return f"the name {host} is not known" if isinstance(error, socket.gaierror) else str(error)


class Backend:
    """The connections to one replica. ``named``: they are used again only where answers name their requests."""

    def __init__(self, spec: BackendSpec, connect_timeout_s: float, *, named: bool = True) -> None:
        url = urlsplit(spec.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"backend {spec.id}: its URL must be http://host:port or https://host:port")
        if not (spec.api_key.isascii() and spec.api_key.isprintable()):
            raise ValueError(f"backend {spec.id}: its API key cannot be sent in a header")
        self.spec = spec
        self.named = named
        self._host = url.hostname
        self._tls = authorities() if url.scheme == "https" else None
        self._port = url.port or (443 if self._tls else 80)
        self._connect_timeout_s = connect_timeout_s
        key = f"authorization: Bearer {spec.api_key}\r\n" if spec.api_key else ""
        self._common = (f" HTTP/1.1\r\nhost: {url.netloc}\r\naccept: */*\r\n{key}").encode("latin-1")
        self._heads: dict[str, bytes] = {}
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._closed = False

    @property
    def connections(self) -> int:
        return len(self._open)

    async def exchange(
        self,
        path: str,
        body: bytes,
        name: str,
        more: bytes = b"",
        *,
        whole: bool,
        limit: int = 0,
        fresh: bool = False,
        content_type: str = "application/json",
    ) -> Connection:
        """Sends one POST and waits for the head of its answer (``whole``: for all of it). ``name`` is its
        ``X-Request-Id``; ``more``: further lines of its head; ``fresh``: on a new connection; ``content_type``: of the
        body, the same for all of a path. The caller ends the exchange with ``release`` or ``abort``; on any exception,
        cancellation included, the socket is closed here. Raises :class:`UpstreamError`."""
        prefix = self._heads.get(path)
        if prefix is None:
            prefix = self._heads[path] = (
                b"POST " + path.encode("ascii") + self._common + f"content-type: {content_type}\r\n".encode("ascii")
            )
        head = prefix + b"x-request-id: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            name.encode("ascii"),
            more,
            len(body),
        )
        connection = None if fresh else self._take()
        if connection is not None:
            try:
                return await self._run(connection, name, head, body, whole, limit)
            except Stale:
                pass  # it closed while resting: nothing of this request was seen
        connection = await self._connect()
        return await self._run(connection, name, head, body, whole, limit)

    async def _run(
        self, connection: Connection, name: str, head: bytes, body: bytes, whole: bool, limit: int
    ) -> Connection:
        try:
            connection.send(name, head, body, whole=whole, limit=limit)
            await connection.ready()
        except BaseException:
            connection.abort()
            raise
        return connection

    def _take(self) -> Connection | None:
        idle = self._idle
        now = asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()  # the most recently used: the others may rest and go
            if connection.rested(now) > MAX_IDLE_S:
                connection.abort()
                for other in idle:  # all older
                    other.abort()
                idle.clear()
                return None
            if connection.quiet:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        named = self._host if self._tls else None
        try:
            hosts = await addresses(self._host, LOOKUP_TIMEOUT_S)
        except OSError as exc:
            raise UpstreamError(f"cannot connect, {_unknown(self._host, exc)}", connect=True) from None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await connect(lambda: Connection(self, loop), hosts, self._port, self._tls, named)
        except TimeoutError:
            raise UpstreamError("connecting took too long", connect=True) from None
        except OSError as exc:
            raise UpstreamError(f"cannot connect ({refused(exc) or type(exc).__name__})", connect=True) from None

    def put_back(self, connection: Connection) -> None:
        if self._closed or not connection.reusable or len(self._idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.rest(asyncio.get_running_loop().time())
        self._idle.append(connection)

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def trim(self, now: float) -> None:
        """Closes what has rested too long (the list is ordered by age)."""
        idle = self._idle
        keep = 0
        while keep < len(idle) and idle[keep].rested(now) > MAX_IDLE_S:
            keep += 1
        for connection in idle[:keep]:
            connection.abort()
        del idle[:keep]

    def close(self) -> None:
        """Takes no connection back any more and closes the resting ones; running exchanges end by themselves."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()


class Upstream:
    """All replicas this process has talked to. ``named`` as for :class:`Backend`."""

    def __init__(self, connect_timeout_s: float, *, named: bool = True) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._named = named
        self._backends: dict[str, Backend] = {}

    def backend(self, spec: BackendSpec) -> Backend:
        """The connections of ``spec``; a replica whose address or key changed gets new ones."""
        backend = self._backends.get(spec.id)
        if backend is not None and (backend.spec is spec or _same(backend.spec, spec)):
            return backend
        if backend is not None:
            backend.close()
        backend = self._backends[spec.id] = Backend(spec, self._connect_timeout_s, named=self._named)
        return backend

    def keep_only(self, ids: set[str]) -> None:
        """Forgets replicas that are no longer configured."""
        for gone in [i for i in self._backends if i not in ids]:
            self._backends.pop(gone).close()

    def trim(self, now: float) -> None:
        for backend in self._backends.values():
            backend.trim(now)

    @property
    def connections(self) -> int:
        return sum(b.connections for b in self._backends.values())

    def close(self) -> None:
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()


def _same(a: BackendSpec, b: BackendSpec) -> bool:
    return a.url == b.url and a.api_key == b.api_key
