"""Tries a policy's values on a recording: queues from its history, the rest through the simulator.

The history is the first part of the recording (``simulator/compare.py``): queues are cut from it and rewarded on it;
what users feel is measured on what comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from scheduling.core.policies.registry import make_ordering
from scheduling.simulator.compare import Case, Prepared, bare, prepare, serve
from scheduling.simulator.result import Outcome
from scheduling.tuning.optimizer import Optimizer
from scheduling.tuning.reward import Felt, Parts, RewardWeights, felt_of, penalty, shape
from scheduling.tuning.space import MAX_QUEUES, Values, defaults, draw, params_of, queues_of, space_of


@dataclass(frozen=True, slots=True)
class Trial:
    """Values and what they came to."""

    values: dict[str, float]
    parts: Parts
    reward: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """One run of the optimiser: what serves now, and the ``trials`` after it in order."""

    default: Trial
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return max((self.default, *self.trials), key=lambda trial: trial.reward)


def evaluate(case: Case, values: Values, weights: RewardWeights | None = None) -> Trial:
    """One trial on a recording. The same case and values give the same trial."""
    prepared = prepare(bare(case))
    queues = queues_of(values, prepared.history)
    parts = Parts(
        *shape(prepared.history, queues, MAX_QUEUES),
        penalty(felt_by(prepared, outcomes(case, prepared, params_of(values, queues)))),
    )
    return Trial(dict(values), parts, parts.reward(weights or RewardWeights()))


def outcomes(case: Case, prepared: Prepared, params: dict[str, float | int | str]) -> list[Outcome]:
    """The recording under the case's policy with these parameters, in the order of arrival."""
    if case.policy == "ewsjf":
        step = prepared.config.truth
        params = {"prefill_t0_ms": step.t0 * 1e3, "prefill_us": step.a * 1e6, **params}
    ordering = make_ordering(case.policy, params)
    return serve(case, prepared.config, ordering, prepared.requests).outcomes


def felt_by(prepared: Prepared, outcomes: Sequence[Outcome]) -> list[Felt]:
    """What the recording's users felt."""
    return [
        felt_of(request, outcome, prepared.config.truth)
        for request, outcome in zip(prepared.requests, outcomes, strict=True)
    ]


def tune(
    case: Case,
    trials: int,
    seed: int,
    *,
    weights: RewardWeights | None = None,
    done: Callable[[], None] = lambda: None,
) -> Tuning:
    """``trials`` proposals of the optimiser after the default. ``done`` is called after each trial.

    The same case and seed give the same tuning. Raises PolicyError for a policy without knobs.
    """
    space = space_of(case.policy)
    optimizer = Optimizer(space, seed, defaults(space))
    trials_run = []
    for _ in range(1 + trials):
        trial = evaluate(case, optimizer.ask(), weights)
        optimizer.tell(trial.values, trial.reward)
        trials_run.append(trial)
        done()
    return Tuning(trials_run[0], tuple(trials_run[1:]))


def random_search(case: Case, trials: int, stream: str, weights: RewardWeights | None = None) -> list[Trial]:
    """``trials`` drawn evenly, from a random stream of this name: what the optimiser has to beat."""
    space, random = space_of(case.policy), Random(stream)
    return [evaluate(case, draw(space, random), weights) for _ in range(trials)]
