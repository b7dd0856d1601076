"""Is the default policy as good as the best of the papers' policies, on each paper's own scenario and metric?

A duel (``duels/<name>.toml``) has a workload, an engine and runs as a scenario has, and asks for a figure of one run
against the best of several rivals, seed by seed: both meet the same requests, so the difference has little noise.
Beside it stands what could be had if true lengths were known (:mod:`scheduling.simulator.oracle`). Pure, as the lab is.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scheduling.core.policies.compose import make_policy
from scheduling.core.student import mean_and_half
from scheduling.simulator import driftsched
from scheduling.simulator.batches import make_engine
from scheduling.simulator.bound import most_in_time
from scheduling.simulator.lab import Run, ScenarioError, code_digest, parse_scenario
from scheduling.simulator.measures import measure
from scheduling.simulator.oracle import Truth
from scheduling.simulator.setups import SetupError, engine_config, execute, requests_of

DUELS_DIR = Path(__file__).parent / "duels"
SEEDS = 10


@dataclass(frozen=True, slots=True)
class Duel:
    """One figure. ``limits``: runs that are told the truth, or ``counted`` ones that nobody can beat."""

    name: str
    metric: str
    unit: str
    ours: str
    rivals: tuple[str, ...]
    limits: tuple[str, ...] = ()
    higher: bool = False  # more is better
    note: str = ""  # why it is worse, and what it would take


@dataclass(frozen=True, slots=True)
class Match:
    """Duels over the same runs. ``told_truth``: runs whose policy is told true lengths; ``counted``: no run at all, the
    fewest late requests that any scheduler can have."""

    name: str
    id: str
    title: str
    paper: str
    runs: dict[str, Run]
    duels: tuple[Duel, ...]
    told_truth: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bout:
    """A run of a match with one seed."""

    match: str
    run: str
    seed: int


@dataclass(frozen=True, slots=True)
class MatchResult:
    """A duel's row. ``low`` and ``high``: 95 % interval of the mean difference, in % of the best rival's figure."""

    scenario: str
    row: str
    metric: str
    unit: str
    best: str  # the rival with the best mean
    theirs: float
    ours: float
    limit: float | None
    difference: float  # %, of ours to theirs
    low: float
    high: float
    verdict: str  # "better", "as good" (within noise), or "worse"
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "paper": f"{self.best}: {self.theirs:.4g}"}


def match_names() -> list[str]:
    """The matches shipped, sorted."""
    return sorted(path.stem for path in DUELS_DIR.glob("*.toml"))


@cache
def load_match(name: str) -> Match:
    """A match by name. Raises ScenarioError that says what is wrong in the file."""
    text = (DUELS_DIR / f"{name}.toml").read_text(encoding="utf-8")
    return parse_match(name, tomllib.loads(text))


def parse_match(name: str, data: Mapping[str, Any]) -> Match:
    """A match from a parsed file. Raises ScenarioError naming the entry."""
    data = dict(data)
    clairvoyant, counted = tuple(data.pop("told_truth", ())), tuple(data.pop("counted", ()))
    raw_duels = data.pop("duel", [])
    scenario = parse_scenario(name, data)
    duels = []
    for raw in raw_duels:
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in raw.items()}
        try:
            duel = Duel(**fields)
        except TypeError as problem:
            raise ScenarioError(f"{name}: duel {raw.get('name')!r}: {problem}") from problem
        unknown = {duel.ours, *duel.rivals, *duel.limits} - set(scenario.runs)
        if unknown or not duel.rivals:
            raise ScenarioError(f"{name}: duel {duel.name!r} has no rivals or unknown runs: {sorted(unknown)}")
        if set(duel.limits) - set(clairvoyant) - set(counted) or {duel.ours, *duel.rivals} & {*clairvoyant, *counted}:
            raise ScenarioError(f"{name}: duel {duel.name!r}: limits know the truth, and only they do")
        duels.append(duel)
    return Match(
        name,
        scenario.id,
        scenario.title,
        scenario.paper,
        scenario.runs,
        tuple(duels),
        clairvoyant,
        counted,
        scenario.note,
    )


def bouts_of(match: Match, seeds: int = SEEDS) -> list[Bout]:
    """Everything that has to be run."""
    return [Bout(match.name, run, seed) for run in match.runs for seed in range(1, seeds + 1)]


def fight(bout: Bout) -> dict[str, float]:
    """Runs a bout. The same bout gives the same figures, on any machine and in any process."""
    match = load_match(bout.match)
    run = match.runs[bout.run]
    try:
        if bout.run in match.counted:
            requests = requests_of(run.workload, bout.seed)
            return {"late": 100 * (1 - most_in_time(requests, engine_config(run.engine)) / len(requests))}
        policy = make_policy(run.policy, run.params, run.modifiers)
        if bout.run not in match.told_truth:
            return execute(policy, run.engine, run.workload, run.replicas, run.goodput, bout.seed)
        engine = make_engine(engine_config(run.engine), policy, estimator=Truth())
        if run.workload.get("kind") == "driftsched":
            lives = driftsched.run_phases(engine, bout.seed, (driftsched.CALIBRATION, driftsched.STRESS))
        else:
            lives = engine.run(requests_of(run.workload, bout.seed))
    except SetupError as problem:
        raise ScenarioError(f"{bout.match}: run {bout.run!r}: {problem}") from problem
    return measure(lives, [engine])


def bout_name(bout: Bout) -> str:
    """Names a bout's figures for keeping: it changes with its settings and with the code."""
    match = load_match(bout.match)
    role = ("told" if bout.run in match.told_truth else "") + ("counted" if bout.run in match.counted else "")
    settings = json.dumps([asdict(match.runs[bout.run]), role, bout.seed], sort_keys=True)
    return f"duel-{bout.match}-{hashlib.sha256(f'{code_digest()}{settings}'.encode()).hexdigest()[:24]}"


def verdicts_of(match: Match, figures: Mapping[Bout, Mapping[str, float]], seeds: int = SEEDS) -> list[MatchResult]:
    """The match's table. Raises ScenarioError for a figure that no run has."""
    return [_verdict(match, duel, figures, seeds) for duel in match.duels]


def _verdict(match: Match, duel: Duel, figures: Mapping[Bout, Mapping[str, float]], seeds: int) -> MatchResult:
    def column(run: str) -> list[float]:
        results = [figures[Bout(match.name, run, seed)] for seed in range(1, seeds + 1)]
        if any(duel.metric not in row for row in results):
            raise ScenarioError(f"{match.name}: run {run!r} has no figure {duel.metric!r}")
        return [row[duel.metric] for row in results]

    sign = -1.0 if duel.higher else 1.0
    ours = column(duel.ours)
    rivals = {name: column(name) for name in duel.rivals}
    best = min(rivals, key=lambda name: sign * _mean(rivals[name]))
    base = _mean(rivals[best])
    middle, low, high = paired(ours, rivals[best])
    limits = [_mean(column(name)) for name in duel.limits]
    if sign * middle == 0 or low <= 0 <= high:
        word = "as good"
    else:
        word = "better" if sign * middle < 0 else "worse"
    scale = 100 / base if base else math.nan
    return MatchResult(
        scenario=match.id,
        row=duel.name,
        metric=duel.metric,
        unit=duel.unit,
        best=best,
        theirs=base,
        ours=_mean(ours),
        limit=min(limits, key=lambda value: sign * value) if limits else None,
        difference=middle * scale if base else 0.0,
        low=low * scale if base else 0.0,
        high=high * scale if base else 0.0,
        verdict=word,
        note=duel.note if word == "worse" else "",
    )


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Mean difference, and its 95 % interval by Student's t over the seeds. Raises ValueError for less than two."""
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(gaps) < 2:
        raise ValueError("an interval needs at least two seeds")
    middle, half = mean_and_half(gaps)
    return middle, middle - half, middle + half


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
