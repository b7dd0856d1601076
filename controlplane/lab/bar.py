"""`manage.py lab bar`: is any shipped composition better than the default policy, in front of the engines?

It runs every ordering alone, and the orderings by deadline or cost inside modifiers, on each trace at each load. A draw
is one part of the recording with tiers drawn from one seed. All compositions run the first :data:`FIRST` draws; those
that are then far behind the default do not run the others, and their rows show the smaller number of draws.

Three conditions are checked. No composition has more than :data:`ALLOWED` points more requests in time than the default
on any trace and load. Without SLOs, the default's mean time to the last token is not above that of ``mean_cost``. The
default is ahead of ``edf``, ``hybrid`` and ``priority`` in the geometric mean over all traces and loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from controlplane.lab.tables import Figures, figure
from scheduling.core.policies.registry import orderings
from scheduling.simulator.compare import Case, CompareError, bare, parse_policy, prepare
from scheduling.simulator.duel import paired
from scheduling.simulator.servegen import is_servegen

DEFAULT = "unified"
WITHIN_MODIFIERS = ("edf", "hybrid", "mean_cost", "shortest")
AROUND = ("bands", "relegate", "bands+relegate")
RIVALS = ("edf", "hybrid", "priority")  # run with every draw, for the geometric mean
UNPROMISED = (DEFAULT, "mean_cost")
ALLOWED = 1.0  # points by which another composition may be better
FIRST = 3  # draws that all compositions run
BEHIND = 5.0  # points behind the default after those: the other draws are not run
BUSY = 10.0  # ServeGen has so many times the requests per minute of Azure's traces, so its draws are shorter


def shipped() -> list[str]:
    """The compositions to compare, the default first."""
    around = [f"{modifiers}+{name}" for name in WITHIN_MODIFIERS for modifiers in AROUND]
    others = [name for name in orderings() if name != DEFAULT]
    variants = [f"{DEFAULT}:relegate=2", f"relegate+{DEFAULT}:relegate=0", f"fair+{DEFAULT}"]
    return [DEFAULT, *others, *around, *variants]


@dataclass(frozen=True, slots=True)
class BarPlan:
    """Which traces and loads, and which part of them a draw has: ``minutes`` from ``start``, each ``step`` later."""

    traces: tuple[str, ...]
    lengths: str
    loads: tuple[float, ...]
    replicas: int
    seeds: int
    first_seed: int
    start: float = 2.0
    step: float = 3.0
    minutes: float = 4.0
    limits: bool = False  # entitlements and tiers refuse as live
    silent: frozenset[tuple[str, int]] = frozenset()  # trace and seed of draws in whose part too little arrives

    def draws(self, trace: str, load: float, promises: bool = True) -> list[Case]:
        """The draws of one trace at one load, without a policy."""
        busy = is_servegen(Path(trace))
        minutes, step = (self.minutes / BUSY, 60.0) if busy else (self.minutes, self.step)
        return [
            Case(
                trace,
                "",
                lengths=self.lengths if busy else "",
                replicas=self.replicas,
                load=load,
                from_minute=self.start + number % 10 * step,
                minutes=minutes,
                seed=self.first_seed + number,
                promises=promises,
                limits=self.limits and promises,
            )
            for number in range(self.seeds)
            if (trace, self.first_seed + number) not in self.silent
        ]

    def mixes(self) -> Iterator[tuple[str, float]]:
        yield from ((trace, load) for trace in self.traces for load in self.loads)


def with_silent_draws(asked: BarPlan) -> BarPlan:
    """Without the draws in whose part of the recording too little arrives to replay: Azure's code has pauses of
    minutes. Raises CompareError where fewer than :data:`FIRST` of a trace's draws are left."""
    silent: set[tuple[str, int]] = set()
    for trace in asked.traces:
        draws, why = asked.draws(trace, asked.loads[0]), None
        for case in draws:
            try:
                prepare(bare(case))
            except CompareError as problem:
                why = problem
                silent.add((trace, case.seed))
        if why is not None and len(draws) - sum(name == trace for name, _ in silent) < FIRST:
            raise why
    return replace(asked, silent=frozenset(silent))


def with_policy(case: Case, policy: str) -> Case:
    name, params = parse_policy(policy)
    return replace(case, policy=name, params=params)


def first_cases(asked: BarPlan, policies: Sequence[str]) -> list[Case]:
    """The draws that all compositions run, ordered by draw: its policies share what is prepared for it."""
    cases = []
    for trace, load in asked.mixes():
        for case in asked.draws(trace, load)[:FIRST]:
            cases += [with_policy(case, policy) for policy in policies]
    return cases


def unpromised_cases(asked: BarPlan) -> list[Case]:
    """Runs without SLOs, of the default and of the policy it is compared with."""
    draws = [case for trace, load in asked.mixes() for case in asked.draws(trace, load, promises=False)]
    return [with_policy(case, policy) for case in draws for policy in UNPROMISED]


def further_cases(asked: BarPlan, policies: Sequence[str], figures: Mapping[Case, Figures]) -> list[Case]:
    """The other draws, for compositions that are not far behind."""
    cases = []
    for trace, load in asked.mixes():
        draws = asked.draws(trace, load)
        reached = {
            policy: _mean([figures[with_policy(c, policy)]["kept"] for c in draws[:FIRST]]) for policy in policies
        }
        near = [name for name in policies if name in RIVALS or reached[name] >= reached[DEFAULT] - BEHIND]
        for case in draws[FIRST:]:
            cases += [with_policy(case, policy) for policy in near]
    return cases


@dataclass(frozen=True, slots=True)
class Line:
    """One policy on one trace at one load: means over its draws, and the difference to the default in points."""

    trace: str
    load: float
    policy: str
    draws: int
    figures: Figures
    worst: float  # of the draws, in time [%]
    best: float
    better: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Unpromised:
    """Mean time to the last token without promises [s], and by how much the default's is longer [%]."""

    trace: str
    load: float
    ours: float
    theirs: float
    longer: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Result:
    lines: list[Line]
    unpromised: list[Unpromised]

    @property
    def best(self) -> Line:
        """The composition furthest above the default."""
        return max((line for line in self.lines if line.policy != DEFAULT), key=lambda line: line.better)

    def geometric(self) -> dict[str, float]:
        """Geometric mean over all traces and loads of the share in time, for the default and its rivals [%]."""
        means = {}
        ran = {line.policy for line in self.lines}
        for policy in (name for name in (DEFAULT, *RIVALS) if name in ran):
            mine = [max(line.figures["kept"], 1e-9) for line in self.lines if line.policy == policy]
            means[policy] = math.exp(_mean([math.log(value) for value in mine]))
        return means

    def failures(self) -> list[str]:
        """The conditions that are not met, one sentence each."""
        failures = []
        for line in self.lines:
            if line.policy != DEFAULT and line.better > ALLOWED:
                failures.append(
                    f"{line.policy} is {line.better:.1f} points above the default on {line.trace} at {line.load:g}"
                )
        for row in self.unpromised:
            if row.low > 0:
                failures.append(
                    f"without SLOs {DEFAULT} takes {row.longer:.1f} % longer on {row.trace} at {row.load:g}"
                )
        means = self.geometric()
        for policy in means.keys() - {DEFAULT}:
            if means[policy] > means[DEFAULT]:
                both = f"{means[policy]:.1f} to {means[DEFAULT]:.1f} %"
                failures.append(f"{policy} is ahead of the default in the geometric mean: {both}")
        return failures


def result_of(asked: BarPlan, policies: Sequence[str], figures_of: Mapping[Case, Figures]) -> Result:
    lines, unpromised = [], []
    for trace, load in asked.mixes():
        draws = asked.draws(trace, load)
        mine = []
        for policy in policies:
            run = [case for case in draws if with_policy(case, policy) in figures_of]
            rows = [figures_of[with_policy(case, policy)] for case in run]
            gap = [
                row["kept"] - figures_of[with_policy(case, DEFAULT)]["kept"]
                for case, row in zip(run, rows, strict=True)
            ]
            better, low, high = paired(gap, [0.0] * len(gap)) if len(gap) > 1 else (gap[0], math.nan, math.nan)
            names = [name for name in rows[0] if all(name in row for row in rows)]
            figures = {name: _mean([row[name] for row in rows if not math.isnan(row[name])]) for name in names}
            kept = [row["kept"] for row in rows]
            mine.append(Line(draws[0].name, load, policy, len(run), figures, min(kept), max(kept), better, low, high))
        lines += sorted(mine, key=lambda line: (line.policy != DEFAULT, -line.better))
        bare = asked.draws(trace, load, promises=False)
        ours, theirs = ([figures_of[with_policy(case, name)]["ttlt.mean"] for case in bare] for name in UNPROMISED)
        gaps = [100.0 * (a / b - 1.0) for a, b in zip(ours, theirs, strict=True)]
        longer, low, high = paired(gaps, [0.0] * len(gaps)) if len(gaps) > 1 else (gaps[0], math.nan, math.nan)
        unpromised.append(Unpromised(bare[0].name, load, _mean(ours), _mean(theirs), longer, low, high))
    return Result(lines, unpromised)


def heading(asked: BarPlan) -> str:
    """Of the section: what it is about, so that each comparison has a section of its own."""
    names = " and ".join(dict.fromkeys(Case(trace, "").name for trace in asked.traces))
    loads = " and ".join(f"{load:g}" for load in asked.loads)
    return f"{names} at {loads} of capacity{', with limits' if asked.limits else ''}"


def section(result: Result, asked: BarPlan, policies: Sequence[str], day: date, command: str) -> str:
    """The page's section, computed on ``day`` by ``command``."""
    best, means = result.best, result.geometric()
    seeds = f"{asked.first_seed} to {asked.first_seed + asked.seeds - 1}"
    entry = "Every request is admitted."
    if asked.limits:
        entry = "Admission limits apply (`--limits`), and a refused request counts as late."
    parts = dict.fromkeys(
        f"{60 * case.minutes:g} s" for trace in asked.traces for case in asked.draws(trace, asked.loads[0])
    )
    notes = [
        f"{day.isoformat()}: {asked.seeds} draws (seeds {seeds}) of {' or '.join(parts)}, {asked.replicas} replicas.",
        entry,
        *([f"Left out, as too little arrives in their part: {len(asked.silent)} draws."] if asked.silent else []),
        *([] if set(policies) >= set(shipped()) else ["Only some of the shipped policies were run."]),
    ]
    out = [
        f"## {heading(asked)}",
        "",
        " ".join(notes),
        "",
        f"```\n{command}\n```",
        "",
        f"* Furthest above the default: `{best.policy}` on {best.trace} at {best.load:g},",
        f"  {best.better:+.1f} points ({best.low:+.1f} to {best.high:+.1f}). The condition is at most {ALLOWED:g}.",
        "* Geometric mean of the shares in time: "
        + ", ".join(f"`{name}` {value:.1f} %" for name, value in means.items())
        + ".",
        *(f"* **Not met**: {failure}." for failure in result.failures()),
        "",
        *_default_rows(result),
        "",
        *_policy_rows(result, asked),
    ]
    return "\n".join(out) + "\n"


def _default_rows(result: Result) -> list[str]:
    """How good the default is on each trace at each load, and beside ``mean_cost`` where nothing is promised."""
    ours = [line for line in result.lines if line.policy == DEFAULT]
    tiers = [name[5:] for name in ours[0].figures if name.startswith("kept.")]
    tiers.sort(key=lambda name: ("premium", "standard", "batch").index(name))
    head = [f"`{DEFAULT}` on", "in time %", "its draws", "bound %", "of the bound %"]
    head += [f"{tier} (bound) %" for tier in tiers]
    head += ["tokens/s", "without SLOs, mean TTLT s", f"`{UNPROMISED[1]}`", "longer % (95 %)"]
    out = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for line, bare_ in zip(ours, result.unpromised, strict=True):
        of = line.figures
        cells = [
            f"{line.trace} at {line.load:g}",
            f"{of['kept']:.1f}",
            f"{line.worst:.1f} to {line.best:.1f}",
            f"{of['bound']:.1f}",
            f"{of['of_bound']:.1f}",
            *(f"{of[f'kept.{tier}']:.1f} ({of[f'bound.{tier}']:.1f})" for tier in tiers),
            figure(of["tokens_per_s"]),
            figure(bare_.ours),
            figure(bare_.theirs),
            f"{bare_.longer:+.1f} ({bare_.low:+.1f} to {bare_.high:+.1f})",
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _policy_rows(result: Result, asked: BarPlan) -> list[str]:
    """Every composition, the best first: points of all in time above the default, and its share of premium and
    standard. Those that were dropped everywhere are one sentence."""
    mixes = list(dict.fromkeys((line.trace, line.load) for line in result.lines))
    of = {(line.policy, line.trace, line.load): line for line in result.lines}
    names = list(dict.fromkeys(line.policy for line in result.lines))
    rows = {name: [of[name, *mix] for mix in mixes] for name in names}
    most = {mix: max(of[name, *mix].draws for name in names) for mix in mixes}
    gaps = {name: _mean([line.better for line in lines]) for name, lines in rows.items()}
    ranked = sorted(names, key=lambda name: (name != DEFAULT, -gaps[name]))
    dropped = [
        name for name in ranked if all(line.draws < most[mix] for line, mix in zip(rows[name], mixes, strict=True))
    ]
    tiers = [tier for tier in ("premium", "standard") if f"kept.{tier}" in rows[DEFAULT][0].figures]
    head = ["policy"]
    for trace, load in mixes:
        head += [f"{f'{trace} ' if len(asked.traces) > 1 else ''}at {load:g}: points (95 %)", *tiers]
    out = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in ranked:
        if name in dropped:
            continue
        cells = [f"`{name}`"]
        for line, mix in zip(rows[name], mixes, strict=True):
            gap = "" if name == DEFAULT else f"{line.better:+.1f} ({line.low:+.1f} to {line.high:+.1f})"
            cells.append(gap + (f", {line.draws} draws" if line.draws < most[mix] else ""))
            cells += [f"{line.figures[f'kept.{tier}']:.1f}" for tier in tiers]
        out.append("| " + " | ".join(cells) + " |")
    if dropped:
        told = "; ".join(f"`{name}` " + ", ".join(f"{line.better:+.1f}" for line in rows[name]) for name in dropped)
        out += ["", f"More than {BEHIND:g} points behind after {FIRST} draws, and not run further [points]: {told}."]
    return out


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
