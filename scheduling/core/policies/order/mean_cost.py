"""Mean cost, and mean remaining cost.

Question: which waiting request goes next?
Formula: ``E[X]`` of cost ``X = O^2/2 + I*O`` [token steps of KV]; with ``remaining`` = 1, ``E[X - age | X > age]`` of a
request that was preempted after ``age``. Smallest first.
Inputs: output-length distribution (or the expected output where there is none), prompt length, tokens generated.
Cost: O(m) for a distribution of m values when pushed, O(log n) per decision.
Who starves: requests of high mean cost, while cheaper ones keep coming.
Source: SageSched 4.3.3 ("Mean"); TRAIL's remaining time, with SageSched's cost in place of length.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.deadline import USUAL_COST, due_by_cost_s
from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.gittins_index import cost_of, service_cost
from scheduling.core.policies.parameters import NO_UNIT, one_of, parameter
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("mean_cost")
@dataclass(frozen=True, slots=True)
class MeanCost:
    """Smallest expected cost first, or smallest remaining cost."""

    remaining: int = parameter(0, "What is compared: 0 the whole cost, 1 what is left of it.", NO_UNIT, one_of(0, 1))

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        cost = cost_of(request)
        if self.remaining:
            return (cost.mean_remaining(service_cost(request.input_tokens, request.generated)),)
        return (cost.mean(),)

    def due_s(self, request: QueuedRequest) -> float:
        return due_by_cost_s(request, self.key(request)[0], USUAL_COST)

    def describe(self, request: QueuedRequest) -> str:
        return f"mean {'remaining ' if self.remaining else ''}cost {self.key(request)[0]:.3g} token steps"
