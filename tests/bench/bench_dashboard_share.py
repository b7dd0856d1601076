"""What 500 open dashboards cost the latency of ``/v1``, as a ratio within one run (promise 29):

    nice -n -5 python -m tests.bench.bench_dashboard_share [--opens 500] [--rate 100] [--seconds 2.5] [--pairs 24]

Two instances alike, each before a simulated engine that answers at once, so that the time of an answer is the
gateway's. One has all the dashboards (half of an admin, half of a tenant's member), which another process reads. A
steady load of short answers goes to either by turns, in blocks of a few seconds, and every second pair begins with the
other: what else the machine does, and the CPU that the dashboards take, meets both alike, so the ratio tells what they
do to the event loop that serves ``/v1``. Compared is each block with its neighbour in time. CPU of the web processes is
told beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import random
import selectors
import socket
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from tests.bench.bench_console import session_of
from tests.bench.bench_dashboards import CONNECTIONS, instance
from tests.bench.bench_gateway import MODEL, WORDS, cpu_s, tree
from tests.bench.load import Load, Seen, request
from tests.support.instance import Up

WARM_S = 0.5
SETTLE_S = 3.0  # after every dashboard has its first messages
OPEN_LIMIT_S = 120.0
AT_ONCE = 40  # handshakes on their way


def screens(port: int, cookies: list[str], opens: int, talk: Connection) -> None:
    """A process with so many dashboards, opened a few at a time, that reads and forgets what they get."""
    selector = selectors.DefaultSelector()
    selector.register(talk, selectors.EVENT_READ)
    reads: dict[socket.socket, int] = {}  # the first one is its handshake's answer
    again_s, received, messages = 0.0, 0, 0
    while True:
        while len(reads) < opens and sum(not n for n in reads.values()) < AT_ONCE and time.monotonic() > again_s:
            try:
                one = socket.create_connection(("127.0.0.1", port))
                one.sendall(_handshake(port, cookies[len(reads) % len(cookies)]))
            except OSError:
                again_s = time.monotonic() + 1.0
                break
            one.setblocking(False)
            reads[one] = 0
            selector.register(one, selectors.EVENT_READ)
        for key, _ in selector.select(0.5):
            one = key.fileobj  # type: ignore[assignment]
            if key.fileobj is not talk:
                try:
                    got = one.recv(262_144)
                except BlockingIOError:
                    continue
                except OSError:
                    got = b""
                if not got or (not reads[one] and not got.startswith(b"HTTP/1.1 101")):
                    selector.unregister(one)
                    one.close()
                    del reads[one]
                    again_s = time.monotonic() + 1.0
                    continue
                reads[one] += 1
                received, messages = received + len(got), messages + 1
            elif talk.recv() == "end":
                return
            else:
                talk.send((sum(n > 1 for n in reads.values()), messages, received))
                received = messages = 0


def _handshake(port: int, cookie: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /ws/live HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        f"origin: http://127.0.0.1:{port}\r\ncookie: {cookie}\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
    ).encode()


class Screens:
    """The other end of :func:`screens`, which opens them at once."""

    def __init__(self, up: Up, opens: int) -> None:
        cookies = [asyncio.run(session_of(up, who)) for who in ("admin", "member")]
        spawn = get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=screens, args=(up.port, cookies, opens, theirs), daemon=True)
        self._process.start()
        began = time.monotonic()
        while (seen := self.ask()[0]) < opens:
            if time.monotonic() - began > OPEN_LIMIT_S:
                raise SystemExit(f"only {seen} of {opens} dashboards were opened: {up.output.read_text()[-2000:]}")
            time.sleep(0.5)
        print(f"{opens} dashboards opened in {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(SETTLE_S)

    def ask(self) -> tuple[int, int, int]:
        """Dashboards that were sent something; reads and bytes since it was asked before."""
        self._ours.send("?")
        return self._ours.recv()  # type: ignore[no-any-return]

    def end(self) -> None:
        self._ours.send("end")
        self._process.join(10)
        self._process.kill()


@dataclass(frozen=True)
class Block:
    seen: Seen
    used: dict[str, float]  # CPU [s] of the web process of either instance: loaded, idle


def blocks(ups: list[tuple[int, str, list[int]]], pairs: int, rate: float, seconds: float) -> list[tuple[Block, Block]]:
    """Pairs of blocks, without and with dashboards. In a process of its own; ``ups``: port, key, web's processes."""

    def block(number: int, length_s: float) -> Block:
        port, key, _ = ups[number]
        body: dict[str, object] = {"model": MODEL, "max_tokens": 16, "ignore_eos": True}
        wire = request(port, body | {"messages": [{"role": "user", "content": WORDS}]}, key)
        load, marks = Load(port, wire, CONNECTIONS, interval_s=CONNECTIONS / rate), list[list[float]]()
        seen = uvloop.run(load.run(WARM_S, length_s, lambda: marks.append([cpu_s(pids) for _, _, pids in ups])))
        spent = [after - before for before, after in zip(*marks, strict=True)]
        return Block(seen, {"loaded": spent[number], "idle": spent[1 - number]})

    for number in (0, 1):
        block(number, 2.0)  # lazy imports, connections, caches
    found = []
    for turn in range(pairs):
        pair = {number: block(number, seconds) for number in ((0, 1) if turn % 2 == 0 else (1, 0))}
        found.append((pair[0], pair[1]))
    return found


def measure(without: Up, watched: Up, chosen: argparse.Namespace) -> list[tuple[Block, Block]]:
    ups = [(up.port, str(up.demo()["keys"]["standard"]), tree(up.pid("web"))) for up in (without, watched)]
    open_screens = Screens(watched, chosen.opens)
    open_screens.ask()
    began = time.monotonic()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside:
        found = beside.submit(blocks, ups, chosen.pairs, chosen.rate, chosen.seconds).result()
    alive, messages, received = open_screens.ask()
    over = time.monotonic() - began
    print(f"{alive} dashboards open to the end; {messages / over:.0f} reads/s, {received / over / 1024:.0f} KiB/s")
    open_screens.end()
    for pair in found:
        for number, one in enumerate(pair):
            if one.seen.errors:
                raise SystemExit(f"requests failed: {one.seen.errors}")
            p50, p99 = (_at(one.seen.whole, share) * 1000 for share in (0.5, 0.99))
            print(
                f"{chosen.opens if number else 0:3d} dashboards: {len(one.seen.whole)} answers, p50 {p50:.2f} p99 "
                f"{p99:.2f} ms, web {one.used['loaded'] / one.seen.seconds * 100:.1f} % of a core"
            )
    return found


def summary(found: list[tuple[Block, Block]], seed: int) -> str:
    """Ratios with dashboards : without, of neighbouring blocks and of all blocks together."""
    lines = []
    rng = random.Random(seed)
    for share in (0.5, 0.9, 0.99):
        ratios = [_at(a.seen.whole, share) and _at(b.seen.whole, share) / _at(a.seen.whole, share) for a, b in found]
        again = []
        for _ in range(2000):  # bootstrap over pairs of blocks
            chosen = rng.choices(found, k=len(found))
            without, with_them = ([t for pair in chosen for t in pair[i].seen.whole] for i in (0, 1))
            again.append(_at(with_them, share) / _at(without, share))
        again.sort()
        without, with_them = ([t for pair in found for t in pair[i].seen.whole] for i in (0, 1))
        lines.append(
            f"p{share * 100:.0f}: median of {len(ratios)} ratios {statistics.median(ratios):.3f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}); of all blocks {_at(without, share) * 1000:.2f} -> "
            f"{_at(with_them, share) * 1000:.2f} ms, {_at(with_them, share) / _at(without, share):.3f} "
            f"(95 % {again[50]:.2f}-{again[1949]:.2f})"
        )
    cpu = [b.used["loaded"] / b.seen.seconds - a.used["loaded"] / a.seen.seconds for a, b in found]
    lines.append(
        f"CPU of the web process: {statistics.median(cpu) * 100:+.1f} % of a core with them ({min(cpu) * 100:.1f} "
        f"to {max(cpu) * 100:.1f})"
    )
    return "\n".join(lines)


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opens", type=int, default=500)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a block")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1, help="of the bootstrap")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="qm-dash-") as folder,
        instance(Path(folder) / "without", 1) as without,
        instance(Path(folder) / "with", 1) as watched,
    ):
        found = measure(without, watched, chosen)
    print(summary(found, chosen.seed), f"load average {os.getloadavg()[0]:.0f}", sep="\n")


if __name__ == "__main__":
    main()
