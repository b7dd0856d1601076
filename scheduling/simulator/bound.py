"""How many requests can be in time at most, whatever schedules them? A bound that no policy can exceed.

A share of it says how far a policy is from the best; a difference between two policies only says which is better.

**The relaxed machine.** All replicas are one fluid of ``m`` seconds of engine time per second that is shared out at
will: preemptive, without memory limits, slots, batches, placement or delays, and knowing every length. Of a request
only the engine time counts that it takes at the very least. A step with ``P`` prompt tokens and ``D`` decoding
sequences lasts ``t0 + a*P + b*D + c*kv + e*pp + a2*max(0, P + D - knee)``. Let ``n`` be the most tokens of a step and
``s`` the least of ``(t0 + a2*max(0, x - knee)) / x`` over ``1 <= x <= n``: every step lasts at least the sum of what
its tokens are charged, ``s + a`` and their part of ``e*pp`` for prompt tokens, ``s + b + c*context`` for each later
token of an answer. Over a request's life the charges add up to ``p`` (prompt: ``pp`` adds up to half the square of what
is computed, in whatever chunks) and ``q`` (answer); recomputing only adds to them. What the prompt of another request
may have left in a prefix cache is not charged.

**Windows.** A request that is in time has had ``p`` between its arrival and the deadline of its first token, and
``p + q`` between its arrival and that of its last: the steps that are charged to it lie wholly in between. The steps of
one sequence follow each other, and each lasts ``t0`` and its own token's part at least: its prefill ends that much
before the last token's deadline at the latest, and who would be late alone on an idle engine is late.

**The bound.** Take any set of requests that are in time. The charges whose windows lie in an interval ``[u, v]`` add up
to ``m*(v - u)`` at most. So the 0/1 vector of the set satisfies all these inequalities, and the maximum of ``sum x``
under some of them with ``0 <= x <= 1`` is no less than the set's size: a linear program, in which integrality and most
intervals are left out. HiGHS solves it, the most violated intervals being added until none is violated. What is
returned is not its optimum but, for its prices ``y >= 0``, the sum of ``y*m*(v - u)`` over the intervals and of
``max(0, 1 - y-weighted charges)`` over the requests: by weak duality no less than the optimum for *any* ``y``, so that
an inexact solution makes the bound weaker and never wrong. What is in time is a whole number, so it is rounded down,
for each stretch of time whose windows do not overlap those of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf

import numpy as np
from numpy.typing import NDArray

from scheduling.core.engine.step_time import StepTime
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.kernel import to_s
from scheduling.simulator.workload import BLOCK_TOKENS, SimRequest

GRID = 192  # instants at which intervals begin, and as many at which they end
CUTS = 24  # intervals added in a round
ROUNDS = 40
SLACK = 1e-9  # of rounding: an interval that is exceeded by less is not exceeded

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Job:
    """What a request takes at the very least, and when. Seconds; ``inf`` where nothing is promised."""

    arrival_s: float
    first_by_s: float  # its prompt's work is done by then
    last_by_s: float  # and all of it by then
    prompt_s: float
    answer_s: float
    alone_s: float  # until its last token on an idle engine
    first_alone_s: float  # until its first

    @property
    def hopeless(self) -> bool:
        """Late even if nobody else were there."""
        return (
            self.arrival_s + self.first_alone_s > self.first_by_s + SLACK
            or self.arrival_s + self.alone_s > self.last_by_s + SLACK
        )


def most_in_time(requests: Sequence[SimRequest], config: EngineConfig, replicas: int = 1) -> int:
    """The most of these requests that any scheduler can serve in time on ``replicas`` engines of this kind."""
    return _most(jobs_of(requests, config), replicas)


def jobs_of(requests: Sequence[SimRequest], config: EngineConfig) -> list[Job]:
    """Their least work and windows on this engine."""
    most = _most_tokens(config)
    share = _share(config.truth, most)
    shared = _shared_blocks(requests)
    return [_job(request, config.truth, share, most, _cached(request, shared)) for request in requests]


def _most_tokens(config: EngineConfig) -> int:
    """No step has more tokens, prompts' and decoding ones together."""
    if config.mode == "continuous" and not config.dynamic_chunks:
        return max(config.token_budget, config.max_seqs)
    return max(config.token_budget, config.max_chunk) + config.max_seqs


def _share(model: StepTime, most: int) -> float:
    """What of a step's fixed cost every token in it is charged at least [s]."""
    counts = {1, most, max(1, min(most, floor(model.knee))), max(1, min(most, ceil(model.knee)))}
    return min((model.t0 + model.a2 * max(0.0, count - model.knee)) / count for count in counts)


def _shared_blocks(requests: Sequence[SimRequest]) -> set[int]:
    """Blocks of prompts that more than one request has."""
    seen: set[int] = set()
    twice: set[int] = set()
    for request in requests:
        for block in set(request.blocks):
            (twice if block in seen else seen).add(block)
    return twice


def _cached(request: SimRequest, shared: set[int]) -> int:
    """Prompt tokens that a prefix cache may have, at most: the leading blocks that another request has as well."""
    leading = 0
    for block in request.blocks:
        if block not in shared:
            break
        leading += 1
    return min(leading * BLOCK_TOKENS, request.input_tokens - 1)


def _job(request: SimRequest, model: StepTime, share: float, most: int, cached: int) -> Job:
    prompt, later = request.input_tokens - cached, request.output_tokens - 1
    pairs = prompt * (cached + prompt / 2)
    contexts = later * (request.input_tokens + request.output_tokens / 2)
    arrival, slo = to_s(request.arrival_fs), request.slo
    first_by = last_by = inf
    if slo.ttft_s is not None:
        first_by = arrival + slo.ttft_s
        last_by = inf if slo.tbt_s is None else first_by + later * slo.tbt_s
    elif slo.ttlt_s is not None:
        last_by = arrival + slo.ttlt_s
    steps = ceil(prompt / most)
    fixed = max(steps * model.t0, prompt * share)  # of its prefill, whatever is in the steps beside it
    first_alone = fixed + model.a * prompt + model.e * pairs
    answer_alone = later * (model.t0 + model.b) + model.c * contexts
    return Job(
        arrival,
        min(first_by, last_by - answer_alone),
        last_by,
        prompt * (share + model.a) + model.e * pairs,
        later * (share + model.b) + model.c * contexts,
        first_alone + answer_alone,
        first_alone,
    )


def _most(jobs: Sequence[Job], replicas: int) -> int:
    """The bound over jobs. Those with no promise are always in time."""
    free = sum(job.last_by_s == inf and job.first_by_s == inf for job in jobs)
    timed = [job for job in jobs if not (job.last_by_s == inf and job.first_by_s == inf) and not job.hopeless]
    if not timed:
        return free
    return free + sum(min(len(part), floor(_relaxed(part, replicas) + 1e-6)) for part in _apart(timed))


def _apart(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs by stretches of time: no window of one stretch overlaps one of another."""
    parts: list[list[Job]] = []
    until = -inf
    for job in sorted(jobs, key=lambda job: job.arrival_s):
        if job.arrival_s >= until:
            parts.append([])
        parts[-1].append(job)
        until = max(until, job.first_by_s if job.last_by_s == inf else job.last_by_s)
    return parts


def _relaxed(jobs: Sequence[Job], replicas: int) -> float:
    """The linear program's bound on how many of these are in time."""
    from scipy.optimize import linprog  # half a second and 40 MB that only those pay who ask for a bound

    windows = _Windows(jobs)
    chosen = np.ones(len(jobs))
    best = float(len(jobs))
    taken: set[tuple[int, int]] = set()
    for _ in range(ROUNDS):
        cuts = windows.violated(chosen, replicas, taken)
        if not cuts:
            break
        taken.update(cuts)
        rows, rights = windows.rows(sorted(taken)), windows.capacities(sorted(taken), replicas)
        rows = rows / rights[:, None]  # what share of its interval each request takes
        solved = linprog(-np.ones(len(jobs)), A_ub=rows, b_ub=np.ones(len(rights)), bounds=(0.0, 1.0), method="highs")
        if solved.x is None:
            break  # what was found so far is a bound as well
        chosen = np.clip(solved.x, 0.0, 1.0)
        prices = np.maximum(0.0, -solved.ineqlin.marginals)
        left = np.maximum(0.0, 1.0 - rows.T @ prices)
        best = min(best, float(prices.sum() + left.sum()))
    return best


class _Windows:
    """The jobs' windows over a grid of instants, and the intervals between them.

    A window counts to an interval that it lies wholly in. Of a job whose both windows do, the longer one counts, which
    has all of its work.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._arrivals = np.array([job.arrival_s for job in jobs])
        self._first = np.array([job.first_by_s for job in jobs])
        self._last = np.array([job.last_by_s for job in jobs])
        self._prompt = np.array([job.prompt_s for job in jobs])
        self._answer = np.array([job.answer_s for job in jobs])
        self._begins = _spread(self._arrivals)
        ends = np.concatenate([self._first, self._last])
        self._ends = _spread(ends[np.isfinite(ends)])
        # The last beginning that is not after a job's arrival, the first end that is not before its deadlines.
        self._from = np.searchsorted(self._begins, self._arrivals, side="right") - 1
        self._first_to = np.searchsorted(self._ends, self._first, side="left")
        self._last_to = np.searchsorted(self._ends, self._last, side="left")

    def violated(self, chosen: Array, replicas: int, taken: set[tuple[int, int]]) -> list[tuple[int, int]]:
        """The intervals (numbers of beginning and end) that these shares of the jobs exceed most, none twice."""
        size = (len(self._begins), len(self._ends) + 1)
        load = np.zeros(size)
        np.add.at(load, (self._from, self._first_to), chosen * self._prompt)
        np.add.at(load, (self._from, self._last_to), chosen * self._answer)
        load = np.cumsum(np.cumsum(load[::-1], axis=0)[::-1], axis=1)[:, :-1]
        length = self._ends[None, :] - self._begins[:, None]
        over = np.where(length > 0, load - replicas * length, -inf)
        ratio = np.where(over > SLACK, load / np.maximum(length * replicas, SLACK), 0.0)
        windows: list[tuple[int, int]] = []
        for place in np.argsort(ratio, axis=None)[::-1]:
            begin, end = divmod(int(place), size[1] - 1)
            if ratio[begin, end] <= 1.0 + 1e-7 or len(windows) == CUTS:
                break
            if (begin, end) not in taken:
                windows.append((begin, end))
        return windows

    def rows(self, intervals: Sequence[tuple[int, int]]) -> Array:
        """What each job takes of each interval [s]."""
        rows = []
        for begin, end in intervals:
            inside = self._from >= begin
            work = np.where(inside & (self._first_to <= end), self._prompt, 0.0)
            rows.append(work + np.where(inside & (self._last_to <= end), self._answer, 0.0))
        return np.array(rows)

    def capacities(self, intervals: Sequence[tuple[int, int]], replicas: int) -> Array:
        return np.array([replicas * (self._ends[end] - self._begins[begin]) for begin, end in intervals])


def _spread(values: Array) -> Array:
    """At most :data:`GRID` of the values, evenly by rank, the least and the greatest among them."""
    ordered: Array = np.unique(values)
    if len(ordered) > GRID:
        ordered = ordered[np.unique(np.linspace(0, len(ordered) - 1, GRID).round().astype(int))]
    return ordered
