"""The demo load, through HTTP with the demo tenants' keys: people, and a batch job that hands in a stack of documents
every 40 s, so that a queue builds up and it matters who goes first. The second pool gets half of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from controlplane import env_loading

log = logging.getLogger("controlplane.load")
MAX_AT_ONCE = 40  # of each pool: a demo that waits must not pile up
SHARES = {"premium": 0.3, "standard": 0.5, "batch": 0.2}
# Words of prompt and tokens of answer, log-normal around people's habits per tier. Standard asks about long
# documents: the length of a prompt does not say who is in a hurry.
LENGTHS = {"premium": (60, 120), "standard": (2500, 200), "batch": (900, 350)}
STACK_EVERY_S, STACK_LENGTHS = 40.0, (1200, 60)
WORDS = (
    "the quarter report shows that stores in the north sold more bread than flour while freight costs rose again so "
    "please summarise what changed since spring and name three causes with one figure each"
).split()


@dataclass(frozen=True, slots=True)
class Load:
    """What one pool is sent."""

    model: str
    keys: Mapping[str, str]  # by tier
    per_s: float  # requests of people
    stack: int  # documents

    @classmethod
    def of(cls, demo: Mapping[str, Any]) -> list[Load]:
        """Of every pool in ``demo.json``: the first has two replicas, the second one."""
        loads = [cls(demo["model"], demo["keys"], per_s=1.0, stack=150)]
        if second := demo.get("summaries"):
            loads.append(cls(second["model"], second["keys"], per_s=0.5, stack=100))
        return loads


async def send(
    http: httpx.AsyncClient,
    load: Load,
    tier: str,
    draw: random.Random,
    lengths: tuple[int, int] | None = None,
) -> None:
    """One chat request, streamed for people and not for the batch job; read to its end whatever the answer is."""
    words, tokens = (max(4, int(draw.lognormvariate(0, 0.7) * middle)) for middle in lengths or LENGTHS[tier])
    prompt = " ".join(draw.choice(WORDS) for _ in range(min(words, 3000)))
    body = {
        "model": load.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": min(tokens, 1024),
        "stream": tier != "batch",
    }
    headers = {"authorization": f"Bearer {load.keys[tier]}"}
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            async for _ in answer.aiter_raw():
                pass
            if answer.status_code != 200:
                log.info("%s was answered %d", tier, answer.status_code)
    except httpx.HTTPError as error:
        log.info("%s: %s", tier, type(error).__name__)


async def run(http: httpx.AsyncClient, load: Load, stop: asyncio.Event) -> None:
    """Sends until ``stop`` is set, then gives up what is still open."""
    draw = random.Random()
    loop = asyncio.get_running_loop()
    people: set[asyncio.Task[None]] = set()
    stack: set[asyncio.Task[None]] = set()

    def start(tasks: set[asyncio.Task[None]], tier: str, lengths: tuple[int, int] | None = None) -> None:
        task = asyncio.create_task(send(http, load, tier, draw, lengths))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    next_stack_s = loop.time() + STACK_EVERY_S
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), draw.expovariate(load.per_s))
        if stop.is_set():
            break
        if len(people) < MAX_AT_ONCE:
            start(people, draw.choices(list(SHARES), list(SHARES.values()))[0])
        if loop.time() >= next_stack_s:
            next_stack_s = loop.time() + STACK_EVERY_S
            for _ in range(load.stack - len(stack)):  # what is left of the last one counts
                start(stack, "batch", STACK_LENGTHS)
    for task in (*people, *stack):
        task.cancel()
    await asyncio.gather(*people, *stack, return_exceptions=True)


async def run_all(demo: Mapping[str, Any]) -> None:
    loads = Load.of(demo)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    most = sum(MAX_AT_ONCE + load.stack for load in loads)
    limits = httpx.Limits(max_connections=most, max_keepalive_connections=8)
    async with httpx.AsyncClient(base_url=demo["base_url"], timeout=900, limits=limits, trust_env=False) as http:
        await asyncio.gather(*(run(http, load, stop) for load in loads))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    demo = json.loads((env_loading.load().home / "demo.json").read_text())
    asyncio.run(run_all(demo))


if __name__ == "__main__":
    main()
