"""Open streams cost neither threads nor connections to the database (docs/reference/promises.md, 24)."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil
import psycopg
import pytest

from tests.support import soak
from tests.support.instance import Up
from tests.support.postgresql import postgresql

STREAMS, MANY = 300, 1000
MORE_THREADS, MORE_FILES = 50, 20
AT_ONCE = 100  # that are opened at one moment
CONNECTIONS = 20  # to PostgreSQL, of the whole product
LEAKY = Path(soak.__file__).parent / "leaky"


@contextmanager
def instance(folder: Path, **settings: str) -> Iterator[Up]:
    settings = {"QUARTERMASTER_SIM_REPLICAS": "1", "QUARTERMASTER_SIM_SLOTS": "512"} | settings
    up = Up(folder / "home", **settings)
    up.start()
    try:
        yield up.wait_ready()
    finally:
        up.stop()


def held(up: Up) -> tuple[int, int]:
    """Threads, and files of the database that are open."""
    web = psutil.Process(up.pid("web"))
    return web.num_threads(), sum("db.sqlite3" in file.path for file in web.open_files())


async def opened(
    up: Up, streams: int, look: Callable[[Up], tuple[int, int]] = held
) -> tuple[tuple[int, int], tuple[int, int]]:
    """What is held before, and with all streams open."""
    demo = up.demo()
    body = {
        "model": demo["model"],
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 1000,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {demo['keys']['batch']}"}
    before = look(up)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers: list[aiohttp.ClientResponse] = []
        while len(answers) < streams:
            some = range(min(AT_ONCE, streams - len(answers)))
            url = f"{up.url}/v1/chat/completions"
            answers += await asyncio.gather(*(session.post(url, json=body, headers=headers) for _ in some))
        refused = [answer for answer in answers if answer.status != 200]
        assert not refused, (len(refused), await refused[0].text())
        with_streams = look(up)
        ended = sum(answer.content.at_eof() for answer in answers)
        assert ended < streams / 10, "the streams were over before they were counted"
        for answer in answers:
            answer.close()
    return before, with_streams


def test_streams_cost_neither_threads_nor_connections_to_the_database(tmp_path: Path) -> None:
    with instance(tmp_path) as up:
        before, with_streams = asyncio.run(opened(up, STREAMS))
    assert with_streams[0] <= before[0] + MORE_THREADS
    assert with_streams[1] <= before[1] + MORE_FILES


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_streams_hold_neither_threads_nor_connections_to_postgresql(tmp_path: Path) -> None:
    with postgresql(tmp_path) as url:
        settings = {
            "QUARTERMASTER_DATABASE_URL": url,
            "QUARTERMASTER_SECRET_KEY": secrets.token_urlsafe(48),
            "QUARTERMASTER_SIM_REPLICAS": "4",  # for the KV cache of all
        }
        with (
            instance(tmp_path, **settings) as up,
            psycopg.connect(url, autocommit=True) as looking,
        ):
            others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> %s"

            def look(up: Up) -> tuple[int, int]:
                (connections,) = looking.execute(others, [looking.info.backend_pid]).fetchone()
                return psutil.Process(up.pid("web")).num_threads(), connections

            before, with_streams = asyncio.run(opened(up, MANY, look))
    print(f"threads {before[0]} -> {with_streams[0]}, connections {before[1]} -> {with_streams[1]}")
    assert with_streams[0] <= before[0] + MORE_THREADS
    assert with_streams[1] <= CONNECTIONS


@pytest.mark.slow
def test_a_gateway_with_a_thread_for_each_stream_is_noticed(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(LEAKY), os.environ.get("PYTHONPATH", "")]))
    with instance(tmp_path, PYTHONPATH=path, QM_LEAK="stream-threads") as up:
        before, with_streams = asyncio.run(opened(up, STREAMS))
    assert with_streams[0] > before[0] + MORE_THREADS
