"""The catalog as frozen types of the core. What the gateway and the dispatch loop know comes from here.

Called in threads of the gateway and the dispatch loop, which are not requests.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from django.db import DatabaseError
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from scheduling.core import types as core
from scheduling.core.capacity import automatic_headroom, most_headroom, slots_for_answers
from tenants import prices, services
from tenants.connections import own_connection
from tenants.keys import KEY_PREFIX
from tenants.models import ApiKey, AuditEntry, CatalogVersion, Entitlement, Pool, Project, Quota, Tier
from tenants.models.limits import OF_KEY, OF_USER, rate_limits
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


MOST_KEYS = 1000  # read one by one; where more were written, all are read


class CatalogReader:
    """Reads the catalog again and again, and where only keys were written since, only those.

    What was written is in the audit log: every write to the catalog has an entry in the same transaction, and the
    version's lock orders them. Made for one caller at a time.
    """

    def __init__(self) -> None:
        self._last: core.Catalog | None = None
        self._seen = 0  # the newest entry about the catalog that ``_last`` contains

    def __call__(self) -> core.Catalog:
        last = self._last
        self._last = (None if last is None else self._only_keys(last)) or self._all()
        return self._last

    @own_connection
    def _all(self) -> core.Catalog:
        seen = _entries().order_by("-pk").values_list("pk", flat=True).first() or 0
        catalog = load_catalog()  # what was written meanwhile is in it, and will be read once more
        self._seen = seen
        return catalog

    @own_connection
    def _only_keys(self, last: core.Catalog) -> core.Catalog | None:
        """The next catalog, if nothing but keys was written since ``last``; else None."""
        version = _version()
        entries = list(_entries().filter(pk__gte=self._seen).order_by("pk").values_list("pk", "kind", "object_id")[
            : MOST_KEYS + 2
        ])  # fmt: skip
        # The first is the one that was seen: another database, or one that was restored, does not have it.
        if version < last.version or not entries or entries[0][0] != self._seen or len(entries) > MOST_KEYS + 1:
            return None
        written = entries[1:]
        if not written or any(kind != _KEY for _, kind, _ in written):
            return None
        names = {name.removeprefix(KEY_PREFIX) for _, _, name in written}
        rows = _key_rows(timezone.now()).filter(public_id__in=names)
        keys = {name: key for name, key in last.keys.items() if name not in names}
        keys |= _keys(rows, last.entitlements, last.projects)
        self._seen = written[-1][0]
        return replace(last, version=version, keys=keys)


_KEY = "apikey"


def _entries() -> QuerySet:
    return AuditEntry.objects.filter(kind__in=services.CATALOGUED)


def _version() -> int:
    return CatalogVersion.objects.values_list("version", flat=True).filter(pk=1).first() or 0


@own_connection
def load_catalog() -> core.Catalog:
    """Everything configured, in eight queries.

    The version is read first: a write in between makes it stale, and the next poll loads again.
    """
    now = timezone.now()
    version = _version()
    rows = {pool.slug: pool for pool in Pool.objects.prefetch_related("backends", "adapters")}
    pools = {slug: pool_spec(pool) for slug, pool in rows.items()}
    tiers = {tier.pk: tier_spec(tier) for tier in Tier.objects.select_related("slo")}
    entitlements = {}
    owners: dict[str, int | None] = {}  # the projects of entitlements
    for row in Entitlement.objects.select_related("tenant", "pool", "adapter"):
        if row.tier_id in tiers and row.pool.slug in pools:
            entitlements[row.slug] = entitlement_spec(row, tiers[row.tier_id], now)
            owners[row.slug] = row.project_id
    by_pool: dict[str, list[core.EntitlementSpec]] = defaultdict(list)
    for spec in entitlements.values():
        by_pool[spec.pool].append(spec)
    for slug, pool in rows.items():
        if pool.headroom_slots is None:
            one, slots = pools[slug], slots_for_answers(pools[slug].backends)
            kept, most = automatic_headroom(slots, by_pool[slug]), most_headroom(slots, by_pool[slug])
            pools[slug] = replace(one, headroom_slots=kept, headroom_most=most)
    projects = _projects(entitlements, owners)
    keys = _keys(_key_rows(now), entitlements, projects)
    quotas: dict[str, tuple[core.QuotaSpec, ...]] = {}
    for tenant, period, soft, hard in Quota.objects.values_list("tenant__slug", "period", "soft_tokens", "hard_tokens"):
        quotas[tenant] = (*quotas.get(tenant, ()), core.QuotaSpec(period, soft, hard))
    budgets = prices.budgets()
    return core.Catalog(
        version=version,
        pools=pools,
        entitlements=entitlements,
        keys=keys,
        quotas=quotas,
        projects=projects,
        budgets=budgets,
        rates=prices.rates() if budgets else {},  # without budgets nobody here asks what anything costs
    )


_Limit = int | None
_KeyRow = tuple[
    str, str, str | None, datetime | None, str | None, str, str, _Limit, _Limit, _Limit, _Limit, _Limit, _Limit, _Limit
]


def _key_rows(now: datetime) -> QuerySet[ApiKey, _KeyRow]:
    """Of all active keys, in no order. The subset as it is stored: most are empty, and need no parser."""
    rows = ApiKey.active_at(now).order_by().annotate(subset=Cast("entitlements", TextField()))
    return rows.values_list(
        "public_id",
        "digest",
        "entitlement__slug",
        "expires_at",
        "project__slug",
        "subset",
        "user",
        "tokens_per_day",
        *OF_KEY,
        *OF_USER,
    )


def _keys(
    rows: Iterable[_KeyRow], entitlements: Container[str | None], projects: Container[str | None]
) -> dict[str, core.KeySpec]:
    """Those of the keys that lead somewhere, by id."""
    subsets: dict[str, tuple[str, ...]] = {"[]": ()}  # equal ones are kept once
    limits: dict[tuple[_Limit, ...], core.RateLimits | None] = {}

    def limits_in(*stored: _Limit) -> core.RateLimits | None:
        if stored not in limits:
            limits[stored] = rate_limits(*stored)
        return limits[stored]

    def read(text: str) -> tuple[str, ...]:
        if text not in subsets:
            subsets[text] = tuple(json.loads(text))
        return subsets[text]

    return {
        public_id: core.KeySpec(
            id=public_id,
            digest=bytes.fromhex(digest),
            entitlement=entitlement or "",
            expires_s=expires_at.timestamp() if expires_at else None,
            project=project or "",
            subset=read(subset),
            user=user,
            tokens_per_day=daily or 0,
            limits=limits_in(*limited[:3]),
            user_limits=limits_in(*limited[3:]),
        )
        for public_id, digest, entitlement, expires_at, project, subset, user, daily, *limited in rows
        if entitlement in entitlements or project in projects
    }


def _projects(
    entitlements: Mapping[str, core.EntitlementSpec], owners: Mapping[str, int | None]
) -> dict[str, core.ProjectSpec]:
    """All projects, each with the entitlements that its keys may open, in the order in which they are preferred."""
    owned: dict[int, list[core.EntitlementSpec]] = defaultdict(list)
    common: dict[str, list[core.EntitlementSpec]] = defaultdict(list)
    for spec in entitlements.values():
        owner = owners[spec.id]
        (common[spec.tenant] if owner is None else owned[owner]).append(spec)
    projects = {}
    for row in Project.objects.select_related("tenant"):
        reach = sorted(owned[row.pk] + common[row.tenant.slug], key=lambda e: (e.tier.rank, e.id))
        projects[row.slug] = core.ProjectSpec(
            id=row.slug,
            tenant=row.tenant.slug,
            entitlements=tuple(e.id for e in reach),
            aliases=dict(row.aliases),
            default_model=row.default_model,
            fallbacks={
                name: core.FallbackSpec(rule["to"], frozenset(rule["when"])) for name, rule in row.fallbacks.items()
            },
            user_limits=rate_limits(*(getattr(row, name) for name in OF_USER)),
        )
    return projects


def pool_and_entitlements(pool: Pool) -> tuple[core.PoolSpec, tuple[core.EntitlementSpec, ...]]:
    """A pool and who may use it, as they are configured now, automatic headroom included."""
    now = timezone.now()
    rows = Entitlement.objects.filter(pool=pool).select_related("tenant", "pool", "adapter", "tier__slo")
    of_pool = tuple(entitlement_spec(row, tier_spec(row.tier), now) for row in rows)
    spec = pool_spec(pool)
    if pool.headroom_slots is None:
        slots = slots_for_answers(spec.backends)
        kept, most = automatic_headroom(slots, of_pool), most_headroom(slots, of_pool)
        spec = replace(spec, headroom_slots=kept, headroom_most=most)
    return spec, of_pool
