"""Loads one replica for a moment and reads its own counters: what calibration goes by.

Requests go straight to the engine, with random token ids as prompts so that no prefix is found in its cache, and with
``ignore_eos`` so that lengths are known. Only for a replica that serves nobody else meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx

from scheduling.core.engine.calibration import Burst
from scheduling.engines.client import EngineClient, EngineError, EngineMetrics, EngineProtocolError, counted, fetch

MAX_ANSWER_BYTES = 64 * 1024 * 1024
LOOK_EVERY_S = 0.1
LIMIT_S = 60.0  # until an engine shows how many sequences it runs at once, on a busy machine
STEADY = 3  # looks in a row, with steps between them
SETTLE = 0.3  # of a burst's time before counting begins: its requests begin together, and that shows
FIRST_ID, LAST_ID = 100, 999  # token ids that every vocabulary has

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of a burst: so many prompt tokens, and answers of ``output / 2`` to ``3 * output / 2`` tokens."""

    prompt: int
    output: int

    @property
    def most(self) -> int:
        """Tokens of the longest of them."""
        return self.prompt + self.output + self.output // 2

    @property
    def context(self) -> float:
        """Tokens of a running sequence, mean over time: longer answers are seen for longer."""
        return self.prompt + (self.output**2 + self.output**2 / 12) / (2 * self.output)


async def busy(client: EngineClient, seconds: float = 1.0) -> str:
    """Why the replica is not free to be measured, or an empty text."""
    before = await counted(client)
    await asyncio.sleep(seconds)
    after = await counted(client)
    if after.running or after.waiting:
        return f"{after.running} requests run and {after.waiting} wait"
    if after.progress != before.progress:
        return f"it worked on requests within the last {seconds:g} s"
    return ""


async def burst(
    client: EngineClient,
    http: httpx.AsyncClient,
    model: str,
    headers: dict[str, str],
    concurrency: int,
    shape: Shape,
    seconds: float,
    draw: random.Random,
    passed: Callable[[float], None] = lambda _seconds: None,
) -> Burst:
    """Keeps ``concurrency`` requests going for ``seconds`` and tells what the engine did after the first part of it.

    ``passed`` is told the seconds that went by. Raises EngineError when the replica refuses or does not answer.
    """

    def length() -> int:
        return draw.randint(max(1, shape.output // 2), shape.output + shape.output // 2)

    looks = await _under_load(
        client, http, model, headers, concurrency, shape.prompt, length, draw, lambda: _watch(client, seconds, passed)
    )
    (began, first), (ended, last) = looks[0], looks[-1]
    (prompts_before, outputs_before), (prompts, outputs) = _tokens(first), _tokens(last)
    return Burst(
        concurrency=concurrency,
        seconds=ended - began,
        prompt_tokens=prompts - prompts_before,
        output_tokens=outputs - outputs_before,
        running=sum(look.running for _, look in looks) / len(looks),
        running_most=max(look.running for _, look in looks),
        waiting_most=max(look.waiting for _, look in looks),
        context=shape.context,
    )


async def limit(
    client: EngineClient,
    http: httpx.AsyncClient,
    model: str,
    headers: dict[str, str],
    offered: int,
    prompt: int,
    output: int,
    draw: random.Random,
    passed: Callable[[float], None] = lambda _seconds: None,
) -> int | None:
    """How many of ``offered`` requests the engine runs at once while others wait in its queue; None: all of them.

    Their answers of ``output`` tokens do not end meanwhile. An engine counts what runs after a step, when those that
    ended with it are gone and the next are not there yet: with answers that end, a full engine of 32 mostly says 31,
    and one that was offered 32 says that one waits. Raises EngineError as :func:`burst` does, and where the engine
    shows no steady number within :data:`LIMIT_S`.
    """
    return await _under_load(
        client, http, model, headers, offered, prompt, lambda: output, draw, lambda: _steady(client, offered, passed)
    )


async def _under_load(
    client: EngineClient,
    http: httpx.AsyncClient,
    model: str,
    headers: dict[str, str],
    concurrency: int,
    prompt: int,
    length: Callable[[], int],
    draw: random.Random,
    watch: Callable[[], Awaitable[T]],
) -> T:
    """What ``watch`` finds while ``concurrency`` requests are kept going, with answers of ``length()`` tokens."""

    async def ask() -> None:
        tokens = length()
        body = {
            "model": model,
            "prompt": [draw.randint(FIRST_ID, LAST_ID) for _ in range(prompt)],
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        call = "POST /v1/completions"
        status, answer = await fetch(
            http, "POST", client.url + "/v1/completions", call, json=body, headers=headers, timeout_s=120.0,
            limit=MAX_ANSWER_BYTES,
        )  # fmt: skip
        if status != 200:
            raise EngineProtocolError(f"{call} answered {status}: {answer[:200].decode(errors='replace')}")

    async def keep_asking() -> None:
        while True:
            await ask()

    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(keep_asking()) for _ in range(concurrency)]
            try:
                found = await watch()
            finally:
                for worker in workers:
                    worker.cancel()
    except* EngineError as failures:
        failure = failures.exceptions[0]  # one tells enough: they fail alike
    if failure is not None:
        raise failure
    return found


def _tokens(metrics: EngineMetrics) -> tuple[float, float]:
    """Of prompts and of answers."""
    if metrics.prompt_tokens is None or metrics.generation_tokens is None:
        raise EngineProtocolError("/metrics has no numbers for prompt tokens and generation tokens")
    return metrics.prompt_tokens, metrics.generation_tokens


async def _watch(
    client: EngineClient, seconds: float, passed: Callable[[float], None]
) -> list[tuple[float, EngineMetrics]]:
    """Looks at the engine's counters until the time is over, those of the first part left out."""
    began = seen = time.monotonic()
    looks: list[tuple[float, EngineMetrics]] = []
    while seen - began < seconds or len(looks) < 2:
        await asyncio.sleep(LOOK_EVERY_S)
        metrics = await counted(client, timeout_s=10.0)
        now = time.monotonic()
        passed(now - seen)
        seen = now
        if now - began >= SETTLE * seconds:
            looks.append((now, metrics))
    return looks


async def _steady(client: EngineClient, offered: int, passed: Callable[[float], None]) -> int | None:
    """Looks until all that is offered is in the engine and it runs the same number after each of some steps."""
    began = seen = time.monotonic()
    same: list[int] = []
    generated: float | None = None
    while seen - began < LIMIT_S:
        await asyncio.sleep(LOOK_EVERY_S)
        metrics = await counted(client, timeout_s=10.0)
        now = time.monotonic()
        passed(now - seen)
        seen = now
        if metrics.running >= offered:
            return None
        if metrics.generation_tokens == generated or metrics.running + metrics.waiting < offered:
            continue  # no step since the last look, or not all have arrived
        generated = metrics.generation_tokens
        same = [*same, metrics.running] if same[-1:] == [metrics.running] else [metrics.running]
        if len(same) == STEADY:
            return same[-1]
    raise EngineError(f"with {offered} requests it did not run the same number of them for a moment in {LIMIT_S:g} s")


async def quiet(client: EngineClient, limit_s: float = 30.0) -> None:
    """Waits until nothing runs or waits: what was abandoned is given up by the engine within a moment."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        metrics = await counted(client, timeout_s=10.0)
        if not metrics.running and not metrics.waiting:
            return
        await asyncio.sleep(LOOK_EVERY_S)
    raise EngineError(f"the replica still works on abandoned requests after {limit_s:g} s")
