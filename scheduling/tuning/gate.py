"""Does a candidate win on the recording, and does nobody starve for it?

Two conditions. It has to win: over variants of the recording that it and the serving policy both meet, the mean
difference of the penalty is in its favour by more than chance (a one-sided 95 % paired t interval above zero). And no
group may pay for it: for every tier and length class (short, middle, long thirds of the prompts) the p99 wait must stay
below ``starvation`` times that of the serving policy, or below ``starvation_s``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scheduling.core.percentiles import interpolated
from scheduling.simulator.result import Outcome
from scheduling.tuning.reward import penalty
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.traffic import Serving, Traffic

CLASSES = ("short", "middle", "long")
# one-sided 95 % points of Student's t for 2, 3 ... 30 degrees of freedom
T95 = (2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740,
       1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the replay said."""

    passed: bool
    reason: str
    gain: float  # mean fall of the penalty
    least_gain: float  # lower end of its interval
    pairs: tuple[tuple[float, float], ...]  # penalty of the serving policy and of the candidate
    waits: dict[str, tuple[float, float]]  # "tier, length class": p99 wait [s] of both

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Gate:
    """What serves on the variants of a recording, for candidates to be held against."""

    def __init__(self, traffic: Traffic, serving: Serving, settings: LoopSettings) -> None:
        self._traffic, self._settings = traffic, settings
        self._variants = [traffic.requests(number) for number in range(1, settings.pairs + 1)]
        self._before = [traffic.run(serving, requests) for requests in self._variants]

    def judge(self, candidate: Serving) -> GateDecision:
        """Raises PolicyError for a policy that cannot be made."""
        after = [self._traffic.run(candidate, requests) for requests in self._variants]
        pairs = list(zip(self._penalties(self._before), self._penalties(after), strict=True))
        return _verdict(pairs, worst_waits(_flat(self._before), _flat(after)), self._settings)

    def _penalties(self, served: Sequence[Sequence[Outcome]]) -> list[float]:
        felt = self._traffic.felt
        return [penalty(felt(asked, outcomes)) for asked, outcomes in zip(self._variants, served, strict=True)]


def judge(traffic: Traffic, serving: Serving, candidate: Serving, settings: LoopSettings) -> GateDecision:
    """One candidate. Raises PolicyError for a policy that cannot be made."""
    return Gate(traffic, serving, settings).judge(candidate)


def _flat(served: Sequence[Sequence[Outcome]]) -> list[Outcome]:
    return [outcome for outcomes in served for outcome in outcomes]


def _verdict(
    pairs: Sequence[tuple[float, float]], waits: dict[str, tuple[float, float]], settings: LoopSettings
) -> GateDecision:
    gain, least = interval([before - after for before, after in pairs])
    starving = {
        group: both
        for group, both in waits.items()
        if both[1] > max(settings.starvation_s, settings.starvation * both[0])
    }
    if starving:
        group, (before, after) = max(starving.items(), key=lambda item: item[1][1] - item[1][0])
        reason = f"it starves {group}: p99 wait {after:.1f} s instead of {before:.1f} s"
    elif least <= 0:
        reason = f"it does not win on {settings.pairs} variants of the recording: penalty {-gain:+.4f}"
    else:
        reason = f"it wins: penalty {-gain:+.4f}, at least {-least:+.4f}"
    return GateDecision(not starving and least > 0, reason, gain, least, tuple(pairs), waits)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Mean, and the lower end of its one-sided 95 % interval (Student). Needs three differences."""
    count = len(differences)
    mean = math.fsum(differences) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (count - 1))
    return mean, mean - T95[min(count - 3, len(T95) - 1)] * spread / math.sqrt(count)


def worst_waits(before: Sequence[Outcome], after: Sequence[Outcome]) -> dict[str, tuple[float, float]]:
    """p99 wait [s] of both, for every tier and length class that has requests."""
    edges = [interpolated([float(o.input_tokens) for o in before], share) for share in (1 / 3, 2 / 3)]
    groups: dict[str, tuple[list[float], list[float]]] = {}
    for side, outcomes in enumerate((before, after)):
        for outcome in outcomes:
            kind = CLASSES[sum(outcome.input_tokens > edge for edge in edges)]
            groups.setdefault(f"{outcome.tier}, {kind}", ([], []))[side].append(outcome.wait_s)
    return {name: (interpolated(a, 0.99), interpolated(b, 0.99)) for name, (a, b) in sorted(groups.items())}
