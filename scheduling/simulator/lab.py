"""The papers' tables as small declarative files, and what our runs say about each of their figures.

A scenario (``scenarios/<name>.toml``) has a workload, an engine, runs (a policy and what differs) and rows: one figure
of the paper each, with the interval in which ours may lie; and drawings of the paper's figures. Everything here is
pure: a task is (scenario, run, seed), its result a dictionary of figures, so tasks can be spread over processes and
kept between them.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from scheduling.core.policies.compose import make_policy
from scheduling.simulator.drawings import Drawing, Look, parse_drawing
from scheduling.simulator.setups import SetupError, execute

SCENARIOS_DIR = Path(__file__).parent / "scenarios"
CODE_DIRS = (Path(__file__).parent, Path(__file__).parent.parent / "core")


class ScenarioError(ValueError):
    """A scenario that cannot be used: file, entry, what is wrong."""


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one setup."""

    name: str
    policy: str
    params: dict[str, float | int | str] = field(default_factory=dict)
    modifiers: dict[str, dict[str, float | int | str]] = field(default_factory=dict)  # around the policy, by name
    engine: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)  # {"all": 10} shared, or a number for each tier
    goodput: tuple[float, float, float] | None = None  # lowest rate, highest rate, step: search instead of one run
    seeds: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a paper. ``versus``: ours is the change [%] against that run. ``runs`` instead of ``run``: an order
    ("rising", "falling"), or ("least") which of ``values`` has the lowest figure."""

    name: str
    metric: str
    unit: str
    paper: str
    run: str = ""
    low: float = -math.inf
    high: float = math.inf
    versus: str = ""
    runs: tuple[str, ...] = ()
    order: str = ""
    values: tuple[float, ...] = ()
    note: str = ""  # why it does not come out, or what was assumed
    contradicts: bool = False  # the interval is our claim, and the paper's own figure lies outside of it


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    id: str  # of simulation's list: DS-1
    title: str
    paper: str
    runs: dict[str, Run]
    rows: tuple[Row, ...]
    note: str = ""
    drawings: tuple[Drawing, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    scenario: str
    run: str
    seed: int


@dataclass(frozen=True, slots=True)
class Line:
    """A row with our figure. ``verdict``: "holds", "differs", :data:`CONTRADICTS` where ours lies in an interval that
    the paper's own figure is outside of, or "shown" where there is nothing to judge by."""

    scenario: str
    row: str
    metric: str
    unit: str
    paper: str
    ours: float
    low: float | None
    high: float | None
    verdict: str
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The paper's figure is a number where the paper prints one, null where it prints none, else its words."""
        ours = self.ours if math.isfinite(self.ours) else None
        return asdict(self) | {"paper": _printed(self.paper), "ours": ours}


def _printed(paper: str) -> float | str | None:
    if paper == "-":
        return None
    try:
        return float(paper)
    except ValueError:
        return paper


def scenario_names() -> list[str]:
    """The scenarios shipped, sorted."""
    return sorted(path.stem for path in SCENARIOS_DIR.glob("*.toml"))


def load_scenario(name: str) -> Scenario:
    """A scenario by name or by its id. Raises ScenarioError that lists the names, or says what is wrong in the file."""
    for each in scenario_names():
        scenario = _load(each)
        if name.lower() in (each, scenario.id.lower()):
            return scenario
    raise ScenarioError(f"unknown scenario {name!r}; there are: {', '.join(scenario_names())}")


@cache
def _load(name: str) -> Scenario:
    text = (SCENARIOS_DIR / f"{name}.toml").read_text(encoding="utf-8")
    return parse_scenario(name, tomllib.loads(text))


def parse_scenario(name: str, data: Mapping[str, Any]) -> Scenario:
    """A scenario from a parsed file. Raises ScenarioError naming the entry."""
    data = dict(data)
    engine, workload = data.pop("engine", {}), data.pop("workload", {})
    tiers, seeds = data.pop("tier", []), data.pop("seeds", [1])
    runs: dict[str, Run] = {}
    for raw in data.pop("run", []):
        merged = {"seeds": seeds, **raw}
        merged["engine"] = {**engine, **raw.get("engine", {})}
        merged["workload"] = {**workload, "tiers": tiers, **raw.get("workload", {})}
        run = _make(Run, merged, f"{name}: run {raw.get('name')!r}")
        if run.name in runs:
            raise ScenarioError(f"{name}: two runs are called {run.name!r}")
        make_policy(run.policy, run.params, run.modifiers)
        runs[run.name] = run
    rows = tuple(_make(Row, raw, f"{name}: row {raw.get('name')!r}") for raw in data.pop("row", []))
    for row in rows:
        unknown = {row.run, row.versus, *row.runs} - {""} - set(runs)
        if unknown or not (row.run or row.runs):
            raise ScenarioError(f"{name}: row {row.name!r} is about no run or an unknown one: {sorted(unknown)}")
        if row.runs and row.order not in ("rising", "falling", "least"):
            raise ScenarioError(f"{name}: row {row.name!r} needs an order: rising, falling or least")
    drawings = tuple(_drawing(name, raw, runs) for raw in data.pop("figure", []))
    scenario: Scenario = _make(Scenario, {"name": name, **data, "runs": runs, "rows": rows, "drawings": drawings}, name)
    return scenario


def _drawing(name: str, raw: Mapping[str, Any], runs: Mapping[str, Run]) -> Drawing:
    try:
        drawing = parse_drawing(raw)
    except (TypeError, ValueError) as problem:
        raise ScenarioError(f"{name}: figure {raw.get('file')!r}: {problem}") from problem
    if drawing.runs - set(runs):
        raise ScenarioError(
            f"{name}: figure {drawing.file!r} is about unknown runs: {sorted(drawing.runs - set(runs))}"
        )
    return drawing


def _make(cls: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    names = {f.name: f for f in fields(cls)}
    odd = set(raw) - set(names)
    if odd:
        raise ScenarioError(f"{where} has unknown entries: {', '.join(sorted(odd))}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    try:
        return cls(**values)
    except TypeError as problem:
        raise ScenarioError(f"{where}: {problem}") from problem


def tasks_of(scenario: Scenario) -> list[Task]:
    """Everything that has to be run for a scenario."""
    return [Task(scenario.name, run.name, seed) for run in scenario.runs.values() for seed in run.seeds]


def perform(task: Task) -> dict[str, float]:
    """Runs a task. The same task gives the same figures, on any machine and in any process."""
    run = load_scenario(task.scenario).runs[task.run]
    try:
        ordering = make_policy(run.policy, run.params, run.modifiers)
        return execute(ordering, run.engine, run.workload, run.replicas, run.goodput, task.seed)
    except SetupError as problem:
        raise ScenarioError(f"{task.scenario}: run {run.name!r}: {problem}") from problem


def fingerprint(task: Task) -> str:
    """Names a task's result for keeping: it changes with the run's settings and with the code that runs them."""
    run = load_scenario(task.scenario).runs[task.run]
    settings = json.dumps([asdict(run), task.seed], sort_keys=True)
    return hashlib.sha256(f"{code_digest()}{settings}".encode()).hexdigest()[:24]


@cache
def code_digest() -> str:
    """Changes with any file of the core or the simulator, so that nothing kept outlives the code that made it; only
    what arranges figures for a drawing makes none."""
    digest = hashlib.sha256()
    for directory in CODE_DIRS:
        for path in sorted([*directory.rglob("*.py"), *directory.rglob("*.toml")]):
            if path.parent != SCENARIOS_DIR and path.name != "drawings.py":
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


CONTRADICTS = "contradicts the paper, as expected"
Figures = Mapping[Task, Mapping[str, float]]


def lines_of(scenario: Scenario, figures: Figures) -> list[Line]:
    """The scenario's table. Raises ScenarioError for a figure that no run has."""
    return [_line(scenario, row, figures) for row in scenario.rows]


def look_of(scenario: Scenario, figures: Figures) -> Look:
    """A run's figure by name, as a drawing asks for it: ``look(run, metric)``. Raises ScenarioError for one that no run
    has."""
    return lambda run, metric: _figure(scenario, run, metric, figures)


def _line(scenario: Scenario, row: Row, figures: Figures) -> Line:
    if row.runs:
        return _comparison(scenario, row, [_figure(scenario, name, row.metric, figures) for name in row.runs])
    ours = _figure(scenario, row.run, row.metric, figures)
    if row.versus:
        base = _figure(scenario, row.versus, row.metric, figures)
        ours = 100 * (ours / base - 1) if base else math.nan
    return _judged(scenario, row, ours, row.low <= ours <= row.high)


def _comparison(scenario: Scenario, row: Row, values: Sequence[float]) -> Line:
    if row.order == "least":
        best = row.values[min(range(len(values)), key=lambda place: values[place])]
        return _judged(scenario, row, best, row.low <= best <= row.high)
    pairs = list(pairwise(values))
    right = sum((a < b) if row.order == "rising" else (a > b) for a, b in pairs)
    whole = replace(row, low=len(pairs), high=len(pairs))
    return _judged(scenario, whole, float(right), right == len(pairs), f"{row.order} in {right} of {len(pairs)} steps")


def _judged(scenario: Scenario, row: Row, ours: float, holds: bool, finding: str = "") -> Line:
    bounded = math.isfinite(row.low) or math.isfinite(row.high)
    return Line(
        scenario=scenario.id,
        row=row.name,
        metric=row.metric,
        unit=row.unit,
        paper=row.paper,
        ours=ours,
        low=row.low if math.isfinite(row.low) else None,
        high=row.high if math.isfinite(row.high) else None,
        verdict=(_expected_verdict(row) if holds else "differs") if bounded else "shown",
        note="; ".join(text for text in (finding, row.note) if text),
    )


def _expected_verdict(row: Row) -> str:
    return CONTRADICTS if row.contradicts else "holds"


def _figure(scenario: Scenario, run: str, metric: str, figures: Figures) -> float:
    """The mean over the run's seeds."""
    values = []
    for seed in scenario.runs[run].seeds:
        results = figures[Task(scenario.name, run, seed)]
        if metric not in results:
            plain = [name for name in results if not name[-1:].isdigit()]  # not those of every window
            raise ScenarioError(f"{scenario.name}: run {run!r} has no figure {metric!r}; it has: {', '.join(plain)}")
        values.append(results[metric])
    return math.fsum(values) / len(values)
