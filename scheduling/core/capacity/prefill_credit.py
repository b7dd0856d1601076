"""How many prompt tokens a replica needs at hand so that it does not run dry: its prefill credit, set while it serves.

Question: what is the smallest credit at which the engine still does at least 0.98 of what it does without one? Too much
moves the queue into the engine, where no policy reaches it; too little leaves its steps part empty. What is predicted
to be prefilled before a grant could reach the engine counts no more (:mod:`scheduling.core.capacity.prefill_pace`), so
the credit is what is there when a step begins. A step ``B`` is the engine's step budget, or what it computes in
:data:`MOST_AHEAD_S` where that is less (:attr:`PrefillCredit.step`). Half of it is the least: steps cost most of what
they cost by the token, and a prompt that does not fit beside others begins when they are done. When requests wait for
credit without a break and the engine's steps are less than :data:`NOT_FULL` full (short prompts, or an engine that is
fast beside the way to it), it goes up: to ``B`` or to what the engine prefills in :data:`MOST_AHEAD_S`, whichever is
more. What a request that comes then finds before it takes no longer, so a fast engine may have more tokens ahead than a
slow one. Where requests wait and nothing is found in the engine's own queue for :data:`EMPTY_S`, it may go on, to
:data:`MAX_BUDGETS` steps. It moves by degrees, one per :data:`STRETCH_S` or, on a fast engine, as soon as
:data:`ENOUGH` prompts were counted: up where more than :data:`OFTEN` of the time was limited by credit, down where less
than :data:`SELDOM` was or steps were full. Engines count a prompt when it is done, so how full steps were is known once
:data:`SEVERAL` prompts of the length that most tokens are in were counted, not in the middle of one; what left its
engine before its end may have filled them as well. It does not go up while more than :data:`MAX_WAITING` stand in the
engine's own queue, and goes down where that lasts. A new leader goes on with what the one before left.
Inputs: the engine's counters once a second; whether requests waited for nothing but credit; prompts granted lately.
Source: ours; for chunked prefill as in vLLM V1 and Sarathi-Serve. Measured: ``docs/results/prefill-credit.md``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from scheduling.core.capacity.prefill_pace import FASTER
from scheduling.core.types import BackendView, prefill_fits

USUAL_BUDGET = 2048  # tokens a step: vLLM's default on many GPUs, where an engine does not say
LEAST_STEP = 1024  # tokens, where the budget is not less: smaller steps cost more than a few percent of the speed
MAX_BUDGET = 1_000_000
STRETCH_S = 2.5
ENOUGH = 16  # prompts: engines count each when it is done, so of fewer it is not known how full steps were
SEVERAL = 4  # prompts of the length that most tokens are in
MOST_AHEAD_S = 0.12  # of prefill
EMPTY_S = 10.0
MAX_BUDGETS = 16  # for credit that comes back late
MAX_WAITING = 2  # requests that may stand in an engine's own queue between two of its steps
OFTEN, SELDOM = 0.6, 0.3
FULL, NOT_FULL = 0.98, 0.93  # of the room that decodes leave in a step
LEAST_GROWTH, MOST_GROWTH, SHRINK = 1.1, 2.0, 0.9
PROMPTS = 256  # of the last grants
LOOK_EVERY = 32  # grants
EMPTIEST = 0.2  # that steps are taken for
SHORT_S = 5.0  # time constant of how short it is
RECENT = 0.8  # of what was known of how full steps are, at each further look


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has counted since it started, at one moment [s, monotonic]."""

    at_s: float
    steps: float | None  # None: it does not count them
    prefill_tokens: float  # of prompts that are done: computed, not found in its cache
    output_tokens: float
    waiting: int = 0  # requests of ours that its latest step left in its own queue

    def restarted(self, before: Counters) -> bool:
        """Whether the engine started again since ``before``. Prefill alone may fall for a while: engines count cache
        hits when a prompt begins, and the prompt when it is done."""
        steps = self.steps is not None and before.steps is not None and self.steps < before.steps
        return steps or self.output_tokens < before.output_tokens


@dataclass(slots=True)
class Prompts:
    """How long prompts were that were granted lately [tokens]."""

    usual: int = 1  # half of them are not longer
    heavy: int = 1  # half of their tokens are in prompts that are not longer
    _lengths: deque[int] = field(default_factory=lambda: deque(maxlen=PROMPTS))
    _new: int = 0

    def add(self, lengths: Iterable[int]) -> None:
        before = len(self._lengths)
        for length in lengths:
            self._lengths.append(length)
            self._new += 1
        if self._new >= LOOK_EVERY or (self._new and before < LOOK_EVERY):
            ordered = sorted(self._lengths)
            self.usual = ordered[len(ordered) // 2]
            sums = list(accumulate(ordered))
            self.heavy = ordered[bisect_left(sums, sums[-1] / 2)]
            self._new = 0


@dataclass(slots=True)
class PrefillCredit:
    """The credit of one replica [tokens]. Fed about once a second with the engine's counters."""

    budget: int = USUAL_BUDGET  # tokens a step
    reported: bool = False  # whether the budget is what the engine says of itself
    credit: int = 0
    prompts: Prompts = field(default_factory=lambda: Prompts())  # shared by the replicas of a pool
    why: str = ""
    turnaround_s: float = 0.0  # from a first token to the prompt that follows from it
    short: float = 0.0  # share of the last seconds in which requests waited, and for nothing but this credit
    _per_s: float = 0.0  # prompt tokens that the engine computes a second; 0: not known
    _inherited: int = 0  # what the leader before left, until this one has judged
    _before: Counters | None = None
    _stretch_s: float = 0.0
    _limited_s: float = 0.0
    _steps: float | None = 0.0
    _queued: int = 0  # looks at which too many stood in the engine's queue
    _queued_s: float = -math.inf  # the last one of them
    _lasts: bool = False  # two of them soon after each other, however long it takes until enough was counted
    _lost: float = 0.0  # tokens that may have been computed and are not counted
    _empty_since_s: float | None = None  # at no look since then any did, although requests waited for credit
    _prefill: float = 0.0
    _output: float = 0.0
    _done: float = 0.0  # lately, in prompt tokens: prefilled, and the room for them in the steps
    _room: float = 0.0
    _unsaid: float = 0.0  # such room, while no prompt was counted

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.credit = self.least
        self.why = f"half a step of {self._step_in_words}" + (
            "" if self.reported else ", as the engine does not say its own"
        )
        if self._inherited:
            self.credit = min(max(self.least, self._inherited), MAX_BUDGETS * self.step)
            self.why = "as the leader before left it"
        self._before = None
        self.short = 0.0
        self._forget()

    def set_budget(self, budget: int | None) -> None:
        """The engine's step budget [tokens]; None: not reported. A new budget restarts the adjustment."""
        wanted = USUAL_BUDGET if budget is None else max(1, min(budget, MAX_BUDGET))
        if (wanted, budget is not None) != (self.budget, self.reported):
            if wanted != self.budget:
                self._inherited = 0
            self.budget, self.reported = wanted, budget is not None
            self._begin()

    def binds(self, view: BackendView) -> bool:
        """Whether a prompt of the usual length lacks credit there, and neither a slot nor KV cache."""
        return self._lacks(view, self.credit)

    def lacked_at(self, view: BackendView) -> bool:
        """Likewise of a replica whose prompts others compute: of the credit that it was offered with."""
        return self._lacks(view, view.prefill_credit)

    def _lacks(self, view: BackendView, credit: int) -> bool:
        usual = self.prompts.usual
        return view.has_slot_and_kv(usual) and not prefill_fits(credit, view.prefill_used, usual)

    @property
    def hurry(self) -> float:
        """The factor on the believed time per prompt token where the engine's queue is empty although requests wait
        here: the root of how full its steps were lately, relative to what counts as full; 1 for full steps. The root,
        since one look shows the effect of several changes. :data:`FASTER` for engines that do not count steps."""
        if not self._room:
            return FASTER
        return math.sqrt(max(EMPTIEST, min(1.0, self._done / (NOT_FULL * self._room))))

    @property
    def step(self) -> int:
        """The step that counts as full [tokens]: the budget, or what the engine computes in :data:`MOST_AHEAD_S` and a
        turnaround where that is less. Larger ones do hardly more a second, and whoever comes meanwhile waits for them.
        The turnaround, since a speed measured between late grants would have the credit fall, and the speed with it.
        """
        usual = round((MOST_AHEAD_S + self.turnaround_s) * self._per_s) if self._per_s else USUAL_BUDGET
        return min(self.budget, max(LEAST_STEP, usual))

    @property
    def least(self) -> int:
        return max(1, self.step // 2)

    def inherit(self, credit: int) -> None:
        """Goes on with what the leader before had found; 0: it had none."""
        self._inherited = credit
        self._begin()

    def seen(self, now: Counters, limited: bool, per_s: float = 0.0) -> None:
        """Takes the counters. ``limited``: since the last look requests waited, and for nothing but credit; ``per_s``:
        prompt tokens that the engine computes a second when it has enough of them, 0 where that is not known."""
        before, self._before = self._before, now
        self._per_s = per_s
        if before is None or now.at_s <= before.at_s:
            return
        prefill, output = now.prefill_tokens - before.prefill_tokens, now.output_tokens - before.output_tokens
        steps = None if now.steps is None or before.steps is None else now.steps - before.steps
        if now.restarted(before):
            self._forget()
            return
        passed_s = now.at_s - before.at_s
        self.short += (float(limited) - self.short) * (1.0 - math.exp(-passed_s / SHORT_S))
        self._stretch_s += passed_s
        if now.waiting > MAX_WAITING:
            self._lasts = self._lasts or now.at_s - self._queued_s <= STRETCH_S
            self._queued, self._queued_s = self._queued + 1, now.at_s
        if now.waiting > 0 or not limited or self._empty_since_s is None:
            self._empty_since_s = now.at_s
        if limited:
            self._limited_s += now.at_s - before.at_s
        self._prefill += prefill
        self._output += output
        self._steps = None if self._steps is None or steps is None else self._steps + steps
        if steps is not None:
            self._unsaid += max(1.0, self.step * steps - output)
            if prefill > 0 or not limited:  # else it is in the middle of a prompt
                self._done = RECENT * self._done + prefill
                self._room = RECENT * self._room + self._unsaid
                self._unsaid = 0.0
        if self._stretch_s >= STRETCH_S or self._prefill >= ENOUGH * self.prompts.usual:
            share = self._limited_s / self._stretch_s
            if share < SELDOM or self._lasts or self._tells(prefill):
                self._judge(share, now.at_s - self._empty_since_s >= EMPTY_S)
                self._forget()

    def lost(self, tokens: int) -> None:
        """A prompt of ``tokens`` left its engine before its end: taken back, or its client left. The engine does not
        count what it computed of it, so steps may have been fuller by as much."""
        self._lost += tokens
        self._done += tokens

    def _tells(self, prefill: float) -> bool:
        """Whether what was counted since the last judgement says how full steps were: engines count a prompt all at
        once, when it is done. ``prefill``: since the last look."""
        if self._steps is None:
            return True
        return prefill > 0 and self._prefill >= SEVERAL * self.prompts.heavy

    def _judge(self, limited: float, empty: bool) -> None:
        """``limited``: share of the time in which requests waited for credit. ``empty``: for long nothing has been
        found in the engine's own queue."""
        before, full, at_most = self.credit, self._fullness(), self._fullness(self._lost)
        most = MAX_BUDGETS * self.step
        if not empty:
            ahead = min(float(most), MOST_AHEAD_S * self._prefill / self._stretch_s)  # infinite in next to no time
            most = max(self.step, round(ahead))
        self._inherited = 0
        wanted = before
        if limited > OFTEN and (at_most is None or at_most < NOT_FULL) and not self._queued and before < most:
            wanted = min(most, round(before * self._growth(at_most)))
        elif limited < SELDOM or (full is not None and full >= FULL) or self._lasts or before > most:
            wanted = round(before * SHRINK)
        self.credit = max(self.least, min(MAX_BUDGET, wanted))
        moved = "raised" if self.credit > before else "lowered" if self.credit < before else "kept"
        steps = ""
        if full is not None and at_most is not None:
            steps = f", steps of {self._step_in_words} were {full:.0%} full"
            if at_most > full:
                steps += f" (up to {at_most:.0%} with what left the engine before its end)"
        queued = f", {self._queued} looks found more than {MAX_WAITING} in its queue" if self._queued else ""
        self.why = f"{moved}: requests waited for it {limited:.0%} of the time{steps}{queued}"

    @property
    def _step_in_words(self) -> str:
        return f"{self.step} tokens" + (f" (of {self.budget})" if self.step < self.budget else "")

    @staticmethod
    def _growth(full: float | None) -> float:
        """As much as steps lack; as fast as possible where that is not known."""
        return MOST_GROWTH if not full else max(LEAST_GROWTH, min(MOST_GROWTH, NOT_FULL / full))

    def _fullness(self, more: float = 0.0) -> float | None:
        """Prefill done, and so much ``more``, as a share of the room that decodes left in the steps; None where steps
        are not counted."""
        if not self._steps:
            return None
        room = max(1.0, self.step * self._steps - self._output)
        return max(0.0, min(1.0, (self._prefill + more) / room))

    def _forget(self) -> None:
        self._stretch_s = self._limited_s = self._prefill = self._output = 0.0
        self._steps, self._queued, self._lost = 0.0, 0, 0.0
        self._queued_s, self._lasts = -math.inf, False
