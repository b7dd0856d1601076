"""Gittins index of a discrete cost distribution.

``G(X) = inf_D E[min(X, D)] / P(X <= D)``: the least cost per completion that serving a job for some budget ``D`` can be
expected to have; a smaller index goes first (SageSched 3.3, Gittins 1979). For a discrete distribution the infimum is
attained at one of its values, so one pass over the sorted values is exact. A job that has been served for ``age``
without ending has the distribution of what remains, ``X - age`` given ``X > age``.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import inf

from scheduling.core.estimate.contracts import ascending
from scheduling.core.types import QueuedRequest


@dataclass(frozen=True, slots=True)
class CostDistribution:
    """Costs in increasing order with their probabilities. Any unit; the index has the same.

    Raises ``ValueError`` for no values, negative costs or probabilities, or a sum of probabilities that is not 1.
    """

    values: tuple[float, ...]
    probabilities: tuple[float, ...]
    _mass: tuple[float, ...] = field(init=False, repr=False, compare=False)  # P(X <= value)
    _first_moment: tuple[float, ...] = field(init=False, repr=False, compare=False)  # E[X; X <= value]

    def __post_init__(self) -> None:
        if not self.values or len(self.values) != len(self.probabilities):
            raise ValueError("a distribution needs as many probabilities as values, and at least one")
        if any(b <= a for a, b in zip(self.values, self.values[1:], strict=False)) or self.values[0] < 0:
            raise ValueError("costs must be at least 0 and strictly increasing")
        if min(self.probabilities) < 0 or abs(sum(self.probabilities) - 1.0) > 1e-6:
            raise ValueError(f"probabilities must be at least 0 and sum to 1, not {sum(self.probabilities)!r}")
        weighted = (v * p for v, p in zip(self.values, self.probabilities, strict=True))
        object.__setattr__(self, "_mass", tuple(accumulate(self.probabilities)))
        object.__setattr__(self, "_first_moment", tuple(accumulate(weighted)))

    def mean(self) -> float:
        return self._first_moment[-1]

    def mean_remaining(self, age: float) -> float:
        """E[X - age | X > age]; 0 once the job has outlived every value."""
        start, gone, gone_moment = self._until(age)
        if start == len(self.values):
            return 0.0
        return (self._first_moment[-1] - gone_moment) / (self._mass[-1] - gone) - age

    def index(self, age: float = 0.0) -> float:
        """The Gittins index of what remains after ``age`` was served. O(n).

        A job that outlived every value the distribution knows has an unknown remainder; it gets ``inf`` and so goes
        after all others of its rank until its estimate is renewed.
        """
        start, gone, gone_moment = self._until(age)
        best = inf
        total = self._mass[-1]
        for i in range(start, len(self.values)):
            ends = self._mass[i] - gone
            if ends <= 0.0:
                continue
            spent = self._first_moment[i] - gone_moment - age * ends + (self.values[i] - age) * (total - self._mass[i])
            best = min(best, spent / ends)
        return best

    def _until(self, age: float) -> tuple[int, float, float]:
        """Index of the first value above ``age``, and mass and first moment up to it."""
        start = bisect_right(self.values, age)
        if start == 0:
            return 0, 0.0, 0.0
        return start, self._mass[start - 1], self._first_moment[start - 1]


def service_cost(input_tokens: float, output_tokens: float) -> float:
    """``O^2/2 + I*O`` [token steps of KV]: what a request holds over its life, or computes (SageSched 3.2)."""
    return output_tokens * output_tokens / 2.0 + input_tokens * output_tokens


def cost_distribution(input_tokens: int, outputs: CostDistribution) -> CostDistribution:
    """The cost distribution that an output-length distribution means for a prompt of ``input_tokens``.

    Costs are increasing in output length, so the order and the probabilities stay.
    """
    return CostDistribution(tuple(service_cost(input_tokens, value) for value in outputs.values), outputs.probabilities)


def outputs_of(request: QueuedRequest) -> CostDistribution:
    """The distribution of output lengths a request carries, or its expected output taken as certain. A length that a
    gateway of an earlier release says twice counts once: what cannot be queued would end every leader's term."""
    if request.output_lengths:
        return CostDistribution(*ascending(request.output_lengths, request.output_probabilities))
    return CostDistribution((max(1.0, request.output_tokens),), (1.0,))


def cost_of(request: QueuedRequest) -> CostDistribution:
    """The cost distribution that those output lengths mean. Kept for the next time: a request is ranked several times,
    when it is preempted, explained or moved into another order, and prompts of one family share theirs."""
    if request.output_lengths:
        return _cost_of(request.input_tokens, request.output_lengths, request.output_probabilities)
    return cost_distribution(request.input_tokens, outputs_of(request))


@lru_cache(maxsize=4096)
def _cost_of(input_tokens: int, lengths: tuple[float, ...], probabilities: tuple[float, ...]) -> CostDistribution:
    return cost_distribution(input_tokens, CostDistribution(*ascending(lengths, probabilities)))
