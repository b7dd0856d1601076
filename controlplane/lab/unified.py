"""The default policy against the best of the papers' policies: how it is shown on a terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from rich.table import Table as Grid

from controlplane.lab.tables import figure
from scheduling.simulator.duel import Match, MatchResult

Rows = list[tuple[Match, list[MatchResult]]]
COLUMNS = ("figure", "unit", "unified", "best other", "limit", "difference", "verdict")
COLOURS = {"better": "green", "as good": "green", "worse": "red"}


def cells(row: MatchResult) -> tuple[str, ...]:
    """A row as text, in the order of ``COLUMNS``."""
    limit = "" if row.limit is None else figure(row.limit)
    gap = f"{row.difference:+.1f} % ({row.low:+.1f} to {row.high:+.1f})"
    verdict = f"{row.verdict} by {abs(row.difference):.1f} %" if row.verdict != "as good" else row.verdict
    return row.row, row.unit, figure(row.ours), f"{figure(row.theirs)}, {row.best}", limit, gap, verdict


def grids(matches: Rows) -> list[Grid]:
    """A table for each match."""
    result = []
    for match, rows in matches:
        grid = Grid(*COLUMNS, title=f"{match.id}: {match.title}", caption=match.note)
        for row in rows:
            *plain, verdict = cells(row)
            grid.add_row(*plain, f"[{COLOURS[row.verdict]}]{verdict}[/]")
        result.append(grid)
    return result


HEADING = "The default policy"


def section(matches: Rows, seeds: int, day: date) -> str:
    """The page's section, computed on ``day``."""
    rows = [row for _, table in matches for row in table]
    worse = sum(row.verdict == "worse" for row in rows)
    out = [
        f"## {HEADING}",
        "",
        "`unified` with its default parameters against the best of the papers' policies on each paper's own scenario.",
        f"`manage.py lab unified`, computed on {day.isoformat()}: {seeds} seeds, both policies on the same requests;",
        "the interval is that of the mean difference (95 %, Student's t over the seeds). If it contains 0, the verdict",
        "is *as good*. The limit is the result with known true lengths, or a bound that no scheduler can exceed. Two",
        "parameters were chosen on workloads like these (the cost of prefill on U-2, `tier_ratio` on U-3), so the",
        "figures show what a single order can achieve; they are not an independent confirmation.",
        "",
        f"{len(rows) - worse} of {len(rows)} figures are as good or better.",
        "",
    ]
    for match, table in matches:
        out += [f"### {match.id}: {match.title}", "", f"{match.paper}. {match.note}".strip(), ""]
        out += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        out += ["| " + " | ".join(_marked(row)) + " |" for row in table]
        out += ["", *(f"{row.row}: {row.note}." for row in table if row.note)]
        if out[-1]:
            out.append("")
    return "\n".join(out)


def _marked(row: MatchResult) -> Sequence[str]:
    *plain, verdict = cells(row)
    return [*plain, f"**{verdict}**" if row.verdict == "worse" else verdict]
