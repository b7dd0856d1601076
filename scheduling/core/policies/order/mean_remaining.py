"""Mean remaining output.

Question: which waiting request goes next?
Key: ``E[O - g | O > g]`` [tokens], the expected output that is left after ``g`` generated tokens; smallest first.
Inputs: output-length distribution (or the expected output where there is none), tokens generated.
Cost: O(m) for a distribution of m values when pushed, O(log n) per decision.
Who starves: requests with long answers, while shorter ones keep coming.
Source: TRAIL (Shahout et al. 2024), SageSched's strongest baseline: it refreshes a predicted length while the answer
grows. Here the prediction is the distribution's conditional mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.deadline import USUAL_TOKENS, due_by_cost_s
from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.gittins_index import outputs_of
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.types import QueuedRequest


@ordering("mean_remaining")
@dataclass(frozen=True, slots=True)
class MeanRemaining:
    """Least expected output left first."""

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, self.describe)

    def key(self, request: QueuedRequest) -> Key:
        return (outputs_of(request).mean_remaining(request.generated),)

    def due_s(self, request: QueuedRequest) -> float:
        return due_by_cost_s(request, self.key(request)[0], USUAL_TOKENS)

    def describe(self, request: QueuedRequest) -> str:
        return f"mean remaining output {self.key(request)[0]:.1f} tokens"
