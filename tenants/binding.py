"""Does the pool's capacity cover what is reserved of it?

Dedicated and guaranteed entitlements reserve concurrency, KV cache and throughput. They are considered in the order in
which they were made; each binds if it still fits beside those before it. What may be promised is what the catalog says
that the pool has: a replica that is down for an hour takes back no promise. What can be kept is what answers now: one
that was bound and no longer fits there is degraded. It keeps its place and is served as far as the rest goes, and
binds again when the capacity returns. Elastic, spot and preemptible entitlements reserve nothing and bind at once.
Pure: rows in, verdicts out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from scheduling.core.capacity.pool import DIMENSIONS, RESERVING, Amounts, tightest
from scheduling.core.types import EntitlementState, ServiceClass


@dataclass(frozen=True, slots=True)
class Claim:
    """An entitlement as binding sees it."""

    id: str
    service_class: ServiceClass
    share: Amounts
    state: EntitlementState  # where it stands now
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    unfit: str = ""  # why a cluster's scheduler has no room for its lease; empty: it has, or is not asked


@dataclass(frozen=True, slots=True)
class Binding:
    id: str
    state: EntitlementState
    reason: str  # one line for people; empty when bound


_LEFT = "left to reserve"


def judge(configured: Amounts, live: Amounts, claims: Iterable[Claim], now: datetime) -> Iterator[Binding]:
    """One verdict per claim, in the order given: earlier claims are served first.

    ``configured``: of all backends that do not drain; ``live``: of those among them that answer.
    """
    for claim in claims:
        if claim.valid_until is not None and claim.valid_until <= now:
            yield Binding(claim.id, EntitlementState.EXPIRED, f"ended {claim.valid_until:%Y-%m-%d %H:%M} UTC")
            continue
        if claim.valid_from is not None and claim.valid_from > now:
            yield Binding(claim.id, EntitlementState.PENDING, f"begins {claim.valid_from:%Y-%m-%d %H:%M} UTC")
            continue
        if claim.service_class not in RESERVING:
            yield Binding(claim.id, EntitlementState.BOUND, "")
            continue
        was_bound = claim.state in (EntitlementState.BOUND, EntitlementState.DEGRADED)
        unkept = EntitlementState.DEGRADED if was_bound else EntitlementState.PENDING
        if claim.unfit:
            yield Binding(claim.id, unkept, f"Kubernetes: {claim.unfit}"[:300])
            continue
        if short := tightest(claim.share, configured):
            yield Binding(claim.id, unkept, f"{_shortage(claim, short, configured)}: add backends or lower it")
            continue
        configured -= claim.share
        if short := tightest(claim.share, live):
            yield Binding(claim.id, unkept, f"{_shortage(claim, short, live)} while backends do not answer")
            continue
        live -= claim.share
        yield Binding(claim.id, EntitlementState.BOUND, "")


def for_members(reason: str) -> str:
    """A reason without what is left of the pool: that would tell a tenant what its neighbours reserve."""
    return "the pool has too little room for it" if _LEFT in reason else reason


def _shortage(claim: Claim, dimension: str, left: Amounts) -> str:
    wanted, room = getattr(claim.share, dimension), max(0.0, getattr(left, dimension))
    unit = "slot" if dimension == "slots" and wanted == 1 else DIMENSIONS[dimension]
    return f"needs {wanted:.10g} {unit}, the pool has {room:.10g} {_LEFT}"
