"""A study: which setting would have served recent traffic better? Successive halving over a structural space.

Candidates are tried in rounds. In the first, many of them serve a short stretch of the window, the busiest, because
where nobody waits settings do not differ; the better third serves a longer one, the best of those all of it (Jamieson
and Talwalkar 2016). What a tier loses on one stretch it may lose twice as much of on another, and the gate forgives
none of it: so what goes on is in turn the best of all, the best of those under which no tier loses more than half of
what it may, and the best of those under which none loses anything.

What the first round tries: what serves, what a new pool has, orders at their defaults, a few points at random, then in
turn what a forest of extremely randomised trees expects most of (scikit-optimize's, which has no trouble with words and
with numbers that exist only sometimes) and a neighbour of one of the best.

A third of the window, in blocks of time, is held out: one of each three that are about as busy. Nobody has
been chosen by it, and the gate (:mod:`scheduling.tuning.gate`) is held there: the best candidates meet what serves on
its variants, one after the other, until one wins.

Every step is one replay, and what replays came to is the only state: a study that is handed the rows of before goes
on as if it had not been interrupted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random
from typing import Any

from scheduling.core.policies.registry import PolicyError
from scheduling.simulator.recording import Recorded
from scheduling.simulator.workload import SimRequest
from scheduling.tuning.gate import GateDecision, Met, asked, decide, meet, promised_s, replays
from scheduling.tuning.merit import TierMerit, parts_of, plain_reward, reward
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.structure import Choice, Structure
from scheduling.tuning.traffic import BLOCKS, Serving, Traffic

HELD_OUT = 3  # one block of so many is held out
SHARES = (0.25, 0.5, 1.0)  # of the others, that a round serves
KEEP = 3  # one in so many goes on to the next round
GATED = 3  # of the best that may meet what serves: the very best one may win at somebody's cost
SPARED = (1.0, 0.5, 0.0)  # of the loss that a tier may have: what goes on is the best by each of these, in turn
AT_RANDOM = 4  # points before the trees are asked
BEST = 3  # whose neighbours are tried
LEAST_REQUESTS = 60  # requests of a round
MOST_TRIALS, MOST_PAIRS = 200, 30  # of a study
FEWEST = 100  # requests of a window that holds something out
SERVING, DEFAULT = 0, 1  # numbers of candidates
GATE = len(SHARES)  # number of the round that is the gate

ReplayRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One replay: of which candidate, in which round, on which variant of the held-out part at the gate."""

    round: int
    candidate: int
    variant: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One that was tried. ``reward`` and ``merit``: of the last round that it was in."""

    number: int
    point: Mapping[str, float | str]  # empty: what serves
    serving: Serving
    round: int
    reward: float
    merit: Mapping[str, TierMerit]
    decision: GateDecision | None = None

    @property
    def parts(self) -> dict[str, float]:
        return parts_of(self.merit)


class Search:
    """One study. ``replays``: what each came to so far, a list that grows; JSON."""

    def __init__(
        self,
        traffic: Traffic,
        serving: Serving,
        settings: LoopSettings,
        seed: int,
        replays: Sequence[ReplayRow] = (),
        *,
        places: bool = False,
    ) -> None:
        """Raises ValueError for a window too short to hold anything out."""
        # What somebody wrote as settings is bounded here, so that older values stay readable.
        trials, pairs = min(settings.trials, MOST_TRIALS), min(settings.pairs, MOST_PAIRS)
        self._settings, self._seed = replace(settings, trials=trials, pairs=pairs), int(seed)
        self._chosen_by, self._held_out = apart(traffic)
        self._structure = Structure(self._chosen_by, serving, places=places)
        self._first = serving
        self._anchors = self._structure.anchors()
        self._requests: dict[tuple[int, int], list[SimRequest]] = {}
        self._points: list[Mapping[str, float | str]] = [{}, self._structure.default()]
        self._merits: list[dict[int, Mapping[str, TierMerit]]] = [{} for _ in SHARES]
        self._met: dict[int, list[Met]] = {}
        self.replays: list[ReplayRow] = []
        for one in replays:
            self._learn(one)

    # --- what is next

    @property
    def tried(self) -> int:
        """Candidates of the first round."""
        return 2 + self._settings.trials

    @property
    def total(self) -> int:
        """Replays that it takes at most."""
        rounds = sum(2 + self._kept(number) for number in range(1, GATE))
        return self.tried + rounds + replays(self._settings) * (2 + GATED)

    def _kept(self, number: int) -> int:
        """How many go into a round, beside what serves and what a new pool has."""
        return max(GATED, math.ceil(self._settings.trials / float(KEEP**number)))

    def step(self) -> Step | None:
        """The next replay; None when it is over."""
        for number in range(GATE):
            for candidate in self._of_round(number):
                if candidate not in self._merits[number]:
                    return Step(number, candidate)
        finalists = self._finalists()
        for candidate in (SERVING, *([] if self._is_default() else [DEFAULT]), *finalists) if finalists else ():
            if candidate > DEFAULT and self._won() is not None:
                return None
            done = len(self._met.get(candidate, ()))
            if done < replays(self._settings):
                return Step(GATE, candidate, done + 1)
        return None

    def _is_default(self) -> bool:
        """Whether what serves came to the same as what a new pool has, which it then is."""
        last = self._merits[GATE - 1]
        return last[SERVING] == last[DEFAULT]

    def _of_round(self, number: int) -> list[int]:
        if number == 0:
            return list(range(self.tried))
        best = self._best(number - 1, [n for n in self._merits[number - 1] if n > DEFAULT])
        return [SERVING, DEFAULT, *sorted(best[: self._kept(number)])]

    def _best(self, number: int, among: Sequence[int]) -> list[int]:
        """In turn the best by each share of the loss that a tier may have."""
        orders = (sorted(among, key=lambda n: -self._reward(number, n, spared)) for spared in SPARED)
        return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))

    def _finalists(self) -> list[int]:
        last = self._merits[GATE - 1]
        better = [n for n in last if n != SERVING and self._reward(GATE - 1, n) > plain_reward(last[SERVING])]
        return self._best(GATE - 1, better)[:GATED]

    def _reward(self, number: int, candidate: int, spared: float = 1.0) -> float:
        merits = self._merits[number]
        held_against = [merits[number] for number in (SERVING, DEFAULT) if number in merits and number != candidate]
        return reward(merits[candidate], held_against, spared * self._settings.drop)

    # --- doing it

    def run(self, step: Step) -> None:
        """One replay. A candidate that cannot be made has no merit, and is out."""
        point = self._point(step.candidate)
        row: ReplayRow = {"round": step.round, "candidate": step.candidate}
        if step.round == 0:
            row["point"] = dict(point)
        try:
            met = meet(self._traffic(step), self._serving(step.candidate), self._asked(step))
        except PolicyError as error:
            row["invalid"] = str(error)
        else:
            row |= met.as_json() if step.round == GATE else {"merit": met.as_json()["merit"]}
        self._learn(row)

    def _learn(self, row: ReplayRow) -> None:
        number, candidate = int(row["round"]), int(row["candidate"])
        if number == 0 and candidate == len(self._points):
            self._points.append(row["point"])
        if number == GATE:
            self._met.setdefault(candidate, []).append(Met.from_json(row))
        elif "invalid" in row:
            self._merits[number][candidate] = {"": TierMerit(1.0, 1, 0, 1.0)}
        else:
            self._merits[number][candidate] = Met.from_json({**row, "waits": {}}).merit
        self.replays.append(row)

    def _traffic(self, step: Step) -> Traffic:
        if step.round == GATE:
            return self._held_out
        share = SHARES[step.round]
        return replace(self._chosen_by, rows=busiest(self._chosen_by.rows, share))

    def _asked(self, step: Step) -> list[SimRequest]:
        key = (step.round, step.variant)
        if key not in self._requests:
            traffic = self._traffic(step)
            gate = step.round == GATE
            self._requests[key] = asked(traffic, step.variant, self._settings) if gate else traffic.requests()
        return self._requests[key]

    def _serving(self, candidate: int) -> Serving:
        return self._first if candidate == SERVING else self._structure.serving(self._points[candidate])

    # --- what to try

    def _point(self, candidate: int) -> Mapping[str, float | str]:
        return self._points[candidate] if candidate < len(self._points) else self._propose(candidate)

    def _propose(self, candidate: int) -> Mapping[str, float | str]:
        """A point that follows from the seed and from the replays before, and from nothing else."""
        number, random = candidate - 2, Random(f"{self._seed} {candidate}")
        if number < len(self._anchors):
            point: Mapping[str, float | str] = self._anchors[number]
        elif number < len(self._anchors) + AT_RANDOM:
            point = self._structure.draw(random)
        elif number % 2:
            point = self._near(random)
        else:
            point = self._expected(candidate)
        if candidate == len(self._points):
            self._points.append(point)
        return point

    def _near(self, random: Random) -> Mapping[str, float | str]:
        """One of the best with one dimension changed."""
        best = sorted((n for n in self._merits[0] if n), key=lambda n: -self._reward(0, n))[:BEST]
        point = dict(self._points[random.choice(best)])
        dimension = random.choice([d for d in self._structure.dimensions if d.exists(point)])
        what = dimension.what
        if isinstance(what, Choice):
            point[what.name] = random.choice([word for word in what.options if word != point[what.name]])
        else:
            share = what.share(float(point[what.name])) + random.choice((-1.0, 1.0)) * random.uniform(0.1, 0.4)
            point[what.name] = what.at(min(1.0, max(0.0, share)))
        return self._structure.complete(point)

    def _expected(self, candidate: int) -> Mapping[str, float | str]:
        """What the trees expect most of."""
        from skopt import Optimizer as Trees  # two seconds of a core and 90 MB: only who asks them pays
        from skopt.space import Categorical, Real

        dimensions = self._structure.dimensions
        spaces = [
            Categorical(d.what.options, name=d.name) if isinstance(d.what, Choice) else Real(0.0, 1.0, name=d.name)
            for d in dimensions
        ]
        trees = Trees(
            spaces, base_estimator="ET", n_initial_points=1, acq_func="EI", acq_optimizer="sampling",
            random_state=self._seed * 1000 + candidate,
        )  # fmt: skip
        tried = [n for n in self._merits[0] if n]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where it would try a point again
            trees.tell([self._shares(self._points[n]) for n in tried], [-self._reward(0, n) for n in tried])
            asked = trees.ask()
        point: dict[str, float | str] = {}
        for dimension, value in zip(dimensions, asked, strict=True):
            what = dimension.what
            point[what.name] = str(value) if isinstance(what, Choice) else what.at(float(value))
        return self._structure.complete(point)

    def _shares(self, point: Mapping[str, float | str]) -> list[float | str]:
        """A point as the trees have it; a dimension that does not exist there has its default."""
        row: list[float | str] = []
        for dimension in self._structure.dimensions:
            what = dimension.what
            value = point.get(what.name, what.default)
            row.append(value if isinstance(what, Choice) else min(1.0, max(0.0, what.share(float(value)))))
        return row

    # --- what came of it

    def candidates(self) -> list[Candidate]:
        """All that have been tried, by number."""
        rows = []
        for number in sorted(self._merits[0]):
            last = max(r for r in range(GATE) if number in self._merits[r])
            merit = self._merits[last][number]
            own = self._reward(last, number)
            rows.append(
                Candidate(number, self._points[number], self._serving(number), last, own, merit, self.decision(number))
            )
        return rows

    def decision(self, candidate: int) -> GateDecision | None:
        """What the gate says of a finalist, once it has met all variants."""
        before, after = self._met.get(SERVING, []), self._met.get(candidate, [])
        if candidate == SERVING or min(len(before), len(after)) < replays(self._settings):
            return None
        default = [] if candidate == DEFAULT or self._is_default() else self._met.get(DEFAULT, [])
        return decide(before, after, self._settings, promised_s(self._held_out), default)

    def _won(self) -> int | None:
        for candidate in self._finalists():
            decision = self.decision(candidate)
            if decision is not None and decision.passed:
                return candidate
        return None

    def verdict(self) -> tuple[Serving | None, str]:
        """The setting that won, if any did, and why it did, or why the best one did not."""
        won = self._won()
        if won is not None:
            decision = self.decision(won)
            assert decision is not None
            return self._serving(won), decision.reason
        decisions = [decision for n in self._finalists() if (decision := self.decision(n)) is not None]
        return None, _reason(decisions)

    def winner(self) -> Candidate | None:
        """The candidate that won at the gate."""
        won = self._won()
        return None if won is None else next(c for c in self.candidates() if c.number == won)


def _reason(decisions: Sequence[GateDecision]) -> str:
    return decisions[0].reason if decisions else "what serves was the best"


def apart(traffic: Traffic) -> tuple[Traffic, Traffic]:
    """What candidates are chosen by, and what is held out: blocks of time of each, put together again. Of every three
    blocks with about as much work one is held out, so that neither part is quiet. Raises ValueError for a window too
    short for that."""
    rows = traffic.rows
    if len(rows) < FEWEST:
        raise ValueError(f"{len(rows)} requests are too few for a study: {FEWEST} at least")
    start, each = rows[0].arrival_s, (rows[-1].arrival_s - rows[0].arrival_s) / BLOCKS or 1.0
    blocks: list[list[Recorded]] = [[] for _ in range(BLOCKS)]
    for row in rows:
        blocks[min(BLOCKS - 1, int((row.arrival_s - start) / each))].append(row)
    by_work = sorted(range(BLOCKS), key=lambda n: (sum(row.input_tokens + row.output_tokens for row in blocks[n]), n))
    held_out = set(by_work[HELD_OUT // 2 :: HELD_OUT])
    parts: list[tuple[Recorded, ...]] = []
    for mine in ([n for n in range(BLOCKS) if n not in held_out], sorted(held_out)):
        moved = [
            replace(row, arrival_s=row.arrival_s - (block - place) * each)
            for place, block in enumerate(mine)
            for row in blocks[block]
        ]
        parts.append(tuple(moved))
    return replace(traffic, rows=parts[0]), replace(traffic, rows=parts[1])


def busiest(rows: Sequence[Recorded], share: float) -> tuple[Recorded, ...]:
    """So many of the requests in a row as arrived with the most tokens per second."""
    count = max(min(len(rows), LEAST_REQUESTS), round(share * len(rows)))
    if count >= len(rows):
        return tuple(rows)
    best, most = 0, -1.0
    for start in range(0, len(rows) - count + 1, max(1, count // 8)):
        part = rows[start : start + count]
        span = max(1e-3, part[-1].arrival_s - part[0].arrival_s)
        rate = sum(row.input_tokens + row.output_tokens for row in part) / span
        if rate > most:
            best, most = start, rate
    return tuple(rows[best : best + count])
