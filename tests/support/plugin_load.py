"""Load on one engine, without a gateway: long prompts kept going, short ones that come by themselves, with digests."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from scheduling.core.inside_engine.digest import ARGUMENT
from scheduling.core.percentiles import nearest_rank
from scheduling.core.types import ServiceClass, Slo
from tests.support.plugin_digest import Kind, digest_of


@dataclass(slots=True)
class Answer:
    """What a client saw [s since it sent the request]."""

    kind: str
    sent_s: float
    ttft_s: float = -1.0
    gaps_s: list[float] = field(default_factory=list)
    done_s: float = -1.0
    prompt: int = 0
    output: int = 0

    @property
    def completed(self) -> bool:
        return self.done_s >= 0


CHAT = Kind("chat", 40, 24, Slo(ttft_s=0.5, tbt_s=0.06))
LONG = Kind("long", 3000, 4, Slo(ttlt_s=60.0), rank=2, service_class=ServiceClass.SPOT)


async def ask(http: aiohttp.ClientSession, url: str, model: str, kind: Kind, draw: random.Random) -> Answer:
    """One streamed completion of random tokens."""
    answer = Answer(kind.name, time.monotonic())
    prompt = [*range(100, 100 + kind.shared), *(draw.randint(100, 999) for _ in range(kind.prompt - kind.shared))]
    body: dict[str, object] = {
        "model": model, "prompt": prompt, "max_tokens": kind.output, "ignore_eos": True, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True}, "priority": kind.rank,
    }  # fmt: skip
    if kind.digest:
        body["vllm_xargs"] = {ARGUMENT: digest_of(kind)}
    last = answer.sent_s
    async with http.post(url + "/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            frame = json.loads(line[6:])
            now = time.monotonic()
            if frame["choices"] and not frame.get("usage"):
                if answer.ttft_s < 0:
                    answer.ttft_s = now - answer.sent_s
                else:
                    answer.gaps_s.append(now - last)
                last = now
            if frame.get("usage"):
                answer.prompt, answer.output = frame["usage"]["prompt_tokens"], frame["usage"]["completion_tokens"]
    answer.done_s = time.monotonic() - answer.sent_s
    return answer


async def drive(
    url: str, model: str, seconds: float, *, long: int, chats_per_s: float, chat: Kind = CHAT, prompt: Kind = LONG,
    seed: int = 0,
) -> list[Answer]:  # fmt: skip
    """``long`` long prompts at once, and chats at that rate, for so long; then all that were sent are waited for."""
    draw, answers = random.Random(seed), list[Answer]()
    end = time.monotonic() + seconds
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def keep(number: int) -> None:
            own = random.Random(f"{seed}-{number}")
            while time.monotonic() < end:
                answers.append(await ask(http, url, model, prompt, own))

        async def one(number: int) -> None:
            answers.append(await ask(http, url, model, chat, random.Random(f"{seed}-chat-{number}")))

        tasks = [asyncio.create_task(keep(number)) for number in range(long)]
        number = 0
        while chats_per_s and time.monotonic() < end:
            await asyncio.sleep(draw.expovariate(chats_per_s))
            number += 1
            tasks.append(asyncio.create_task(one(number)))
        await asyncio.gather(*tasks)
    return answers


def summary(answers: Sequence[Answer], kind: Kind, seconds: float, warm_s: float = 0.0) -> dict[str, float]:
    """Of a kind's requests: first tokens, longest gaps, and how many kept the SLO; with the tokens/s of all."""
    began = min(answer.sent_s for answer in answers)
    mine = [a for a in answers if a.kind == kind.name and a.sent_s - began >= warm_s]
    kept = [a for a in mine if _kept(a, kind.slo)]
    tokens = sum(a.prompt + a.output for a in answers if warm_s <= a.sent_s + a.done_s - began <= seconds)
    return {
        "asked": len(mine),
        "kept": len(kept) / len(mine),
        "ttft_p50_s": nearest_rank([a.ttft_s for a in mine], 0.5) or 0.0,
        "ttft_p95_s": nearest_rank([a.ttft_s for a in mine], 0.95) or 0.0,
        "gap_p99_s": nearest_rank([gap for a in mine for gap in a.gaps_s], 0.99) or 0.0,
        "tokens_per_s": tokens / (seconds - warm_s),
    }


def _kept(answer: Answer, slo: Slo) -> bool:
    """By the deadlines of each token (QoServe eq. 1 to 3)."""
    if slo.ttft_s is None:
        return slo.ttlt_s is None or answer.done_s <= slo.ttlt_s
    if answer.ttft_s > slo.ttft_s:
        return False
    at = answer.ttft_s
    for number, gap in enumerate(answer.gaps_s, 1):
        at += gap
        if slo.tbt_s is not None and at > slo.ttft_s + number * slo.tbt_s:
            return False
    return True
