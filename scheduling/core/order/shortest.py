"""Shortest job first.

Question: which waiting request goes next?
Key: input tokens + expected output tokens [tokens], then arrival number.
Inputs: the estimate made at arrival; true lengths are never known here.
Cost: O(log n) per decision.
Who starves: long requests, for as long as shorter ones keep coming.
Source: DriftSched (SJF on the estimated token budget); Smith 1956 for one machine and known lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.contracts import Key, RequestQueue
from scheduling.core.deadline import USUAL_TOKENS, due_by_cost_s
from scheduling.core.queues.keyed import KeyedQueue
from scheduling.core.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("shortest")
@dataclass(frozen=True, slots=True)
class ShortestJobFirst:
    """Smallest expected token budget first. ``output_only`` = 1 counts the expected output alone, as predictors of
    output length do (SageSched's SSJF)."""

    output_only: int = 0

    def __post_init__(self) -> None:
        if self.output_only not in (0, 1):
            raise ValueError("output_only is 0 or 1")

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        return (request.output_tokens if self.output_only else request.input_tokens + request.output_tokens,)

    def due_s(self, request: QueuedRequest) -> float:
        return due_by_cost_s(request, self.key(request)[0], USUAL_TOKENS)

    def describe(self, request: QueuedRequest) -> str:
        prompt = "" if self.output_only else f"{request.input_tokens} + "
        return f"shortest: {prompt}{request.output_tokens:.0f} expected tokens"
