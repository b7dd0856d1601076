"""Bodies for Django's pages: a size, a time, no disk, and nobody who does not read holds a page open."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
import uvicorn
from django.conf import settings

from controlplane.web.body_limits import BodyLimits
from controlplane.web.connections import ConnectionLimits
from controlplane.web.protocol import protocol

LIMIT = 100_000


class Site:
    """An application that reads like Django's: everything, before it looks at anything."""

    def __init__(self):
        self.bodies = []
        self.sent = 0
        self.ended = 0

    async def __call__(self, scope, receive, send):
        message = await receive()
        self.bodies.append(message["body"])
        assert not message["more_body"]
        size = 50_000_000 if scope["path"] == "/large" else 2
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        for start in range(0, size, 1_000_000):
            piece = b"x" * min(1_000_000, size - start)
            await send({"type": "http.response.body", "body": piece, "more_body": start + len(piece) < size})
            self.sent += len(piece)
        self.ended += 1


@contextlib.asynccontextmanager
async def served(body_timeout_s=0.5):
    site = Site()
    site.limits = BodyLimits(site, LIMIT, body_timeout_s, send_timeout_s=0.5)
    config = uvicorn.Config(
        site.limits,
        port=0,
        http=protocol(4096, 5.0, ConnectionLimits(1000, 0)),
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield site, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def talk(port, *parts):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read(-1)
    finally:
        writer.transport.abort()


def status(answer):
    return int(answer.split(b" ", 2)[1])


HEAD = b"POST /login HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"


async def test_a_body_arrives_whole_and_as_one():
    async with served() as (site, port):
        chunks = b"".join(b"3\r\nab%d\r\n" % n for n in range(10)) + b"0\r\n\r\n"
        assert status(await talk(port, HEAD + b"transfer-encoding: chunked\r\n\r\n", chunks)) == 200
        assert status(await talk(port, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")) == 200
        assert site.bodies == [b"".join(b"ab%d" % n for n in range(10)), b""]


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD + b"content-length: 100001\r\n\r\n",),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", *(b"8000\r\n" + b"x" * 0x8000 + b"\r\n",) * 8),
    ],
    ids=["declared", "chunked"],
)
async def test_a_body_over_the_limit_never_reaches_the_site(parts):
    async with served() as (site, port):
        answer = await talk(port, *parts, b"0\r\n\r\n")
        assert status(answer) == 413
        assert str(LIMIT) in json.loads(answer.partition(b"\r\n\r\n")[2])["detail"]
        assert not site.bodies


async def test_a_body_that_does_not_come_is_given_up():
    async with served() as (site, port):
        assert status(await talk(port, HEAD + b"content-length: 100\r\n\r\n", b"x")) == 408
        assert not site.bodies


async def test_bodies_that_arrive_slowly_have_so_much_room_and_small_ones_always_fit(monkeypatch):
    """Nobody knows yet who sends them: two megabytes each on thousands of connections would be the whole memory."""
    monkeypatch.setattr("controlplane.web.body_limits.FREE_BYTES", 1000)
    monkeypatch.setattr("controlplane.web.body_limits.ROOM_BYTES", 4 * 3 * 50_000)  # of an address: three bodies
    head = HEAD + b"content-length: %d\r\n\r\n"
    slow = []
    async with served(body_timeout_s=60) as (site, port):
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head % 51_000 + b"x" * 50_999)
            slow.append((reader, writer))
        while sum(site.limits._room._of.values()) < 3 * 49_999:
            await asyncio.sleep(0.01)
        refused = await talk(port, head % 51_000 + b"x" * 51_000)
        assert (status(refused), b"retry-after: " in refused) == (503, True)
        assert status(await talk(port, head % 900 + b"x" * 900)) == 200
        for reader, writer in slow:
            writer.write(b"x")
            assert status(await reader.read(-1)) == 200
        assert status(await talk(port, head % 51_000 + b"x" * 51_000)) == 200
        assert site.limits._room._of == {}
        assert site.limits._room._all == 0


async def test_a_client_that_does_not_read_is_dropped():
    async with served() as (site, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(20):
            while not site.ended:
                await asyncio.sleep(0.05)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(50_000_000)


def test_what_is_let_through_is_less_than_django_writes_to_disk():
    assert settings.DATA_UPLOAD_MAX_MEMORY_SIZE < settings.FILE_UPLOAD_MAX_MEMORY_SIZE
