"""What a pool has promised, and what it may come to: the two sides that must not cross.

Dedicated, guaranteed and elastic entitlements are promises. Where a planner may act, a pool may come to the replicas
that people made and its own up to ``max_replicas``; a write that would promise more is refused, and so is one that
would take the room of what is promised: fewer replicas, or smaller ones. Where scaling is off nothing is
provisioned: :mod:`tenants.binding` marks what does not fit, and says why.
"""

from __future__ import annotations

import math
from dataclasses import replace

from django.core.exceptions import ValidationError
from django.utils import timezone

from scheduling.core.capacity import planner
from scheduling.core.capacity import pool as capacity
from scheduling.core.capacity.pool import DIMENSIONS, Amounts
from tenants.models import EntitlementState, Pool, ScalingMode
from tenants.rows import scaling_spec

# Of an entitlement, what :func:`promised` reads.
COLUMNS = (
    "pool_id", "concurrency", "kv_tokens", "tokens_per_s", "state", "valid_from", "valid_until", "tier__service_class",
)  # fmt: skip


def promised(pool: Pool) -> Amounts:
    """Baselines of all entitlements that have not ended, whether in force yet or not."""
    now = timezone.now()
    total = Amounts()
    for row in pool.entitlements.all():
        if row.tier.service_class in planner.ENTITLED and row.state_at(now) != EntitlementState.EXPIRED:
            total += Amounts(row.concurrency, row.kv_tokens, row.tokens_per_s)
    return total


def provisionable(pool: Pool) -> Amounts | None:
    """What the planner may bring the pool to; a dimension that is 0 is not known. None while scaling is off."""
    if pool.scaling_mode == ScalingMode.OFF:
        return None
    return planner.provisionable(scaling_spec(pool), [b.spec() for b in pool.backends.all()])


def there(pool: Pool) -> tuple[Amounts, Amounts]:
    """What may be promised of a pool now, and what of it can be kept: its replicas, and those among them that answer.

    A pool that may sleep without replicas has what a request brings back: while all that are there answer, nothing is
    missing. Once one is silent, what answers counts.
    """
    backends = list(pool.backends.all())
    configured = capacity.of_pool(b.spec() for b in backends)
    live = capacity.of_pool(b.spec() for b in backends if b.silent_since is None)
    scaling = scaling_spec(pool)
    if scaling.to_zero:
        most = planner.provisionable(scaling, [b.spec() for b in backends])
        most = replace(most, tokens_per_s=most.tokens_per_s or math.inf)  # not measured is no bound
        configured = Amounts(**{name: max(getattr(configured, name), getattr(most, name)) for name in DIMENSIONS})
        live = live if any(b.silent_since is not None for b in backends) else configured
    return configured, live


def asleep(pool: Pool) -> bool:
    """Whether it has no replica on purpose."""
    return scaling_spec(pool).to_zero and not any(b.leaving_since is None for b in pool.backends.all())


def refuse_overpromise(pool: Pool) -> None:
    """Called inside a write, before it is kept.

    Raises:
        ValidationError: more is promised than ``max_replicas`` can hold.
    """
    most = provisionable(pool)
    short = planner.shortage(promised(pool), most) if most is not None else ""
    if short:
        raise ValidationError(
            f"Pool {pool.slug}: {short} with {pool.max_replicas} replicas at most. "
            "Lower the shares or give them a class without a baseline (spot, preemptible), or raise max replicas."
        )
