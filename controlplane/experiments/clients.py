"""Paced clients: so many at once, each with one request at a time and a pace it keeps while the system lets it.

A client that was refused comes back when ``Retry-After`` says. With ``open_loop`` requests leave on the pace whether or
not earlier ones were answered: what a system without admission control has to take.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

import aiohttp

from controlplane import sse
from controlplane.replay.client import WORDS


@dataclass(slots=True)
class Sent:
    """One request as its client saw it. Times are seconds since the experiment began."""

    entitlement: str
    sent_s: float
    status: int = 0
    reason: str = ""
    ttft_s: float | None = None
    done_s: float = 0.0
    retry_s: float | None = None
    queue_s: float | None = None  # how long it waited for its slot, as the gateway says, to the millisecond

    @property
    def completed(self) -> bool:
        return self.status == 200 and not self.reason


@dataclass(frozen=True, slots=True)
class Crowd:
    """The clients of one entitlement. ``period_s``: from one request of a client to its next, at the earliest; the mean
    of exponential gaps where these are not ``even``."""

    entitlement: str
    clients: int
    period_s: float
    starts_s: float
    ends_s: float
    input_tokens: int
    output_tokens: tuple[int, int]  # drawn evenly from this interval, ends included
    open_loop: bool = False
    even: bool = True
    stream: bool = True  # else whole answers, which show no first token

    def first_s(self, number: int, rng: random.Random) -> float:
        """When a client sends first."""
        return self.starts_s + (self.period_s * number / self.clients if self.even else self.gap_s(rng))

    def gap_s(self, rng: random.Random) -> float:
        return self.period_s if self.even else rng.expovariate(1 / self.period_s)


@dataclass(slots=True)
class Drive:
    """Sends for all crowds; ``rows`` fills as requests end."""

    url: str
    model: str
    keys: dict[str, str]
    crowds: tuple[Crowd, ...]
    seed: int = 0
    rows: list[Sent] = field(default_factory=list)
    began: float = 0.0

    def begin(self) -> None:
        """The experiment's clock starts."""
        self.began = time.monotonic()

    async def run(self) -> None:
        """Until the last crowd has left and its last answers came."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=300, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
            for crowd in self.crowds:
                send = self._open if crowd.open_loop else self._closed
                for number in range(crowd.clients):
                    group.create_task(send(session, crowd, number))

    def now_s(self) -> float:
        return time.monotonic() - self.began

    async def _closed(self, session: aiohttp.ClientSession, crowd: Crowd, number: int) -> None:
        rng = random.Random(f"{self.seed} {crowd.entitlement} {number}")
        due = crowd.first_s(number, rng)
        while due < crowd.ends_s:
            await asyncio.sleep(due - self.now_s())
            row = await self._send(session, crowd, rng)
            due = max(due + crowd.gap_s(rng), self.now_s()) if row.completed else self.now_s() + (row.retry_s or 1.0)

    async def _open(self, session: aiohttp.ClientSession, crowd: Crowd, number: int) -> None:
        rng = random.Random(f"{self.seed} {crowd.entitlement} {number}")
        due = crowd.first_s(number, rng)
        async with asyncio.TaskGroup() as group:
            while due < crowd.ends_s:
                await asyncio.sleep(due - self.now_s())
                group.create_task(self._send(session, crowd, rng))
                due += crowd.gap_s(rng)

    async def _send(self, session: aiohttp.ClientSession, crowd: Crowd, rng: random.Random) -> Sent:
        row = Sent(crowd.entitlement, self.now_s())
        self.rows.append(row)
        body = {
            "model": self.model,
            # the chat template counts four tokens more
            "messages": [{"role": "user", "content": " ".join(rng.choices(WORDS, k=max(1, crowd.input_tokens - 4)))}],
            "max_tokens": rng.randint(*crowd.output_tokens),
            "ignore_eos": True,
            "stream": crowd.stream,
        }
        try:
            async with session.post(
                f"{self.url}/v1/chat/completions",
                headers={"Authorization": f"Bearer {self.keys[crowd.entitlement]}", "Content-Type": "application/json"},
                data=json.dumps(body).encode(),
            ) as answer:
                row.status = answer.status
                queued = answer.headers.get("x-quartermaster-queue-ms")
                row.queue_s = None if queued is None else float(queued) / 1000
                if answer.status != 200:
                    row.reason = answer.headers.get("x-quartermaster-reason", f"http_{answer.status}")
                    milliseconds = answer.headers.get("retry-after-ms")
                    row.retry_s = None if milliseconds is None else float(milliseconds) / 1000
                    await answer.read()
                elif crowd.stream:
                    await self._read(answer, row)
                else:
                    await answer.read()
        except (aiohttp.ClientError, TimeoutError) as problem:
            row.reason = type(problem).__name__
        row.done_s = self.now_s()
        return row

    async def _read(self, answer: aiohttp.ClientResponse, row: Sent) -> None:
        ended = False
        async for event in sse.events(answer.content):
            if event == sse.DONE:
                ended = True
                continue
            if "error" in event:
                row.reason = str(event["error"].get("code") or "stream_error")
                return
            if row.ttft_s is None and any(c.get("delta", {}).get("content") for c in event.get("choices", ())):
                row.ttft_s = self.now_s() - row.sent_s
        if not ended:
            row.reason = "cut"
