"""The catalog as frozen types of the core. What the gateway and the dispatch loop know comes from here.

Called in threads of the gateway and the dispatch loop, which are not requests.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from django.db import DatabaseError
from django.utils import timezone

from scheduling.core import types as core
from scheduling.core.capacity import automatic_headroom, most_headroom
from tenants import services
from tenants.connections import own_connection
from tenants.models import ApiKey, CatalogVersion, Entitlement, Pool, Quota, Tier
from tenants.rows import entitlement_spec, pool_spec, tier_spec

log = logging.getLogger(__name__)


@own_connection
def catalog_version() -> int:
    """The current version: one row. Also lets entitlements begin or end when their time has come."""
    row = CatalogVersion.objects.values_list("version", "next_change_at").filter(pk=1).first()
    if row is None:
        return 0
    version, next_change_at = row
    if next_change_at is not None and next_change_at <= timezone.now():
        try:
            services.settle_due()
        except DatabaseError as error:  # a read-only or busy database must not stop the readers
            log.warning("entitlements could not be settled: %s", type(error).__name__)
            return version
        version = CatalogVersion.objects.values_list("version", flat=True).get(pk=1)
    return version


@own_connection
def load_catalog() -> core.Catalog:
    """Everything configured, in six queries.

    The version is read first: a write in between makes it stale, and the next poll loads again.
    """
    now = timezone.now()
    version = CatalogVersion.objects.values_list("version", flat=True).filter(pk=1).first() or 0
    rows = {pool.slug: pool for pool in Pool.objects.prefetch_related("backends")}
    pools = {slug: pool_spec(pool) for slug, pool in rows.items()}
    tiers = {tier.pk: tier_spec(tier) for tier in Tier.objects.select_related("slo")}
    entitlements = {}
    for row in Entitlement.objects.select_related("tenant", "pool"):
        if row.tier_id in tiers and row.pool.slug in pools:
            entitlements[row.slug] = entitlement_spec(row, tiers[row.tier_id], now)
    by_pool: dict[str, list[core.EntitlementSpec]] = defaultdict(list)
    for spec in entitlements.values():
        by_pool[spec.pool].append(spec)
    for slug, pool in rows.items():
        if pool.headroom_slots is None:
            one, slots = pools[slug], sum(backend.slots for backend in pools[slug].backends)
            kept, most = automatic_headroom(slots, by_pool[slug]), most_headroom(slots, by_pool[slug])
            pools[slug] = replace(one, headroom_slots=kept, headroom_most=most)
    key_rows = ApiKey.active_at(now).values_list("public_id", "digest", "entitlement__slug", "expires_at")
    keys = {
        public_id: core.KeySpec(
            id=public_id,
            digest=bytes.fromhex(digest),
            entitlement=entitlement,
            expires_s=expires_at.timestamp() if expires_at else None,
        )
        for public_id, digest, entitlement, expires_at in key_rows
        if entitlement in entitlements
    }
    quotas: dict[str, tuple[core.QuotaSpec, ...]] = {}
    for tenant, period, soft, hard in Quota.objects.values_list("tenant__slug", "period", "soft_tokens", "hard_tokens"):
        quotas[tenant] = (*quotas.get(tenant, ()), core.QuotaSpec(period, soft, hard))
    return core.Catalog(version=version, pools=pools, entitlements=entitlements, keys=keys, quotas=quotas)


def headroom_of(pool: Pool) -> int:
    """Free slots that a pool keeps for baselines, as it is configured now."""
    if pool.headroom_slots is not None:
        return pool.headroom_slots
    now = timezone.now()
    of_pool = Entitlement.objects.filter(pool=pool).select_related("tenant", "pool", "tier__slo")
    return _automatic_headroom(pool_spec(pool), (entitlement_spec(row, tier_spec(row.tier), now) for row in of_pool))


def _automatic_headroom(pool: core.PoolSpec, entitlements: Iterable[core.EntitlementSpec]) -> int:
    return automatic_headroom(sum(backend.slots for backend in pool.backends), entitlements)
