"""Does a candidate win on the recording, and does nobody starve for it?

It has to win: over variants of the recording that it and the serving policy both meet, the mean difference of the
reward (:mod:`scheduling.tuning.merit`) is in its favour by more than chance (a one-sided 95 % paired t interval above
zero), and by enough for a change (``least_gain``). And no group may pay for it: no tier may lose more than ``drop``
of its attainment over all variants, and for every tier and length class (short, middle, long thirds of the prompts) the
p99 wait must stay below ``starvation`` times that of the serving policy, below ``starvation_s``, or below half of the
time in which a whole answer was promised to the tier.

The recording may have been a calm one, and orders differ when more comes than can be served. So both meet it at
:data:`HURRY` times its speed as well, where the candidate may lose no more than ``least_gain`` of the reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scheduling.core.percentiles import interpolated
from scheduling.simulator.result import Outcome, served
from scheduling.simulator.workload import SimRequest
from scheduling.tuning.guard_rails import PATIENT
from scheduling.tuning.merit import TierMerit, added, as_json, from_json, merit_of, plain_reward, worst_loss
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.traffic import Serving, Traffic

CLASSES = ("short", "middle", "long")
HURRY, HURRIED = 2.0, 2  # times as fast, and on so many variants
# one-sided 95 % points of Student's t for 2, 3 ... 30 degrees of freedom
T95 = (2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740,
       1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What the replay said."""

    passed: bool
    reason: str
    gain: float  # mean rise of the reward
    least_gain: float  # lower end of its interval
    pairs: tuple[tuple[float, float], ...]  # reward of the serving policy and of the candidate
    waits: dict[str, tuple[float, float]]  # "tier, length class": p99 wait [s] of both
    hurts: bool = False  # a tier pays for it, or a group starves
    attainment: dict[str, tuple[float, float]] = field(default_factory=dict)  # in time of all asked for, by tier
    hurried: tuple[tuple[float, float], ...] = ()  # as ``pairs``, of the recording at ``HURRY`` times its speed

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Met:
    """What one replay came to, as far as the gate asks. ``waits``: p99 wait [s] by tier and length class."""

    merit: dict[str, TierMerit]
    waits: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        return {"merit": as_json(self.merit), "waits": self.waits}

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Met:
        return Met(from_json(raw["merit"]), dict(raw["waits"]))


def replays(settings: LoopSettings) -> int:
    """How many each setting meets: variants of the recording, then hurried ones."""
    return settings.pairs + HURRIED


def asked(traffic: Traffic, number: int, settings: LoopSettings) -> list[SimRequest]:
    """What one of these replays asks for, from 1."""
    if number <= settings.pairs:
        return traffic.requests(number)
    return traffic.hurried(HURRY).requests(number - settings.pairs)


def meet(traffic: Traffic, serving: Serving, requests: Sequence[SimRequest]) -> Met:
    """Serves requests. Raises PolicyError for a policy that cannot be made."""
    outcomes = traffic.run(serving, requests)
    return Met(merit_of(traffic.felt(requests, outcomes), outcomes), worst_waits(outcomes))


class Gate:
    """What serves on the variants of a recording, for candidates to be held against."""

    def __init__(self, traffic: Traffic, serving: Serving, settings: LoopSettings) -> None:
        self._traffic, self._settings = traffic, settings
        self._variants = [asked(traffic, number, settings) for number in range(1, replays(settings) + 1)]
        self._before = [meet(traffic, serving, requests) for requests in self._variants]

    def judge(self, candidate: Serving, on: Traffic | None = None) -> GateDecision:
        """``on``: the same recording on other engines, or under other limits and tiers; what a tier is worth stays as
        it was. Raises PolicyError for a policy that cannot be made."""
        if on is None:
            after = [meet(self._traffic, candidate, requests) for requests in self._variants]
        else:
            after = [
                _worth_as(meet(on, candidate, asked(on, number, self._settings)), was)
                for number, was in enumerate(self._before, 1)
            ]
        return decide(self._before, after, self._settings, promised_s(self._traffic))


def _worth_as(met: Met, before: Met) -> Met:
    merit = {
        tier: replace(one, weight=before.merit[tier].weight) if tier in before.merit else one
        for tier, one in met.merit.items()
    }
    return Met(merit, met.waits)


def judge(traffic: Traffic, serving: Serving, candidate: Serving, settings: LoopSettings) -> GateDecision:
    """One candidate. Raises PolicyError for a policy that cannot be made."""
    return Gate(traffic, serving, settings).judge(candidate)


def promised_s(traffic: Traffic) -> dict[str, float]:
    """How long a whole answer of each tier may take, where that is promised [s]."""
    return {tier.name: tier.slo.ttlt_s for tier in traffic.tiers if tier.slo.ttlt_s is not None}


def decide(
    before: Sequence[Met],
    after: Sequence[Met],
    settings: LoopSettings,
    promised: Mapping[str, float],
    default: Sequence[Met] = (),
) -> GateDecision:
    """What pairs of replays say: of what serves, and of the candidate on the same requests, :func:`replays` of each.
    ``default``: of what a new pool has, on the same as well; no tier may lose against that one either."""
    pairs = [(plain_reward(a.merit), plain_reward(b.merit)) for a, b in zip(before, after, strict=True)]
    pairs, hurried = pairs[: settings.pairs], pairs[settings.pairs :]
    before, after = before[: settings.pairs], after[: settings.pairs]
    gain, least = interval([b - a for a, b in pairs])
    gain_hurried = _mean([b - a for a, b in hurried]) if hurried else 0.0
    waits = {
        group: (_mean([met.waits[group] for met in before if group in met.waits]), _mean(longer))
        for group in sorted({name for met in before for name in met.waits})
        if (longer := [met.waits[group] for met in after if group in met.waits])
    }
    starving = {group: both for group, both in waits.items() if both[1] > _most_s(group, both[0], settings, promised)}
    whole, paid = added([met.merit for met in after]), ""
    for name, others in (("", before), (" by default", default[: settings.pairs])):
        reference = added([met.merit for met in others])
        if worst_loss(whole, reference) > settings.drop:
            tier = max(reference, key=lambda tier: reference[tier].attainment - whole[tier].attainment)
            was, now = 100 * reference[tier].attainment, 100 * whole[tier].attainment
            paid = f"{tier} pays for it: {now:.1f} % in time instead of {was:.1f} %{name}"
    passed = False
    if paid:
        reason = paid
    elif starving:
        group, (before_s, after_s) = max(starving.items(), key=lambda item: item[1][1] - item[1][0])
        reason = f"it starves {group}: p99 wait {after_s:.1f} s instead of {before_s:.1f} s"
    elif least <= 0:
        reason = f"it does not win on {len(pairs)} variants of the recording: reward {gain:+.4f}"
    elif gain < settings.least_gain:
        reason = f"it wins too little for a change: reward {gain:+.4f}"
    elif gain_hurried < -settings.least_gain:
        reason = f"it loses at {HURRY:g} times the load: reward {gain_hurried:+.4f}"
    else:
        passed, reason = True, f"it wins: reward {gain:+.4f}, at least {least:+.4f}"
    earlier = added([met.merit for met in before])
    attainment = {tier: (earlier[tier].attainment, one.attainment) for tier, one in whole.items() if tier in earlier}
    hurts = bool(paid or starving)
    return GateDecision(passed, reason, gain, least, tuple(pairs), waits, hurts, attainment, tuple(hurried))


def _most_s(group: str, before_s: float, settings: LoopSettings, promised: Mapping[str, float]) -> float:
    """How long a group may wait at p99 [s] that waited ``before_s``."""
    tier = group.split(", ", 1)[0]
    return max(settings.starvation_s, settings.starvation * before_s, PATIENT * promised.get(tier, 0.0))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Mean, and the lower end of its one-sided 95 % interval (Student). Needs three differences."""
    count = len(differences)
    mean = math.fsum(differences) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (count - 1))
    return mean, mean - T95[min(count - 3, len(T95) - 1)] * spread / math.sqrt(count)


def worst_waits(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """p99 wait [s] for every tier and length class that has requests which were served."""
    edges = [interpolated([float(o.input_tokens) for o in outcomes], share) for share in (1 / 3, 2 / 3)]
    groups: dict[str, list[float]] = {}
    for outcome in served(outcomes):
        kind = CLASSES[sum(outcome.input_tokens > edge for edge in edges)]
        groups.setdefault(f"{outcome.tier}, {kind}", []).append(outcome.wait_s)
    return {name: interpolated(waits, 0.99) for name, waits in sorted(groups.items())}
