"""Runs lab scenarios on all cores and keeps what has been computed.

Every task's figures are a file in ``HOME/lab``, named by its settings and the code that ran it: an interrupted report
goes on where it was, and a change to the code starts afresh.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from typing import TypeVar

from controlplane.lab.plot import Panel, Series, draw
from scheduling.simulator.drawings import Axes, Look
from scheduling.simulator.lab import (
    CONTRADICTS,
    Line,
    Scenario,
    Task,
    fingerprint,
    lines_of,
    look_of,
    perform,
    tasks_of,
)

Table = tuple[Scenario, list[Line]]
Images = dict[str, str]  # a drawing's file without .svg, and its text
Figures = dict[str, float]
J = TypeVar("J", bound=Hashable)


class Lab:
    """``folder``: where figures are kept. ``processes``: how many run at once, 0 for all cores."""

    def __init__(self, folder: Path, processes: int = 0) -> None:
        self._folder = folder
        self._processes = processes or os.cpu_count() or 1

    def tables(self, scenarios: Sequence[Scenario], done: Callable[[Task], None] = lambda task: None) -> list[Table]:
        """Every scenario's table. ``done`` is called for each task as it ends, kept ones first."""
        figures = self.figures([task for scenario in scenarios for task in tasks_of(scenario)], perform, _name, done)
        return [(scenario, lines_of(scenario, figures)) for scenario in scenarios]

    def images(self, scenarios: Sequence[Scenario]) -> Images:
        """The drawings of scenarios whose tables have been made."""
        drawn: Images = {}
        for scenario in scenarios:
            figures = self.figures(tasks_of(scenario), perform, _name)
            look = look_of(scenario, figures)
            for drawing in scenario.drawings:
                drawn[drawing.file] = draw(
                    drawing.title, [_panel(axes, look) for axes in drawing.panels], drawing.columns
                )
        return drawn

    def figures(
        self,
        jobs: Sequence[J],
        work: Callable[[J], Figures],
        name: Callable[[J], str],
        done: Callable[[J], None] = lambda job: None,
    ) -> dict[J, Figures]:
        """What every job came to. ``work`` does one, in another process if there are several; ``name`` is the file that
        its figures are kept in, which has to change with everything that would change them."""
        figures: dict[J, Figures] = {}
        missing = []
        for job in dict.fromkeys(jobs):
            kept = self._kept(name(job))
            if kept is None:
                missing.append(job)
            else:
                figures[job] = kept
                done(job)
        for job, result in self._run(missing, work):
            self._keep(name(job), result)
            figures[job] = result
            done(job)
        return figures

    def _run(self, jobs: Sequence[J], work: Callable[[J], Figures]) -> Iterator[tuple[J, Figures]]:
        if len(jobs) <= 1 or self._processes == 1:
            yield from ((job, work(job)) for job in jobs)
            return
        # A fresh interpreter for each worker: this process may have threads and database connections.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(self._processes, len(jobs)), mp_context=context)
        try:
            waiting = {pool.submit(work, job): job for job in jobs}
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _kept(self, name: str) -> Figures | None:
        try:
            kept = json.loads(self._path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # not there, or cut off when it was written: it is computed again
        return kept if isinstance(kept, dict) else None

    def _keep(self, name: str, figures: Figures) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(name)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(figures), encoding="utf-8")
        draft.replace(path)


def _panel(axes: Axes, look: Look) -> Panel:
    clocks = [curve.minutes(look) if axes.over_time else () for curve in axes.curves]
    xs = clocks[0] if axes.over_time else axes.xs
    curves = zip(axes.curves, clocks, strict=True)
    series = tuple(Series(curve.name, curve.values(len(xs), look), clock) for curve, clock in curves)
    return Panel(
        axes.title,
        axes.y_label,
        xs,
        series,
        x_label=axes.x_label,
        log_x=axes.log_x,
        log_y=axes.log_y,
        y_most=axes.y_most,
    )


def _name(task: Task) -> str:
    return f"{task.scenario}-{fingerprint(task)}"


def figure(value: float) -> str:
    """A figure as a person reads it: three digits that count."""
    if math.isnan(value):
        return "none"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval(line: Line) -> str:
    """What ours may be."""
    if line.low is None and line.high is None:
        return ""
    if line.low is None:
        return f"up to {figure(line.high or 0.0)}"
    if line.high is None:
        return f"from {figure(line.low)}"
    if line.low == line.high:
        return figure(line.low)
    return f"{figure(line.low)} to {figure(line.high)}"


HEAD = """# The papers' figures beside ours

Do the mechanisms of five papers do here what the papers say? Each table has the paper's figure, ours on the paper's own
workload, and the interval in which ours has to lie.

* *holds*: ours is in it. *differs*: it is not; the reason is given if it is known.
* *contradicts the paper, as expected*: the interval is our claim, because the paper's own figure cannot result.

Every policy here runs inside each engine, as in the papers, with the preemption that they assume. Quartermaster decides
in front of the engines; results for that are in [compare.md](compare.md) and [front.md](front.md). The last section is
the product's default on the papers' workloads.

`manage.py lab report` writes this page; `lab report NAME` computes only that table again, `lab run NAME` prints it.
Workloads, engines and runs: `scheduling/simulator/scenarios/`. Figures do not depend on the machine.
"""


def report(tables: Sequence[Table], day: date, before: str = "", images: str = "images/papers") -> str:
    """The tables as one page of Markdown, computed on ``day``. ``before``: the page that was there, whose other
    sections stay. ``images``: where the drawings lie, seen from the page."""
    written = [(scenario.id, _section(scenario, lines, day, images)) for scenario, lines in tables]
    return page(sections(before) | dict(written))


def sections(text: str) -> dict[str, str]:
    """A page's sections by what their headings begin with: a table's id, else the whole heading."""
    parts: dict[str, str] = {}
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]:
        parts[part[3:].partition("\n")[0].partition(":")[0]] = part.rstrip("\n") + "\n"
    return parts


def page(parts: Mapping[str, str]) -> str:
    """The page of these sections: tables by id, then the others."""
    tables = sorted(name for name in parts if re.fullmatch(r"[A-Z]+-\d+", name))
    text = "\n".join(parts[name] for name in (*tables, *(name for name in parts if name not in tables)))
    holding, against, differing = _verdicts(text)
    judged = holding + against + differing
    summary = f"{holding} of {judged} figures hold, {against} contradict the paper as expected, {differing} differ."
    rows = ["| table | paper | holds | contradicts | differs |", "|---|---|---|---|---|"]
    for name in tables:
        title, paper = re.match(r"## (.*)\n(?:\n(.*?)[.,:])?", parts[name]).groups()  # type: ignore[union-attr]
        counts = " | ".join(str(count) if count else "" for count in _verdicts(parts[name]))
        rows.append(f"| [{title}](#{_anchor(title)}) | {paper or ''} | {counts} |")
    return "\n".join([HEAD, summary, "", *([*rows, ""] if tables else []), text])


def _verdicts(text: str) -> tuple[int, int, int]:
    """How many figures of these tables hold, contradict the paper as expected, and differ."""
    found = re.findall(rf"^\|.*\| (holds|\*\*differs\*\*|{CONTRADICTS})(?:: .*)? \|$", text, re.MULTILINE)
    return found.count("holds"), found.count(CONTRADICTS), found.count("**differs**")


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(scenario: Scenario, lines: Sequence[Line], day: date, images: str) -> str:
    out = [f"## {scenario.id}: {scenario.title}", ""]
    out += [f"{scenario.paper}. `manage.py lab run {scenario.name}`. Computed on {day.isoformat()}.", ""]
    if scenario.note:
        out += [scenario.note, ""]
    out += ["| figure | unit | paper | ours | allowed | verdict |", "|---|---|---|---|---|---|"]
    for line in lines:
        verdict = f"**{line.verdict}**" if line.verdict == "differs" else line.verdict
        cell = f"{verdict}: {line.note}" if line.note else verdict
        cells = (line.row, line.unit, line.paper, figure(line.ours), interval(line), cell)
        out.append("| " + " | ".join(cells) + " |")
    out.append("")
    for drawing in scenario.drawings:
        out += [f"![{drawing.title}]({images}/{drawing.file}.svg)", ""]
    return "\n".join(out)
