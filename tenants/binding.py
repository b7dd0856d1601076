"""Does the pool's capacity cover what is reserved of it?

Dedicated and guaranteed entitlements reserve concurrency and KV cache. They are considered in the order in which they
were made; each binds if it still fits beside those before it. One that was bound and no longer fits (a backend left) is
degraded: it keeps its place, and binds again when the capacity returns. Elastic, spot and preemptible entitlements
reserve nothing and bind at once. Pure: rows in, verdicts out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from scheduling.core.types import EntitlementState, ServiceClass

RESERVING = frozenset({ServiceClass.DEDICATED, ServiceClass.GUARANTEED})


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool's backends offer together, without those that drain."""

    slots: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Claim:
    """An entitlement as binding sees it."""

    id: str
    service_class: ServiceClass
    concurrency: int
    kv_tokens: int
    state: EntitlementState  # where it stands now
    valid_from: datetime | None = None
    valid_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    id: str
    state: EntitlementState
    reason: str  # one line for people; empty when bound


def judge(capacity: Capacity, claims: Iterable[Claim], now: datetime) -> Iterator[Verdict]:
    """One verdict per claim, in the order given: earlier claims are served first."""
    slots, kv_tokens = capacity.slots, capacity.kv_tokens
    for claim in claims:
        if claim.valid_until is not None and claim.valid_until <= now:
            yield Verdict(claim.id, EntitlementState.EXPIRED, f"ended {claim.valid_until:%Y-%m-%d %H:%M} UTC")
            continue
        if claim.valid_from is not None and claim.valid_from > now:
            yield Verdict(claim.id, EntitlementState.PENDING, f"begins {claim.valid_from:%Y-%m-%d %H:%M} UTC")
            continue
        if claim.service_class not in RESERVING:
            yield Verdict(claim.id, EntitlementState.BOUND, "")
            continue
        short = _shortage("slots", claim.concurrency, slots) or _shortage("KV tokens", claim.kv_tokens, kv_tokens)
        if short:
            held = claim.state in (EntitlementState.BOUND, EntitlementState.DEGRADED)
            yield Verdict(claim.id, EntitlementState.DEGRADED if held else EntitlementState.PENDING, short)
            continue
        slots -= claim.concurrency
        kv_tokens -= claim.kv_tokens
        yield Verdict(claim.id, EntitlementState.BOUND, "")


def _shortage(unit: str, wanted: int, left: int) -> str:
    if wanted <= left:
        return ""
    return f"needs {wanted} {unit}, the pool has {max(0, left)} left to reserve: add backends or lower it"
