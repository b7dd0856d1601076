"""``manage.py lab compare``: from its arguments to cases, and from their figures to a table, JSON and a drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.table import Table as Grid

from controlplane.lab.plot import Panel, Series, draw
from controlplane.lab.tables import Figures, figure
from scheduling.simulator.compare import INSIDE, Case, fingerprint
from scheduling.simulator.lab import code_digest

TIER_COLUMNS = (("slo", "in time %"), ("of_bound", "of the bound %"), ("ttft.p50", "TTFT p50 s"), ("ttft.p95", "p95"),
                ("ttft.p99", "p99"), ("ttlt.p50", "TTLT p50 s"), ("ttlt.p95", "p95"), ("ttlt.p99", "p99"))  # fmt: skip

LIMIT_COLUMNS = (("kept", "in time of asked %"), ("kept_least", "of the tenant with least %"),
                 ("refused", "refused %"))  # where limits may refuse  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one trace: the mean over its seeds."""

    trace: str
    policy: str
    tiers: tuple[str, ...]
    figures: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        figures = {name: None if math.isnan(value) else value for name, value in self.figures.items()}
        return {"trace": self.trace, "policy": self.policy, **figures}


def kept_name(case: Case) -> str:
    """The file that a case's figures are kept in."""
    return f"compare-{fingerprint(case, code_digest())}"


def rows_of(cases: Sequence[Case], results: Mapping[Case, Figures]) -> list[Row]:
    """A row for each policy on each trace, in the order of the cases. A figure that a seed does not have (nobody
    waited) is the mean over those that have it."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.name, case.label), []).append(case)
    rows = []
    for (trace, policy), seeds in groups.items():
        names = results[seeds[0]]
        names = names | {n: 0.0 for case in seeds for n in results[case] if n.startswith("refused_why.")}
        figures = {name: _mean([_of(results[case], name) for case in seeds]) for name in names}
        rows.append(Row(trace, policy, _tiers(seeds[0], figures), figures))
    return rows


def _of(figures: Figures, name: str) -> float:
    """A reason that refused nothing is not among a seed's figures."""
    return figures.get(name, 0.0) if name.startswith("refused_why.") else figures[name]


def _tiers(case: Case, figures: Figures) -> tuple[str, ...]:
    """Those that have figures, in the order of the shares; a recording has tiers of its own."""
    tiers = [name.removeprefix("slo.") for name in figures if name.startswith("slo.")]
    ordered = [name for name, _ in case.shares if name in tiers]
    return (*ordered, *(name for name in tiers if name not in ordered))


def _mean(values: Sequence[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def grids(rows: Sequence[Row], cases: Sequence[Case]) -> list[Grid]:
    """A table for each trace: a line for each policy and tier, and one for all tiers."""
    out = []
    for trace in dict.fromkeys(row.trace for row in rows):
        mine = [row for row in rows if row.trace == trace]
        case = next(case for case in cases if case.name == trace)
        columns = (*LIMIT_COLUMNS, *TIER_COLUMNS) if case.limits else TIER_COLUMNS
        grid = Grid("policy", "tier", *(label for _, label in columns), "tokens/s", "requests/s", "Jain",
                    title=_title(mine[0], case))  # fmt: skip
        for row in mine:
            for tier in ("", *row.tiers):
                suffix = f".{tier}" if tier else ""
                cells = [_cell(row.figures.get(f"{name}{suffix}", math.nan)) for name, _ in columns]
                whole = [figure(row.figures[name]) for name in ("tokens_per_s", "requests_per_s", "jain")]
                grid.add_row(
                    row.policy if not tier else "", tier or "all", *cells, *(whole if not tier else ("", "", ""))
                )
            if case.limits:
                grid.add_row("", "", _why(row), *[""] * (len(columns) + 2))
            grid.add_section()
        out.append(grid)
    return out


def _why(row: Row) -> str:
    """What was refused, by reason, the most frequent first."""
    shares = [
        (name.removeprefix("refused_why."), v) for name, v in row.figures.items() if name.startswith("refused_why.")
    ]
    reasons = ", ".join(f"{reason} {figure(value)} %" for reason, value in sorted(shares, key=lambda pair: -pair[1]))
    return f"refused: {reasons or 'none'}"


def _cell(value: float) -> str:
    return "" if math.isnan(value) else figure(value)


def _title(row: Row, case: Case) -> str:
    figures = row.figures
    inside = ", the policy inside every engine, which this product is not" if case.where == INSIDE else ""
    way = "clients' rates x" if "clients_left_out" in figures else "arrivals x"
    parts = [
        f"{row.trace}: {figures['requests']:.0f} requests, {figures['tenants']:.0f} tenants, {case.replicas} x "
        f"{case.preset}{inside}",
        f"load {case.load:g} of {case.replicas} x {figures['capacity']:.3g} requests/s ({way}{figures['speed']:.3g})",
    ]
    if case.limits:
        whose = "tenants of a tier have equal concurrency" if case.equal_limits else "each tenant's concurrency is its"
        parts.append(f"limits: {whose} share of the slots, the shipped tiers' queues")
    if case.contracts:
        parts.append("; ".join(contract.says for contract in case.contracts))
    if figures["left_out"]:
        parts.append(f"{figures['left_out']:.0f} larger than the KV cache left out")
    if figures.get("clients_left_out"):
        share = figures["clients_left_out_share"]
        parts.append(
            f"{figures['clients_left_out']:.0f} clients without lengths left out, {share:.0f} % of the requests"
        )
    return "; ".join(parts)


def drawing(rows: Sequence[Row]) -> str:
    """Requests in time per tier, and the first token's p99, of every trace."""
    panels = []
    for trace in dict.fromkeys(row.trace for row in rows):
        mine = [row for row in rows if row.trace == trace]
        tiers = mine[0].tiers
        series = partial(_series, mine, tiers)
        panels.append(Panel(f"{trace}: requests in time", "%", tiers, series("slo"), y_most=100.0))
        panels.append(Panel(f"{trace}: first token, p99", "s", tiers, series("ttft.p99"), log_y=True))
    return draw("Policies on recorded traces", panels)


def _series(rows: Sequence[Row], tiers: Sequence[str], metric: str) -> tuple[Series, ...]:
    return tuple(
        Series(row.policy, tuple(row.figures.get(f"{metric}.{tier}", math.nan) for tier in tiers)) for row in rows
    )
