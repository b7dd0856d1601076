"""How good was it for those who asked? The reward by which studies choose, and the gate judges.

For every tier: the share of its requests, refused ones included, whose promise was kept (attainment), and how late the
latest were (tail). A tier's tail is the conditional value at risk of lateness: the mean of ``x / (1 + x)`` over the
worst tenth of its requests, where ``x`` is the time to the first token over its target (to the last one where that is
promised; against :data:`scheduling.tuning.reward.PATIENCE` times its own prefill where nothing is). 0: at once, 0.5: on
target, 1: refused.

    reward = sum_t w_t * A_t / sum_t w_t + TAIL * (1 - sum_t w_t * T_t / sum_t w_t),    w_t: the tiers' weights

:data:`TAIL` makes the tail a tie-break: all of it is worth one point of attainment. **Nobody may pay for it**: a
setting under which some tier loses more than ``drop`` of its attainment, against what serves or against what a new pool
has, on the same requests, has a reward below both, by what that tier lost, however much others gained. So starving a
tier is never better, and not in several small steps either.

Source of the form: EWSJF 4.4.2, where the reward's "user penalty" is left open; the tail is Rockafellar and Uryasev's
CVaR (2000). Terms about the shape of queues are left out: nobody feels them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scheduling.simulator.result import Outcome
from scheduling.tuning.reward import Felt

TAIL = 0.01  # what the whole tail is worth, in attainment
FEW = 20  # requests of a tier
WORST = 0.1  # share of a tier's requests that are its tail


@dataclass(frozen=True, slots=True)
class TierMerit:
    """One tier: requests asked for, those whose promise was kept, and the tail in [0, 1]."""

    weight: float
    asked: int
    kept: int
    tail: float

    @property
    def attainment(self) -> float:
        return self.kept / self.asked if self.asked else 1.0


Merit = Mapping[str, TierMerit]  # by tier


def merit_of(felt: Sequence[Felt], outcomes: Sequence[Outcome]) -> dict[str, TierMerit]:
    """What one run came to, tier by tier. ``felt``: of the same requests in the same order."""
    tiers: dict[str, tuple[float, int, list[float]]] = {}
    for one, outcome in zip(felt, outcomes, strict=True):
        weight, kept, lateness = tiers.setdefault(one.tier, (one.weight, 0, []))
        x = max(0.0, one.took_s) / one.target_s
        lateness.append(1.0 if math.isinf(x) else x / (1.0 + x))
        tiers[one.tier] = (weight, kept + (not outcome.late), lateness)
    return {
        tier: TierMerit(weight, len(lateness), kept, _worst(lateness))
        for tier, (weight, kept, lateness) in sorted(tiers.items())
    }


def _worst(lateness: Iterable[float]) -> float:
    """The mean of the worst tenth, of one value at least."""
    ordered = sorted(lateness, reverse=True)
    worst = ordered[: max(1, round(WORST * len(ordered)))]
    return math.fsum(worst) / len(worst)


def plain_reward(merit: Merit) -> float:
    """The reward by itself, without looking at who pays. 0 without requests."""
    weights = math.fsum(max(1e-9, tier.weight) for tier in merit.values())
    if not merit:
        return 0.0
    kept = math.fsum(max(1e-9, tier.weight) * tier.attainment for tier in merit.values()) / weights
    tail = math.fsum(max(1e-9, tier.weight) * tier.tail for tier in merit.values()) / weights
    return kept + TAIL * (1.0 - tail)


def reward(merit: Merit, held_against: Sequence[Merit] = (), drop: float = 0.05) -> float:
    """The reward. ``held_against``: what other settings came to on the same requests; ``drop``: of a tier's attainment
    under any of them, which no gain of others outweighs."""
    own = plain_reward(merit)
    lost = max((worst_loss(merit, one) for one in held_against), default=0.0)
    return own if lost <= drop else min(own, *map(plain_reward, held_against)) - lost


def worst_loss(merit: Merit, serving: Merit) -> float:
    """The largest fall of a tier's attainment, at least 0. A tier of less than :data:`FEW` requests counts as one of so
    many, as one of its requests more or less says nothing."""
    falls = ((one.kept - merit[tier].kept) / max(FEW, one.asked) for tier, one in serving.items() if tier in merit)
    return max(0.0, max(falls, default=0.0))


def added(merits: Sequence[Merit]) -> dict[str, TierMerit]:
    """Several runs as one: requests add up, tails are averaged over them."""
    tiers: dict[str, list[TierMerit]] = {}
    for merit in merits:
        for tier, one in merit.items():
            tiers.setdefault(tier, []).append(one)
    return {
        tier: TierMerit(
            rows[0].weight,
            sum(row.asked for row in rows),
            sum(row.kept for row in rows),
            math.fsum(row.tail * row.asked for row in rows) / max(1, sum(row.asked for row in rows)),
        )
        for tier, rows in tiers.items()
    }


def as_json(merit: Merit) -> dict[str, Any]:
    return {tier: asdict(one) for tier, one in merit.items()}


def from_json(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, TierMerit]:
    return {tier: TierMerit(**row) for tier, row in raw.items()}


def parts_of(merit: Merit) -> dict[str, float]:
    """What a person is shown of it: attainment and tail, of all and of each tier."""
    asked = sum(one.asked for one in merit.values())
    kept = sum(one.kept for one in merit.values())
    weights = math.fsum(max(1e-9, one.weight) for one in merit.values()) or 1.0
    tail = math.fsum(max(1e-9, one.weight) * one.tail for one in merit.values()) / weights
    shown = {"attainment": kept / asked if asked else 1.0, "tail": tail}
    return shown | {f"attainment.{tier}": one.attainment for tier, one in merit.items()}
