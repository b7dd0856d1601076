"""Priority that grows while a request waits.

Question: which waiting request goes next?
Key: tier rank - rate * wait [s]. Every request ages alike, so the order of two never changes and
``rank + rate * arrival`` is the same order with a key that stays put.
Inputs: tier rank, arrival [s].
Cost: O(log n) per decision.
Who starves: none: after (rank difference) / rate seconds a request is ahead of every newer one.
Source: DriftSched, aging factor 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.parameters import above, parameter
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("aging")
@dataclass(frozen=True, slots=True)
class Aging:
    """Lowest aged rank first."""

    rate: float = parameter(
        0.01, "Ranks that a request gains while it waits: with 0.01, one in 100 s.", "ranks/s", above(0)
    )

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        return (request.rank + self.rate * request.arrival_s,)

    def describe(self, request: QueuedRequest) -> str:
        return f"rank {request.rank}, gains {self.rate:g} per second waited"
