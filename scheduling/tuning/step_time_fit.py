"""How fast are the engines really? Step times and overhead, refitted from what the ledger says of recent requests.

A request's decoding is one observation: its time per token against how many sequences decoded beside it, how long
their contexts were and how many prompt tokens were processed meanwhile (``core/engine/calibration.py`` fits t0, a, b
and c). First tokens then say how many steps a prompt is cut into (the engine's token budget is the one that explains
them best), and what gateway and network add to each request.

An answer that comes whole says nothing of its first token, but it loads the engine as much as a stream does. It is
taken to have decoded as fast as the streams beside it, and counts as load only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.core.engine.calibration import Burst, StepFit, fit
from scheduling.core.engine.step_time import StepTime

LEAST_REQUESTS = 50  # requests without which nothing is fitted
MOST_FITTED = 3000  # observations that are fitted, spread over all
TOKENS = 8  # of output, below which a time per token is mostly chance
SHORTEST = 0.02  # of the time from its grant, that the first token of an answer which came whole took at least
AT_ONCE = 1 / 3  # of the median time per token, below which tokens were held up on their way and came in a heap

BUDGETS = (256, 512, 1024, 2048, 4096, 8192)  # tokens of a step that engines are told

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Timed:
    """One request as a backend served it. Times [s] on one clock. ``first_s``: None of an answer that came whole."""

    backend: str
    granted_s: float
    first_s: float | None
    done_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """What was found. ``error``: mean relative error of the time per token. ``overhead_s``: of each first token."""

    step_time: StepTime
    overhead_s: float
    error: float
    requests: int
    token_budget: int  # of a step


def calibrate(rows: Sequence[Timed], logged: StepFit | None = None, budget: int | None = None) -> StepTimeFit | None:
    """Step times of replicas that are alike; None where the requests are too few or too alike to tell. Where the
    engines' own steps were ``logged``, those say how long they take, and requests only what comes on top. ``budget``:
    tokens of a step, where the engines say it; None: it is found from first tokens, which tell little of it where
    prompts are granted one by one."""
    budgets = BUDGETS if budget is None else (budget,)
    bursts: list[Burst] = []
    waits: list[tuple[float, float, float, float]] = []  # first token [s], prompt tokens, sequences, their contexts
    for backend in sorted({row.backend for row in rows}):
        mine = [row for row in rows if row.backend == backend and row.done_s > row.granted_s]
        streams = [row for row in mine if row.first_s is not None and row.done_s > row.first_s > row.granted_s]
        if streams:
            _observe(streams, [row for row in mine if row.first_s is None], bursts, waits)
    if len(bursts) < LEAST_REQUESTS:
        return None
    if logged is not None:
        overhead_s, found = _overhead(logged.step_time, waits, budgets)
        return StepTimeFit(logged.step_time, overhead_s, logged.error, len(waits), found)
    usual = float(np.median([burst.seconds / burst.steps for burst in bursts]))
    bursts = [burst for burst in bursts if burst.seconds / burst.steps >= AT_ONCE * usual]
    step_time, error = fit(bursts[:: max(1, len(bursts) // MOST_FITTED)])
    if step_time is None:
        return None
    step_time, overhead_s, found = _first_tokens(step_time, waits, budgets)
    return StepTimeFit(step_time, overhead_s, error, len(waits), found)


def _observe(
    streams: Sequence[Timed],
    whole: Sequence[Timed],
    bursts: list[Burst],
    waits: list[tuple[float, float, float, float]],
) -> None:
    rows, seen = [*streams, *whole], len(streams)
    done = np.array([row.done_s for row in rows])
    granted = np.array([row.granted_s for row in rows])
    given = np.array([float(row.input_tokens) for row in rows])
    out = np.array([float(row.output_tokens) for row in rows])
    began = np.array([row.first_s for row in streams], dtype=float)
    first = np.concatenate([began, _begun(began, done, granted, out)])
    running = _integral(first, done, np.ones(len(rows)))
    contexts = _integral(first, done, given + out / 2)
    prompts = _integral(granted, first, given / (first - granted))
    sequences, cached, meanwhile = (_between(curve, first, done) for curve in (running, contexts, prompts))
    for n in np.flatnonzero(out[:seen] >= TOKENS):
        seconds = float(done[n] - first[n])
        beside = max(1.0, float(sequences[n]) / seconds)
        bursts.append(
            Burst(
                concurrency=0, seconds=seconds, prompt_tokens=float(meanwhile[n]),
                output_tokens=float(out[n] - 1) * beside, running=beside, running_most=0, waiting_most=0,
                context=float(cached[n]) / seconds / beside,
            )
        )  # fmt: skip
    took = first - granted
    columns = (_between(prompts, granted, first), *(_between(c, granted, first) / took for c in (running, contexts)))
    waits.extend(zip(took[:seen].tolist(), *(column[:seen].tolist() for column in columns), strict=True))


def _begun(
    first: NDArray[np.float64], done: NDArray[np.float64], granted: NDArray[np.float64], out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """When the answers that came whole, which follow the streams, had their first token: they decoded as fast as the
    streams beside them did on average, or as all did where none was."""
    seen = len(first)
    pace = (done[:seen] - first) / np.maximum(1.0, out[:seen] - 1.0)
    beside, paces = _integral(first, done[:seen], np.ones(seen)), _integral(first, done[:seen], pace)
    start, end = granted[seen:], done[seen:]
    among = _between(beside, start, end)
    near = np.where(among > 1e-6, _between(paces, start, end) / np.maximum(among, 1e-6), np.median(pace))
    starts: NDArray[np.float64] = np.maximum(end - (out[seen:] - 1.0) * near, start + SHORTEST * (end - start))
    return np.minimum(starts, end)


def _first_tokens(
    step: StepTime, waits: Sequence[tuple[float, float, float, float]], budgets: Sequence[int]
) -> tuple[StepTime, float, int]:
    """What a first token takes beyond the steps that decode anyway: its prompt, in so many steps, and the overhead of
    each request. It waits for half a step before its own."""
    took, prompts, sequences, contexts = (np.array(column) for column in zip(*waits, strict=True))
    plain = step.t0 + step.b * sequences + step.c * contexts
    most = float(np.median(took / np.maximum(1.0, prompts)))  # a prompt cannot take longer than its first token took
    if not 0 < step.a <= most:  # no prompt was processed beside others, or by chance: first tokens say it then
        left = took - 1.5 * plain
        cost = max(0.0, float((left * prompts).sum() / (prompts * prompts).sum()))
        step = StepTime(step.t0, cost, step.b, step.c, 0.0, 0.0, 0.0)
    return step, *_overhead(step, waits, budgets)


def _overhead(
    step: StepTime, waits: Sequence[tuple[float, float, float, float]], budgets: Sequence[int]
) -> tuple[float, int]:
    """What each request takes beyond its steps, and which of these budgets its prompts were cut into."""
    took, prompts, sequences, contexts = (np.array(column) for column in zip(*waits, strict=True))
    plain = step.t0 + step.b * sequences + step.c * contexts
    fits: list[tuple[float, float, int]] = []
    for budget in budgets:
        steps = np.maximum(1.0, np.ceil(prompts / budget)) + 0.5
        left = took - steps * plain - step.a * prompts
        overhead_s = max(0.0, float(np.median(left)))
        fits.append((float(np.abs((left - overhead_s) / took).mean()), overhead_s, budget))
    _, overhead_s, budget = min(fits, key=lambda one: (round(one[0], 3), -one[2]))
    return overhead_s, budget


def _integral(start: NDArray[np.float64], end: NDArray[np.float64], height: NDArray[np.float64]) -> Curve:
    """The integral over time of the sum of these boxes, as the corners of a line."""
    at = np.concatenate([start, end])
    change = np.concatenate([height, -height])
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(change[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    return at, area


def _between(curve: Curve, start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    at, area = curve
    areas: NDArray[np.float64] = np.interp(end, at, area) - np.interp(start, at, area)
    return areas
