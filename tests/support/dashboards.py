"""The live feed's real consumer behind the real server's connections; the store is played from memory."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from django.contrib.auth import SESSION_KEY

from controlplane.web.connections import ConnectionLimits
from controlplane.web.protocol import protocol
from controlplane.web.websockets import BoundedSocket
from telemetry.access import Viewer
from telemetry.feed import consumers, hub
from telemetry.feed.publisher import Publisher
from telemetry.feed.window import Window
from tests.support.telemetry_world import ENTITLEMENTS, NOW, MemoryStore, sample

IN_MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


class Leader:
    """Publishes into the store; the change goes straight to the hub."""

    def __init__(self, store: MemoryStore, to: hub.LiveHub) -> None:
        self.messages: list[dict[str, object]] = []
        self.publisher = Publisher(store, self.messages.append)
        self.to, self.at_s = to, NOW

    async def second(self) -> None:
        self.at_s += 1
        self.publisher.publish(sample(self.at_s, waiting={"acme-llama": int(self.at_s - NOW)}), Window(), ENTITLEMENTS)
        messages, self.messages[:] = list(self.messages), []
        for message in messages:
            await self.to._frame(message)


class Known(consumers.LiveConsumer):
    """Everybody is an operator: the database is not asked."""

    async def _look_again(self) -> Viewer | None:
        return Viewer("operator", None)


async def application(scope: dict[str, object], receive: object, send: object) -> None:
    if scope["type"] == "websocket":
        await Known.as_asgi()(scope | {"session": {SESSION_KEY: os.urandom(4).hex()}}, receive, send)


@asynccontextmanager
async def serving() -> AsyncIterator[uvicorn.Server]:
    http = protocol(8192, 30.0, ConnectionLimits(10_000, 0, 1000))
    config = uvicorn.Config(
        application, port=0, http=http, ws=BoundedSocket, ws_per_message_deflate=False, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server
    server.should_exit = True
    await running


def port_of(server: uvicorn.Server) -> int:
    return int(server.servers[0].sockets[0].getsockname()[1])


def handshake(port: int) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /ws/live HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
    ).encode()
