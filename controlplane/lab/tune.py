"""`manage.py lab tune`: the optimiser on recorded traffic, seed by seed, with random search and the default beside."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.table import Table as Grid

import scheduling.tuning
from controlplane.lab.plot import Panel, Series, draw
from controlplane.lab.tables import Figures, figure
from scheduling.simulator.compare import Case, fingerprint
from scheduling.simulator.lab import code_digest
from scheduling.tuning.offline import Trial, random_search, tune
from scheduling.tuning.space import space_of

PART = 10  # random trials done in one go
ENOUGH = 0.95  # of the best random trial


@dataclass(frozen=True, slots=True)
class Search:
    """One run of the optimiser (``part`` 0), or one part of random search."""

    case: Case
    trials: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """What one seed came to on one trace."""

    trace: str
    seed: int
    default_reward: float
    rewards: tuple[float, ...]  # of the trials after the default, in order
    random_rewards: tuple[float, ...]
    best_parameters: Mapping[str, float]

    @property
    def random_best(self) -> float:
        return max(self.random_rewards, default=math.nan)

    @property
    def so_far(self) -> tuple[float, ...]:
        """The best reward after 0 (the default), 1, 2 ... trials."""
        return tuple(accumulate((self.default_reward, *self.rewards), max))

    @property
    def enough_after(self) -> int | None:
        """Trials until the best is 95 % of the best random one; None: not within these."""
        return next((n for n, best in enumerate(self.so_far) if best >= ENOUGH * self.random_best), None)

    def as_json(self) -> dict[str, Any]:
        columns = asdict(self)
        del columns["random_rewards"]
        return {**columns, "random_best": None if math.isnan(self.random_best) else self.random_best}


def searches(case: Case, trials: int, random: int) -> Iterator[Search]:
    """What has to be run for one case: its seed is that of the workload and of the optimiser."""
    yield Search(case, trials)
    for part, start in enumerate(range(0, random, PART), 1):
        yield Search(case, min(PART, random - start), part)


def run_search(search: Search) -> Figures:
    """The rewards in order, and the best values. Raises what :func:`scheduling.simulator.compare.prepare` raises."""
    case = search.case
    if search.part:
        trials = random_search(case, search.trials, f"random search {case.seed}, part {search.part}")
    else:
        tuned = tune(case, search.trials, case.seed)
        trials = [tuned.default, *tuned.trials]
    best: Trial = max(trials, key=lambda trial: trial.reward)
    rewards = {f"reward.{number}": trial.reward for number, trial in enumerate(trials)}
    return {**rewards, **{f"best.{name}": value for name, value in best.values.items()}}


def kept_name(search: Search) -> str:
    """The file that a search's figures are kept in."""
    digest = hashlib.sha256(f"{search.trials} {search.part} {fingerprint(search.case, code_digest())}".encode())
    for path in sorted(Path(scheduling.tuning.__file__).parent.glob("*.py")):
        if path.stem != "optimizer" or not search.part:
            digest.update(path.read_bytes())
    return f"tune-{digest.hexdigest()[:24]}"


def lines_of(jobs: Sequence[Search], figures_of: Mapping[Search, Figures]) -> list[Line]:
    """A line for each case, in order."""
    lines = []
    for case in dict.fromkeys(job.case for job in jobs):
        mine = sorted((job for job in jobs if job.case == case), key=lambda job: job.part)
        default, *rewards = _rewards(figures_of[mine[0]])
        drawn = tuple(reward for job in mine[1:] for reward in _rewards(figures_of[job]))
        best = {knob.name: figures_of[mine[0]][f"best.{knob.name}"] for knob in space_of(case.policy)}
        lines.append(Line(case.name, case.seed, default, tuple(rewards), drawn, best))
    return lines


def _rewards(figures: Figures) -> list[float]:
    return [figures[f"reward.{n}"] for n in range(sum(name.startswith("reward.") for name in figures))]


def grid_of(policy: str, lines: Sequence[Line]) -> Grid:
    """One row for each trace: means over the seeds, and the worst seed."""
    trials = len(lines[0].rewards)
    grid = Grid(
        "trace", "seeds", "default", f"best of {trials} trials", f"best of {len(lines[0].random_rewards)} random",
        "share of it %", "worst seed %", "trials to 95 %", title=f"{policy}: mean reward",
    )  # fmt: skip
    for trace in dict.fromkeys(line.trace for line in lines):
        mine = [line for line in lines if line.trace == trace]
        shares = [100.0 * line.so_far[-1] / line.random_best for line in mine]
        after = [line.enough_after for line in mine]
        enough = ", ".join("never" if n is None else str(n) for n in after)
        means = [_mean([pick(line) for line in mine]) for pick in _COLUMNS]
        grid.add_row(
            trace, str(len(mine)), *(f"{value:.4f}" for value in means), figure(_mean(shares)), figure(min(shares)),
            "" if math.isnan(means[2]) else enough,
        )  # fmt: skip
    return grid


_COLUMNS: tuple[Callable[[Line], float], ...] = (
    lambda line: line.default_reward,
    lambda line: line.so_far[-1],
    lambda line: line.random_best,
)


def drawing(policy: str, lines: Sequence[Line]) -> str:
    """The best reward so far against the trial, of the mean seed, with random search and the default beside it."""
    panels = []
    for trace in dict.fromkeys(line.trace for line in lines):
        mine = [line for line in lines if line.trace == trace]
        scale = _mean([line.random_best for line in mine])
        scale = 100.0 if math.isnan(scale) else 100.0 / scale
        xs = tuple(float(n) for n in range(len(mine[0].so_far)))

        def means(rows: Sequence[Sequence[float]], scale: float = scale) -> tuple[float, ...]:
            return tuple(scale * _mean(column) for column in zip(*rows, strict=True))

        drawn = [tuple(accumulate(line.random_rewards, max)) for line in mine]
        random = means([(line.default_reward, *row)[: len(xs)] for line, row in zip(mine, drawn, strict=True)])
        default = (scale * _mean([line.default_reward for line in mine]),) * len(xs)
        series = [Series("optimiser", means([line.so_far for line in mine])), Series("default", default)]
        if mine[0].random_rewards:
            least = tuple(scale * value for value in map(min, zip(*(line.so_far for line in mine), strict=True)))
            series.insert(1, Series("optimiser, worst seed", least))
            series.append(Series("random search", random + (math.nan,) * (len(xs) - len(random))))
            series.append(Series("95 % of the best random trial", (95.0,) * len(xs)))
        label = "reward, % of the best random" if mine[0].random_rewards else "reward, %"
        panels.append(Panel(trace, label, xs, tuple(series), x_label="trial"))
    return draw(f"{policy}: best reward so far", panels, columns=3)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
