"""From what a loaded replica was seen to do: its throughput, its slots, and how long its steps take.

The load is closed: so many requests at once, each followed by the next. What the engine says of itself (how many run
and wait, tokens so far) is enough; nothing is assumed of the client's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from scheduling.core.engine.step_time import StepTime

_COLUMNS = ("t0", "a", "b", "c")


@dataclass(frozen=True, slots=True)
class Burst:
    """A stretch of closed load on one replica, as its own counters tell it."""

    concurrency: int  # requests kept going
    seconds: float
    prompt_tokens: float  # processed in that time
    output_tokens: float  # generated in it
    running: float  # sequences in the batch, mean
    running_most: int
    waiting_most: int  # in the engine's own queue
    context: float  # tokens of a running sequence, mean over its life

    @property
    def tokens_per_s(self) -> float:
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def steps(self) -> float:
        """How many steps the engine took: each gives every running sequence one token."""
        return self.output_tokens / self.running if self.running > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the catalog should say of a replica. None: the load did not tell."""

    tokens_per_s: float
    slots: int | None
    step_time: StepTime | None
    error: float  # mean relative error of ``step_time`` over the bursts
    notes: tuple[str, ...]


def propose(bursts: Sequence[Burst], usual_context: float, slots: int | None) -> Proposal:
    """What the bursts say together. Throughput is the best among those with requests of the usual shape: a token of
    prompt counts as much as one of answer, so another mix has another figure. ``slots``: the engine's limit, None: it
    ran all that was offered.

    Raises ValueError when nothing was generated in any of them.
    """
    useful = [burst for burst in bursts if burst.steps > 0]
    if not useful:
        raise ValueError("the replica generated nothing under load")
    notes = []
    if slots is None:
        notes.append("its limit of sequences was not reached: it ran all that were offered")
    step_time, error = fit(useful)
    if step_time is None:
        notes.append("step times need bursts of several sizes and of two prompt lengths")
    else:
        notes.append("prefill attention (e) and the knee (a2) need steps logged inside the engine; they are left out")
    usual = [burst.tokens_per_s for burst in useful if burst.context == usual_context]
    if not usual:
        raise ValueError("the replica generated nothing for requests of the usual shape")
    return Proposal(max(usual), slots, step_time, error, tuple(notes))


def fit(bursts: Sequence[Burst]) -> tuple[StepTime | None, float]:
    """Step-time coefficients t0, a, b, c by least squares on relative errors, none of them negative, and the mean
    relative error. None where there are not more bursts than coefficients.

    Weights are 1/t, since a step of 20 ms and one of 200 ms should count alike.
    """
    if len(bursts) <= len(_COLUMNS):
        return None, 0.0
    seconds = np.array([burst.seconds / burst.steps for burst in bursts])
    rows = np.array(
        [[1.0, burst.prompt_tokens / burst.steps, burst.running, burst.running * burst.context] for burst in bursts]
    )
    best = _least_squares(rows, seconds)
    if best is None:
        return None, 0.0
    error = float(np.abs(rows @ best / seconds - 1.0).mean())
    t0, a, b, c = (float(value) for value in best)
    return StepTime(t0=t0, a=a, b=b, c=c, e=0.0, knee=0.0, a2=0.0), error


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step as the scheduler inside an engine saw it (``scheduling.engines.vllm_plugin``)."""

    prefill: int  # prompt tokens
    decodes: int
    kv_dec: int  # sum of the decoding sequences' contexts [tokens]
    pp: float  # sum of chunk * (context + chunk / 2) over the prompts
    seconds: float


@dataclass(frozen=True, slots=True)
class StepFit:
    """Coefficients from logged steps, and how well they predict steps that they were not fitted to."""

    step_time: StepTime
    error: float  # median relative error over the steps held out
    steps: int


LEAST_STEPS = 64  # fewer say nothing about six coefficients
_ROUNDS, _CLOSE = 6, 0.02  # of weighing anew; a residual below which all count alike


def fit_steps(steps: Sequence[LoggedStep]) -> StepFit | None:
    """The step-time model behind logged steps: every second one is fitted to, the others are held out. None where
    there are too few, or where they do not tell.

    The least absolute relative errors, by weighing least squares anew: a step that something else disturbed may be
    several times too long. Held-out steps are all counted; their error is a median for the same reason.
    """
    if len(steps) < LEAST_STEPS:
        return None
    seconds = np.array([step.seconds for step in steps])
    rows = np.array([[1.0, s.prefill, s.decodes, s.kv_dec, s.pp] for s in steps], dtype=float)
    fitted, held_out = slice(0, None, 2), slice(1, None, 2)
    best: np.ndarray | None = None
    weights = np.ones(len(seconds[fitted]))
    for _ in range(_ROUNDS):
        fit = _least_squares(rows[fitted], seconds[fitted], weights)
        if fit is None:
            break
        best = fit
        weights = 1.0 / np.maximum(_CLOSE, np.abs(rows[fitted] @ best / seconds[fitted] - 1.0))
    if best is None:
        return None
    error = float(np.median(np.abs(rows[held_out] @ best / seconds[held_out] - 1.0)))
    t0, a, b, c, e = (float(value) for value in best)
    return StepFit(StepTime(t0=t0, a=a, b=b, c=c, e=e, knee=0.0, a2=0.0), error, len(steps))


def _least_squares(rows: np.ndarray, seconds: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray | None:
    """Coefficients of the columns, none negative and the first above 0, with the least squared relative error, times
    the row's weight; a column that does not vary gets 0. None where there are none.

    Exact non-negative least squares: of so few columns the best of all subsets with a non-negative solution is it.
    """
    columns = rows.shape[1]
    root = np.ones(len(rows)) if weights is None else np.sqrt(weights)
    scaled = rows / seconds[:, None] * root[:, None]
    best: np.ndarray | None = None
    least = np.inf
    for size in range(1, columns + 1):
        for chosen in combinations(range(columns), size):
            if 0 not in chosen:
                continue  # a step is never free
            part = scaled[:, chosen]
            scale = np.abs(part).max(axis=0)
            if not scale.all():
                continue  # a column of nothing but zeros
            try:
                coefficients, _, rank, _ = np.linalg.lstsq(part / scale, root, rcond=None)
            except np.linalg.LinAlgError:  # figures so large or small that they tell nothing
                continue
            if rank < size or (coefficients < 0).any() or coefficients[0] <= 0:
                continue
            coefficients = coefficients / scale
            residual = float(((part @ coefficients - root) ** 2).sum())
            if residual < least * (1 - 1e-9):
                least, best = residual, np.zeros(columns)
                best[list(chosen)] = coefficients
    return best
