"""What our own clients read of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from controlplane import sse

TEXT = 'data: {"a": 1}\n\n: a comment\nevent: x\ndata:{"b": "data: \\n\u2028"}\r\n\r\ndata: [DONE]\n\n'


async def lines(text: str) -> AsyncIterator[bytes]:
    for line in text.encode().splitlines(keepends=True):
        yield line


async def read(text: str) -> list[object]:
    return [event async for event in sse.events(lines(text))]


def test_a_stream_is_its_chunks_and_its_end_line_by_line_and_whole() -> None:
    expected = [{"a": 1}, {"b": "data: \n\u2028"}, sse.DONE]
    assert asyncio.run(read(TEXT)) == expected
    assert sse.events_of(TEXT) == expected


def test_a_chunk_that_is_no_json_is_a_fault() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        sse.events_of("data: oh no\n\n")
