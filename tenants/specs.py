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
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from scheduling.core import types as core
from scheduling.core.capacity.pool import automatic_headroom, most_headroom, slots_for_answers
from tenants import prices, services
from tenants.connections import own_connection
from tenants.keys import KEY_PREFIX
from tenants.models import ApiKey, AuditEntry, CatalogVersion, Entitlement, Pool, Project, Quota, Tenant, Tier
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
    """Reads the catalog again and again; of the keys, which are most of it, only those that were written since.

    What was written is in the audit log: every write to the catalog has an entry in the same transaction, and the
    version's lock orders them. Made for one caller at a time.
    """

    def __init__(self) -> None:
        self._last: core.Catalog | None = None
        self._seen = 0  # the newest entry about the catalog that ``_last`` contains

    def __call__(self) -> core.Catalog:
        last = self._last
        self._last = (None if last is None else self._changed(last)) or self._all()
        return self._last

    @own_connection
    def _all(self) -> core.Catalog:
        seen = _entries().order_by("-pk").values_list("pk", flat=True).first() or 0
        catalog = load_catalog()  # what was written meanwhile is in it, and will be read once more
        self._seen = seen
        return catalog

    @own_connection
    def _changed(self, last: core.Catalog) -> core.Catalog | None:
        """The next catalog, if what was written since ``last`` says all that became of the keys; else None."""
        version = _version()
        entries = list(
            _entries().filter(pk__gte=self._seen).order_by("pk").values_list("pk", "kind", "object_id", "action")[
                : MOST_KEYS + 2
            ]
        )  # fmt: skip
        # The first is the one that was seen: another database, or one that was restored, does not have it.
        if version < last.version or not entries or entries[0][0] != self._seen or len(entries) > MOST_KEYS + 1:
            return None
        written = entries[1:]
        others = {action for _, kind, _, action in written if kind != _KEY}
        if not written or _TAKES_KEYS_ALONG in others:
            return None
        now, names = timezone.now(), {name.removeprefix(KEY_PREFIX) for _, kind, name, _ in written if kind == _KEY}
        fresh = load_all_but_keys() if others else replace(last, version=version)
        if last.entitlements.keys() - fresh.entitlements.keys() or last.projects.keys() - fresh.projects.keys():
            return None  # deleted a moment ago: the entry is read next time, and the keys are now
        came = fresh.entitlements.keys() - last.entitlements.keys(), fresh.projects.keys() - last.projects.keys()
        if len(came[0]) + len(came[1]) > MOST_KEYS:
            return None
        now_s = now.timestamp()
        keys = {
            name: key
            for name, key in last.keys.items()
            if name not in names and (key.expires_s is None or key.expires_s > now_s)
        }
        if names or any(came):  # what came may have keys that led nowhere when they were read
            asked = Q(public_id__in=names) | Q(entitlement__slug__in=came[0]) | Q(project__slug__in=came[1])
            keys |= _keys(_key_rows(now).filter(asked), fresh.entitlements, fresh.projects)
        self._seen = written[-1][0]
        return replace(fresh, keys=keys)


_KEY = "apikey"
_TAKES_KEYS_ALONG = "delete"  # of an entitlement, a project, a tenant: their keys have no entries of their own


def _entries() -> QuerySet[AuditEntry]:
    return AuditEntry.objects.filter(kind__in=services.CATALOGUED)


def _version() -> int:
    return CatalogVersion.objects.values_list("version", flat=True).filter(pk=1).first() or 0


@own_connection
def load_catalog() -> core.Catalog:
    """Everything configured, in eight queries.

    The version is read first: a write in between makes it stale, and the next poll loads again.
    """
    catalog = load_all_but_keys()
    return replace(catalog, keys=_keys(_key_rows(timezone.now()), catalog.entitlements, catalog.projects))


def load_all_but_keys() -> core.Catalog:
    """What :func:`load_catalog` reads, without the keys."""
    now = timezone.now()
    version = _version()
    rows = {pool.slug: pool for pool in Pool.objects.prefetch_related("backends", "adapters")}
    pools = {slug: pool_spec(pool) for slug, pool in rows.items()}
    tiers = {tier.pk: tier_spec(tier) for tier in Tier.objects.select_related("slo")}
    entitlements = {}
    owners: dict[str, int | None] = {}  # the projects of entitlements
    by_key, tenants = {pool.pk: pool for pool in rows.values()}, Tenant.objects.in_bulk()
    adapters = {adapter.pk: adapter for pool in rows.values() for adapter in pool.adapters.all()}
    for row in Entitlement.objects.iterator():
        # one object of each for all of theirs: joined, each row would make its own
        pool_of, tenant_of = by_key.get(row.pool_id), tenants.get(row.tenant_id)
        if row.tier_id in tiers and pool_of is not None and tenant_of is not None:
            row.pool, row.tenant = pool_of, tenant_of
            if row.adapter_id in adapters:
                row.adapter = adapters[row.adapter_id]
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
    quotas: dict[str, tuple[core.QuotaSpec, ...]] = {}
    for tenant, period, soft, hard in Quota.objects.values_list("tenant__slug", "period", "soft_tokens", "hard_tokens"):
        quotas[tenant] = (*quotas.get(tenant, ()), core.QuotaSpec(period, soft, hard))
    budgets = prices.budgets()
    return core.Catalog(
        version=version,
        pools=pools,
        entitlements=entitlements,
        keys={},
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
    read: QuerySet[ApiKey, _KeyRow] = rows.values_list(
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
    return read


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
