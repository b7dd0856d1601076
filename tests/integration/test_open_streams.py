"""Open streams cost neither threads nor connections to the database (docs/reference/promises.md, 24)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support import soak
from tests.support.instance import Up

STREAMS = 300
MORE_THREADS, MORE_FILES = 50, 20
LEAKY = Path(soak.__file__).parent / "leaky"


@contextmanager
def instance(folder: Path, **settings: str) -> Iterator[Up]:
    up = Up(folder / "home", QUARTERMASTER_SIM_REPLICAS="1", QUARTERMASTER_SIM_SLOTS="512", **settings)
    up.start()
    try:
        yield up.wait_ready()
    finally:
        up.stop()


def held(up: Up) -> tuple[int, int]:
    """Threads, and files of the database that are open."""
    web = psutil.Process(up.pid("web"))
    return web.num_threads(), sum("db.sqlite3" in file.path for file in web.open_files())


async def opened(up: Up) -> tuple[tuple[int, int], tuple[int, int]]:
    """What the web process holds before, and with all streams open."""
    demo = up.demo()
    body = {
        "model": demo["model"],
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 1000,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {demo['keys']['batch']}"}
    before = held(up)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers = await asyncio.gather(
            *(session.post(f"{up.url}/v1/chat/completions", json=body, headers=headers) for _ in range(STREAMS))
        )
        assert [answer.status for answer in answers] == [200] * STREAMS
        with_streams = held(up)
        ended = sum(answer.content.at_eof() for answer in answers)
        assert ended < STREAMS / 10, "the streams were over before they were counted"
        for answer in answers:
            answer.close()
    return before, with_streams


def test_streams_cost_neither_threads_nor_connections_to_the_database(tmp_path: Path) -> None:
    with instance(tmp_path) as up:
        before, with_streams = asyncio.run(opened(up))
    assert with_streams[0] <= before[0] + MORE_THREADS
    assert with_streams[1] <= before[1] + MORE_FILES


@pytest.mark.slow
def test_a_gateway_with_a_thread_for_each_stream_is_noticed(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(LEAKY), os.environ.get("PYTHONPATH", "")]))
    with instance(tmp_path, PYTHONPATH=path, QM_LEAK="stream-threads") as up:
        before, with_streams = asyncio.run(opened(up))
    assert with_streams[0] > before[0] + MORE_THREADS
