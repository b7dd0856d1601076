"""The policy's order as one whole number, for engines that run ``--scheduling-policy priority`` (lower is sooner).

What is granted together still stands in the engine's own queue for a moment; with this number it stands there as it
stood here. Formula: ``band * STEPS + floor(due / STEP_S) mod STEPS``. ``band`` is the place of the tier's rank among
those of the pool, so a better tier always goes first; ``due`` is when the policy wants the request served [s, the
gateway's wall clock]: its ``due_s``, or its arrival where a policy has none. No client's wish is in it (``priority``,
hints): the engine knows no tenants, so a wish would move its requests before those of others.

The number is never negative and fits into 32 bits with a sign: vLLM's Python server takes 64 bits, other fronts 32.
``due`` comes round after :data:`STEPS` steps (31 days): at that moment what waits in an engine goes behind what
comes next. Gateways whose clocks differ misplace each other's requests by as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from scheduling.core.policies.registry import make_ordering
from scheduling.core.types import PoolSpec, QueuedRequest

BANDS = 16  # ranks of a pool that are told apart; further ones share the last band
STEPS = 2**27
STEP_S = 0.02  # a step of an engine is not shorter by much

Due = Callable[[QueuedRequest], float]


@runtime_checkable
class HasDue(Protocol):
    """What an ordering policy may offer besides: its order as a moment."""

    def due_s(self, request: QueuedRequest) -> float:
        """When this request should be served [s, the clock of its arrival]. Of requests of one tier that arrived at one
        moment, who goes first here is due first. Finite: what costs much or has no deadline is due late, not never."""


def arrival_s(request: QueuedRequest) -> float:
    return request.arrival_s


def engine_order(pool: PoolSpec, ranks: Iterable[int]) -> EngineOrder:
    """What the engines of a pool are told. ``ranks``: of the tiers that use it."""
    policy = make_ordering(pool.policy, pool.policy_params)
    return EngineOrder(policy.due_s if isinstance(policy, HasDue) else arrival_s, ranks)


class EngineOrder:
    """The order of one pool for its engines. Made once per catalog."""

    __slots__ = ("_bands", "_due")

    def __init__(self, due: Due = arrival_s, ranks: Iterable[int] = ()) -> None:
        self._due = due
        self._bands = {rank: min(at, BANDS - 1) for at, rank in enumerate(sorted(set(ranks)))}

    def priority(self, request: QueuedRequest) -> int:
        """What the body's ``priority`` says."""
        band = self._bands.get(request.rank, BANDS - 1)
        return band * STEPS + int(self._due(request) / STEP_S) % STEPS
