"""Weighted shares of turns.

Question: which tier has the next turn?
Formula: smooth weighted round robin: at each turn every tier with a request that may run gains its weight; the one with
most takes the turn and pays the sum. Weights 50/30/20 give it turns in proportion, evenly spread, not in bursts; within
a tier the oldest arrival goes.
Inputs: tier weight, arrival.
Cost: O(tiers + log n) per decision.
Who starves: none; a tier with weight w gets at least w / (sum of weights) of the turns while it has work that fits.
Source: DriftSched's weighted policy (50/30/20, cyclic); the smooth variant is nginx's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest


@ordering("weighted")
@dataclass(frozen=True, slots=True)
class Weighted:
    """Turns in proportion to the tiers' weights."""

    def queue(self) -> RequestQueue:
        return _TierTurns()


def _arrival(request: QueuedRequest) -> Key:
    return (request.arrival_s,)


class _TierTurns:
    def __init__(self) -> None:
        self._tiers: dict[str, KeyedQueue] = {}
        self._weights: dict[str, float] = {}
        self._credit: dict[str, float] = {}
        self._tier_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._tier_of)

    def __iter__(self) -> Iterator[QueuedRequest]:
        for queue in self._tiers.values():
            yield from queue

    def explain(self, request: QueuedRequest) -> str:
        total = sum(self._weights[tier] for tier, queue in self._tiers.items() if len(queue) or tier == request.tier)
        return f"turn of tier {request.tier}: weight {request.weight:g} of {total:g}"

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self.discard(request.id)
        if request.tier not in self._tiers:
            self._tiers[request.tier] = KeyedQueue(_arrival, self.explain)
            self._credit[request.tier] = 0.0
        self._weights[request.tier] = max(request.weight, 1e-9)
        self._tier_of[request.id] = request.tier
        self._tiers[request.tier].push(request, now_s)

    def discard(self, request_id: str) -> bool:
        tier = self._tier_of.pop(request_id, None)
        return tier is not None and self._tiers[tier].discard(request_id)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        able = {tier: first.rank for tier, queue in self._tiers.items() if (first := queue.peek(round_))}
        while able:
            turn = max(able, key=lambda tier: (self._credit[tier] + self._weights[tier], -able[tier], tier))
            request = self._tiers[turn].select(round_, now_s)
            if request is not None:
                break
            # Asking the other tiers may have made the scheduler keep room, so that nothing of this one fits any more.
            del able[turn]
        else:
            return None
        del self._tier_of[request.id]
        for tier in able:
            self._credit[tier] += self._weights[tier]
        self._credit[turn] -= sum([self._weights[tier] for tier in able])
        if not self._tiers[turn]:
            self._credit[turn] = 0.0  # a tier that went idle keeps no claim on the past
        return request
