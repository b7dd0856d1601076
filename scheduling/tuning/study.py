"""One trial of a study: values on recent traffic. What serves comes first, then what the optimiser asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduling.core.partition import parse_partition
from scheduling.tuning.drift import ks
from scheduling.tuning.optimizer import Optimizer
from scheduling.tuning.reward import Parts, penalty, shape
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.space import MAX_QUEUES, Params, params_of, queues_of
from scheduling.tuning.traffic import Serving, Traffic

REFERENCE = 50  # lengths without which nothing is compared


GATED = 3  # of the best trials that may meet what serves: the very best one may win at somebody's cost


@dataclass(frozen=True, slots=True)
class Tried:
    """Values, the policy's parameters that follow from them, and what they came to."""

    values: dict[str, float]
    params: Params
    parts: Parts
    reward: float
    requests: int


def next_trial(
    optimizer: Optimizer, serving: Serving, traffic: Traffic, settings: LoopSettings, *, first: bool
) -> Tried:
    """Asks, tries and tells. The ``first`` trial of a study is what serves."""
    values = optimizer.ask()
    lengths = [row.input_tokens for row in traffic.rows]
    queues = queues_of(values, lengths)
    partition = str(serving.params.get("partition", ""))
    if first and queues and partition:
        queues = parse_partition(partition)  # what serves is what it is
    params: Params = {**serving.params, **({} if first else params_of(values, queues))}
    requests = traffic.requests()
    outcomes = traffic.run(replace(serving, params=params), requests)
    parts = Parts(*shape(lengths, queues, MAX_QUEUES), penalty(traffic.felt(requests, outcomes)))
    reward = parts.reward(settings.weights)
    optimizer.tell(values, reward)
    return Tried(values, params, parts, reward, len(requests))


def due(now_s: float, last_s: float | None, changed_s: float | None, every_s: float) -> bool:
    """Whether it is time for a study: ``every_s`` after the last one; after prompts changed at once, and then at twice
    the distance each time, for the first of these know little of the new ones."""
    if last_s is None or now_s - last_s >= every_s:
        return True
    return changed_s is not None and now_s - changed_s >= 2.0 * max(0.0, last_s - changed_s)


def drifted(seen: Sequence[int], recent: Sequence[int], settings: LoopSettings) -> tuple[float, float] | None:
    """The gap between the prompt lengths that queues were cut from and recent ones, and its chance, if it is drift."""
    if len(seen) < REFERENCE or not recent:
        return None
    gap, chance = ks(seen, recent)
    return (gap, chance) if gap >= settings.drift_gap and chance < settings.drift_p else None
