"""What open dashboards cost those who use ``/v1``: CPU per request and latency, with none and with many looking on.

    python -m tests.bench.bench_dashboards [--opens 200] [--rate 400] [--seconds 12] [--rounds 2] [--web 1] [--web 2]

An instance before a simulated engine that answers at once. The requests come at a steady rate from one process, the
dashboards are read in another; none and many take turns. A window without requests tells what the dashboards alone
cost, so that **us per request** is what the requests add. Nothing is pinned: with two cores all of them share these.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import uvloop

from tests.bench.bench_console import session_of
from tests.bench.bench_gateway import AT_ONCE, KV_TOKENS, MODEL, PRESET, SLOTS, SPEED, WORDS, cpu_s, tree
from tests.bench.load import Load, Seen, request
from tests.support.instance import ROOT, Up
from tests.support.ports import free_port

CONNECTIONS = 64
WARM_S = 2.0
SETTLE_S = 6.0  # every dashboard has its history


@dataclass(frozen=True)
class Window:
    """One window of requests, and the CPU that process trees used in it [s]."""

    seen: Seen
    used: dict[str, float]


def read(url: str, cookie: str, opens: int, talk: Connection) -> None:
    """Reads so many dashboards until told to end. A process of its own; says when they are open, then what came."""
    uvloop.run(_read(url, cookie, opens, talk))


async def _read(url: str, cookie: str, opens: int, talk: Connection) -> None:
    counts = [0, 0]  # messages, bytes

    async def one(socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            counts[0] += 1
            counts[1] += len(message.data)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        headers = {"Cookie": cookie, "Origin": url}
        sockets = [await http.ws_connect(url + "/ws/live", max_msg_size=0, headers=headers) for _ in range(opens)]
        readers = [asyncio.create_task(one(socket)) for socket in sockets]
        await asyncio.sleep(SETTLE_S)
        counts[:], began = [0, 0], time.monotonic()
        talk.send(opens)
        while not await asyncio.to_thread(talk.poll, 0.5):
            pass
        over = time.monotonic() - began
        talk.send((sum(not reader.done() for reader in readers), counts[0] / over, counts[1] / over))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*(socket.close() for socket in sockets))


def window(port: int, key: str, rate: float, seconds: float, pids: dict[str, list[int]]) -> Window:
    """Requests at a steady rate for so long. In a process of its own."""
    body: dict[str, object] = {
        "model": MODEL,
        "max_tokens": 16,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": WORDS}],
    }
    load = Load(port, request(port, body, key), CONNECTIONS, interval_s=CONNECTIONS / rate)
    marks: list[dict[str, float]] = []
    seen = uvloop.run(load.run(WARM_S, seconds, lambda: marks.append(_clocks(pids))))
    before, after = marks
    return Window(seen, {part: after[part] - before[part] for part in pids})


def _clocks(pids: dict[str, list[int]]) -> dict[str, float]:
    return {part: cpu_s(found) for part, found in pids.items()}


@contextmanager
def instance(folder: Path, web: int) -> Iterator[Up]:
    port = free_port()
    command = [
        *(
            sys.executable,
            "-m",
            "scheduling.engines.simulated",
            "--model",
            MODEL,
            "--preset",
            PRESET,
            "--port",
            str(port),
        ),
        *("--speed", str(SPEED), "--slots", str(SLOTS), "--kv-tokens", str(KV_TOKENS)),
    ]
    with (folder / "engine.out").open("wb") as output:
        engine = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    up = Up(
        folder / "home",
        ENGINE=f"http://127.0.0.1:{port}",
        QUARTERMASTER_ENGINE_SLOTS=str(SLOTS),
        QUARTERMASTER_WEB_PROCESSES=str(web),
        QUARTERMASTER_MAX_WEBSOCKETS_PER_USER="1000",  # one user has them all here
    )
    try:
        up.start().wait_ready()
        slow = json.dumps({"slow": AT_ONCE}).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{port}/sim/fault", slow, timeout=10).close()
        yield up
    finally:
        up.stop()
        engine.terminate()
        engine.wait()


def measure(up: Up, web: int, opens: int, cookie: str, chosen: argparse.Namespace) -> tuple[float, float, float]:
    """Prints a line; us per request, p50 and p99 [ms]."""
    webs = [pid for number in range(web) for pid in tree(up.pid(f"web-{number}" if number else "web"))]
    pids = {"web": webs, "worker": tree(up.pid("worker")), "redis": tree(up.pid("redis"))}
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    reader = spawn.Process(target=read, args=(up.url, cookie, opens, theirs))
    reader.start()
    try:
        while not ours.poll(1):
            if not reader.is_alive():
                raise SystemExit("the dashboards could not be opened")
        ours.recv()
        before, began = _clocks(pids), time.monotonic()
        time.sleep(chosen.seconds / 2)
        after, over = _clocks(pids), time.monotonic() - began
        alone = {part: (after[part] - before[part]) / over for part in pids}
        with ProcessPoolExecutor(1, mp_context=spawn) as beside:
            found = beside.submit(
                window, up.port, up.demo()["keys"]["standard"], chosen.rate, chosen.seconds, pids
            ).result()
        ours.send("end")
        alive, messages, sent = ours.recv()
    finally:
        reader.join(20)
        reader.kill()
    seen = found.seen
    if seen.errors:
        raise SystemExit(f"requests failed: {seen.errors}")
    used = {part: found.used[part] / seen.seconds for part in pids}
    each = (used["web"] - alone["web"]) * seen.seconds / seen.answers * 1e6
    p50, p99, p999 = (_at(seen.whole, share) * 1000 for share in (0.5, 0.99, 0.999))
    print(
        f"{web} web, {opens:3d} dashboards ({alive} open, {messages:.0f} messages/s, {sent / 1024:.0f} KiB/s): idle "
        f"web {alone['web'] * 100:.1f} % of a core; {seen.answers / seen.seconds:.0f} requests/s: web "
        f"{used['web'] * 100:.1f} %, {each:.0f} us per request; worker {used['worker'] * 100:.1f} %, redis "
        f"{used['redis'] * 100:.1f} %; p50 {p50:.2f} p99 {p99:.2f} p99.9 {p999:.2f} ms; load "
        f"{os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return each, p50, p99


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opens", type=int, default=200)
    parser.add_argument("--rate", type=float, default=400.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--web", type=int, action="append", help="web processes; several: one after the other")
    chosen = parser.parse_args()
    for web in chosen.web or [1, 2]:
        with tempfile.TemporaryDirectory(prefix="qm-dash-") as folder, instance(Path(folder), web) as up:
            cookie = asyncio.run(session_of(up, "admin"))
            window(up.port, up.demo()["keys"]["standard"], chosen.rate, 2.0, {})  # lazy imports, connections, caches
            found: dict[int, list[tuple[float, float, float]]] = {0: [], chosen.opens: []}
            for turn in range(chosen.rounds):
                for opens in sorted(found, reverse=turn % 2 == 1):
                    found[opens].append(measure(up, web, opens, cookie, chosen))
            for opens, rows in found.items():
                each, p50, p99 = (statistics.mean(column) for column in zip(*rows, strict=True))
                print(
                    f"{web} web, {opens} dashboards, mean: {each:.0f} us, p50 {p50:.2f}, p99 {p99:.2f} ms", flush=True
                )


if __name__ == "__main__":
    main()
