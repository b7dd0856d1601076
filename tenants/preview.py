"""What a change would do to the pools, without doing it.

The change is really made, with all its rules, and its transaction is then taken back: what is shown before saving and
what happens on saving cannot differ. Nobody is told meanwhile; processes are notified on commit only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from scheduling.core.capacity import pool as capacity
from scheduling.core.capacity.pool import Amounts
from tenants import promises, services
from tenants.audit import Actor
from tenants.models import AuditEntry, Entitlement, EntitlementState, Pool

_KEEPS_ITS_PLACE = (EntitlementState.BOUND, EntitlementState.DEGRADED)


@dataclass(frozen=True, slots=True)
class Standing:
    """An entitlement as it stands."""

    tenant: str
    tier: str
    service_class: str
    state: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        return {"state": self.state, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Picture:
    """A pool's part of the catalog: what there is, and what of it is given away."""

    capacity: Amounts  # of all backends that do not drain
    answering: Amounts  # of those among them that answer
    reserved: Amounts  # held by dedicated and guaranteed entitlements
    promised: Amounts  # reserved and elastic shares
    provisionable: Amounts | None  # None: scaling is off
    standings: dict[str, Standing]  # by entitlement

    def as_dict(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity.as_dict(),
            "answering": self.answering.as_dict(),
            "reserved": self.reserved.as_dict(),
            "promised": self.promised.as_dict(),
            "provisionable": None if self.provisionable is None else self.provisionable.as_dict(),
        }


def picture(pool: Pool) -> Picture:
    """The pool's part of it now. Prefetch ``backends``, and ``entitlements`` with tier and tenant, for many pools."""
    now = timezone.now()
    backends = list(pool.backends.all())
    reserved = Amounts()
    standings = {}
    for row in pool.entitlements.all():
        state = row.state_at(now)
        reason = row.state_reason if state == row.state else ""
        standings[row.slug] = Standing(row.tenant.slug, row.tier.slug, row.tier.service_class, state, reason)
        if row.tier.service_class in capacity.RESERVING and state in _KEEPS_ITS_PLACE:
            reserved += Amounts(row.concurrency, row.kv_tokens, row.tokens_per_s)
    return Picture(
        capacity=capacity.of_pool(b.spec() for b in backends),
        answering=capacity.of_pool(b.spec() for b in backends if b.silent_since is None),
        reserved=reserved,
        promised=promises.promised(pool),
        provisionable=promises.provisionable(pool),
        standings=standings,
    )


@dataclass(frozen=True, slots=True)
class Effects:
    """What a change would do."""

    pools: dict[str, tuple[Picture | None, Picture | None]]  # before and after, of the pools it touches
    entries: tuple[AuditEntry, ...]  # what the audit log would say, oldest first; never stored

    def as_dict(self) -> dict[str, Any]:
        return {
            "pools": [_of_pool(name, before, after) for name, (before, after) in sorted(self.pools.items())],
            "changes": [
                {"action": e.action, "kind": e.kind, "object": e.object_id, "before": e.before, "after": e.after}
                for e in self.entries
            ],
        }


def effects(actor: Actor, write: Callable[[], object]) -> Effects:
    """Runs ``write``, sees what it did, and takes it back.

    Raises:
        ValidationError, ProtectedError: what saving would raise.
    """
    with transaction.atomic():
        newest = AuditEntry.objects.aggregate(newest=models.Max("pk"))["newest"] or 0
        with transaction.atomic():
            with services.change(actor=actor) as current:
                write()
            touched = current.pools | current.promises
            after = _pictures(touched)
            entries = tuple(AuditEntry.objects.filter(pk__gt=newest).order_by("pk"))
            transaction.set_rollback(True)
        before = _pictures(touched)  # as it was again; PostgreSQL has given the lock back by now
        transaction.set_rollback(True)
    pools = {}
    for key in touched:
        slug = (after.get(key) or before[key])[0]
        pools[slug] = (before[key][1] if key in before else None, after[key][1] if key in after else None)
    return Effects(pools, entries)


def _pictures(pools: Collection[int]) -> dict[int, tuple[str, Picture]]:
    # Joined: asked for apart, SQLite refuses the list of more than 1,000 tenants.
    entitlements = models.Prefetch("entitlements", Entitlement.objects.select_related("tier", "tenant"))
    rows = Pool.objects.filter(pk__in=pools).prefetch_related("backends__pool", entitlements)
    return {pool.pk: (pool.slug, picture(pool)) for pool in rows}


def _of_pool(name: str, before: Picture | None, after: Picture | None) -> dict[str, Any]:
    old, new = (before.standings if before else {}), (after.standings if after else {})
    changed = []
    for slug in sorted(old.keys() | new.keys()):
        was, becomes = old.get(slug), new.get(slug)
        if was != becomes:
            shown = becomes or was
            assert shown is not None
            changed.append(
                {
                    "entitlement": slug,
                    "tenant": shown.tenant,
                    "tier": shown.tier,
                    "service_class": shown.service_class,
                    "before": was and was.as_dict(),
                    "after": becomes and becomes.as_dict(),
                }
            )
    return {
        "pool": name,
        "before": before and before.as_dict(),
        "after": after and after.as_dict(),
        "entitlements": changed,
    }
