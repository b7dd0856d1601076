"""Strict priority over tiers.

Question: which waiting request goes next?
Key: rank of its tier (0 first), then arrival [s, epoch].
Inputs: tier rank, arrival [s].
Cost: O(log n) per decision.
Who starves: lower ranks, for as long as higher ones fill the pool; their ``max_wait_s`` then ends it with a refusal.
Source: DriftSched's tenant tiers (premium, standard, batch).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("priority")
@dataclass(frozen=True, slots=True)
class Priority:
    """Lowest tier rank first."""

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        return (float(request.rank), request.arrival_s)

    def describe(self, request: QueuedRequest) -> str:
        return f"rank {request.rank}, oldest arrival"
