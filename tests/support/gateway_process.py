"""A gateway in a process of its own, to be killed: ``python -m tests.support.gateway_process REDIS_URL``.

Reads its catalog and its settings, pickled, from stdin; prints its port when it serves. On SIGUSR1 it prints the
longest time [CPU ms] that its event loop has stood still since the last one, at one look every 2 ms: its own work, not
what the machine gave to others meanwhile. On SIGUSR2 it prints how many tasks and threads it has.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import subprocess
import sys
import threading
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn

from controlplane.garbage_collection import look_rarely
from controlplane.web.connections import ConnectionLimits
from controlplane.web.protocol import protocol
from scheduling.catalog import CatalogCache
from scheduling.gateway.app import GatewayApp
from scheduling.gateway.config import GatewayConfig, new_gateway_id
from tests.support.gateway_world import SeenMetrics, World

LOOK_S = 0.002


@asynccontextmanager
async def gateway_process(
    world: World, config: GatewayConfig, *, redis_url: str = "", log: Path | None = None
) -> AsyncIterator[tuple[Process, int]]:
    """A gateway of its own beside the world's; its process and port. ``redis_url``: another way to the same Redis."""
    with open(log or "/dev/null", "ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.gateway_process", redis_url or world.redis_url,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out if log else None,
        )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps((world.catalog, replace(config, gateway_id=new_gateway_id()))))
        process.stdin.close()
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def longest_turn_ms(process: Process) -> float:
    """How long the loop of such a process stood still at most since this was asked last [CPU ms]."""
    assert process.stdout is not None
    process.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(60):
        return float(await process.stdout.readline())


async def held(process: Process) -> tuple[int, int]:
    """How many tasks and threads such a process has now."""
    assert process.stdout is not None
    process.send_signal(signal.SIGUSR2)
    async with asyncio.timeout(60):
        tasks, threads = (await process.stdout.readline()).split()
    return int(tasks), int(threads)


async def watch() -> None:
    """Measures the longest turn of the loop until cancelled."""
    longest_s, before_s = 0.0, time.thread_time()

    def tell() -> None:
        nonlocal longest_s
        print(f"{longest_s * 1000:.1f}", flush=True)
        longest_s = 0.0

    def count() -> None:
        print(len(asyncio.all_tasks()), threading.active_count(), flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, count)
    while True:
        await asyncio.sleep(LOOK_S)
        now_s = time.thread_time()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s


async def main(redis_url: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    catalog, config = pickle.load(sys.stdin.buffer)
    app = GatewayApp(config, CatalogCache(lambda: catalog, lambda: catalog.version), redis_url, SeenMetrics())
    http = protocol(config.max_header_bytes, config.header_timeout_s, ConnectionLimits(10_000, 0))
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=http, lifespan="off", log_config=None, access_log=False))
    await app.start()
    serving = asyncio.create_task(server._serve())
    while not (server.started and app.ready):
        await asyncio.sleep(0.01)
    look_rarely()  # as the web process does
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving
    watching.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
