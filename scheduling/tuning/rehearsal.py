"""The strategic loop on a simulated pool: what it would do, and when, if traffic changed.

The pool is :class:`scheduling.simulator.replay.Replay`. The loop is that of the product put together once more without
its database: the same test of drift, the same trials, gate and guard rails, in the same order, every ten seconds.
Studying takes no time here; live it takes some seconds of a worker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replay import Replay
from scheduling.simulator.result import Outcome, outcome_of
from scheduling.tuning.gate import Gate, promised_s
from scheduling.tuning.guard_rails import Tally, tally, watch
from scheduling.tuning.merit import merit_of, plain_reward, reward
from scheduling.tuning.search import GATED, Search, apart
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import SPACES, Params, defaults, params_of, queues_of
from scheduling.tuning.structure import Structure
from scheduling.tuning.study import drifted, due
from scheduling.tuning.traffic import Serving, Traffic

LOOK_S = 10.0
RANDOM = 8  # trials of a loop that searches at random


@dataclass(frozen=True, slots=True)
class Happened:
    """Something the loop did. ``what``: repartition, rejected, proposed, canary, promoted, rolled back."""

    at_s: float
    what: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Canary:
    serving: Serving  # itself
    before: Serving
    since_s: float


@dataclass
class Loop:
    """``pool``: what arrives, in order, and the replicas. ``mode``: off, advise, automatic, or random, which is
    automatic with a few random points in place of a study's search. ``follows_s``: in advise mode, how long after a
    proposal a person starts it."""

    pool: Traffic
    serving: Serving
    cut_from: Sequence[int]  # prompts that the queues of ``serving`` were cut from
    settings: LoopSettings
    mode: str = "automatic"
    follows_s: float = 900.0
    seed: int = 1
    done: list[Happened] = field(default_factory=list)
    _canary: Canary | None = None
    _proposed: tuple[float, Serving, Sequence[int]] | None = None
    _studied_s: float | None = None
    _studied: Sequence[int] = ()  # prompts of the last study
    _changed_s: float | None = None
    _cut_s: float = 0.0
    _ended: list[Outcome] = field(default_factory=list)
    _replay: Replay | None = None

    def run(self) -> list[Outcome]:
        """Serves the pool's traffic, looking every ten seconds."""
        self._replay = self.pool.replay(self.serving)
        return self._replay.run(self.pool.requests(), None if self.mode == "off" else self._look, every_s=LOOK_S)

    def run_with_change(self, at_s: float, serving: Serving) -> list[Outcome]:
        """Serves it with another choice from a moment on, as somebody would who knew what comes."""

        def look(now_s: float, lives: Sequence[Life], oldest_waits_s: Mapping[str, float]) -> OrderingPolicy | None:
            if not at_s <= now_s < at_s + LOOK_S:
                return None
            replay.give_room(*self.pool.room_of(serving))
            return serving.ordering()

        replay = self.pool.replay(self.serving)
        return replay.run(self.pool.requests(), look, every_s=LOOK_S)

    # --- what the product's loop does every ten seconds

    def _look(self, now_s: float, lives: Sequence[Life], oldest_waits_s: Mapping[str, float]) -> OrderingPolicy | None:
        self._ended.extend(outcome_of(life) for life in lives[len(self._ended) :])
        before = self.serving
        if self._canary is not None:
            self._watch(self._canary, now_s, oldest_waits_s)
        elif self._proposed is not None:
            self._follow(now_s, *self._proposed)
        elif not self._repartition(now_s):
            self._study(now_s)
        if self.serving == before:
            return None
        assert self._replay is not None
        self._replay.give_room(*self.pool.room_of(self.serving))
        return self.serving.ordering()

    def _watch(self, canary: Canary, now_s: float, oldest_waits_s: Mapping[str, float]) -> None:
        since = canary.since_s
        known_s = max(since - self.settings.window_s, self._changed_s or 0.0)
        before, lately = self._tally(known_s, since), self._tally(since, now_s)
        rails = watch(before, lately, oldest_waits_s, self.settings, promised_s(self.pool))
        over = now_s >= since + self.settings.interval_s
        if not rails.stop and not over:
            return
        self._canary = None
        if rails.stop or not rails.enough:
            self.serving = canary.before
            self._note(now_s, "rolled back", rails.reason or "too few requests")
        else:
            self._note(now_s, "promoted")

    def _repartition(self, now_s: float) -> bool:
        if self.serving.policy != "ewsjf":
            return False
        recent = [row.input_tokens for row in self._recent(now_s)]
        if len(recent) < self.settings.least_requests:
            return False
        changed = drifted(self.cut_from, recent, self.settings)
        if changed is None and (self.mode != "automatic" or now_s - self._cut_s < self.settings.recut_s):
            return False
        why = "age" if changed is None else f"Kolmogorov-Smirnov {changed[0]:.2f}"
        self._changed_s = self._changed_s if changed is None else now_s
        values = defaults(SPACES["ewsjf"])
        cut = params_of(values, queues_of(values, recent))["partition"]
        serving = self._with({**self.serving.params, "partition": cut})
        if self.mode == "advise":
            self._note(now_s, "proposed", f"repartition: {why}")
            self._proposed = (now_s, serving, recent)
            return True
        self.serving, self.cut_from, self._cut_s = serving, recent, now_s
        self._note(now_s, "repartition", why)
        return True

    def _study(self, now_s: float) -> None:
        since = self._changed_s or 0.0
        if not due(now_s, self._studied_s, self._changed_s, self.settings.every_s):
            if self._studied_s is None or now_s - self._studied_s < self.settings.interval_s:
                return
            since = max(since, self._studied_s)
            lengths = [row.input_tokens for row in self._recent(now_s, since)]
            if len(lengths) < self.settings.least_requests or not drifted(self._studied, lengths, self.settings):
                return
        rows = self._recent(now_s, since)
        if len(rows) < self.settings.least_requests:
            return
        self._studied = [row.input_tokens for row in rows]
        self._studied_s = now_s
        traffic, seed = replace(self.pool, rows=rows), self.seed + int(now_s)
        search = blind if self.mode == "random" else study
        candidate, why = search(traffic, self.serving, self.settings, seed)
        if candidate is None:
            self._note(now_s, "rejected", why)
            return
        self._note(now_s, "proposed", why)
        lengths = [row.input_tokens for row in rows]
        if self.mode == "advise":
            self._proposed = (now_s, candidate, lengths)
        else:
            self._start(now_s, candidate, lengths)

    def _follow(self, now_s: float, at_s: float, serving: Serving, lengths: Sequence[int]) -> None:
        """A person starts what was proposed."""
        if now_s - at_s >= self.follows_s:
            self._proposed = None
            self._start(now_s, serving, lengths)

    def _start(self, now_s: float, serving: Serving, lengths: Sequence[int]) -> None:
        self._canary = Canary(serving, self.serving, now_s)
        self.serving, self.cut_from, self._cut_s = serving, lengths, now_s
        self._note(now_s, "canary")

    # --- what it knows

    def _recent(self, now_s: float, since_s: float = 0.0) -> tuple[Recorded, ...]:
        """What has ended of the window, the latest of it."""
        since_s = max(since_s, now_s - self.settings.window_s)
        start = self.pool.rows[0].arrival_s
        recent = sorted(o.index for o in self._ended if o.arrival_s >= since_s)[-self.settings.most_requests :]
        return tuple(replace(self.pool.rows[n], arrival_s=self.pool.rows[n].arrival_s - start) for n in recent)

    def _tally(self, since_s: float, until_s: float) -> dict[str, Tally]:
        ended = [o for o in self._ended if since_s <= o.arrival_s < until_s]
        return tally([(o.tier, not o.late, o.wait_s) for o in ended])

    def _with(self, params: Params) -> Serving:
        return replace(self.serving, params=params)

    def _note(self, now_s: float, what: str, why: str = "") -> None:
        self.done.append(Happened(now_s, what, why))


def study(traffic: Traffic, serving: Serving, settings: LoopSettings, seed: int) -> tuple[Serving | None, str]:
    """A study from its beginning to its end: what won at the gate, if anything did, and why."""
    search = Search(traffic, serving, settings, seed)
    while (step := search.step()) is not None:
        search.run(step)
    return search.verdict()


def blind(traffic: Traffic, serving: Serving, settings: LoopSettings, seed: int) -> tuple[Serving | None, str]:
    """A few random points in place of the search, chosen by and held against the same traffic as a study's."""
    chosen_by, held_out = apart(traffic)
    structure, requests = Structure(chosen_by, serving), chosen_by.requests()
    drawn = [structure.serving(structure.draw(Random(f"blind {seed} {number}"))) for number in range(RANDOM)]
    merits = [merit_of(chosen_by.felt(requests, rows), rows) for rows in (
        chosen_by.run(one, requests) for one in (serving, *drawn)
    )]  # fmt: skip
    rewards = [reward(merit, merits[:1], settings.drop) for merit in merits[1:]]
    better = sorted((n for n in range(RANDOM) if rewards[n] > plain_reward(merits[0])), key=lambda n: -rewards[n])
    why = "what serves was better"
    gate = Gate(held_out, serving, settings) if better else None
    for number in better[:GATED]:
        assert gate is not None
        verdict = gate.judge(drawn[number])
        why = verdict.reason
        if verdict.passed:
            return drawn[number], why
    return None, why


def attainment(outcomes: Sequence[Outcome], since_s: float, until_s: float) -> float:
    """The share [%] of requests that arrived in a stretch of time and kept their promise. ``outcomes`` by arrival."""
    arrivals = [outcome.arrival_s for outcome in outcomes]
    within = outcomes[bisect_left(arrivals, since_s) : bisect_left(arrivals, until_s)]
    return 100.0 * sum(not outcome.late for outcome in within) / len(within) if within else 100.0
