"""What could be had if true lengths were known: the limit that policies are judged against.

Only the simulator can know them. :class:`Truth` stands where a predictor would, so any policy can be run with the truth
for its estimate; with ``mean_cost`` (remaining) that is shortest remaining processing time. :func:`least_late` needs no
run: no scheduler whatever can have fewer late requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil, inf

from scheduling.core.step_time import StepTime
from scheduling.core.types import QueuedRequest
from scheduling.simulator.kernel import to_s
from scheduling.simulator.workload import SimRequest


def clairvoyant(request: SimRequest) -> QueuedRequest:
    """What a policy is told of a request, with its true length for an estimate."""
    out = float(request.output_tokens)
    return replace(request.queued, output_tokens=out, output_lengths=(out,), output_probabilities=(1.0,))


class Truth:
    """An :class:`scheduling.simulator.engine.Estimator` that tells what will happen."""

    def estimate(self, request: SimRequest) -> QueuedRequest:
        return clairvoyant(request)

    def observe(self, request: SimRequest) -> None:
        """There is nothing to learn."""


def least_seconds(model: StepTime, max_chunk: int, request: SimRequest) -> float:
    """Engine time that a request takes at the very least [s]: its prompt at the best chunk size, and the part of every
    later step that its own token adds. A lower bound: steps cost what they cost besides, and nothing is shared twice.
    """
    per_token = min(model.step(chunk, 0) / chunk for chunk in {max_chunk, max(1, min(max_chunk, ceil(model.knee)))})
    later = request.output_tokens - 1
    context = request.input_tokens + request.output_tokens / 2
    return request.input_tokens * per_token + later * (model.b + model.c * context)


def due_s(request: SimRequest) -> float:
    """When its last token must be there for the promise to hold [s]; inf without a promise."""
    slo, arrival = request.slo, to_s(request.arrival_fs)
    if slo.ttft_s is not None:
        return arrival + slo.ttft_s + (request.output_tokens - 1) * slo.tbt_s if slo.tbt_s is not None else inf
    return inf if slo.ttlt_s is None else arrival + slo.ttlt_s


def least_late(requests: Sequence[SimRequest], model: StepTime, max_chunk: int, windows: int = 40) -> float:
    """Share of requests that are late on one engine whatever is done [0..1].

    Of the requests that arrive and are due within an interval only so many can be served within it; the fewest are late
    when the largest are given up. Intervals that do not overlap have different requests, so their numbers add up: the
    best division of the run into intervals is found over a grid of ``windows`` times. O(windows^2 * n log n).
    """
    jobs = [(to_s(r.arrival_fs), due_s(r), least_seconds(model, max_chunk, r)) for r in requests]
    timed = sorted(job for job in jobs if job[1] < inf)
    if not timed:
        return 0.0
    start, end = timed[0][0], max(due for _, due, _ in timed)
    grid = [start + (end - start) * n / windows for n in range(windows + 1)]
    best = [0] * (windows + 1)  # late requests up to a time of the grid
    for to in range(1, windows + 1):
        best[to] = max(best[since] + _given_up(timed, grid[since], grid[to]) for since in range(to))
    return best[-1] / len(requests)


def _given_up(jobs: Sequence[tuple[float, float, float]], since_s: float, until_s: float) -> int:
    """How many of the jobs ``(arrival, due, seconds)`` within an interval cannot be served in it."""
    sizes: list[float] = []
    total = 0.0
    given_up = 0
    for arrival, due, seconds in jobs:
        if arrival < since_s or due > until_s:
            continue
        heappush(sizes, -seconds)
        total += seconds
        if total > until_s - since_s:
            total += heappop(sizes)  # the largest: its negative
            given_up += 1
    return given_up
