"""`manage.py lab shift`: prompts change half-way. How long until the pool is as good again as one tuned for them?

One replica of 16 slots, bursts of a minute in every four at 1.7 times the mean rate, so that queues build up and clear.
Before the shift four of five prompts are short, after it four of five are long. In ``same`` every prompt draws its tier
by the shares of the shipped tiers; in ``swapped`` it is as well who sends them that changes: before, short prompts are
premium and standard, and long ones batch; after, the other way round.

The pool starts with values tuned for what comes before the shift. ``oracle`` gets, at the shift, those tuned for what
comes after it. With ``limits`` requests pass the product's admission: each tier has an entitlement whose concurrency is
its share of the requests as a share of the slots, and what is refused was not in time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table as Grid

import scheduling.tuning
from controlplane.lab.plot import Panel, Series, draw
from controlplane.lab.tables import Figures, figure
from scheduling.core.step_time import load_preset
from scheduling.simulator.compare import GRANT_DELAY_S, SHIPPED, limits_of
from scheduling.simulator.kernel import rng
from scheduling.simulator.lab import code_digest
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replay import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import pick_tier
from scheduling.tuning.rehearsal import Loop, attainment, best_values
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import SPACES, defaults, params_of, queues_of
from scheduling.tuning.traffic import Serving, Traffic

PRESET, SLOTS = "llama-3-8b-a100", 16
BEFORE_S, AFTER_S = 600.0, 1800.0
RATES = (6.0, 3.4)  # requests/s before and after
LONG = (0.2, 0.8)  # share of long prompts
SHORT_PROMPT, LONG_PROMPT = (32, 256), (1024, 4096)  # tokens
SHORT_OUT, LONG_OUT = (16, 64), (32, 128)
PERIOD_S, PEAK_S, PEAK = 240.0, 60.0, 1.7
KINDS = ("same", "swapped")
MODES = ("automatic", "advise", "off")
# as shipped, but for a study every ten minutes on the last 1000 requests
SETTINGS = LoopSettings(every_s=600.0, window_s=1200.0, most_requests=1000, interval_s=120.0)
ORACLE = 16  # trials of what the pool starts with, and of what is best after the shift
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
    limits: bool = False  # entitlements and tiers refuse as live


def jobs(policy: str, seeds: int, follows_s: float, limits: bool = False) -> list[Job]:
    return [
        Job(kind, policy, mode, seed, follows_s, limits)
        for kind in KINDS
        for seed in range(1, seeds + 1)
        for mode in (*MODES, "oracle")
    ]


def rows_of(kind: str, seed: int, until_s: float, shift_s: float, from_s: float = 0.0) -> tuple[Recorded, ...]:
    """Requests of a stretch of time; what comes at ``shift_s`` or later is of the second mix."""
    arrivals, draw_, tiers = (rng(seed, f"shift {name}") for name in ("arrivals", "lengths", "tiers"))
    low = (PERIOD_S - PEAK_S * PEAK) / (PERIOD_S - PEAK_S)
    rows: list[Recorded] = []
    at = from_s
    while True:
        rate = RATES[at >= shift_s] * (PEAK if at % PERIOD_S < PEAK_S else low)
        at += arrivals.expovariate(rate)
        if at >= until_s:
            return tuple(rows)
        after = at >= shift_s
        long = draw_.random() < LONG[after]
        given = draw_.randint(*(LONG_PROMPT if long else SHORT_PROMPT))
        out = LONG_OUT if long else SHORT_OUT
        mixed = pick_tier(tiers, SHIPPED)
        name = mixed.name
        if kind == "swapped":
            name = pick_tier(tiers, SHIPPED[:2]).name if long == after else "batch"
        rows.append(
            Recorded(at, given, draw_.randint(*out), name, name, expected_tokens=sum(out) / 2, output_bound=LONG_OUT[1])
        )


def run_job(job: Job) -> Figures:
    """Attainment by windows, and what the loop did."""
    preset = load_preset(PRESET)
    replicas = (Replica(preset.step_time, SLOTS, preset.kv_tokens, preset.token_budget, None, "priority"),)
    rows = rows_of(job.kind, job.seed, BEFORE_S + AFTER_S, BEFORE_S)
    pool = Traffic(rows, SHIPPED, replicas, signal_s=GRANT_DELAY_S)
    if job.limits:
        spec, entitlements = limits_of(pool.requests(), SLOTS * len(replicas))
        pool = replace(pool, pool=spec, entitlements=entitlements)
    earlier = replace(pool, rows=rows_of(job.kind, 1000 + job.seed, BEFORE_S / 2, math.inf))
    seen = [row.input_tokens for row in earlier.rows]
    start = defaults(SPACES[job.policy])
    serving = Serving(job.policy, params_of(start, queues_of(start, seen)))
    values, params = best_values(earlier, serving, start, SETTINGS, ORACLE, job.seed)
    serving = replace(serving, params=params)
    loop = Loop(pool, serving, values, seen, SETTINGS, job.mode, job.follows_s, job.seed)
    if job.mode == "oracle":
        later = replace(pool, rows=rows_of(job.kind, 2000 + job.seed, BEFORE_S / 2, 0.0))
        _, best = best_values(later, serving, values, SETTINGS, ORACLE, job.seed)
        outcomes = loop.run_told(BEFORE_S, replace(serving, params=best))
    else:
        outcomes = loop.run()
    first = rows[0].arrival_s  # outcomes count from the first arrival
    figures = {f"slo.{n}": share for n, share in enumerate(_windows(outcomes, first))}
    figures["after"] = attainment(outcomes, BEFORE_S - first, math.inf)
    asked = [outcome for outcome in outcomes if outcome.arrival_s >= BEFORE_S - first]
    figures["refused"] = 100.0 * sum(bool(outcome.refused) for outcome in asked) / len(asked)
    for what in ("repartition", "rejected", "proposed", "canary", "promoted", "rolled back"):
        figures[what] = float(sum(step.what == what for step in loop.done))
    kept = [step.at_s - BEFORE_S for step in loop.done if step.what == "promoted" and step.at_s > BEFORE_S]
    figures["first promoted"] = kept[0] if kept else math.nan
    return figures


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
    for path in [*sorted(Path(scheduling.tuning.__file__).parent.glob("*.py")), Path(__file__)]:
        digest.update(path.read_bytes())
    return f"shift-{digest.hexdigest()[:24]}"


def rows_of_table(figures_of: Mapping[Job, Figures]) -> list[dict[str, object]]:
    """For each kind and mode, over the seeds: times back (null: never), attainment after the shift, what was done."""
    table: list[dict[str, object]] = []
    for kind in KINDS:
        for mode in (*MODES, "oracle"):
            mine = sorted((job for job in figures_of if (job.kind, job.mode) == (kind, mode)), key=lambda job: job.seed)
            back = [back_s(figures_of[job], figures_of[replace(job, mode="oracle")]) for job in mine]
            table.append({
                "workload": kind, "mode": mode, "back_s": [None if math.isnan(value) else value for value in back],
                "after": [figures_of[job]["after"] for job in mine],
                "refused": [figures_of[job]["refused"] for job in mine],
                **{name: sum(figures_of[job][name] for job in mine) / len(mine)
                   for name in ("repartition", "rejected", "canary", "promoted", "rolled back")},
                "first_promoted_s": [None if math.isnan(v := figures_of[job]["first promoted"]) else v for job in mine],
            })  # fmt: skip
    return table


def grid_of(policy: str, table: Sequence[Mapping[str, object]]) -> Grid:
    grid = Grid(
        "workload", "loop", "within 2 points again after s, by seed", "SLO after the shift %", "least seed %",
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
            figure(sum(after) / len(after)),
            figure(min(after)),
            figure(sum(refused) / len(refused)),
            *(f"{row[name]:.1f}" for name in ("repartition", "rejected", "canary", "promoted", "rolled back")),
        )
    return grid


def drawing(policy: str, figures_of: Mapping[Job, Figures]) -> str:
    """SLO attainment of the five minutes up to a moment, mean over the seeds."""
    xs = tuple((at + WINDOW_S) / 60.0 for at in places())
    panels = []
    for kind in KINDS:
        series = []
        for mode in ("oracle", *MODES):
            mine = [figures for job, figures in figures_of.items() if (job.kind, job.mode) == (kind, mode)]
            ys = tuple(sum(row[f"slo.{n}"] for row in mine) / len(mine) for n in range(len(xs)))
            series.append(Series({"oracle": "tuned for it beforehand"}.get(mode, f"loop {mode}"), ys))
        title = {"same": "tiers stay", "swapped": "long prompts become the urgent ones"}[kind]
        panels.append(Panel(title, "SLO attainment of 5 min, %", xs, tuple(series), x_label="minutes after the shift"))
    return draw(f"{policy}: short prompts give way to long ones", panels)
