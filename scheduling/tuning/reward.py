"""How good was it? The optimiser's reward (EWSJF 4.4.2, eq. 5).

    R = l1*C + l2*L - l3*S - l4*U

The paper names the parts and leaves their formulas open; these are ours, each without a unit and in [0, 1]:

* **compactness C**: the share of the variance of the prompts' log length that the queues explain. 1: every queue holds
  prompts of one length.
* **balance L**: the entropy of the prompt tokens over the queues, over its maximum. 1: all queues have equal work.
* **queues S**: how many there are, of the most that are allowed.
* **penalty U**: the mean over tiers, by their weight, of ``x / (1 + x)`` over requests, where ``x`` is the time to the
  first token over its target (to the last token where that is promised). 0: at once; 0.5: on target; 1: never. A
  request without a promise is measured against ``PATIENCE`` times its own prefill, so that short ones wait shortly.

The value is moved and scaled into [0, 1], ``(R + l3 + l4) / (l1 + l2 + l3 + l4)``: the best parameters are the same,
and "95 % of the best" means something.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.partition import Interval, place
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import SimRequest

PATIENCE = 10.0  # times its own prefill: what a request without a promise may wait before it counts half


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The coefficients l1..l4. What users feel counts most: tidy queues are worth nothing to them."""

    compactness: float = 0.1
    balance: float = 0.1
    queues: float = 0.05
    penalty: float = 1.0

    def __post_init__(self) -> None:
        values = (self.compactness, self.balance, self.queues, self.penalty)
        if any(not math.isfinite(value) or value < 0 for value in values) or sum(values) <= 0:
            raise ValueError("reward weights must be at least 0, and one of them above 0")


@dataclass(frozen=True, slots=True)
class Parts:
    """The four parts of a reward, each in [0, 1]."""

    compactness: float
    balance: float
    queues: float
    penalty: float

    def reward(self, weights: RewardWeights) -> float:
        """The value in [0, 1], larger is better."""
        gained = weights.compactness * self.compactness + weights.balance * self.balance
        lost = weights.queues * (1.0 - self.queues) + weights.penalty * (1.0 - self.penalty)
        return (gained + lost) / (weights.compactness + weights.balance + weights.queues + weights.penalty)


@dataclass(frozen=True, slots=True)
class Felt:
    """What one request's user felt. ``target_s``: what was promised, or stands for a promise."""

    tier: str
    weight: float
    took_s: float
    target_s: float


def felt_of(request: SimRequest, outcome: Outcome, engine: StepTime) -> Felt:
    """By the request's SLO; without one by its own prefill on this ``engine``."""
    slo = request.slo
    if slo.ttft_s is not None:
        took, target = outcome.ttft_s, slo.ttft_s
    elif slo.ttlt_s is not None:
        took, target = outcome.ttlt_s, slo.ttlt_s
    else:
        took, target = outcome.ttft_s, PATIENCE * engine.step(request.input_tokens, 0)
    return Felt(request.tier, request.queued.weight, took, target)


def penalty(felt: Iterable[Felt]) -> float:
    """U. 0 without requests."""
    tiers: dict[str, tuple[float, float, int]] = {}
    for one in felt:
        x = max(0.0, one.took_s) / one.target_s
        weight, total, count = tiers.get(one.tier, (one.weight, 0.0, 0))
        tiers[one.tier] = (weight, total + (1.0 if math.isinf(x) else x / (1.0 + x)), count + 1)
    weights = math.fsum(weight for weight, _, _ in tiers.values())
    if weights <= 0:
        return 0.0
    return math.fsum(weight * total / count for weight, total, count in tiers.values()) / weights


def shape(lengths: Sequence[int], queues: Sequence[Interval], max_queues: int) -> tuple[float, float, float]:
    """C, L and S of queues over the prompt lengths [tokens] they were made for. Without queues: 0, 0, 0."""
    if not queues or not lengths:
        return 0.0, 0.0, 0.0
    groups: dict[Interval | None, list[int]] = {}
    for length in lengths:
        groups.setdefault(place(length, queues), []).append(length)
    return _explained(lengths, groups.values()), _evenness(groups.values()), min(1.0, len(queues) / max_queues)


def _explained(lengths: Sequence[int], groups: Iterable[Sequence[int]]) -> float:
    whole = _scatter(lengths)
    return 1.0 if whole <= 0 else max(0.0, 1.0 - math.fsum(_scatter(group) for group in groups) / whole)


def _scatter(lengths: Sequence[int]) -> float:
    """The sum of squared deviations of the log lengths."""
    logs = [math.log(max(1, length)) for length in lengths]
    mean = math.fsum(logs) / len(logs)
    return math.fsum((value - mean) ** 2 for value in logs)


def _evenness(groups: Iterable[Sequence[int]]) -> float:
    work = [float(sum(group)) for group in groups]
    total = math.fsum(work)
    if len(work) < 2 or total <= 0:
        return 1.0
    entropy = -math.fsum(share * math.log(share) for share in (amount / total for amount in work) if share > 0)
    return entropy / math.log(len(work))
