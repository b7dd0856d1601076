"""What a pool has promised, and what it may come to: the two sides that must not cross.

Dedicated, guaranteed and elastic entitlements are promises. Where a planner may act, a pool may come to the replicas
that people made and its own up to ``max_replicas``; a write that would promise more is refused, and so is one that
would take the room of what is promised: fewer replicas, or smaller ones. Where scaling is off nothing is
provisioned: :mod:`tenants.binding` marks what does not fit, and says why.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.utils import timezone

from scheduling.core import planner
from scheduling.core.capacity import Amounts
from tenants.models import EntitlementState, Pool, ScalingMode
from tenants.rows import pool_spec


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
    spec = pool_spec(pool)
    return planner.provisionable(spec.scaling, spec.backends)


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
