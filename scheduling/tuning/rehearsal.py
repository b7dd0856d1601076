"""The strategic loop on a simulated pool: what it would do, and when, if traffic changed.

The pool is :class:`scheduling.simulator.replay.Replay`. The loop is that of the product put together once more without
its database: the same test of drift, the same trials, gate and guard rails, in the same order, every ten seconds.
Studying takes no time here; live it takes some seconds of a worker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scheduling.core.compose import make_policy
from scheduling.core.contracts import OrderingPolicy
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.recording import Recorded
from scheduling.simulator.result import Outcome, outcome_of
from scheduling.tuning.gate import Gate
from scheduling.tuning.guard import Tally, tally, watch
from scheduling.tuning.optimizer import Optimizer
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import SPACES, Params, Values, params_of, queues_of
from scheduling.tuning.study import GATED, Tried, drifted, due, next_trial
from scheduling.tuning.traffic import Serving, Traffic

LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class Happened:
    """Something the loop did. ``what``: repartition, rejected, proposed, canary, promoted, rolled back."""

    at_s: float
    what: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Canary:
    values: Values
    serving: Serving  # itself
    before: Serving
    since_s: float


@dataclass
class Loop:
    """``pool``: what arrives, in order, and the replicas. ``mode``: off, advise or automatic. ``follows_s``: in advise
    mode, how long after a proposal a person starts it."""

    pool: Traffic
    serving: Serving
    values: Values
    cut_from: Sequence[int]  # prompts that the queues of ``serving`` were cut from
    settings: LoopSettings
    mode: str = "automatic"
    follows_s: float = 900.0
    seed: int = 1
    done: list[Happened] = field(default_factory=list)
    _canary: Canary | None = None
    _proposed: tuple[float, Values, Serving, Sequence[int]] | None = None
    _studied_s: float | None = None
    _changed_s: float | None = None
    _cut_s: float = 0.0
    _ended: list[Outcome] = field(default_factory=list)

    def run(self) -> list[Outcome]:
        """Serves the pool's traffic, looking every ten seconds."""
        replay = self.pool.replay(self.serving)
        return replay.run(self.pool.requests(), None if self.mode == "off" else self._look, every_s=LOOK_S)

    def run_told(self, at_s: float, serving: Serving) -> list[Outcome]:
        """Serves it with another choice from a moment on, as somebody would who knew what comes."""

        def look(now_s: float, lives: Sequence[Life], oldest_wait_s: float) -> OrderingPolicy | None:
            return _policy(serving) if at_s <= now_s < at_s + LOOK_S else None

        replay = self.pool.replay(self.serving)
        return replay.run(self.pool.requests(), look, every_s=LOOK_S)

    # --- what the product's loop does every ten seconds

    def _look(self, now_s: float, lives: Sequence[Life], oldest_wait_s: float) -> OrderingPolicy | None:
        self._ended.extend(outcome_of(life) for life in lives[len(self._ended) :])
        before = self.serving
        if self._canary is not None:
            self._watch(self._canary, now_s, oldest_wait_s)
        elif self._proposed is not None:
            self._follow(now_s, *self._proposed)
        elif not self._repartition(now_s):
            self._study(now_s)
        return None if self.serving == before else _policy(self.serving)

    def _watch(self, canary: Canary, now_s: float, oldest_wait_s: float) -> None:
        since = canary.since_s
        known_s = max(since - self.settings.window_s, self._changed_s or 0.0)
        rails = watch(self._tally(known_s, since), self._tally(since, now_s), oldest_wait_s, self.settings)
        over = now_s >= since + self.settings.interval_s
        if not rails.stop and not over:
            return
        self._canary = None
        if rails.stop or not rails.enough:
            self.serving = canary.before
            self._note(now_s, "rolled back", rails.reason or "too few requests")
        else:
            self.values = canary.values
            self._note(now_s, "promoted")

    def _repartition(self, now_s: float) -> bool:
        if "split_alpha" not in self.values:
            return False
        recent = [row.input_tokens for row in self._recent(now_s)]
        if len(recent) < self.settings.least_requests:
            return False
        changed = drifted(self.cut_from, recent, self.settings)
        if changed is None and (self.mode != "automatic" or now_s - self._cut_s < self.settings.recut_s):
            return False
        why = "age" if changed is None else f"Kolmogorov-Smirnov {changed[0]:.2f}"
        self._changed_s = self._changed_s if changed is None else now_s
        cut = params_of(self.values, queues_of(self.values, recent))["partition"]
        serving = self._with({**self.serving.params, "partition": cut})
        if self.mode == "advise":
            self._note(now_s, "proposed", f"repartition: {why}")
            self._proposed = (now_s, self.values, serving, recent)
            return True
        self.serving, self.cut_from, self._cut_s = serving, recent, now_s
        self._note(now_s, "repartition", why)
        return True

    def _study(self, now_s: float) -> None:
        if not due(now_s, self._studied_s, self._changed_s, self.settings.every_s):
            return
        rows = self._recent(now_s, self._changed_s or 0.0)
        if len(rows) < self.settings.least_requests:
            return
        self._studied_s = now_s
        traffic = replace(self.pool, rows=rows)
        tried = _study(traffic, self.serving, self.values, self.settings, self.settings.trials, self.seed + int(now_s))
        better = sorted((trial for trial in tried[1:] if trial.reward > tried[0].reward), key=lambda t: -t.reward)
        if not better:
            self._note(now_s, "rejected", "the active version was better")
            return
        gate = Gate(traffic, self.serving, self.settings)
        for best in better[:GATED]:
            candidate = self._with(best.params)
            verdict = gate.judge(candidate)
            if verdict.passed:
                break
            self._note(now_s, "rejected", verdict.reason)
        else:
            return
        self._note(now_s, "proposed", verdict.reason)
        values, lengths = best.values, [row.input_tokens for row in rows]
        if self.mode == "advise":
            self._proposed = (now_s, values, candidate, lengths)
        else:
            self._start(now_s, values, candidate, lengths)

    def _follow(self, now_s: float, at_s: float, values: Values, serving: Serving, lengths: Sequence[int]) -> None:
        """A person starts what was proposed."""
        if now_s - at_s >= self.follows_s:
            self._proposed = None
            self._start(now_s, values, serving, lengths)

    def _start(self, now_s: float, values: Values, serving: Serving, lengths: Sequence[int]) -> None:
        self._canary = Canary(values, serving, self.serving, now_s)
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


def _policy(serving: Serving) -> OrderingPolicy:
    return make_policy(serving.policy, dict(serving.params), {k: dict(v) for k, v in serving.modifiers.items()})


def best_values(
    traffic: Traffic, serving: Serving, start: Values, settings: LoopSettings, trials: int, seed: int
) -> tuple[Values, Params]:
    """What ``trials`` proposals find on traffic that is known beforehand: an oracle."""
    best = max(_study(traffic, serving, start, settings, trials, seed), key=lambda trial: trial.reward)
    return best.values, best.params


def _study(
    traffic: Traffic, serving: Serving, start: Values, settings: LoopSettings, trials: int, seed: int
) -> list[Tried]:
    optimizer = Optimizer(SPACES[serving.policy], seed, start)
    return [next_trial(optimizer, serving, traffic, settings, first=number == 0) for number in range(1 + trials)]


def attainment(outcomes: Sequence[Outcome], since_s: float, until_s: float) -> float:
    """The share [%] of requests that arrived in a stretch of time and kept their promise. ``outcomes`` by arrival."""
    arrivals = [outcome.arrival_s for outcome in outcomes]
    within = outcomes[bisect_left(arrivals, since_s) : bisect_left(arrivals, until_s)]
    return 100.0 * sum(not outcome.late for outcome in within) / len(within) if within else 100.0
