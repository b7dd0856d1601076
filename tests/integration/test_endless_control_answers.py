"""Answers to control calls that are small and never end, or end after a great deal that says nothing: reading them
takes the process that looks at all replicas of all pools little work."""

from __future__ import annotations

import asyncio

import pytest

from scheduling.engines.client import PIECE_BYTES, SMALL_PIECES, EngineError, control_http, fetch

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
LINE = b"a: b\r\n"
PATIENCE_S = 60.0  # so long that nothing here ends by time


async def _asked(beginning: bytes, again: bytes, times: int | None = None) -> tuple[int, bytes]:
    """What a call reads of a server that answers with a beginning and then with the same, ``times`` or for ever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(beginning)
            left = times
            while left is None or left > 0:
                writer.write(again)
                await writer.drain()
                left = None if left is None else left - 1
            writer.write(b"0\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, control_http() as http:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/metrics"
        return await fetch(http, "GET", url, "GET /metrics", timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("beginning", "again", "said"),
    [
        pytest.param(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 500, "more bytes around it", id="early heads"),
        pytest.param(b"", b"HTTP/1.1 103 Early\r\n" + LINE * 100 + b"\r\n", "more bytes around it", id="long heads"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", LINE * 500, "more bytes around it", id="a head without end"),
        pytest.param(CHUNKED, b"1\r\na\r\n" * 500, "pieces of next to nothing", id="chunks of a letter"),
        pytest.param(CHUNKED, b"1;" + b"x" * 40 + b"\r\na\r\n", "pieces of next to nothing", id="chunk extensions"),
        pytest.param(CHUNKED + b"1\r\na\r\n0\r\n", LINE * 500, "too long", id="trailers"),
    ],
)
async def test_an_answer_without_end_is_given_up_by_what_came_and_not_by_time(
    beginning: bytes, again: bytes, said: str
) -> None:
    async with asyncio.timeout(PATIENCE_S / 2):
        with pytest.raises(EngineError, match=said):
            await _asked(beginning, again)


async def test_a_page_that_comes_in_many_pieces_of_some_size_is_read_whole() -> None:
    piece = b"x" * (4 * PIECE_BYTES)
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    status, body = await _asked(CHUNKED, chunk, times=2 * SMALL_PIECES)
    assert (status, len(body)) == (200, 2 * SMALL_PIECES * len(piece))
