"""Gittins index over the cost distribution.

Question: which waiting request goes next?
Formula: ``G = inf_D E[min(X, D)] / P(X <= D)`` over what remains of cost ``X = O^2/2 + I*O`` [token steps of KV];
smallest first. A running request that is preempted comes back with the index of what remains, refreshed only when it
crossed a bucket of ``bucket_tokens`` generated tokens, so that close indices do not make requests swap for ever.
Inputs: output-length distribution (or the expected output where there is none), prompt length, tokens generated.
Cost: O(m) for a distribution of m values when pushed, O(log n) per decision.
Who starves: requests that are surely long, while short ones keep coming.
Source: SageSched 3.3; Gittins & Jones 1979.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.deadline import USUAL_COST, due_by_cost_s
from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.gittins_index import cost_of, service_cost
from scheduling.core.policies.parameters import at_least, parameter
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("gittins")
@dataclass(frozen=True, slots=True)
class Gittins:
    """Smallest Gittins index first."""

    bucket_tokens: int = parameter(  # 0 is the paper's ablation "Gittins"
        200, "Output tokens after which a request is ranked anew; 0 never does.", "tokens", at_least(0)
    )

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        generated = request.generated // self.bucket_tokens * self.bucket_tokens if self.bucket_tokens else 0
        return (cost_of(request).index(service_cost(request.input_tokens, generated)),)

    def due_s(self, request: QueuedRequest) -> float:
        return due_by_cost_s(request, self.key(request)[0], USUAL_COST)

    def describe(self, request: QueuedRequest) -> str:
        return f"Gittins index {self.key(request)[0]:.3g} token steps"
