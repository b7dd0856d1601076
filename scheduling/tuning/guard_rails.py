"""Should the canary be stopped? Looked at again and again while it serves, without crying wolf for that.

* **SLO attainment** by Wald's sequential probability ratio test of each tier's requests: as good as before
  (``p``) against worse by ``drop``. It may be looked at after every request and still stops a good canary with at most
  the chance ``alarm``, and lets one that is worse by ``drop`` pass with at most ``miss``.
* **p95 wait** of a tier above ``wait_factor`` times what it was, above ``starvation_s``, and above half of the time in
  which a whole answer was promised, where that was.
* **Starvation age**: the oldest waiting request of a tier is older than ``starvation`` times the p99 wait of before,
  older than ten times ``starvation_s``, and older than half of the time in which the tier was promised a whole answer.

At the end of the interval a canary that was not stopped is kept if there were requests enough to tell.
Sources: A. Wald, Sequential Tests of Statistical Hypotheses (1945); EWSJF 4.4.2 leaves guard rails open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scheduling.core.percentiles import interpolated
from scheduling.tuning.settings import LoopSettings


@dataclass(frozen=True, slots=True)
class Tally:
    """What requests of one tier came to in a stretch of time."""

    met: int = 0
    judged: int = 0  # with a promise that was kept or broken
    waits: tuple[float, ...] = ()  # [s] for a slot, in vain as well

    @property
    def attainment(self) -> float:
        return self.met / self.judged if self.judged else math.nan


@dataclass(frozen=True, slots=True)
class Rails:
    """What the guard rails say: ``stop`` now, or go on. ``evidence``: log likelihood ratio of "worse", by tier."""

    stop: bool
    reason: str
    enough: bool  # requests to tell by
    evidence: dict[str, float] = field(default_factory=dict)
    limit: float = 0.0  # of evidence, at which it is stopped
    waits: dict[str, tuple[float, float]] = field(default_factory=dict)  # p95 [s] before and now
    attainment: dict[str, tuple[float, float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


PATIENT = 0.5  # of the time to the last token that is promised, that a wait may take before it is starvation


def watch(
    before: Mapping[str, Tally],
    now: Mapping[str, Tally],
    oldest_waits_s: Mapping[str, float],
    settings: LoopSettings,
    promised_s: Mapping[str, float] | None = None,
) -> Rails:
    """Tallies by tier: before the canary, and since it began. ``oldest_waits_s``: by tier, of what waits now.
    ``promised_s``: of tiers that are promised their last token, in which time [s]."""
    limit = math.log((1.0 - settings.miss) / settings.alarm)
    evidence: dict[str, float] = {}
    waits: dict[str, tuple[float, float]] = {}
    attained: dict[str, tuple[float, float]] = {}
    reasons = []
    for tier, tally in sorted(now.items()):
        earlier = before.get(tier, Tally())
        if earlier.judged >= settings.least_canary and tally.judged:
            good = min(1.0 - 1.0 / (earlier.judged + 2), max(0.5 / earlier.judged, earlier.attainment))
            evidence[tier] = ratio(tally, good, settings.drop)
            attained[tier] = (earlier.attainment, tally.attainment)
            if evidence[tier] >= limit and tally.judged >= settings.least_canary:
                reasons.append(
                    f"SLO of {tier} {100 * tally.attainment:.1f} % instead of {100 * earlier.attainment:.1f} %"
                )
        if len(earlier.waits) >= settings.least_canary and len(tally.waits) >= settings.least_canary:
            waits[tier] = (interpolated(earlier.waits, 0.95), interpolated(tally.waits, 0.95))
            patient_s = PATIENT * (promised_s or {}).get(tier, 0.0)
            if waits[tier][1] > max(settings.starvation_s, settings.wait_factor * waits[tier][0], patient_s):
                reasons.append(f"p95 wait of {tier} {waits[tier][1]:.1f} s instead of {waits[tier][0]:.1f} s")
    longest = interpolated([wait for tally in before.values() for wait in tally.waits], 0.99)
    longest = 0.0 if math.isnan(longest) else longest
    for tier, wait_s in sorted(oldest_waits_s.items()):
        patient_s = PATIENT * (promised_s or {}).get(tier, 0.0)
        if wait_s > max(10 * settings.starvation_s, settings.starvation * longest, patient_s):
            reasons.append(f"a request of {tier} has waited for {wait_s:.0f} s")
    count = sum(len(tally.waits) for tally in now.values())
    enough = count >= settings.least_canary
    return Rails(bool(reasons), "; ".join(reasons), enough, evidence, limit, waits, attained)


def ratio(tally: Tally, good: float, drop: float) -> float:
    """Log likelihood ratio of an attainment of ``good - drop`` against one of ``good``."""
    bad = max(1e-3, good - drop)
    if bad >= good:
        return 0.0
    missed = tally.judged - tally.met
    return tally.met * math.log(bad / good) + missed * math.log((1.0 - bad) / (1.0 - good))


def tally(rows: Sequence[tuple[str, bool | None, float | None]]) -> dict[str, Tally]:
    """From (tier, whether its SLO was met, wait [s]) of requests."""
    groups: dict[str, tuple[list[bool], list[float]]] = {}
    for tier, met, wait in rows:
        judged, waits = groups.setdefault(tier, ([], []))
        if met is not None:
            judged.append(met)
        if wait is not None:
            waits.append(wait)
    return {tier: Tally(sum(judged), len(judged), tuple(waits)) for tier, (judged, waits) in groups.items()}
