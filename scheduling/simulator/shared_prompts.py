"""Traces that say which blocks prompts consist of, in Mooncake's format: what prefix caches and prefill credit are
measured on.

*Instructions*: each prompt is one of several long texts (a system message, tools, a document) and a little of its own.
*Conversations*: each turn begins with all of the last one and its answer. *Agents*: the same with a long beginning in
common, one turn soon after the other. *Documents*: short prompts, and long ones among them, that share nothing.
Arrivals are Poisson, of prompts or of conversations. Lengths are in whole blocks of :data:`BLOCK_TOKENS`, but for the
end of each prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from scheduling.simulator.trace import TraceRequest
from scheduling.simulator.workload import BLOCK_TOKENS

Span = tuple[int, int]  # both included


@dataclass(frozen=True, slots=True)
class Instructions:
    """``texts`` of ``tokens`` each, asked about at random."""

    texts: int = 1
    tokens: int = 4096
    own: Span = (40, 300)
    output: Span = (3, 12)

    def requests(self, rate: float, seconds: float, random: Random) -> Iterator[TraceRequest]:
        """``rate``: prompts a second."""
        each, new = self.tokens // BLOCK_TOKENS, count(self.texts * (self.tokens // BLOCK_TOKENS))
        at = random.expovariate(rate)
        while at < seconds:
            text, own = random.randrange(self.texts), random.randint(*self.own)
            blocks = (*range(text * each, (text + 1) * each), *(next(new) for _ in range(-(-own // BLOCK_TOKENS))))
            yield TraceRequest(at, each * BLOCK_TOKENS + own, random.randint(*self.output), blocks=blocks)
            at += random.expovariate(rate)


@dataclass(frozen=True, slots=True)
class Conversations:
    """All begin with ``tokens`` in common. A turn adds whole blocks, its client takes some time for the next one."""

    tokens: int = 1024
    turns: Span = (6, 20)
    blocks: Span = (1, 3)
    output: Span = (20, 150)
    pause_s: tuple[float, float] = (4.0, 20.0)

    def requests(self, rate: float, seconds: float, random: Random) -> Iterator[TraceRequest]:
        """``rate``: conversations that begin a second."""
        known, made = tuple(range(self.tokens // BLOCK_TOKENS)), list[TraceRequest]()
        new, begins = count(len(known)), random.expovariate(rate)
        while begins < seconds:
            at, blocks, tokens = begins, known, 0
            for _ in range(random.randint(*self.turns)):
                blocks = (*blocks, *(next(new) for _ in range(random.randint(*self.blocks))))
                tokens = max(tokens, (len(blocks) - 1) * BLOCK_TOKENS + random.randint(1, BLOCK_TOKENS))
                if at < seconds:
                    made.append(TraceRequest(at, tokens, random.randint(*self.output), blocks=blocks))
                at += random.uniform(*self.pause_s)
            begins += random.expovariate(rate)
        yield from sorted(made, key=lambda request: request.arrival_s)


def agents(tokens: int) -> Conversations:
    """Sessions of agents, each turn of which is a call of tools and what they said."""
    return Conversations(tokens, (8, 20), (0, 3), (50, 250), (1.0, 6.0))


@dataclass(frozen=True, slots=True)
class Documents:
    """One prompt of ``every`` is long."""

    every: int = 40
    short: Span = (20, 800)
    long: Span = (30_000, 60_000)
    output: Span = (20, 300)

    def requests(self, rate: float, seconds: float, random: Random) -> Iterator[TraceRequest]:
        """``rate``: prompts a second."""
        new, at = count(), random.expovariate(rate)
        while at < seconds:
            tokens = random.randint(*(self.short if random.randrange(self.every) else self.long))
            blocks = tuple(next(new) for _ in range(-(-tokens // BLOCK_TOKENS)))
            yield TraceRequest(at, tokens, random.randint(*self.output), blocks=blocks)
            at += random.expovariate(rate)


Kind = Instructions | Conversations | Documents


def write_shared(path: Path, kind: Kind, rate: float, seconds: float, seed: int) -> int:
    """Writes them as a trace; how many. Raises OSError where the file cannot be written."""
    written = 0
    with path.open("w", encoding="utf-8") as out:
        for request in kind.requests(rate, seconds, Random(f"{seed} shared")):
            row = {
                "timestamp": round(request.arrival_s * 1000), "input_length": request.input_tokens,
                "output_length": request.output_tokens, "hash_ids": request.blocks,
            }  # fmt: skip
            out.write(json.dumps(row) + "\n")
            written += 1
    return written
