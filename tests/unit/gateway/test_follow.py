"""A stream that is passed on where it arrives: nothing is lost, doubled or reordered, whatever ``take`` says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from scheduling.core.types import BackendSpec
from scheduling.gateway.engine.engine_connection import Connection, UpstreamError
from scheduling.gateway.engine.upstream import Backend

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def open_stream() -> Connection:
    """A connection whose stream has begun, with a transport that only remembers."""
    loop = asyncio.get_running_loop()
    owner = Backend(BackendSpec(id="b0", pool="p", url="http://127.0.0.1:1", slots=1, kv_tokens=1000), 1.0)
    connection = Connection(owner, loop)
    transport = SimpleNamespace(
        get_extra_info=lambda name: None, is_closing=lambda: False, write=lambda data: None, abort=lambda: None,
        get_write_buffer_size=lambda: 0, pause_reading=lambda: None, resume_reading=lambda: None,
    )  # fmt: skip
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.send("req_x", b"POST / HTTP/1.1\r\n\r\n", b"", whole=False)
    connection.data_received(HEAD)
    await connection.ready()
    return connection


async def test_pieces_are_taken_where_they_arrive_and_the_end_is_told_by_read() -> None:
    connection = await open_stream()
    taken: list[bytes] = []
    following = asyncio.create_task(connection.follow(lambda data: taken.append(data) is None))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"one") + chunk(b"two"))
    assert taken == [b"onetwo"]  # at once: no task has run
    connection.data_received(chunk(b"three"))
    assert taken == [b"onetwo", b"three"]
    connection.data_received(b"0\r\n\r\n")
    await asyncio.wait_for(following, 5)
    assert await connection.read() == b""


async def test_what_comes_after_a_refused_piece_is_kept_for_read() -> None:
    connection = await open_stream()
    taken: list[bytes] = []

    def only_one(data: bytes) -> bool:
        taken.append(data)
        return False

    following = asyncio.create_task(connection.follow(only_one))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"one"))
    connection.data_received(chunk(b"two"))  # before the task has run
    await asyncio.wait_for(following, 5)
    assert taken == [b"one"]
    assert await connection.read() == b"two"


async def test_a_stream_that_breaks_off_ends_the_following() -> None:
    connection = await open_stream()
    following = asyncio.create_task(connection.follow(lambda data: True))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"one"))
    connection.connection_lost(None)
    await asyncio.wait_for(following, 5)
    with pytest.raises(UpstreamError):
        await connection.read()


async def test_following_does_not_wait_for_what_is_there_already() -> None:
    connection = await open_stream()
    connection.data_received(chunk(b"one"))
    await asyncio.wait_for(connection.follow(lambda data: True), 5)
    assert await connection.read() == b"one"
