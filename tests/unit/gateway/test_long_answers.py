"""Long answers are read beside: what comes of them is the same, and this process does other things meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from scheduling.gateway.answers.answer_types import Asked, Broken, read_answer
from scheduling.gateway.answers.long_answers import LONG, LongAnswers
from scheduling.gateway.answers.pooled_answers import read_vectors

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
ASKED = Asked(True, 512, 10)
NAMES = b",".join(b'"%x":0' % n for n in range(800_000))


def _answer(more: bytes = b"") -> bytes:
    return (
        b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":'
        b'"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":5}%b}'
    ) % more


@pytest.fixture
async def beside() -> AsyncIterator[LongAnswers]:
    made = LongAnswers()
    yield made
    await made.stop()


async def test_what_is_read_beside_is_what_would_be_read_here(beside: LongAnswers) -> None:
    data = _answer(b',"x":"%b"' % (b"y" * 3 * LONG))
    for model in (None, "ours"):
        assert await beside.read(CHAT, data, ASKED, model) == read_answer(data, ASKED, model)
    vector = b"[%b]" % b",".join([b"0.25"] * 4096)
    rows = b",".join(b'{"index":%d,"embedding":%b}' % (n, vector) for n in range(64))
    data = b'{"data":[%b],"usage":{"prompt_tokens":9,"total_tokens":9}}' % rows
    asked = replace(ASKED, choices=64)
    assert await beside.read(EMBEDDINGS, data, asked, "m") == read_vectors(data, asked, "m")


async def test_what_is_no_answer_is_said_as_here(beside: LongAnswers) -> None:
    for data in (b"[%b]" % NAMES, _answer(b',"error":{"message":"no"}'), b"x" * LONG, b""):
        with pytest.raises(Broken) as here:
            read_answer(data, ASKED, None)
        with pytest.raises(Broken) as there:
            await beside.read(CHAT, data, ASKED, None)
        assert (there.value.why, there.value.by_engine) == (here.value.why, here.value.by_engine)


async def test_this_process_spends_little_on_an_answer_that_is_costly_to_read(beside: LongAnswers) -> None:
    data = _answer(b"," + NAMES)
    began = time.process_time()
    read_answer(data, ASKED, None)
    here_s = time.process_time() - began
    await beside.read(CHAT, data, ASKED, None)  # which starts the process
    began = time.process_time()
    await beside.read(CHAT, data, ASKED, None)
    assert time.process_time() - began < here_s / 4


async def test_a_request_that_ends_in_the_middle_and_a_process_that_dies_leave_nothing_for_the_next(
    beside: LongAnswers,
) -> None:
    data, other = _answer(b"," + NAMES), _answer(b',"y":"%b"' % (b"z" * LONG))
    await beside.read(CHAT, other, ASKED, None)
    given_up = asyncio.create_task(beside.read(CHAT, data, ASKED, None))
    waits = asyncio.create_task(beside.read(CHAT, other, ASKED, None))
    await asyncio.sleep(0.05)
    given_up.cancel()
    assert await waits == read_answer(other, ASKED, None)
    assert beside._process is not None
    os.kill(beside._process.pid, signal.SIGKILL)
    assert await beside.read(CHAT, other, ASKED, None) == read_answer(other, ASKED, None)


async def test_an_answer_that_takes_too_long_is_none() -> None:
    beside = LongAnswers(longest_s=0.01)
    with pytest.raises(Broken, match="takes more than"):
        await beside.read(CHAT, _answer(b"," + NAMES), ASKED, None)
    await beside.stop()


async def test_an_answer_that_takes_too_much_memory_is_none_and_the_next_is_read() -> None:
    beside = LongAnswers(memory=200 * 1024 * 1024)
    with pytest.raises(Broken, match="takes more memory"):
        await beside.read(CHAT, _answer(b"," + NAMES), ASKED, None)
    other = _answer(b',"y":"%b"' % (b"z" * LONG))
    assert await beside.read(CHAT, other, ASKED, None) == read_answer(other, ASKED, None)
    await beside.stop()
