"""`manage.py lab shift`: the mix changes half-way. What is that worth to a pool that is tuned, and to one that is not?

One replica of 16 slots, bursts of a minute in every four at 1.7 times the mean rate, so that queues build up and clear.
Before the shift four of five prompts are short. After it

* ``same``: four of five are long, and every prompt draws its tier by the shares of the shipped tiers, as before;
* ``swapped``: so they are, and who sends them changes as well: before, short prompts are premium and standard, and long
  ones batch; after, the other way round;
* ``documents``: two of five requests are premium with long prompts, and more than the replica can serve arrives.

The pool starts with what a new pool has. ``random`` is the loop with eight random points in place of a study's search;
``oracle`` gets, at the shift, what a study finds on traffic of the second mix. ``hindsight`` gets what is best on the
very traffic that is measured (:mod:`controlplane.lab.hindsight`), so that what there is to gain is known. With
``limits`` requests pass the product's admission: each tier has an entitlement whose concurrency is its share of the
requests as a share of the slots, and what is refused was not in time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table as Grid

import scheduling.tuning
from controlplane.lab import hindsight
from controlplane.lab.plot import Panel, Series, draw
from controlplane.lab.tables import Figures, figure
from scheduling.core.engine.step_time import load_preset
from scheduling.simulator.compare import GRANT_DELAY_S, limits_of
from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.kernel import rng
from scheduling.simulator.lab import code_digest
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import Tier, pick_tier
from scheduling.tuning.rehearsal import Loop, attainment, blind, study
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import SPACES, defaults, params_of, queues_of
from scheduling.tuning.traffic import Room, Serving, Traffic

PRESET, SLOTS = "llama-3-8b-a100", 16
DEFAULT = "unified"  # the policy of a new pool
BEFORE_S, AFTER_S = 300.0, 1200.0
SAME, SWAPPED, DOCUMENTS = KINDS = ("same", "swapped", "documents")
RATES = {SAME: (6.0, 3.4), SWAPPED: (6.0, 3.4), DOCUMENTS: (6.0, 5.0)}  # requests/s before and after
LONG = (0.2, 0.8)  # share of long prompts
DOCUMENT_SHARES = {"premium": 0.4, "standard": 0.45, "batch": 0.15}
SHORT_PROMPT, LONG_PROMPT = (32, 256), (1024, 4096)  # tokens
SHORT_OUT, LONG_OUT = (16, 64), (32, 128)
PERIOD_S, PEAK_S, PEAK = 240.0, 60.0, 1.7
HINDSIGHT = "hindsight"
MODES = ("automatic", "advise", "random", "off")
# as shipped, but for smaller studies, every five minutes
SETTINGS = LoopSettings(every_s=300.0, window_s=480.0, most_requests=900, interval_s=120.0, trials=16)
WINDOW_S, STEP_S = 300.0, 30.0  # of attainment
WITHIN = 2.0  # points of the oracle's attainment


@dataclass(frozen=True, slots=True)
class Job:
    """One mode on one seed's traffic; mode "oracle" is told. A person follows advice after ``follows_s``."""

    kind: str
    policy: str
    mode: str
    seed: int
    follows_s: float
    settled: bool = False  # one study on what came first after the shift, measured on what comes then
    limits: bool = False  # entitlements and tiers refuse as live


def modes_of(settled: bool) -> tuple[str, ...]:
    """The modes that are compared by default."""
    return ("automatic", "random", "off", HINDSIGHT) if settled else (*MODES, "oracle")


def jobs(
    policy: str,
    seeds: int,
    follows_s: float,
    kinds: Sequence[str] = KINDS,
    modes: Sequence[str] = (*MODES, "oracle"),
    settled: bool = False,
    limits: bool = False,
) -> list[Job]:
    return [
        Job(kind, policy, mode, seed, follows_s, settled, limits)
        for kind in kinds
        for seed in range(1, seeds + 1)
        for mode in modes
    ]


def rows_of(kind: str, seed: int, until_s: float, shift_s: float, from_s: float = 0.0) -> tuple[Recorded, ...]:
    """Requests of a stretch of time; what comes at ``shift_s`` or later is of the second mix."""
    arrivals, draw_, tiers = (rng(seed, f"shift {name}") for name in ("arrivals", "lengths", "tiers"))
    low = (PERIOD_S - PEAK_S * PEAK) / (PERIOD_S - PEAK_S)
    rows: list[Recorded] = []
    at = from_s
    while True:
        rate = RATES[kind][at >= shift_s] * (PEAK if at % PERIOD_S < PEAK_S else low)
        at += arrivals.expovariate(rate)
        if at >= until_s:
            return tuple(rows)
        after = at >= shift_s
        long = draw_.random() < LONG[after]
        mixed = pick_tier(tiers, SHIPPED)
        if kind == SWAPPED:
            mixed = pick_tier(tiers, SHIPPED[:2]) if long == after else SHIPPED[2]
        if kind == DOCUMENTS and after:
            mixed = pick_tier(tiers, _SHARED)
            long = mixed.name == "premium"
        given = draw_.randint(*(LONG_PROMPT if long else SHORT_PROMPT))
        out = LONG_OUT if long or (kind == DOCUMENTS and after) else SHORT_OUT
        name = mixed.name
        rows.append(
            Recorded(at, given, draw_.randint(*out), name, name, expected_tokens=sum(out) / 2, output_bound=LONG_OUT[1])
        )


_SHARED: tuple[Tier, ...] = tuple(replace(tier, share=DOCUMENT_SHARES[tier.name]) for tier in SHIPPED)


def run_job(job: Job) -> Figures:
    """Attainment by windows, and what the loop did."""
    preset = load_preset(PRESET)
    replicas = (Replica(preset.step_time, SLOTS, preset.kv_tokens, preset.token_budget, None, "priority"),)
    rows = rows_of(job.kind, job.seed, BEFORE_S + AFTER_S, BEFORE_S)
    pool = Traffic(rows, SHIPPED, replicas, signal_s=GRANT_DELAY_S)
    if job.limits:
        spec, entitlements = limits_of(pool.requests(), SLOTS * len(replicas))
        pool = replace(pool, pool=spec, entitlements=entitlements)
    seen = [row.input_tokens for row in rows_of(job.kind, 1000 + job.seed, BEFORE_S / 2, math.inf)]
    serving = starting(job.policy, seen)
    if job.settled:
        return _settled(job, pool, serving)
    loop = Loop(pool, serving, seen, SETTINGS, job.mode, job.follows_s, job.seed)
    if job.mode == "oracle":
        later = replace(pool, rows=rows_of(job.kind, 2000 + job.seed, SETTINGS.window_s, 0.0))
        best, _ = study(later, serving, SETTINGS, job.seed)
        outcomes = loop.run_with_change(BEFORE_S, best or serving)
    else:
        outcomes = loop.run()
    first = rows[0].arrival_s  # outcomes count from the first arrival
    figures = {f"slo.{n}": share for n, share in enumerate(_windows(outcomes, first))}
    figures["after"] = attainment(outcomes, BEFORE_S - first, math.inf)
    figures["refused"] = _refused(outcomes, BEFORE_S - first)
    for tier in SHIPPED:
        mine = [outcome for outcome in outcomes if outcome.tier == tier.name]
        figures[f"after.{tier.name}"] = attainment(mine, BEFORE_S - first, math.inf)
    for what in ("repartition", "rejected", "proposed", "canary", "promoted", "rolled back"):
        figures[what] = float(sum(step.what == what for step in loop.done))
    kept = [step.at_s - BEFORE_S for step in loop.done if step.what == "promoted" and step.at_s > BEFORE_S]
    figures["first promoted"] = kept[0] if kept else math.nan
    return figures


def _refused(outcomes: Sequence[Outcome], from_s: float) -> float:
    """What was refused of all that was asked from a moment on [%]."""
    asked = [outcome for outcome in outcomes if outcome.arrival_s >= from_s]
    return 100.0 * sum(bool(outcome.refused) for outcome in asked) / len(asked)


def _settled(job: Job, pool: Traffic, serving: Serving) -> Figures:
    """Attainment after a study on the first minutes of the second mix, over what comes after these."""
    known_s = BEFORE_S + SETTINGS.window_s
    later = [row for row in pool.rows if row.arrival_s >= BEFORE_S]
    seen = tuple(row for row in later if row.arrival_s < known_s)[-SETTINGS.most_requests :]
    fresh = replace(pool, rows=tuple(row for row in later if known_s <= row.arrival_s))
    search = {"automatic": study, "random": blind}.get(job.mode)
    best, _ = (None, "") if search is None else search(replace(pool, rows=seen), serving, SETTINGS, job.seed)
    if job.mode == HINDSIGHT:
        best = hindsight.best_of(fresh, serving, SETTINGS.drop, job.seed)
    outcomes = fresh.serve(best or serving)
    figures = {
        "after": attainment(outcomes, 0.0, math.inf),
        "refused": _refused(outcomes, 0.0),
        "proposed": float(best is not None),
    }
    if job.mode == HINDSIGHT:
        figures["bound"] = hindsight.bound_of(fresh)
    for tier in SHIPPED:
        figures[f"after.{tier.name}"] = attainment([o for o in outcomes if o.tier == tier.name], 0.0, math.inf)
    return figures


def settled_grid(table: Sequence[Mapping[str, object]]) -> Grid:
    title = "after one study of the second mix; hindsight: the best on what is measured, no tier paying"
    grid = Grid("workload", "setting", "proposed", "SLO %, by seed", "mean %", "no scheduler exceeds %", title=title)
    for row in table:
        after = row["after"]
        assert isinstance(after, list)
        by_seed = ", ".join(figure(value) for value in after)
        bound = row["bound"]
        assert isinstance(bound, list)
        most = ", ".join(figure(value) for value in bound)
        grid.add_row(str(row["workload"]), str(row["mode"]), f"{row['proposed']}", by_seed, figure(_mean(after)), most)
    return grid


def settled_rows(figures_of: Mapping[Job, Figures]) -> list[dict[str, object]]:
    """For each kind and mode: attainment by seed, of all and of each tier, and how many studies proposed something."""
    table: list[dict[str, object]] = []
    for kind in dict.fromkeys(job.kind for job in figures_of):
        for mode in dict.fromkeys(job.mode for job in figures_of):
            mine = sorted((job for job in figures_of if (job.kind, job.mode) == (kind, mode)), key=lambda job: job.seed)
            table.append({
                "workload": kind, "mode": mode, "after": [figures_of[job]["after"] for job in mine],
                "proposed": sum(figures_of[job]["proposed"] for job in mine),
                "tiers": {tier.name: [figures_of[job][f"after.{tier.name}"] for job in mine] for tier in SHIPPED},
                "bound": [figures_of[job]["bound"] for job in mine if "bound" in figures_of[job]],
            })  # fmt: skip
    return table


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def starting(policy: str, seen: Sequence[int]) -> Serving:
    """What the pool begins with: the policy's defaults, its queues cut from prompts that were seen."""
    params = {}
    if policy in SPACES and policy != DEFAULT:
        values = defaults(SPACES[policy])
        params = params_of(values, queues_of(values, seen))
    return Serving(policy, params, room=Room())


def places() -> list[float]:
    """Where windows begin [s after the shift]."""
    return [n * STEP_S - BEFORE_S for n in range(int((BEFORE_S + AFTER_S - WINDOW_S) / STEP_S) + 1)]


def _windows(outcomes: Sequence[Outcome], first: float) -> list[float]:
    return [attainment(outcomes, BEFORE_S + at - first, BEFORE_S + at + WINDOW_S - first) for at in places()]


def back_s(mode: Figures, oracle: Figures) -> float:
    """Seconds after the shift from which on no window is more than two points below the oracle's; nan for never."""
    back = math.nan
    for n, at in reversed(list(enumerate(places()))):
        if at < 0 or mode[f"slo.{n}"] < oracle[f"slo.{n}"] - WITHIN:
            return back
        back = at
    return back


def kept_name(job: Job) -> str:
    """The file that a job's figures are kept in."""
    digest = hashlib.sha256(f"{job} {code_digest()}".encode())
    own = (Path(__file__), Path(hindsight.__file__))
    for path in [*sorted(Path(scheduling.tuning.__file__).parent.glob("*.py")), *own]:
        digest.update(path.read_bytes())
    return f"shift-{digest.hexdigest()[:24]}"


def rows_of_table(figures_of: Mapping[Job, Figures]) -> list[dict[str, object]]:
    """For each kind and mode, over the seeds: times back (null: never), attainment after the shift, what was done."""
    table: list[dict[str, object]] = []
    for kind in dict.fromkeys(job.kind for job in figures_of):
        for mode in dict.fromkeys(job.mode for job in figures_of):
            mine = sorted((job for job in figures_of if (job.kind, job.mode) == (kind, mode)), key=lambda job: job.seed)
            back = [
                back_s(figures_of[job], oracle) if (oracle := figures_of.get(replace(job, mode="oracle"))) else math.nan
                for job in mine
            ]
            table.append({
                "workload": kind, "mode": mode, "back_s": [None if math.isnan(value) else value for value in back],
                "after": [figures_of[job]["after"] for job in mine],
                "refused": [figures_of[job]["refused"] for job in mine],
                "tiers": {tier.name: [figures_of[job][f"after.{tier.name}"] for job in mine] for tier in SHIPPED},
                **{name: sum(figures_of[job][name] for job in mine) / len(mine)
                   for name in ("repartition", "rejected", "canary", "promoted", "rolled back")},
                "first_promoted_s": [None if math.isnan(v := figures_of[job]["first promoted"]) else v for job in mine],
            })  # fmt: skip
    return table


def grid_of(policy: str, table: Sequence[Mapping[str, object]]) -> Grid:
    grid = Grid(
        "workload", "loop", "within 2 points again after s, by seed", "SLO after the shift %, by seed", "mean %",
        "refused %", "queues cut", "rejected", "canaries", "kept", "taken back", title=f"{policy}: prompts change",
    )  # fmt: skip
    for row in table:
        back, after, refused = row["back_s"], row["after"], row["refused"]
        assert isinstance(back, list)
        assert isinstance(after, list)
        assert isinstance(refused, list)
        times = ", ".join("never" if value is None else f"{value:.0f}" for value in back)
        grid.add_row(
            str(row["workload"]),
            str(row["mode"]),
            times if row["mode"] != "oracle" else "",
            ", ".join(figure(value) for value in after),
            figure(sum(after) / len(after)),
            figure(sum(refused) / len(refused)),
            *(f"{row[name]:.1f}" for name in ("repartition", "rejected", "canary", "promoted", "rolled back")),
        )
    return grid


def drawing(policy: str, figures_of: Mapping[Job, Figures]) -> str:
    """SLO attainment of the five minutes up to a moment, mean over the seeds."""
    xs = tuple((at + WINDOW_S) / 60.0 for at in places())
    panels = []
    for kind in dict.fromkeys(job.kind for job in figures_of):
        series = []
        for mode in dict.fromkeys(job.mode for job in figures_of):
            mine = [figures for job, figures in figures_of.items() if (job.kind, job.mode) == (kind, mode)]
            ys = tuple(sum(row[f"slo.{n}"] for row in mine) / len(mine) for n in range(len(xs)))
            series.append(Series({"oracle": "tuned for it beforehand"}.get(mode, f"loop {mode}"), ys))
        title = {
            SAME: "tiers stay", SWAPPED: "long prompts become the urgent ones", DOCUMENTS: "premium sends documents"
        }[kind]  # fmt: skip
        panels.append(Panel(title, "SLO attainment of 5 min, %", xs, tuple(series), x_label="minutes after the shift"))
    return draw(f"{policy}: short prompts give way to long ones", panels)
