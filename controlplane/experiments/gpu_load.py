"""The load of ``experiment gpu``: open-loop requests of three tiers, by QoServe's deadlines, and what came of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from controlplane import sse
from scheduling.core.inside_engine.digest import ARGUMENT, encode
from scheduling.core.percentiles import nearest_rank
from scheduling.core.types import QueuedRequest, ServiceClass, Slo
from scheduling.simulator.recording import Recorded
from scheduling.simulator.result import is_late
from scheduling.simulator.workload import Tier, independent_lengths, poisson

WORKLOADS: Final = ("azure-code", "azure-conv")
DRAIN_S: Final = 20.0  # after the last arrival; what has not ended then is late


@dataclass(frozen=True, slots=True)
class Promises:
    """QoServe's (4.1.1) unless said otherwise: a slower engine, or a shorter run, needs others."""

    ttft_s: float = 6.0
    tbt_s: float = 0.05
    ttlt_s: float = 600.0  # of the second tier; the third has three times as long


def tiers(promises: Promises) -> tuple[Tier, ...]:
    """QoServe's three, a third of the requests each."""
    return (
        Tier("q1", Slo(ttft_s=promises.ttft_s, tbt_s=promises.tbt_s), 0, service_class=ServiceClass.GUARANTEED),
        Tier("q2", Slo(ttlt_s=promises.ttlt_s), 1),
        Tier("q3", Slo(ttlt_s=3 * promises.ttlt_s), 2, service_class=ServiceClass.SPOT),
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """One request, before it is sent."""

    at_s: float
    tier: Tier
    prompt: tuple[int, ...]
    output: int


@dataclass(slots=True)
class Answered:
    """What its client saw [s since the run began]."""

    asked: Planned
    sent_s: float = 0.0
    ttft_s: float | None = None
    ttlt_s: float | None = None  # None: it did not end well
    status: str = ""
    arrivals: list[float] = field(default_factory=list)  # of tokens, since it was sent

    @property
    def late(self) -> bool:
        if self.ttlt_s is None or self.ttft_s is None:
            return True
        slo = self.asked.tier.slo
        if slo.interactive and slo.tbt_s is not None and slo.ttft_s is not None:
            due = ((slo.ttft_s + n * slo.tbt_s) for n in range(len(self.arrivals)))
            return any(at > limit for at, limit in zip(self.arrivals, due, strict=True))
        return is_late(slo, self.ttft_s, self.ttlt_s, self.asked.output)


def plan(
    workload: str, rate: float, seconds: float, promises: Promises, longest: int, seed: int, prompts: str = ""
) -> list[Planned]:
    """Lengths, tiers and arrivals follow from the seed, so they are the same for every mode; the tokens from
    ``prompts``, too: where that is another, no prefix is the same."""
    draw, tokens = random.Random(f"{seed} {workload} {rate}"), random.Random(f"{seed} {workload} {rate} {prompts}")
    lengths, classes, asked = independent_lengths(workload), tiers(promises), list[Planned]()
    for at in poisson(draw, rate):
        if at > seconds:
            return asked
        prompt, output = lengths(draw)
        output = max(1, min(output, longest // 4))
        prompt = max(1, min(prompt, longest - output - 16))
        asked.append(Planned(at, draw.choice(classes), tuple(tokens.choices(range(100, 1000), k=prompt)), output))
    return asked


def digest_of(one: Planned, expected: float) -> str:
    """What a gateway would tell the engine's plugin of it; ``expected``: output tokens, of every request."""
    tier = one.tier
    request = QueuedRequest(
        "", 0, 0.0, tier.name, "", "", tier.rank, tier.weight, tier.service_class, len(one.prompt), one.output,
        expected, 0, ttft_deadline_s=tier.slo.ttft_s, ttlt_deadline_s=tier.slo.ttlt_s,
    )  # fmt: skip
    return encode(request, tier.slo, 0.0)


async def drive(
    url: str,
    model: str,
    asked: Sequence[Planned],
    *,
    keys: Mapping[str, str] | None = None,
    rank: bool = False,
    digest: bool = False,
) -> list[Answered]:
    """Sends all requests at their times. ``keys``: by tier, for a gateway; ``rank``: sends each tier's rank to the
    engine as priority; ``digest``: sends the plugin what a gateway would send."""
    expected = sum(one.output for one in asked) / max(1, len(asked))
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None, sock_connect=10)
    began = time.monotonic()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:

        async def send(row: Answered) -> None:
            await asyncio.sleep(row.asked.at_s - (time.monotonic() - began))
            row.sent_s = time.monotonic() - began
            one = row.asked
            body: dict[str, Any] = {
                "model": model, "prompt": list(one.prompt), "max_tokens": one.output, "ignore_eos": True,
                "temperature": 0, "stream": True,
            }  # fmt: skip
            if rank:
                body["priority"] = one.tier.rank
            if digest:
                body["vllm_xargs"] = {ARGUMENT: digest_of(one, expected)}
            headers = {"Content-Type": "application/json"}
            if keys is not None:
                headers["Authorization"] = f"Bearer {keys[one.tier.name]}"
            try:
                async with http.post(f"{url}/v1/completions", headers=headers, data=json.dumps(body)) as answer:
                    row.status = str(answer.status)
                    if answer.status != 200:
                        row.status = answer.headers.get("x-quartermaster-reason", row.status)
                        return
                    await read(answer, row, time.monotonic)
            except (aiohttp.ClientError, TimeoutError) as problem:
                row.status = type(problem).__name__

        async def read(answer: aiohttp.ClientResponse, row: Answered, clock: Any) -> None:
            async for event in sse.events(answer.content):
                at = clock() - began - row.sent_s
                if event == sse.DONE:
                    row.ttlt_s = at
                elif "error" in event:
                    row.status = str(event["error"].get("code") or "stream_error")
                    return
                elif event.get("choices"):
                    row.ttft_s = at if row.ttft_s is None else row.ttft_s
                    row.arrivals.append(at)

        rows = [Answered(one) for one in asked]
        tasks = [asyncio.create_task(send(row)) for row in rows]
        last = asked[-1].at_s if asked else 0.0
        _, open_ = await asyncio.wait(tasks, timeout=last + DRAIN_S)
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)
    return rows


def summary(rows: Sequence[Answered], seconds: float) -> dict[str, Any]:
    """Attainment by tier and of all, goodput [in time per s], tokens/s of what ended, first tokens of each tier [s]."""
    done = [row for row in rows if row.ttlt_s is not None]
    last = max((row.sent_s + (row.ttlt_s or 0.0) for row in done), default=seconds)
    tokens = sum(len(row.asked.prompt) + row.asked.output for row in done)
    kept = sum(not row.late for row in rows)
    by_tier = {}
    for name in sorted({row.asked.tier.name for row in rows}):
        mine = [row for row in rows if row.asked.tier.name == name]
        firsts = [row.ttft_s for row in mine if row.ttft_s is not None]
        by_tier[name] = {
            "asked": len(mine),
            "in_time": sum(not row.late for row in mine) / len(mine),
            "ttft_p50_s": nearest_rank(firsts, 0.5),
            "ttft_p95_s": nearest_rank(firsts, 0.95),
        }
    ended: dict[str, int] = {}
    for row in rows:
        if row.ttlt_s is None:
            why = row.status if row.status not in ("", "200") else "open"  # it had begun, or was not even answered
            ended[why] = ended.get(why, 0) + 1
    return {
        "asked": len(rows),
        "completed": len(done),
        "not_completed": ended,
        "in_time": kept / len(rows) if rows else None,
        "goodput_per_s": kept / seconds,
        "tokens_per_s": tokens / max(seconds, last),
        "tiers": by_tier,
    }


def recorded(rows: Sequence[Answered]) -> tuple[Recorded, ...]:
    """What was asked for, as the lab replays it."""
    return tuple(
        Recorded(
            one.at_s, len(one.prompt), one.output, one.tier.name, one.tier.name,
            expected_tokens=float(one.output), output_bound=one.output, wait_s=0.0,
            ttft_s=0.0,  # each is streamed: its first token is seen
        )
        for one in (row.asked for row in rows)
    )  # fmt: skip
