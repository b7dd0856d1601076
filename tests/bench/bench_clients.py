"""Why clients of our own: CPU of this process per call, against the libraries that would do the same.

    python -m tests.bench.bench_clients [--calls 4000]

A short chat request to a simulated engine whose steps take no time (an own process), and one script call to Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable

import aiohttp
import httpx
import redis.asyncio
import uvloop

from scheduling.core.types import BackendSpec
from scheduling.gateway.engine.upstream import Backend
from scheduling.state.resp import RespConnection
from scheduling.state.script import make_script
from tests.support.instance import ROOT
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer

PATH = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"a few words of a question"}],"max_tokens":8}'
HEADERS = {"content-type": "application/json"}
ECHO = make_script("echo", "return ARGV[1]")


async def measure(name: str, once: Callable[[], Awaitable[object]], calls: int) -> None:
    """Prints CPU us per call, one at a time and 32 at once."""
    found = []
    for at_once in (1, 32):
        left = itertools.repeat(None, calls)

        async def work(left: itertools.repeat[None] = left) -> None:
            for _ in left:
                await once()

        await asyncio.gather(*(once() for _ in range(at_once)))  # connections
        used = time.process_time()
        await asyncio.gather(*(work() for _ in range(at_once)))
        found.append((time.process_time() - used) / calls * 1e6)
    print(f"| {name} | {found[0]:.0f} | {found[1]:.1f} |", flush=True)


async def engines(url: str, calls: int) -> None:
    backend = Backend(BackendSpec("b", "p", url, 64, 10**6), 5.0)

    async def lean() -> None:
        connection = await backend.exchange(PATH, BODY, "req_x", whole=True, limit=10**6)
        assert connection.status == 200
        connection.whole_body()
        connection.release()

    await measure("POST to an engine: ours", lean, calls)
    backend.close()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def with_aiohttp() -> None:
            async with session.post(url + PATH, data=BODY, headers=HEADERS) as answer:
                assert answer.status == 200
                await answer.read()

        await measure("... aiohttp", with_aiohttp, calls)
    async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None)) as client:

        async def with_httpx() -> None:
            assert (await client.post(url + PATH, content=BODY, headers=HEADERS)).status_code == 200

        await measure("... httpx", with_httpx, calls)


async def states(url: str, calls: int) -> None:
    resp = RespConnection(url, name="bench")
    assert await resp.start()
    await measure("script call: ours", lambda: resp.eval(ECHO, b"k", ("x",)), calls)
    await resp.close()
    library = redis.asyncio.Redis.from_url(url)
    sha = ECHO.sha.decode()
    await measure("... redis-py with hiredis", lambda: library.evalsha(sha, 1, "k", "x"), calls)
    await library.aclose()


async def main(engine: str, state: str, calls: int) -> None:
    print("| call | CPU us, 1 at a time | 32 at once |\n|---|---|---|")
    await engines(engine, calls)
    await states(state, calls)


def wait_for(url: str) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=4000)
    args = parser.parse_args()
    server = RedisServer()
    server.start()
    port = free_port()
    command = [sys.executable, "-m", "scheduling.engines.simulated", "--model", "m", "--speed", "1e12"]
    process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}")
        uvloop.run(main(f"http://127.0.0.1:{port}", server.url, args.calls))
    finally:
        process.terminate()
        process.wait()
        server.stop()
