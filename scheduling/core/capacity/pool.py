"""What a pool can hold, and what of it is promised: one model for admission, binding and scaling (token pools 3.1).

Capacity is replicas times what one replica has, in three dimensions that bind separately: concurrency ``r``
[sequences], KV cache ``chi`` (counted in tokens; times the pool's KV bytes per token it is bytes) and throughput
``lambda`` [tokens/s]. Slots and KV cache are settings of the engine and always known; throughput is measured
(``manage.py calibrate``) and is no bound while a replica has not been.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.core.rights import baseline_slots
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, Phase, ServiceClass

RESERVING = frozenset({ServiceClass.DEDICATED, ServiceClass.GUARANTEED})  # Table 1: baseline "reserved"
DIMENSIONS = {"slots": "slots", "kv_tokens": "KV tokens", "tokens_per_s": "tokens/s"}  # attribute -> as people read it
AUTOMATIC_SHARE = 6  # one slot in six is kept for baselines where no headroom is configured
_ALMOST = 1e-9  # sums of shares that are equal on paper


@dataclass(frozen=True, slots=True)
class Amounts:
    """Capacity, promise or use in the three dimensions of a pool."""

    slots: float = 0.0  # sequences
    kv_tokens: float = 0.0
    tokens_per_s: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.slots + other.slots, self.kv_tokens + other.kv_tokens, self.tokens_per_s + other.tokens_per_s
        )

    def __sub__(self, other: Amounts) -> Amounts:
        return self + other * -1

    def __mul__(self, factor: float) -> Amounts:
        return Amounts(self.slots * factor, self.kv_tokens * factor, self.tokens_per_s * factor)

    def as_dict(self) -> dict[str, float]:
        """By dimension, for people and JSON; a dimension without a bound is left out."""
        values = {name: getattr(self, name) for name in DIMENSIONS}
        return {name: round(value, 3) for name, value in values.items() if math.isfinite(value)}


def of_backend(backend: BackendSpec) -> Amounts:
    """What one replica has; tokens/s are unbounded until measured. Answers are written in slots and KV cache, of which
    a prefill replica has none to promise; the prompt tokens that it computes a second count."""
    if backend.phase is Phase.PREFILL:
        return Amounts(tokens_per_s=backend.tokens_per_s or math.inf)
    return Amounts(backend.slots, backend.kv_tokens, backend.tokens_per_s or math.inf)


def slots_for_answers(backends: Iterable[BackendSpec]) -> int:
    """Answers that they can write at once, draining replicas included: of these slots some are kept for baselines."""
    return sum(backend.slots for backend in backends if backend.phase is not Phase.PREFILL)


def of_pool(backends: Iterable[BackendSpec]) -> Amounts:
    """What the replicas have together, without those that drain."""
    total = Amounts()
    for backend in backends:
        if not backend.draining:
            total += of_backend(backend)
    return total


def of_entitlement(spec: EntitlementSpec) -> Amounts:
    """Its baseline ``(r_e, chi_e, lambda_e)``."""
    return Amounts(spec.concurrency, spec.kv_tokens, spec.tokens_per_s)


def reserved(entitlements: Iterable[EntitlementSpec]) -> Amounts:
    """What bound dedicated and guaranteed entitlements hold of a pool, whether they use it or not."""
    total = Amounts()
    for spec in entitlements:
        if spec.tier.service_class in RESERVING and spec.state is EntitlementState.BOUND:
            total += of_entitlement(spec)
    return total


def tightest(wanted: Amounts, left: Amounts) -> str:
    """The name of the first dimension in which ``wanted`` does not fit into ``left``; empty where it fits."""
    for name in DIMENSIONS:
        room = getattr(left, name)
        if getattr(wanted, name) > room + _ALMOST * max(1.0, abs(room)):
            return name
    return ""


def baselines_of(entitlements: Iterable[EntitlementSpec]) -> int:
    """Slots of all baselines together."""
    bound = (e for e in entitlements if e.state in (EntitlementState.BOUND, EntitlementState.DEGRADED))
    return sum(baseline_slots(e.tier.service_class, e.concurrency) for e in bound)


def automatic_headroom(slots: int, entitlements: Iterable[EntitlementSpec]) -> int:
    """Free slots that a pool keeps for baselines where none are configured: a sixth of its slots, and at most what all
    baselines need together. None where no entitlement could take another's slots: with one entitlement, or with
    guaranteed ones only, which never exceed their baselines."""
    bound = [e for e in entitlements if e.state in (EntitlementState.BOUND, EntitlementState.DEGRADED)]
    if len(bound) < 2 or all(e.tier.service_class is ServiceClass.GUARANTEED for e in bound):
        return 0
    return min(baselines_of(bound), automatic_share(slots))


def automatic_share(slots: int) -> int:
    """Slots that a pool of ``slots`` keeps as headroom where none is configured."""
    return (slots + AUTOMATIC_SHARE // 2) // AUTOMATIC_SHARE


def most_headroom(slots: int, entitlements: Iterable[EntitlementSpec]) -> int:
    """How far automatic headroom may be raised while a pool serves: half of its slots, and not beyond all baselines. 0
    where there is none to raise."""
    entitlements = list(entitlements)
    return min(baselines_of(entitlements), slots // 2) if automatic_headroom(slots, entitlements) else 0
