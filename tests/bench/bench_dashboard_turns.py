"""How long open dashboards keep an event loop from everything else, in CPU time: ``python -m
tests.bench.bench_dashboard_turns [--opens 500] [--seconds 8]``.

One process with the live feed's consumers and nothing else, whose dashboards are read by another; one change a second.
Counted is the CPU of the loop's thread between two looks 1 ms apart, so that a busy machine changes little.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import selectors
import socket
import time
from multiprocessing import get_context

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")


def read(port: int, opens: int, pause_s: float = 0.0) -> None:
    """Opens so many dashboards and reads what they get, for ever. ``pause_s`` between two rounds: who reads 500 sockets
    as soon as they have something takes as much CPU as who writes them."""
    from tests.support.dashboards import handshake

    selector = selectors.DefaultSelector()
    for _ in range(opens):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(handshake(port))
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if not key.fileobj.recv(65536):  # type: ignore[union-attr]
                selector.unregister(key.fileobj)
        time.sleep(pause_s)


async def measure(opens: int, seconds: int) -> None:
    from telemetry.feed import consumers, hub
    from telemetry.feed.sources import Sources
    from tests.support.dashboards import Leader, port_of, serving
    from tests.support.telemetry_world import MemoryStore

    store = MemoryStore()
    the_hub = hub.LiveHub(store, Sources())
    consumers.running_hub = lambda: the_hub
    leader = Leader(store, the_hub)
    await leader.second()
    turns: list[float] = []

    async def watch() -> None:
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now_s = time.thread_time()
            turns.append(now_s - before_s)
            before_s = now_s

    async with serving() as server:
        reader = get_context("fork").Process(target=read, args=(port_of(server), opens), daemon=True)
        reader.start()
        while len(the_hub._subscribers) < opens:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)  # every dashboard has its history
        watching, before_s = asyncio.create_task(watch()), time.thread_time()
        for _ in range(seconds):
            await leader.second()
            await asyncio.sleep(1)
        used_s = time.thread_time() - before_s
        watching.cancel()
        reader.kill()
    turns.sort()
    print(
        f"{opens} dashboards: {used_s / seconds * 100:.1f} % of a core; longest turns of the loop [CPU ms]: "
        f"p99 {turns[int(len(turns) * 0.99)] * 1000:.2f}, p99.9 {turns[int(len(turns) * 0.999)] * 1000:.2f}, "
        f"most {turns[-1] * 1000:.2f}; load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opens", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=8)
    chosen = parser.parse_args()
    import django
    import uvloop
    from django.conf import settings

    django.setup()
    from tests.support.dashboards import IN_MEMORY

    settings.CHANNEL_LAYERS = IN_MEMORY
    uvloop.run(measure(chosen.opens, chosen.seconds))


if __name__ == "__main__":
    main()
