"""Policies side by side on variants of one recording, with what can be said for sure about their differences.

A figure of a policy is its mean over the variants with a 95 % interval; a difference is that of the pairs, variant by
variant, against the first policy: what all variants have in common (a busy hour) cancels out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.core.percentiles import interpolated
from scheduling.core.student import mean_and_half
from scheduling.simulator.recording import DECIDED_ANEW
from scheduling.simulator.result import Outcome, served
from scheduling.simulator.workload import SimRequest

ALWAYS_SAID = frozenset((*DECIDED_ANEW, "evicted", "not_entitled", "tenant_paused")) - {"no_backend", "rebuilding"}
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of ``values`` and its 95 % interval; without width where there is one value only, of which nothing is
    sure."""

    mean: float
    low: float
    high: float
    values: int = 2

    @property
    def sure(self) -> bool:
        """Whether it is not 0 for sure."""
        return self.values > 1 and (self.low > 0 or self.high < 0)


def figures_of(requests: Sequence[SimRequest], outcomes: Sequence[Outcome]) -> Figures:
    """Of all (``all``), of each tier (``tier:premium``) and tenant (``tenant:acme``): what kept its promise, of all
    that was asked for (``kept``) and of what was served (``slo``) [%]; what was refused, in all (``refused``) and by
    reason (``refused_queue_full``) [%]; of what was served first and last token [s], waits [s]. A figure's name is
    ``group|figure``; one of nothing is left out."""
    groups: dict[str, list[Outcome]] = {"all": []}
    for request, outcome in zip(requests, outcomes, strict=True):
        for group in ("all", f"tier:{request.tier}", f"tenant:{request.queued.tenant}"):
            groups.setdefault(group, []).append(outcome)
    figures: Figures = {}
    for group, asked in groups.items():
        rows, why = served(asked), Counter(row.refused for row in asked if row.refused)
        kept = sum(not row.late for row in rows)
        figures[f"{group}|requests"] = float(len(asked))
        figures[f"{group}|kept"] = _percent(kept, len(asked))
        figures[f"{group}|slo"] = _percent(kept, len(rows))
        figures[f"{group}|refused"] = _percent(len(asked) - len(rows), len(asked))
        for reason in ALWAYS_SAID | why.keys():
            figures[f"{group}|refused_{reason}"] = _percent(why[reason], len(asked))
        for name, values in (
            ("ttft", [row.ttft_s for row in rows]),
            ("ttlt", [row.ttlt_s for row in rows]),
            ("wait", [row.wait_s for row in rows]),
        ):
            for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                figures[f"{group}|{name}_{label}"] = interpolated(values, share)
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def _percent(count: int, whole: int) -> float:
    return 100.0 * count / whole if whole else math.nan


def mean_of(values: Sequence[float]) -> Interval:
    """Raises ValueError without values."""
    if not values:
        raise ValueError("there is nothing to average")
    if len(values) == 1:
        return Interval(values[0], values[0], values[0], 1)
    mean, half = mean_and_half(values)
    return Interval(mean, mean - half, mean + half, len(values))


def compare(by_policy: Mapping[str, Sequence[Figures]]) -> dict[str, dict[str, tuple[Interval, Interval | None]]]:
    """Policy, figure -> its interval, and that of its difference to the first policy (None for itself, and where the
    first one has no such figure: a tenant that joined is not in the traffic as it was). Only figures that a policy has
    in every variant."""
    first = next(iter(by_policy.values()))
    table: dict[str, dict[str, tuple[Interval, Interval | None]]] = {}
    for policy, rows in by_policy.items():
        table[policy] = {}
        for name in rows[0]:
            own, base = _everywhere(rows, name), _everywhere(first, name)
            if own is None:
                continue
            pairs = None if rows is first or base is None else [b - a for a, b in zip(base, own, strict=True)]
            table[policy][name] = (mean_of(own), None if pairs is None else mean_of(pairs))
    return table


def _everywhere(rows: Sequence[Figures], name: str) -> list[float] | None:
    """A figure in each variant; None where one lacks it."""
    values = [row.get(name, math.nan) for row in rows]
    return None if any(math.isnan(value) for value in values) else values
