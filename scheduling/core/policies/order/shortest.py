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

from scheduling.core.deadline import USUAL_TOKENS, due_by_cost_s
from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.parameters import NO_UNIT, one_of, parameter
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("shortest")
@dataclass(frozen=True, slots=True)
class ShortestJobFirst:
    """Smallest expected token budget first."""

    output_only: int = parameter(  # 1 is SageSched's SSJF, as predictors of output length order
        0, "What is counted: 0 prompt and expected output, 1 the expected output alone.", NO_UNIT, one_of(0, 1)
    )

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        return (request.output_tokens if self.output_only else request.input_tokens + request.output_tokens,)

    def due_s(self, request: QueuedRequest) -> float:
        return due_by_cost_s(request, self.key(request)[0], USUAL_TOKENS)

    def describe(self, request: QueuedRequest) -> str:
        prompt = "" if self.output_only else f"{request.input_tokens} + "
        return f"shortest: {prompt}{request.output_tokens:.0f} expected tokens"
