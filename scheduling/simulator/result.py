"""What a run came to: latencies, percentiles, broken promises, goodput."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scheduling.core.deadline import first_token_deadline_s, token_deadline_s, total_deadline_s
from scheduling.core.types import Slo
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import to_s
from scheduling.simulator.workload import SimRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request that ended. Times in seconds; the waits and latencies count from its arrival. One that was refused
    (or ended before its time) is late, and its latencies are infinite."""

    index: int
    tier: str
    label: str
    important: bool
    relegated: bool
    input_tokens: int
    output_tokens: int
    arrival_s: float
    wait_s: float  # until it was first worked on
    ttft_s: float
    ttlt_s: float
    late: bool  # broke its promise
    refused: str = ""  # the reason with which it ended, where it was not served


def outcome_of(life: Life) -> Outcome:
    """A finished request as a row. Raises ValueError for one that has not ended."""
    sim = life.sim
    if life.end_fs < 0:
        raise ValueError(f"{sim.queued.id} has not ended")
    ttft, ttlt = to_s(life.first_fs - sim.arrival_fs), to_s(life.end_fs - sim.arrival_fs)
    return Outcome(
        index=sim.index,
        tier=sim.tier,
        label=sim.label,
        important=sim.important,
        relegated=life.relegated,
        input_tokens=sim.input_tokens,
        output_tokens=sim.output_tokens,
        arrival_s=to_s(sim.arrival_fs),
        wait_s=to_s(life.start_fs - sim.arrival_fs),
        ttft_s=ttft,
        ttlt_s=ttlt,
        late=is_late(sim.slo, ttft, ttlt, sim.output_tokens),
    )


def refused_outcome(sim: SimRequest, reason: str, waited_s: float) -> Outcome:
    """The row of a request that was refused, or cut off, ``waited_s`` after it arrived."""
    return Outcome(
        index=sim.index,
        tier=sim.tier,
        label=sim.label,
        important=sim.important,
        relegated=False,
        input_tokens=sim.input_tokens,
        output_tokens=sim.output_tokens,
        arrival_s=to_s(sim.arrival_fs),
        wait_s=waited_s,
        ttft_s=math.inf,
        ttlt_s=math.inf,
        late=True,
        refused=reason,
    )


def served(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those that an engine worked on to their end."""
    return [outcome for outcome in outcomes if not outcome.refused]


def outcomes_of(lives: Iterable[Life]) -> list[Outcome]:
    """Finished requests in the order of their arrival."""
    return sorted((outcome_of(life) for life in lives), key=lambda outcome: outcome.index)


def is_late(slo: Slo, ttft_s: float, ttlt_s: float, output_tokens: int) -> bool:
    """Whether a promise was broken by QoServe's deadlines (3.2, ``core/deadline.py``): that of the first token or of
    the last one, or, without a TTFT target, that of the whole."""
    if slo.interactive:
        return ttft_s > first_token_deadline_s(0.0, slo) or ttlt_s > token_deadline_s(0.0, slo, output_tokens)
    return ttlt_s > total_deadline_s(0.0, slo)


def mean(values: Sequence[float]) -> float:
    """The mean; nan without values."""
    return math.fsum(values) / len(values) if values else math.nan


def late_share(outcomes: Sequence[Outcome]) -> float:
    """Share of requests that broke their promise; 0 without requests."""
    return sum(outcome.late for outcome in outcomes) / len(outcomes) if outcomes else 0.0


def by_tier(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes of each tier, tiers by name."""
    tiers: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        tiers.setdefault(outcome.tier, []).append(outcome)
    return dict(sorted(tiers.items()))


def makespan_s(outcomes: Sequence[Outcome]) -> float:
    """From the first arrival to the last answer [s]."""
    ended = served(outcomes)
    if not ended:
        return 0.0
    return max(o.arrival_s + o.ttlt_s for o in ended) - min(o.arrival_s for o in outcomes)


def goodput(late_at: Callable[[float], float], low: float, high: float, *, allowed: float = 0.01, step: float) -> float:
    """The highest rate on a grid of ``step`` between ``low`` and ``high`` at which at most ``allowed`` of the requests
    are late (QoServe 4.1.2). By bisection: lateness is taken to grow with the rate. nan when
    even ``low`` is too high: the grid says nothing of where it lies.
    """
    places = round((high - low) / step)
    if late_at(low) > allowed:
        return math.nan
    good, bad = 0, places + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if late_at(low + middle * step) <= allowed:
            good = middle
        else:
            bad = middle
    return round(low + good * step, 9)
