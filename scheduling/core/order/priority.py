"""Strict priority over tiers.

Question: which waiting request goes next?
Key: rank of its tier (0 first), then arrival [s, epoch]. The client's priority exchanges turns among the requests of
one entitlement only (``queues/turns.py``), so it can raise nobody above another tenant.
Inputs: tier rank, client priority (vLLM's polarity: lower is sooner), arrival [s].
Cost: O(log n) per decision.
Who starves: lower ranks, for as long as higher ones fill the pool; their ``max_wait_s`` then ends it with a refusal.
Source: DriftSched's tenant tiers (premium, standard, batch).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.contracts import Key, RequestQueue
from scheduling.core.queues.keyed import KeyedQueue
from scheduling.core.queues.turns import ClientTurns
from scheduling.core.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("priority")
@dataclass(frozen=True, slots=True)
class Priority:
    """Lowest tier rank first."""

    def queue(self) -> RequestQueue:
        return ClientTurns(KeyedQueue(self.key, self.describe))

    def key(self, request: QueuedRequest) -> Key:
        return (float(request.rank), request.arrival_s)

    def describe(self, request: QueuedRequest) -> str:
        client = f", client priority {request.client_priority}" if request.client_priority else ""
        return f"rank {request.rank}{client}, oldest arrival"
