"""How long a free slot stays free while somebody waits: from a request's end to the next one's grant at its gateway.

    python -m tests.bench.bench_turnaround [--rounds 500]

One replica with one slot, 2,000 requests waiting, spread over 10 and over 1,000 entitlements with token buckets.
Gateway and leader share this process, Redis is another. ``turnaround`` is wall time (finish sent -> grant heard),
``here`` and ``server`` are CPU per round; read CPU first, absolute times move with the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time

import psutil
import uvloop

from scheduling.core.outcomes import Reason
from scheduling.core.types import OverLimit
from scheduling.state import codec
from scheduling.state.notices import GrantNotice
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import gateway_channel
from tests.support.dispatch_world import catalog_of, dispatching, until, until_await
from tests.support.redis_server import RedisServer
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request, tier

WAITING = 2_000


async def measure(server: RedisServer, entitlements: int, rounds: int) -> None:
    pool_id = f"bench-{entitlements}"
    pool = pool_spec(pool_id, backends=(backend("b1", slots=1, pool=pool_id),), policy="priority", queue_limit=10**6)
    waits = tier(over_limit=OverLimit.WAIT, queue_limit=10**6)
    specs = [entitlement(f"e{n}", pool_id, tier=waits, tokens_per_s=1e6, burst_tokens=1e9) for n in range(entitlements)]
    resp = RespConnection(server.url, name="bench")
    await resp.start()
    store, est = PoolStore(resp, pool_id), estimate()
    notices: asyncio.Queue[GrantNotice] = asyncio.Queue()
    ear = Subscriber(
        server.url, [gateway_channel("gw-1")], lambda _, payload: notices.put_nowait(codec.decode_notice(payload))
    )
    await ear.start()
    redis = psutil.Process(server.pid)
    async with dispatching(server.url, catalog_of(pool, *specs)) as dispatcher:

        async def ready() -> bool:
            return any(b.ready for b in (await store.view()).backends.values())

        await until_await(ready)
        renewing = asyncio.create_task(renew(store))
        for n in range(WAITING + 1):
            spec = specs[n % entitlements]
            asked = request(f"r{n}", spec, est, arrival_s=1_700_000_000.0 + n)
            await store.admit(spec, pool, asked, est, 300, FACTS)
        await until(lambda: dispatcher.term is not None and len(dispatcher.term.scheduler) == WAITING)
        took, current = [], "r0"
        mine, theirs = time.process_time(), sum(redis.cpu_times()[:2])
        for _ in range(rounds):
            started = time.perf_counter()
            await store.finish(current, 1, Reason.STOP, 140, True, ledger(current, pool=pool_id))
            current = (await notices.get()).request_id
            took.append(time.perf_counter() - started)
        mine, theirs = time.process_time() - mine, sum(redis.cpu_times()[:2]) - theirs
        renewing.cancel()
        cuts = statistics.quantiles(took, n=100)
        print(
            f"{entitlements:>5} entitlements: turnaround p50 {cuts[49] * 1e3:6.2f} ms, p99 {cuts[98] * 1e3:6.2f} ms; "
            f"CPU here {mine / rounds * 1e3:5.2f} ms, server {theirs / rounds * 1e3:5.2f} ms"
        )
    await ear.close()
    await resp.close()


async def renew(store: PoolStore) -> None:
    while True:
        await asyncio.sleep(2.0)
        await store.renew("gw-1", [(f"r{n}", 1, 0) for n in range(WAITING + 1)])


async def main(server: RedisServer, rounds: int) -> None:
    for entitlements in (10, 1_000):
        await measure(server, entitlements, rounds)


if __name__ == "__main__":
    logging.getLogger("quartermaster").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    args = parser.parse_args()
    redis_server = RedisServer()
    redis_server.start()
    try:
        uvloop.run(main(redis_server, args.rounds))
    finally:
        redis_server.stop()
