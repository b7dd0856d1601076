"""A worker is killed at each step of a dispatch (docs/reference/promises.md, 6): nothing is lost, nothing runs twice.

The leader is a process of its own that ends itself with SIGKILL at the step under test, in the middle of a load; a
standby takes over. Grants are one script: Redis changes nothing or all of it, and tells the gateway in the same step,
so that "granted, but nobody was told" is no state. What is left are the moments around it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scheduling.core.types import OverLimit, PoolSpec
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from tests.support.dispatch_process import STEPS
from tests.support.dispatch_world import until, until_await
from tests.support.pool_gateway import Gateway, listening
from tests.support.redis_server import RedisServer
from tests.support.state_world import backend, entitlement, pool_spec, tier

REQUESTS, AFTER = 40, 6  # the leader is killed at its sixth time at this step
GOES_ON_S = 60.0  # promised are 15 s; a busy machine is no reason to fail


@contextmanager
def dispatcher(url: str, pool: str, number: int, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.support.dispatch_process", url, pool, str(number), *flags]
    process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def work(gateway: Gateway, pool: PoolSpec) -> None:
    """Sends all requests and ends each as soon as it is granted; renews what it has."""
    spec = entitlement("acme", pool.id, tier=tier(over_limit=OverLimit.WAIT, queue_limit=1000))
    open_: dict[str, None] = {}

    async def renew() -> None:
        while True:
            await gateway.store.renew(gateway.name, [(name, 1, 0) for name in open_])
            await asyncio.sleep(1.0)

    renewing = asyncio.create_task(renew())
    for n in range(REQUESTS):
        open_[f"r{n}"] = None
        await gateway.admit(f"r{n}", spec)
    await gateway.finish("r0")  # it was granted on arrival
    del open_["r0"]
    for n in range(REQUESTS - 1):
        await until(lambda n=n: len(gateway.notices) > n, timeout_s=GOES_ON_S)  # type: ignore[misc]
        name = gateway.notices[n].request_id
        await gateway.finish(name, gateway.notices[n].attempt)
        open_.pop(name, None)
        await asyncio.sleep(0.01)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)


@pytest.mark.parametrize("step", [pytest.param(s, marks=() if s in STEPS[1:3] else pytest.mark.slow) for s in STEPS])
async def test_nothing_is_lost_or_run_twice_when_the_worker_is_killed(private_redis: RedisServer, step: str) -> None:
    resp = RespConnection(private_redis.url)
    await resp.start()
    pool = pool_spec("p", backends=(backend("b1", 1, pool="p"),))
    gateway = Gateway(private_redis.url, pool, PoolStore(resp, "p"), "gw-1")

    async def led_by(number: int) -> bool:
        snapshot = await gateway.store.view()
        return snapshot.leader.startswith(f"d{number}-") and any(b.ready for b in snapshot.backends.values())

    with ExitStack() as stack:
        first = stack.enter_context(dispatcher(private_redis.url, "p", 1, "--die", step, str(AFTER)))
        await until_await(lambda: led_by(1), 60)
        stack.enter_context(dispatcher(private_redis.url, "p", 2))
        async with listening(gateway):
            working = asyncio.create_task(work(gateway, pool))
            await until(lambda: first.poll() is not None or working.done(), timeout_s=60)
            killed_s, granted = time.monotonic(), len(gateway.notices)
            assert first.poll() == -signal.SIGKILL, f"it never came to this step: {step}"
            await until(lambda: len(gateway.notices) > granted or working.done(), timeout_s=GOES_ON_S)
            goes_on_s = time.monotonic() - killed_s
            await working
            names = gateway.granted()
        records = [e.record for e in await gateway.store.ledger_read(10_000) if e.record is not None]
        print(f"\nkilled {step}: goes on after {goes_on_s:.2f} s; {len(set(names)) + 1} of {REQUESTS} ran")
        assert sorted(names) == sorted(f"r{n}" for n in range(1, REQUESTS)), "each is granted once"
        ended = [r.request_id for r in records]
        assert len(ended) == len(set(ended))
        snapshot = await gateway.store.view()
        assert (snapshot.running, snapshot.waiting) == (0, 0)
    await resp.close()
