"""What placement costs a request: on the gateway (hashes of its prompt) and in Redis (the index in ``admit``).

    python -m tests.bench.bench_placement [--json FILE]

The gateway's figures are CPU time of one thread, the best of several rounds. Redis' are CPU time of the process
(``INFO cpu``) for ``admit`` and the ``finish`` that follows, with eight replicas: for a prompt whose points are known,
one whose points are not, and one without points.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scheduling.core.outcomes import Reason
from scheduling.core.placement.rule import write_points
from scheduling.core.types import BackendSpec, PoolSpec
from scheduling.gateway.bodies.openai_types import ChatRequest, CompletionRequest
from scheduling.gateway.bodies.prepare import parse
from scheduling.gateway.estimate.prefix import prefixes_of
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from tests.support.redis_server import RedisServer
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, pool_spec, request

WORDS = "The harbour of a small town has seen many ships. "
POOL = PoolSpec("p", "m", "m", tuple(BackendSpec(f"b{n}", "p", f"http://127.0.0.1:{n}", 8, 9000) for n in range(1, 9)))
KEY = b"k" * 32


def chat(*texts: str) -> ChatRequest | CompletionRequest:
    roles = ("system", "user", "assistant")
    said = [{"role": roles[n and (n - 1) % 2 + 1], "content": text} for n, text in enumerate(texts)]
    return parse(json.dumps({"model": "m", "messages": said}).encode(), True)


def prompt(value: str | list[int]) -> ChatRequest | CompletionRequest:
    return parse(json.dumps({"model": "m", "prompt": value}).encode(), False)


def bodies() -> dict[str, ChatRequest | CompletionRequest]:
    turns = [WORDS * (4 + n % 9) for n in range(400)]
    return {
        "a short question": chat(WORDS, "What is it?"),
        "2 KB system message": chat(WORDS * 40, "What is it? " * 5),
        "10 turns": chat(WORDS * 40, *turns[:19]),
        "200 turns": chat(WORDS * 40, *turns[:399]),
        "50 KB document": chat(WORDS * 1000, "What is it?"),
        "1 MB document": chat(WORDS * 20_000, "What is it?"),
        "12,000 token ids": prompt(list(range(12_000))),
    }


def best_us(run: Callable[[], object], number: int = 500) -> float:
    return min(timeit.repeat(run, number=number, repeat=15, timer=time.thread_time)) / number * 1e6


def gateway() -> dict[str, float]:
    return {name: best_us(lambda body=body: prefixes_of(body, KEY, POOL, 5000)) for name, body in bodies().items()}  # type: ignore[misc]


async def _cpu_s(resp: RespConnection) -> float:
    said = (await resp.call("INFO", "cpu")).decode().split()
    return sum(float(line.split(":")[1]) for line in said if line.startswith(("used_cpu_user:", "used_cpu_sys:")))


async def _redis(url: str, requests: int) -> dict[str, float]:
    resp = RespConnection(url, name="bench")
    await resp.start()
    store = PoolStore(resp, "bench")
    election = await store.elect("bench", 0, True)
    await leads_on(store)
    names = [f"replica-{n}" for n in range(8)]
    for name in names:
        await store.set_ready(election.epoch, name, backend(name, 100, 10**6, pool="bench"))
    spec, pool = entitlement("bench", concurrency=1000, pool="bench"), replace(pool_spec(), id="bench")

    def points(seed: int) -> str:
        return write_points(10**6, [(f"{seed * 16 + n:012x}", 1000 * n) for n in range(8)])

    found = {}
    for what, said in (
        ("without points", lambda n: ""),
        ("8 known points", lambda n: points(0)),
        ("8 new points", lambda n: points(n + 9)),
    ):
        for timed in (False, True):
            before = await _cpu_s(resp)
            for n in range(requests):
                name = f"{what}-{timed}-{n}".replace(" ", "-")
                r = request(name, spec, prefixes=said(n))
                await store.admit(spec, pool, r, estimate(), 1000, FACTS)
                await store.finish(name, 1, Reason.STOP, 100, True, ledger(name))
        found[what] = (await _cpu_s(resp) - before) / requests * 1e6
    await resp.close()
    return found


def measure(requests: int = 2000) -> dict[str, dict[str, float]]:
    server = RedisServer()
    server.start()
    try:
        return {"gateway": gateway(), "redis": asyncio.run(_redis(server.url, requests))}
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    said = parser.parse_args()
    figures = measure()
    if said.json:
        said.json.write_text(json.dumps(figures))
    for part, rows in figures.items():
        print(f"\n{part} [us a request]")
        for name, value in rows.items():
            print(f"  {name:<22} {value:7.1f}")


if __name__ == "__main__":
    main()
