"""Earliest deadline first.

Question: which waiting request goes next?
Key: deadline [s, scheduler clock]: first token for interactive requests (QoServe eq. 1), last token for the others
(eq. 3) less ``pace_s`` for each output token that is expected; then arrival number.
Inputs: the deadlines that the tier's SLO set at arrival; expected output.
Cost: O(log n) per decision.
Who starves: requests without a deadline. Under overload all are late: every request is started when it is too late for
it already, where a few could have been saved (QoServe figure 2).
Source: Liu & Layland 1973 (preemptive, one processor: an LLM batch is neither, so here it is a heuristic).
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.deadline import PACE_S, due_by_deadline_s, prefill_due_s
from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.parameters import at_least, parameter
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("edf")
@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst:
    """Nearest deadline first."""

    pace_s: float = parameter(
        PACE_S,
        "Time that an output token is expected to take where only the last one has a deadline.",
        "s/token",
        at_least(0),
    )

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        return (prefill_due_s(request, self.pace_s),)

    def due_s(self, request: QueuedRequest) -> float:
        return due_by_deadline_s(request, self.pace_s)

    def describe(self, request: QueuedRequest) -> str:
        return f"earliest deadline: {prefill_due_s(request, self.pace_s) - request.arrival_s:.2f} s after arrival"
