"""Sends a trace's arrivals and lengths through HTTP, as the clients that made it would.

Open loop: requests leave at the trace's instants whether or not earlier ones were answered, so an overload shows as
waiting and refusals, not as a slower trace. Each request is one HTTP request (no retries), so that what is counted here
can be compared with the ledger row by row.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import aiohttp

from controlplane import sse
from controlplane.replay.report import Sent
from scheduling.simulator.trace import TraceRequest
from scheduling.simulator.workload import BLOCK_TOKENS

# Short common words: each is one token for the simulated engine and for nearly every byte-pair vocabulary.
WORDS = "the of and to in is it that was for on are as with his they at be this from have or by one had not".split()


@lru_cache(maxsize=8192)
def words_of_block(block: int) -> tuple[str, ...]:
    """The same words for the same block of a trace's prompts."""
    return tuple(random.Random(block).choices(WORDS, k=BLOCK_TOKENS))


def prompt_of(words: int, blocks: Sequence[int], rng: random.Random) -> str:
    """A prompt of so many words, of these blocks where the trace names them: what shares a block there shares its text
    here. What the blocks leave is drawn."""
    named = [word for block in blocks[: -(-words // BLOCK_TOKENS)] for word in words_of_block(block)][:words]
    return " ".join(named + rng.choices(WORDS, k=words - len(named)))


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant's key and the share of the requests that it sends."""

    name: str
    tier: str
    key: str
    share: float


@dataclass(slots=True)
class PromptSizing:
    """How many prompt tokens the model counts for our words: ``overhead + per_word * words``.

    Begins with what the simulated engine counts and learns from the usage of each answer (least squares), so that no
    request is sent that is not in the trace.
    """

    per_word: float = 1.0
    overhead: float = 4.0
    _n: int = 0
    _sum_x: float = 0.0
    _sum_y: float = 0.0
    _sum_xx: float = 0.0
    _sum_xy: float = 0.0

    def words_for(self, tokens: int) -> int:
        return max(1, round((tokens - self.overhead) / self.per_word))

    def learn(self, words: int, tokens: int) -> None:
        self._n += 1
        self._sum_x += words
        self._sum_y += tokens
        self._sum_xx += words * words
        self._sum_xy += words * tokens
        spread = self._n * self._sum_xx - self._sum_x**2
        if spread > 0:
            per_word = (self._n * self._sum_xy - self._sum_x * self._sum_y) / spread
            if per_word > 0:
                self.per_word = per_word
                self.overhead = (self._sum_y - per_word * self._sum_x) / self._n


@dataclass(slots=True)
class Progress:
    """What the progress bar shows; the replay writes it, the command reads it."""

    total: int
    sent: int = 0
    open: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0


@dataclass(slots=True)
class Replay:
    """One run. ``rows`` fills as requests end, so that an interrupted run keeps what it has."""

    base_url: str
    model: str
    senders: Sequence[Sender]
    trace: Sequence[TraceRequest]
    speed: float = 1.0
    seed: int = 0
    stream: bool = True
    ignore_eos: bool = True
    timeout_s: float = 900.0
    rows: list[Sent] = field(default_factory=list)
    calibration: PromptSizing = field(default_factory=PromptSizing)
    progress: Progress = field(init=False)
    duration_s: float = 0.0

    def __post_init__(self) -> None:
        self.progress = Progress(total=len(self.trace))

    async def run(self, on_tick: Callable[[Progress], None] | None = None) -> None:
        """Sends everything and waits for the answers. Cancelling it ends open requests and keeps the rows."""
        rng = random.Random(self.seed)
        shares = [sender.share for sender in self.senders]
        choices = rng.choices(self.senders, weights=shares, k=len(self.trace))
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=10)
        started = time.monotonic()
        open_tasks: set[asyncio.Task[None]] = set()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                started = time.monotonic()
                for request, sender in zip(self.trace, choices, strict=True):
                    due = request.arrival_s / self.speed
                    while (delay := due - (time.monotonic() - started)) > 0:
                        await asyncio.sleep(min(delay, 0.25))
                        if on_tick:
                            on_tick(self.progress)
                    row = Sent(
                        "",
                        sender.name,
                        sender.tier,
                        due,
                        time.monotonic() - started - due,
                        wanted_input=request.input_tokens,
                        wanted_output=request.output_tokens,
                        streamed=self.stream,
                    )
                    task = asyncio.create_task(self.send(session, sender, row, request.blocks, rng))
                    open_tasks.add(task)
                    task.add_done_callback(open_tasks.discard)
                while open_tasks:
                    await asyncio.wait(open_tasks, timeout=0.25)
                    if on_tick:
                        on_tick(self.progress)
            finally:
                for task in open_tasks:
                    task.cancel()
                await asyncio.gather(*open_tasks, return_exceptions=True)
                self.duration_s = time.monotonic() - started
                if on_tick:
                    on_tick(self.progress)

    def body(self, words: int, blocks: Sequence[int], output_tokens: int, rng: random.Random) -> bytes:
        text = prompt_of(words, blocks, rng)
        body: dict[str, object] = {"model": self.model, "max_tokens": max(1, output_tokens)}
        # Blocks do not say where a conversation's messages begin, so such prompts are sent as they are.
        body |= {"prompt": text} if blocks else {"messages": [{"role": "user", "content": text}]}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()

    async def send(
        self,
        session: aiohttp.ClientSession,
        sender: Sender,
        row: Sent,
        blocks: Sequence[int],
        rng: random.Random,
    ) -> None:
        progress = self.progress
        words = self.calibration.words_for(row.wanted_input)
        body = self.body(words, blocks, row.wanted_output, rng)
        progress.sent += 1
        progress.open += 1
        start = time.monotonic()
        try:
            async with session.post(
                f"{self.base_url}/v1/{'completions' if blocks else 'chat/completions'}",
                headers={"Authorization": f"Bearer {sender.key}", "Content-Type": "application/json"},
                data=body,
            ) as answer:
                row.status = answer.status
                row.request_id = answer.headers.get("x-request-id", "")
                if "x-quartermaster-queue-ms" in answer.headers:
                    row.queue_s = float(answer.headers["x-quartermaster-queue-ms"]) / 1000
                if answer.status != 200:
                    row.reason = answer.headers.get("x-quartermaster-reason", f"http_{answer.status}")
                    row.outcome = "refused" if answer.status in (400, 401, 403, 404, 408, 413, 429, 503) else "failed"
                    await answer.read()
                elif self.stream:
                    await self._read_stream(answer, row, start)
                else:
                    usage = (await answer.json())["usage"]
                    self._complete(row, usage, time.monotonic() - start)
        except asyncio.CancelledError:
            row.outcome, row.reason = "cancelled", "client_left"
            raise
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as problem:
            row.outcome, row.reason = "failed", type(problem).__name__
        finally:
            progress.open -= 1
            if row.outcome == "completed":
                self.calibration.learn(words, row.input_tokens)
                progress.completed += 1
            elif row.outcome == "refused":
                progress.refused += 1
            else:
                progress.failed += 1
            self.rows.append(row)

    async def _read_stream(self, answer: aiohttp.ClientResponse, row: Sent, start: float) -> None:
        last: float | None = None
        usage: dict[str, int] | None = None
        done = False
        async for frame in sse.events(answer.content):
            if frame == sse.DONE:
                done = True
                continue
            now = time.monotonic() - start
            if "error" in frame:
                row.reason = frame["error"].get("code") or "stream_error"
                return
            if frame.get("usage"):
                usage = frame["usage"]
            if any(c.get("text") or c.get("delta", {}).get("content") for c in frame.get("choices", ())):
                if last is None:
                    row.ttft_s = now
                else:
                    row.gaps_s.append(now - last)
                last = now
        if done and usage is not None:
            self._complete(row, usage, last if last is not None else time.monotonic() - start)
        else:
            row.reason = "cut"

    def _complete(self, row: Sent, usage: dict[str, int], ttlt_s: float) -> None:
        row.outcome, row.reason = "completed", "completed"
        row.input_tokens, row.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        row.ttlt_s = ttlt_s
