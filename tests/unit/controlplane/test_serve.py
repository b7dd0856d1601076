"""How the web process writes: a response's head and the first bytes of its body leave together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from controlplane.web.answers import HeadWithBody
from controlplane.web.connections import ConnectionLimits
from controlplane.web.protocol import protocol
from scheduling.gateway.asgi import ANSWER


class Wire:
    """A transport that remembers what was done to it."""

    def __init__(self) -> None:
        self.done: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done


async def writer() -> tuple[Wire, HeadWithBody]:
    wire = Wire()
    return wire, HeadWithBody(wire, asyncio.get_running_loop(), wire.close)


async def test_a_head_leaves_in_one_write_with_the_first_bytes_of_its_body():
    wire, response = await writer()
    response.write(b"head ")
    response.write(b"body")
    response.write(b"more")
    assert wire.done == [b"head body", b"more"]
    await asyncio.sleep(0)
    assert wire.done == [b"head body", b"more"]


async def test_a_head_whose_body_is_late_leaves_alone():
    wire, response = await writer()
    response.write(b"head")
    assert wire.done == []
    await asyncio.sleep(0)
    assert wire.done == [b"head"]
    response.write(b"body")
    assert wire.done == [b"head", b"body"]


async def test_a_head_without_a_body_leaves_before_the_connection_closes():
    wire, response = await writer()
    response.write(b"head")
    response.close()
    assert wire.done == [b"head", "closed"]
    assert response.is_closing()


JSON = (b"content-type", b"application/json")
ASKED = b"GET /v1/models HTTP/1.1\r\nhost: here\r\n\r\n"


class Socket(Wire):
    """A transport with what a server asks of one."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def abort(self) -> None:
        self.done.append("aborted")

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def resume_reading(self) -> None: ...

    def pause_reading(self) -> None: ...


async def asked(app: Callable[..., Awaitable[None]], *requests: bytes) -> list[bytes | str]:
    """What a connection writes for these requests, each once the one before was answered."""
    config = uvicorn.Config(
        app, http=protocol(8192, 10.0, ConnectionLimits(10, 0)), lifespan="off", log_config=None, server_header=False,
        date_header=False, proxy_headers=False,
    )  # fmt: skip
    config.load()
    made: Any = config.http_protocol_class
    connection = made(config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop())
    wire = Socket()
    connection.connection_made(wire)
    for request in requests:
        connection.data_received(request)
        for _ in range(5):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    return wire.done


def answering(headers: list[tuple[bytes, bytes]], seen: list[bool]) -> Callable[..., Awaitable[None]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["extensions"][ANSWER](200, headers, b"{}"))
        if not seen[-1]:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"{}"})

    return app


async def test_a_whole_answer_leaves_in_one_write_and_its_connection_serves_the_next_request():
    seen: list[bool] = []
    done = await asked(answering([JSON, (b"content-length", b"2")], seen), ASKED, ASKED)
    begins = b"HTTP/1.1 200 OK\r\nx-content-type-options: nosniff\r\n"
    whole = begins + b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    assert done[:2] == [whole, whole]
    assert seen == [True, True]


async def test_a_whole_answer_is_the_last_one_where_the_client_says_so():
    app = answering([JSON, (b"content-length", b"2")], [])
    done = await asked(app, ASKED.replace(b"host", b"connection: close\r\nhost"))
    assert isinstance(done[0], bytes)
    assert done[0].endswith(b"content-length: 2\r\nconnection: close\r\n\r\n{}")
    assert done[1] == "closed"


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb"])
async def test_a_header_with_a_line_end_leaves_in_no_answer(value: bytes):
    seen: list[bool] = []
    done = await asked(answering([JSON, (b"x-model", value), (b"content-length", b"2")], seen), ASKED)
    assert seen == [False]
    written = b"".join(part for part in done if isinstance(part, bytes))
    assert b"set-cookie" not in written
    assert b"a\nb" not in written
