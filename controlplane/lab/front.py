"""`manage.py lab front`: the same policy inside every engine and in front of them all, by prefill credit and delay."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

from controlplane.lab.compare import rows_of
from controlplane.lab.tables import Figures, figure
from scheduling.simulator.compare import FRONT, INSIDE, Case

HEAD = """# The policy in front of replicas, simulated

Quartermaster applies its policy in front of the replicas. This page compares that with the same policy inside every
engine, which is what the papers simulate. How requests are generated: [lab.md](../guide/lab.md). More policies:
[compare.md](compare.md).

* *inside*: each request goes to a replica on arrival, and the engine processes prompts in the policy's order. Between
  two chunks, a prompt that ranks higher interrupts the current one.
* *in front*: one queue before all replicas. A request is granted when a replica has room for it (slots, KV cache,
  prefill credit); the engine processes requests in the order of their grants.
* *credit*: the number of prompt tokens that may be granted to a replica before their first output token. A prompt
  longer than the credit runs alone.
* *5 ms*: the delay between a token from an engine and the grant that it makes possible.
* *automatic credit*: adjusted at run time by the same rule as in the live system. With the delay assumed for the live
  system and engines in policy order, this is the product's default.
* *engines in policy order*: engines process granted requests by the priority that Quartermaster sends (vLLM's
  `--scheduling-policy priority`), otherwise in the order of the grants.

In time: the share of requests that met their tier's SLO [%]. Tokens/s: from the first arrival to the last answer.
Waiting: requests in an engine's own queue, which no policy can reorder; mean and p99 over time and engines.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One way to serve one trace at one load: the mean over its seeds."""

    trace: str
    load: float
    policy: str
    where: str
    credit: int | None
    delay_ms: float
    engine_order: str
    label: str
    tiers: Mapping[str, float]  # in time [%]
    tokens_per_s: float
    share: float  # of the tokens/s that the same policy has inside [%]
    waiting: float
    waiting_p99: float

    def as_json(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__slots__ if name != "tiers"}
        return {**row, **{f"slo.{tier}": value for tier, value in self.tiers.items()}}


def variants(case: Case, credits: Sequence[int], delays_ms: Sequence[float]) -> Iterator[Case]:
    """A policy inside, in front as the product serves, with each credit and delay, and without credit in front of
    engines in policy order."""
    yield replace(case, where=INSIDE)
    yield replace(case, where=FRONT)
    for delay in delays_ms:
        for credit in credits:
            yield replace(case, where=FRONT, prefill_tokens=credit, signal_ms=delay, engine_order="fifo")
    yield replace(case, where=FRONT, prefill_tokens=0)


def lines_of(cases: Sequence[Case], results: Mapping[Case, Figures]) -> list[Line]:
    """A line for each trace, load, policy and way, in the order of the cases."""
    groups: dict[Case, list[Case]] = {}
    for case in cases:
        groups.setdefault(replace(case, seed=0), []).append(case)
    lines = []
    for way, seeds in groups.items():
        row = rows_of(seeds, results)[0]
        inside = replace(way, where=INSIDE, prefill_tokens=None, signal_ms=None, engine_order="priority")
        base = rows_of(groups[inside], results)[0].figures["tokens_per_s"]
        lines.append(
            Line(
                trace=way.name,
                load=way.load,
                policy=way.named,
                where=way.where,
                credit=way.prefill_tokens,
                delay_ms=1e3 * way.signal_s,
                engine_order=way.engine_order,
                label="inside" if way.where == INSIDE else f"in front, {way.bounds}",
                tiers={tier: row.figures[f"slo.{tier}"] for tier in row.tiers},
                tokens_per_s=row.figures["tokens_per_s"],
                share=100.0 * row.figures["tokens_per_s"] / base,
                waiting=row.figures["engine_waiting"],
                waiting_p99=row.figures["engine_waiting.p99"],
            )
        )
    return lines


def tables(lines: Sequence[Line]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of a table for each trace and load."""
    for trace, load in dict.fromkeys((line.trace, line.load) for line in lines):
        mine = [line for line in lines if (line.trace, line.load) == (trace, load)]
        head = ["policy", "where", *(f"{tier} in time %" for tier in mine[0].tiers)]
        head += ["tokens/s", "of inside %", "waiting in an engine", "p99"]
        rows, last = [], ""
        for line in mine:
            policy, last = ("" if line.policy == last else line.policy), line.policy
            cells = [figure(line.tokens_per_s), f"{line.share:.1f}", f"{line.waiting:.2f}", f"{line.waiting_p99:.0f}"]
            rows.append([policy, line.label, *(f"{value:.1f}" for value in line.tiers.values()), *cells])
        yield f"{trace} at {load:g} of capacity", head, rows


def grids(lines: Sequence[Line]) -> list[Grid]:
    shown = []
    for title, head, rows in tables(lines):
        grid = Grid(*head, title=title)
        for row in rows:
            grid.add_row(*row)
        shown.append(grid)
    return shown


def page(lines: Sequence[Line], cases: Sequence[Case], command: str, before: str = "") -> str:
    """The results as a page of docs/, with what made it. ``before``: a page that they are added to."""
    case = cases[0]
    seeds = len({case.seed for case in cases})
    total = sum(share for _, share in case.shares)
    tiers = ", ".join(f"{name} {100 * share / total:g} %" for name, share in case.shares)
    parts = [before or HEAD]
    parts.append(
        f"{case.replicas} x {case.preset}, minutes {case.from_minute:g} to {case.from_minute + case.minutes:g} of each "
        f"trace, of which the first tenth is history; {seeds} draw{'s' if seeds > 1 else ''} of tiers "
        f"({tiers}). Figures do not depend on the machine. Made on {date.today().isoformat()} on {machine()} by\n\n"
        f"```\n{command}\n```\n"
    )
    for title, head, rows in tables(lines):
        body = ["| " + " | ".join(row) + " |" for row in rows]
        parts.append("\n".join([f"## {title}\n", "| " + " | ".join(head) + " |", "|---" * len(head) + "|", *body, ""]))
    return "\n".join(parts)


def machine() -> str:
    """Processor and cores, as far as the system says."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"
