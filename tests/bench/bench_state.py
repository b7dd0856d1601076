"""What shared state costs: CPU of this process, and of the server, per admit + finish pair.

    python -m tests.bench.bench_state [--pairs 20000]

Read **CPU us per pair** (absolute times move with the machine): ``client`` is this process, everything included from
the typed call to the typed answer; ``server`` is Redis, scripts included. ``bare`` is one script that returns its
argument, the floor of the client. The last rows are pairs on replicas with a prefill credit, and such pairs whose first
token was told as a gateway tells it: what the signal costs is their difference.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import psutil
import uvloop

from scheduling.core.outcomes import Reason
from scheduling.gateway.engine.first_tokens import FirstTokens
from scheduling.state.resp import RespConnection
from scheduling.state.script import make_script
from scheduling.state.store import PoolStore
from tests.support.redis_server import RedisServer
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, pool_spec, request

ECHO = make_script("echo", "return ARGV[1]")


async def measure(name: str, once: Callable[[], Awaitable[object]], pairs: int, at_once: int, server: int) -> None:
    """Runs ``once`` ``pairs`` times over ``at_once`` tasks and prints CPU per run."""
    redis = psutil.Process(server)
    left = itertools.repeat(None, pairs)

    async def work() -> None:
        for _ in left:
            await once()

    theirs, mine, wall = sum(redis.cpu_times()[:2]), time.process_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    mine, wall = time.process_time() - mine, time.perf_counter() - wall
    theirs = sum(redis.cpu_times()[:2]) - theirs
    print(
        f"{name:<22} {at_once:>3} at once: client {mine / pairs * 1e6:6.1f} us, server {theirs / pairs * 1e6:6.1f} us, "
        f"{pairs / wall:8.0f}/s"
    )


async def main(pairs: int, server: RedisServer) -> None:
    resp = RespConnection(server.url, name="bench")
    assert await resp.start()
    store = PoolStore(resp, "bench")
    epoch = (await store.elect("bench", 0, first_start=True)).epoch
    await leads_on(store)
    for i in range(4):
        await store.set_ready(epoch, f"b{i}", backend(f"b{i}", slots=64, kv_tokens=10**7))
    spec = entitlement("acme", concurrency=500, tokens_per_s=1e9, burst_tokens=1e9)
    pool, est, record = pool_spec(), estimate(), ledger("x")
    numbers = itertools.count()

    async def bare() -> None:
        await resp.eval(ECHO, b"k", ("x",))

    async def pair() -> None:
        name = f"req_{next(numbers):024x}"
        await store.admit(spec, pool, request(name, spec, est), est, 300, FACTS)
        await store.finish(name, 1, Reason.STOP, 140, True, record)

    told = FirstTokens(lambda _: store)

    async def streamed() -> None:
        name = f"req_{next(numbers):024x}"
        await store.admit(spec, pool, request(name, spec, est), est, 300, FACTS)
        told.came(pool.id, name, 1)
        await asyncio.sleep(0.004)
        await store.finish(name, 1, Reason.STOP, 140, True, record)

    async def silent() -> None:
        name = f"req_{next(numbers):024x}"
        await store.admit(spec, pool, request(name, spec, est), est, 300, FACTS)
        await asyncio.sleep(0.004)
        await store.finish(name, 1, Reason.STOP, 140, True, record)

    for at_once in (1, 32):
        await measure("bare script", bare, pairs, at_once, server.pid)
        await measure("admit + finish", pair, pairs, at_once, server.pid)
    for i in range(4):
        await store.set_ready(
            epoch, f"b{i}", replace(backend(f"b{i}", slots=64, kv_tokens=10**7), prefill_tokens=10**6)
        )
    for _ in range(3):
        for at_once in (1, 8, 32):
            await measure("with credit, not told", silent, pairs // 8, at_once, server.pid)
            await measure("first token told", streamed, pairs // 8, at_once, server.pid)
    await resp.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000)
    args = parser.parse_args()
    redis_server = RedisServer()
    redis_server.start()
    try:
        uvloop.run(main(args.pairs, redis_server))
    finally:
        redis_server.stop()
