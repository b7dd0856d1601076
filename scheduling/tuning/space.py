"""What may be tuned of a policy, between which bounds, and what a choice means as the policy's parameters.

EWSJF's action space is the meta-policy (weights linear in a queue's mean prompt, 4.4.1), the split ratio ``alpha`` and
the most queues of Refine-and-Prune (4.2); the queues themselves follow from these and the lengths that were seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from scheduling.core.policies.partition import Interval, refine_and_prune
from scheduling.core.policies.registry import PolicyError, make_ordering

Values = Mapping[str, float]
Params = dict[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Knob:
    """One number. ``log``: searched on a logarithmic scale, for bounds above 0. ``whole``: rounded."""

    name: str
    low: float
    high: float
    default: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.default <= self.high or self.low >= self.high or (self.log and self.low <= 0):
            raise ValueError(f"knob {self.name}: {self.low} <= {self.default} <= {self.high} does not hold")

    def at(self, share: float) -> float:
        """The value at ``share`` (0..1) of the way."""
        if self.log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        value = min(self.high, max(self.low, value))
        return float(round(value)) if self.whole else value

    def share(self, value: float) -> float:
        """The inverse of :meth:`at`."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


SPLIT = ("split_alpha", "max_queues")  # of Refine-and-Prune, not of the policy itself
LOW_SHARE = "low_share"  # alpha at low load, of alpha: never above it, whatever is proposed

MAX_QUEUES = 32  # the paper's bound; what the reward's number of queues is measured by

SPACES: Mapping[str, tuple[Knob, ...]] = {
    "ewsjf": (
        Knob("split_alpha", 1.5, 30.0, 3.0, log=True),
        Knob("max_queues", 2, MAX_QUEUES, 8, log=True, whole=True),
        Knob("urgency", 0.01, 10.0, 1.0, log=True),
        Knob("urgency_slope", -1.0, 0.5, 0.0),
        Knob("fairness", 0.001, 10.0, 0.1, log=True),
        Knob("fairness_slope", -1.0, 1.0, 0.0),
    ),
    "hybrid": (Knob("alpha_ms", 0.1, 100.0, 8.0, log=True), Knob(LOW_SHARE, 0.01, 1.0, 0.125, log=True)),
    "unified": (
        Knob("alpha_ms", 0.1, 100.0, 2.0, log=True),
        Knob("tier_ratio", 1.0, 20.0, 3.0, log=True),
        Knob("patience_s", 30.0, 3600.0, 600.0, log=True),
        Knob("every", 4, 128, 32, log=True, whole=True),
    ),
}


def space_of(policy: str) -> tuple[Knob, ...]:
    """The knobs of a policy. Raises PolicyError for one that has none, saying which have."""
    if policy not in SPACES:
        make_ordering(policy)
        raise PolicyError(f"policy {policy!r} has nothing to tune; these have: {', '.join(SPACES)}")
    return SPACES[policy]


def defaults(space: Iterable[Knob]) -> dict[str, float]:
    return {knob.name: knob.default for knob in space}


def values_of(space: Iterable[Knob], params: Mapping[str, object]) -> dict[str, float]:
    """The knobs as a policy's parameters have them, as near as the bounds allow; defaults for what they do not say."""
    values = {}
    for knob in space:
        raw = params.get(knob.name, knob.default)
        value = float(raw) if isinstance(raw, int | float) else knob.default
        values[knob.name] = min(knob.high, max(knob.low, value))
    if LOW_SHARE in values and isinstance(low := params.get("alpha_low_ms"), int | float):
        values[LOW_SHARE] = min(1.0, max(0.01, low / values["alpha_ms"]))
    return values


def draw(space: Iterable[Knob], random: Random) -> dict[str, float]:
    """Values drawn evenly on each knob's scale: what random search tries."""
    return {knob.name: knob.at(random.random()) for knob in space}


def queues_of(values: Values, lengths: Iterable[int]) -> tuple[Interval, ...]:
    """The queues that these values cut the seen prompt lengths [tokens] into; none for a policy without queues."""
    if "split_alpha" not in values:
        return ()
    return refine_and_prune(lengths, alpha=values["split_alpha"], max_queues=int(values["max_queues"]))


def params_of(values: Values, queues: Iterable[Interval]) -> Params:
    """The policy's parameters for these values."""
    params: Params = {name: value for name, value in values.items() if name not in (*SPLIT, LOW_SHARE)}
    if LOW_SHARE in values:
        params["alpha_low_ms"] = values["alpha_ms"] * values[LOW_SHARE]
    if "every" in params:
        params["every"] = int(params["every"])
    if "split_alpha" in values:
        params["partition"] = ",".join(f"{queue.low}-{queue.high}" for queue in queues)
    return params
