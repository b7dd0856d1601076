"""The end of a web process: a request that is on its way is answered, not lost with its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from controlplane import garbage_collection
from controlplane.web import serve
from controlplane.web.connections import ConnectionLimits
from controlplane.web.protocol import protocol

ASKED = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n\r\n{}"


class Application:
    """Refuses, as a gateway that drains. What is to happen at a step of its end is said before."""

    def __init__(self) -> None:
        self.at_leave: Callable[[], None] = lambda: None
        self.drained = asyncio.Event()
        self.drained.set()
        self.drains = asyncio.Event()
        self.connections: ConnectionLimits

    def leave(self) -> None:
        self.at_leave()

    async def drain(self, limit_s: float) -> None:
        self.drains.set()
        await self.drained.wait()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"away"})


class Listener:
    """Says when it is closed."""

    def __init__(self, real: Any, closed: Callable[[], None]) -> None:
        self._real, self._closed = real, closed

    def close(self) -> None:
        self._real.close()
        self._closed()
        self._closed = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Application:
    made = Application()
    monkeypatch.setattr("controlplane.asgi.application", made)
    monkeypatch.setattr(garbage_collection, "look_rarely", lambda: None)
    return made


@asynccontextmanager
async def serving(application: Application) -> AsyncIterator[tuple[serve.Server, Any, Any]]:
    """A server that goes at once when it is told to, and a connection to it."""
    limits = ConnectionLimits(10, 0)
    config = uvicorn.Config(
        application, port=0, http=protocol(8192, 60.0, limits), lifespan="off", log_config=None,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = serve.Server(config, drain_s=60.0, leave_s=0.0, connections=limits)
    task = asyncio.create_task(server._serve())
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
        while not limits.inside:
            await asyncio.sleep(0.01)
        yield server, reader, writer
        server.should_exit = True
        application.drained.set()
        await task
        writer.close()


async def last(reader: asyncio.StreamReader) -> bytes:
    """What is answered before the connection closes."""
    return await asyncio.wait_for(reader.read(), 30)


def refused(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 503 ") and b"connection: close\r\n" in answer and answer.endswith(b"away")


async def test_a_request_that_comes_as_the_port_closes_is_refused_and_not_lost(application: Application) -> None:
    async with serving(application) as (server, reader, writer):
        server.servers = [Listener(server.servers[0], lambda: writer.write(ASKED))]
        server.should_exit = True
        assert refused(await last(reader))


async def test_a_connection_that_has_not_asked_yet_is_open_while_streams_drain(application: Application) -> None:
    application.drained.clear()
    async with serving(application) as (server, reader, writer):
        server.should_exit = True
        await application.drains.wait()
        writer.write(ASKED)
        assert refused(await last(reader))


@pytest.mark.parametrize("asks", [True, False], ids=["it asks", "it is idle"])
async def test_a_kept_connection_is_closed_unless_its_next_request_is_there_already(
    application: Application, asks: bool
) -> None:
    application.drained.clear()
    async with serving(application) as (server, reader, writer):
        writer.write(ASKED)
        assert b"away" in await reader.readuntil(b"away")
        if asks:
            application.at_leave = lambda: writer.write(ASKED)  # nothing is read between this and the closing
        server.should_exit = True
        answer = await last(reader)
        assert refused(answer) if asks else answer == b""
        assert not application.drained.is_set(), "streams go on"
