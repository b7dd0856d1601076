"""What 500 open dashboards cost the latency of ``/v1``, as a ratio within one run (promise 29):

    nice -n -5 python -m tests.bench.bench_dashboard_share [--opens 500] [--rate 100] [--block 1.5] [--blocks 80]

One event loop with the gateway, a scripted engine that answers at once, and the live feed's consumers, whose dashboards
are open and read by another process all the time; a change a second. A third process sends short answers' requests at a
steady rate. The loop forgets its dashboards (no change and no heartbeat is sent to them) and remembers them by turns,
in blocks so short that other work on the machine meets both alike. Redis is a real one; the rest of an instance, and
the cost of opening a dashboard, are not in it.

**Work** is what no other process can change: the CPU time of the loop's thread between a request's arrival in the
gateway and its answer's end, its own and what came in between. What was under way when it arrived is not in it:
``bench_dashboard_turns`` tells how long that takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

CONNECTIONS = 32
SKIPPED_S = 0.3  # at the beginning of a block
SHARES = (0.5, 0.9, 0.99)


class Stamped(list[Any]):
    """Times with the moment at which each was told."""

    def append(self, took_s: Any) -> None:
        super().append((time.monotonic(), took_s))


def ask(port: int, wire: bytes, rate: float, seconds: float, talk: Connection) -> None:
    """Asks at a steady rate and sends back (moment, seconds) of each answer. A process of its own."""
    import uvloop

    from tests.bench.load import Load

    load = Load(port, wire, CONNECTIONS, interval_s=CONNECTIONS / rate)
    load.seen.whole = Stamped()
    seen = uvloop.run(load.run(2.0, seconds, lambda: None))
    talk.send((list(seen.whole), dict(seen.errors)))


Found = list[tuple[bool, float, list[float], list[float]]]


async def measure(chosen: argparse.Namespace) -> Found:
    """Blocks in order: with dashboards or not, CPU of the loop's thread for each second, and of answers the times and
    the work [s]."""
    from controlplane.garbage_collection import look_rarely
    from scheduling.gateway.app import GatewayApp
    from telemetry.feed import consumers, hub
    from telemetry.feed.sources import Sources
    from tests.bench.bench_dashboard_turns import read
    from tests.support import dashboards
    from tests.support.gateway_world import gateway_world
    from tests.support.redis_server import RedisServer
    from tests.support.telemetry_world import MemoryStore

    store = MemoryStore()
    the_hub = hub.LiveHub(store, Sources())
    consumers.running_hub = lambda: the_hub
    leader = dashboards.Leader(store, the_hub)
    await leader.second()
    watched = True
    push = dashboards.Known._push

    async def told(self: Any, message: Any) -> None:
        if watched:
            await push(self, message)

    dashboards.Known._push = told  # type: ignore[method-assign]

    work, serve = Stamped(), GatewayApp.__call__

    async def timed(self: GatewayApp, scope: Any, receive: Any, send: Any) -> None:
        since_s = time.thread_time()
        await serve(self, scope, receive, send)
        work.append(time.thread_time() - since_s)

    GatewayApp.__call__ = timed  # type: ignore[method-assign]

    async def seconds() -> None:
        while True:
            await asyncio.sleep(1.0)
            await leader.second()

    redis = RedisServer()
    redis.start()
    fork, blocks = get_context("fork"), list[tuple[bool, float, float, float]]()
    ours, theirs = fork.Pipe()
    try:
        async with gateway_world(redis.url, "bench") as world, dashboards.serving() as server:
            reader = fork.Process(target=read, args=(dashboards.port_of(server), chosen.opens, 0.25), daemon=True)
            look_rarely()  # as the web process does, before anybody has come
            reader.start()
            while len(the_hub._subscribers) < chosen.opens:
                await asyncio.sleep(0.1)
            everybody = set(the_hub._subscribers)
            body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
            content = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.key}\r\n"
            wire = head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content
            length_s = chosen.blocks * chosen.block
            asking = get_context("spawn").Process(
                target=ask, args=(world.port, wire, chosen.rate, length_s, theirs), daemon=True
            )
            asking.start()
            changing = asyncio.create_task(seconds())
            await asyncio.sleep(4.0)  # it has begun; every dashboard has its history
            order = [False, True, True, False]  # what drifts meets both alike
            for number in range(chosen.blocks):
                watched = order[number % 4]
                the_hub._subscribers = set(everybody) if watched else set()
                the_hub._due.clear()
                await asyncio.sleep(SKIPPED_S)
                since_s, used_s = time.monotonic(), time.thread_time()
                await asyncio.sleep(chosen.block - SKIPPED_S)
                over_s = time.monotonic()
                blocks.append((watched, since_s, over_s, (time.thread_time() - used_s) / (over_s - since_s)))
            watched, the_hub._subscribers = True, everybody
            while not ours.poll():
                await asyncio.sleep(0.1)
            answers, errors = ours.recv()
            changing.cancel()
            reader.kill()
        if errors:
            raise SystemExit(f"requests failed: {errors}")
    finally:
        redis.stop()
    return [
        (was, used, *([took for at, took in told if since_s <= at < over_s] for told in (answers, work)))
        for was, since_s, over_s, used in blocks
    ]


def summary(found: Found, seed: int) -> str:
    """Ratios with dashboards : without; 95 % by drawing groups of four neighbouring blocks again and again."""
    rng = random.Random(seed)
    fours = [found[i : i + 4] for i in range(0, len(found) // 4 * 4, 4)]

    def times(chosen: list[Found], watched: bool, column: int) -> list[float]:
        return sorted(took for four in chosen for block in four if block[0] is watched for took in block[column])

    lines = [f"{len(times(fours, False, 2))} answers without and {len(times(fours, True, 2))} with dashboards"]
    for name, column in (("time", 2), ("work", 3)):
        for share in SHARES:

            def ratio(some: list[Found], column: int = column, share: float = share) -> float:
                return _at(times(some, True, column), share) / _at(times(some, False, column), share)

            again = sorted(ratio(rng.choices(fours, k=len(fours))) for _ in range(300))
            without, with_them = (_at(times(fours, watched, column), share) * 1000 for watched in (False, True))
            lines.append(
                f"{name} p{share * 100:.0f}: {without:.3f} -> {with_them:.3f} ms, {with_them / without:.3f} of all "
                f"(95 % {again[7]:.2f}-{again[292]:.2f}); median of {len(fours)} ratios "
                f"{statistics.median(ratio([four]) for four in fours):.3f}"
            )
    cpu = [statistics.median(block[1] for block in found if block[0] is watched) for watched in (False, True)]
    lines.append(f"CPU of the loop's thread: {cpu[0] * 100:.1f} -> {cpu[1] * 100:.1f} % of a core")
    return "\n".join(lines)


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opens", type=int, default=500)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--block", type=float, default=1.5, help="seconds")
    parser.add_argument("--blocks", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn again")
    chosen = parser.parse_args()
    import django
    import uvloop
    from django.conf import settings

    django.setup()
    from tests.support.dashboards import IN_MEMORY

    settings.CHANNEL_LAYERS = IN_MEMORY
    found = uvloop.run(measure(chosen))
    print(f"{chosen.opens} dashboards, {chosen.rate:.0f} requests/s, load average {os.getloadavg()[0]:.0f}")
    print(summary(found, chosen.seed))


if __name__ == "__main__":
    main()
