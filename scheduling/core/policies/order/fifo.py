"""First in, first out.

Question: which waiting request goes next?
Key: arrival [s, epoch], then arrival number. A request that is queued again after a failed attempt keeps its arrival.
Inputs: arrival time.
Cost: O(log n) per decision.
Who starves: none, but short requests wait behind long ones and every tier waits alike.
Source: the baseline of all five papers.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("fifo")
@dataclass(frozen=True, slots=True)
class Fifo:
    """Oldest arrival first."""

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, lambda request: "oldest arrival")

    def key(self, request: QueuedRequest) -> Key:
        return (request.arrival_s,)
