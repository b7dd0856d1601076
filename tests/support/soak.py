"""Nothing grows under steady load: ``python -m tests.support.soak [--minutes N] [--rate R] [--out FILE]``.

Starts an instance as ``make up`` does, sends mixed requests to it (streams, whole answers, refused ones, and one in a
hundred that leaves in the middle), and looks every few seconds at each process: memory, open files, threads, asyncio
tasks, and Redis' keys and memory. The slopes of these figures over the time after the warm-up are printed; the exit
status is 1 where one is above its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import redis

from tests.support.instance import Up

SAMPLE_S = 2.0
LEAVES = 0.01  # share of clients that leave in the middle of their stream
MIB = 1024 * 1024
# What a figure may grow by in an hour. Memory: 1 MB an hour after the first hour (docs/reference/promises.md, 28);
# before that caches fill (histories of lengths, prompts, prepared pages).
LIMITS = {"rss_mib": 1.0, "files": 2.0, "threads": 2.0, "tasks": 2.0, "lasting_keys": 2.0, "redis_mib": 1.0}


@dataclass(slots=True)
class Soak:
    """Samples by ``process.figure``: (seconds since the start, value)."""

    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)

    def note(self, at_s: float, name: str, value: float) -> None:
        self.series.setdefault(name, []).append((at_s, value))

    def grown(self, after_s: float, limits: dict[str, float] = LIMITS) -> list[str]:
        """The figures that grow by more per hour than their limit, in words."""
        return [
            f"{row['name']} grows by {row['per_hour']:.1f} an hour, from {row['first']:g} to {row['last']:g}"
            for row in self.slopes(after_s)
            if row["per_hour"] > limits.get(row["name"].rsplit(".", 1)[1], float("inf"))
            # a figure that moves up and down by a few has a slope in any short window
            and row["last"] - row["first"] > 2
        ]

    def slopes(self, after_s: float) -> list[dict[str, Any]]:
        rows = []
        for name, samples in sorted(self.series.items()):
            kept = [(at, value) for at, value in samples if at >= after_s]
            if len(kept) >= 8:
                eighth = max(1, len(kept) // 8)
                rows.append(
                    {
                        "name": name,
                        "per_hour": slope(kept) * 3600,
                        "first": median(value for _, value in kept[:eighth]),
                        "last": median(value for _, value in kept[-eighth:]),
                        "samples": len(kept),
                    }
                )
        return rows

    def by_parts(self, name: str, parts: int = 6) -> list[float]:
        """What a figure grew by for 10,000 answers in each part of the time: what levels off needs no end."""
        samples = self.series[name]
        end_s, each = samples[-1][0], 10_000 / max(1, sum(self.ends.values()))
        cut = [[s for s in samples if n * end_s / parts <= s[0] <= (n + 1) * end_s / parts] for n in range(parts)]
        return [slope(part) * end_s * each for part in cut]


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def slope(samples: Sequence[tuple[float, float]], most: int = 240) -> float:
    """The median of the slopes between all pairs of samples (Theil and Sen): a few outliers do not move it."""
    step = max(1, len(samples) // most)
    thinned = samples[::step]
    return median(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for n, earlier in enumerate(thinned)
        for later in thinned[n + 1 :]
        if later[0] > earlier[0]
    )


class Load:
    """``rate`` requests a second, of all tenants, until :meth:`stop`."""

    def __init__(self, demo: dict[str, Any], rate: float, seed: int, ends: Counter[str]) -> None:
        self._demo = demo
        self._rate = rate
        self._rng = random.Random(seed)
        self._ends = ends
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200), timeout=timeout) as session:
            while not self._stopped.is_set():
                await asyncio.sleep(self._rng.expovariate(self._rate))
                task = asyncio.create_task(self._one(session))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        rng = self._rng
        tier = rng.choice(("premium", "standard", "batch"))
        stream, leaves, wrong = rng.random() < 0.7, rng.random() < LEAVES, rng.random() < 0.02
        body = {
            "model": self._demo["model"] if not wrong else "no-such-model",
            "messages": [{"role": "user", "content": "soak " * rng.randint(5, 200)}],
            "max_tokens": rng.randint(5, 60),
            "stream": stream,
            "ignore_eos": True,
        }
        headers = {"Authorization": f"Bearer {self._demo['keys'][tier]}"}
        try:
            async with session.post(
                f"{self._demo['base_url']}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                if leaves and stream:
                    await answer.content.readany()
                    answer.close()
                    self._ends["left"] += 1
                    return
                await answer.read()
                self._ends[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError) as problem:
            self._ends[type(problem).__name__] += 1


def look(up: Up, store: Any, soak: Soak, at_s: float) -> None:
    """One sample of everything."""
    for name in ("web", "worker", "redis"):
        try:
            process = psutil.Process(up.pid(name))
            with process.oneshot():
                soak.note(at_s, f"{name}.rss_mib", process.memory_info().rss / MIB)
                soak.note(at_s, f"{name}.files", process.num_fds())
                soak.note(at_s, f"{name}.threads", process.num_threads())
            if name == "worker":
                for n, child in enumerate(process.children(recursive=True)):
                    soak.note(at_s, f"worker-task-{n}.rss_mib", child.memory_info().rss / MIB)
                    soak.note(at_s, f"worker-task-{n}.files", child.num_fds())
        except (psutil.Error, OSError):
            continue
    status, page = up.get("/metrics")
    if status == 200:
        for line in page.decode().splitlines():
            if line.startswith("quartermaster_tasks "):
                soak.note(at_s, "web.tasks", float(line.split(" ")[1]))
    soak.note(at_s, "redis.redis_mib", store.info("memory")["used_memory"] / MIB)
    keys = store.dbsize()
    soak.note(at_s, "redis.keys", keys)
    soak.note(at_s, "redis.lasting_keys", keys - store.info("keyspace").get("db0", {}).get("expires", 0))


async def run(up: Up, minutes: float, rate: float, seed: int = 1, soak: Soak | None = None) -> Soak:
    """Steady load on a running instance for so long; what was seen."""
    soak = soak or Soak()
    store = redis.Redis.from_url((up.home / "run" / "redis-url").read_text())
    load = Load(up.demo(), rate, seed, soak.ends)
    sending = asyncio.create_task(load.run())
    began = time.monotonic()
    try:
        while (at_s := time.monotonic() - began) < minutes * 60:
            await asyncio.to_thread(look, up, store, soak, at_s)
            await asyncio.sleep(SAMPLE_S)
    finally:
        load.stop()
        await sending
        store.close()
    return soak


def table(soak: Soak, after_s: float) -> str:
    lines = [f"{'figure':<24}{'per hour':>12}{'first':>12}{'last':>12}"]
    for row in soak.slopes(after_s):
        lines.append(f"{row['name']:<24}{row['per_hour']:>12.2f}{row['first']:>12.1f}{row['last']:>12.1f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=float, default=6, help="requests a second (6)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="all samples as JSON")
    options = parser.parse_args()
    warm_s = min(3600.0, options.minutes * 30)  # the first half, at most an hour
    with tempfile.TemporaryDirectory(prefix="qm-soak-") as folder:
        up = Up(Path(folder) / "home")
        up.start().wait_ready()
        soak = Soak()
        try:
            asyncio.run(run(up, options.minutes, options.rate, options.seed, soak))
        except KeyboardInterrupt:
            pass
        finally:
            up.stop()
    if options.out:
        options.out.write_text(json.dumps({"series": soak.series, "ends": soak.ends}))
    print(f"{options.minutes:g} minutes at {options.rate:g} requests a second, seed {options.seed}: {dict(soak.ends)}")
    print(f"slopes after the first {warm_s / 60:g} minutes:")
    print(table(soak, warm_s))
    print("for 10,000 answers, by sixths of the time [MiB]:")
    for name in sorted(name for name in soak.series if name.endswith("_mib")):
        print(f"{name:<24}" + "".join(f"{grown:>9.2f}" for grown in soak.by_parts(name)))
    grown = soak.grown(warm_s)
    print("\n".join(grown) or "nothing grows beyond its limit")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
