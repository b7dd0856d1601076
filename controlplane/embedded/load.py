"""The demo load, through HTTP with the demo tenants' keys: people, about a request a second, and a batch job that hands
in a stack of documents every 40 s, so that a queue builds up and it matters who goes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
from typing import Any

import httpx

from controlplane import env as environment

log = logging.getLogger("controlplane.load")
PER_S = 1.0
MAX_AT_ONCE = 40  # a demo that waits must not pile up
SHARES = {"premium": 0.3, "standard": 0.5, "batch": 0.2}
# Words of prompt and tokens of answer, log-normal around people's habits per tier. Standard asks about long
# documents: the length of a prompt does not say who is in a hurry.
LENGTHS = {"premium": (60, 120), "standard": (2500, 200), "batch": (900, 350)}
STACK, STACK_EVERY_S, STACK_LENGTHS = 200, 40.0, (1200, 60)
WORDS = (
    "the quarter report shows that stores in the north sold more bread than flour while freight costs rose again so "
    "please summarise what changed since spring and name three causes with one figure each"
).split()


async def send(
    http: httpx.AsyncClient,
    demo: dict[str, Any],
    tier: str,
    draw: random.Random,
    lengths: tuple[int, int] | None = None,
) -> None:
    """One chat request, streamed for people and not for the batch job; read to its end whatever the answer is."""
    words, tokens = (max(4, int(draw.lognormvariate(0, 0.7) * middle)) for middle in lengths or LENGTHS[tier])
    prompt = " ".join(draw.choice(WORDS) for _ in range(min(words, 3000)))
    body = {
        "model": demo["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": min(tokens, 1024),
        "stream": tier != "batch",
    }
    headers = {"authorization": f"Bearer {demo['keys'][tier]}"}
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            async for _ in answer.aiter_raw():
                pass
            if answer.status_code != 200:
                log.info("%s was answered %d", tier, answer.status_code)
    except httpx.HTTPError as error:
        log.info("%s: %s", tier, type(error).__name__)


async def run(demo: dict[str, Any]) -> None:
    draw = random.Random()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tasks: set[asyncio.Task[None]] = set()
    limits = httpx.Limits(max_connections=MAX_AT_ONCE + STACK, max_keepalive_connections=8)
    stack: set[asyncio.Task[None]] = set()
    next_stack_s = loop.time() + STACK_EVERY_S
    async with httpx.AsyncClient(base_url=demo["base_url"], timeout=900, limits=limits, trust_env=False) as http:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), draw.expovariate(PER_S))
            if len(tasks) < MAX_AT_ONCE and not stop.is_set():
                tier = draw.choices(list(SHARES), list(SHARES.values()))[0]
                task = asyncio.create_task(send(http, demo, tier, draw))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if loop.time() >= next_stack_s and not stop.is_set():
                next_stack_s = loop.time() + STACK_EVERY_S
                for _ in range(STACK - len(stack)):  # what is left of the last one counts
                    task = asyncio.create_task(send(http, demo, "batch", draw, STACK_LENGTHS))
                    stack.add(task)
                    task.add_done_callback(stack.discard)
        for task in (*tasks, *stack):
            task.cancel()
        await asyncio.gather(*tasks, *stack, return_exceptions=True)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    demo = json.loads((environment.load().home / "demo.json").read_text())
    asyncio.run(run(demo))


if __name__ == "__main__":
    main()
