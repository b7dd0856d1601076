"""A web process that did not run for a while, and readers that do not read: what they cost, and who is blamed."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import openai
import psutil
import pytest

from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_process import gateway_process
from tests.support.gateway_world import World, gateway_world

CONFIG = GatewayConfig(first_token_timeout_s=1.0, idle_token_timeout_s=1.0, renew_every_s=0.3, send_timeout_s=60)
SLEEP_S = 2.5  # more than an engine may be silent, less than a lease
READERS = 40
READER_BYTES = 260_000  # each; with events of 8 KB it was a megabyte


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as world:
        yield world


async def words(world: World, port: int, asleep: Process, opened: asyncio.Event | None = None) -> int:
    """How many words a stream had during which the gateway slept."""
    async with world.sdk(base_url=f"http://127.0.0.1:{port}/v1") as client:
        asked = asyncio.create_task(
            client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=10, stream=True
            )
        )
        if opened is None:  # before the first token
            async with asyncio.timeout(30):
                while not world.engines[0].open:
                    await asyncio.sleep(0.01)
            await sleep(asleep)
        count = 0
        async for chunk in await asked:
            count += bool(chunk.choices and chunk.choices[0].delta.content)
            if opened is not None and not opened.is_set():
                opened.set()
                await sleep(asleep)
        return count


async def sleep(process: Process) -> None:
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(SLEEP_S)
    finally:
        process.send_signal(signal.SIGCONT)


async def test_what_an_engine_said_while_the_gateway_slept_counts(world: World) -> None:
    world.engines[0].script = replace(world.engines[0].script, pause_s=0.4)
    async with gateway_process(world, CONFIG) as (process, port):
        assert await words(world, port, process, asyncio.Event()) == 10


async def test_a_first_token_that_came_while_the_gateway_slept_is_in_time(world: World) -> None:
    world.engines[0].script = replace(world.engines[0].script, first_pause_s=0.5)
    async with gateway_process(world, CONFIG) as (process, port):
        assert await words(world, port, process) == 10
    assert len(world.engines[0].bodies) == 1


async def test_an_engine_that_says_nothing_afterwards_is_still_found(world: World) -> None:
    world.engines[0].script = replace(world.engines[0].script, stall_after=3)
    async with gateway_process(world, CONFIG) as (process, port):
        with pytest.raises(openai.APIError, match="token"):
            await words(world, port, process, asyncio.Event())


async def test_readers_that_do_not_read_are_held_in_little_memory(world: World, figure: Callable[[str], None]) -> None:
    world.engines[0].script = replace(world.engines[0].script, word=" " + "w" * 8000)
    body = json.dumps({"model": "demo", "prompt": "x", "stream": True, "max_tokens": 1000}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.key}\r\n"
    patient = replace(CONFIG, first_token_timeout_s=60, idle_token_timeout_s=60)
    async with gateway_process(world, patient) as (process, port):
        await asyncio.sleep(0.5)
        memory = psutil.Process(process.pid).memory_info
        before, writers = memory().rss, []
        for _ in range(READERS):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            writers.append(writer)
        async with asyncio.timeout(60):
            seen = []  # until it grows no more
            while len(seen) < 6 or seen[-1] > seen[-4] + 20_000 or world.engines[0].open < READERS:
                await asyncio.sleep(0.5)
                seen.append((memory().rss - before) / READERS)
        for writer in writers:
            writer.transport.abort()
        figure(f"{READERS} readers, events of 8 KB: {seen[-1] / 1000:.0f} KB for each")
        assert seen[-1] < READER_BYTES
