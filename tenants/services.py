"""Every write to the catalog. One transaction each: rows, audit entry, version; processes are notified on commit.

The catalog's version row is locked first, so writes happen one after the other and a version that is visible contains
everything before it. Callers have checked the actor's rights through ``tenants.access``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models.functions import Coalesce
from django.utils import timezone

from scheduling.core.capacity import pool as capacity
from scheduling.core.types import EntitlementState, ServiceClass
from tenants import binding, keys, notify, ownership, promises, rules, versions
from tenants.audit import SYSTEM, Actor, difference, record, secrets_of, snapshot
from tenants.models import (
    AccessToken,
    ApiKey,
    Backend,
    Budget,
    CatalogVersion,
    Entitlement,
    Invitation,
    Lease,
    Membership,
    Owner,
    Pool,
    Price,
    Project,
    Role,
    Tenant,
    Tier,
)
from tenants.models.credentials import TokenScope
from tenants.models.limits import ALL_OF_KEY
from tenants.models.metering import BudgetScope

M = TypeVar("M", bound=models.Model)
K = TypeVar("K", ApiKey, AccessToken)

# What the catalog is made of: writing one of these bumps the version. Memberships and tokens are not in it.
CATALOGUED = (
    "slo", "tier", "tenant", "pool", "backend", "entitlement", "apikey", "quota", "project", "adapter", "budget",
    "price",
)  # fmt: skip

# What a key that takes another's place has of it.
KEPT_ON_ROTATION = ("name", "entitlement", "project", "entitlements", "user", *ALL_OF_KEY, "expires_at")

MOST_TOKENS = 50  # of one user that work
MOST_KEYS = 10_000  # of one tenant that work: its members make them, and every gateway holds all of them
MOST_ENDED = 10_000  # keys of one tenant, or tokens of one user, that work no more and are still listed


@dataclass(slots=True)
class _Change:
    """What the running transaction has touched."""

    catalog: bool = False
    pools: set[int] = field(default_factory=set)  # whose entitlements have to be judged again
    promises: set[int] = field(default_factory=set)  # pools whose promises or limits were written


_running: ContextVar[_Change | None] = ContextVar("books_change", default=None)


@contextmanager
def change(*, actor: Actor, reporting: bool = False) -> Iterator[_Change]:
    """A transaction on the catalog. Nested ones join it: one version, one notification for the whole.

    ``reporting``: what is written is what there is, not what somebody wants. No promise holds it up.
    """
    outer = _running.get()
    if outer is not None:
        with transaction.atomic():
            yield outer
        return
    current = _Change()
    token = _running.set(current)
    try:
        with transaction.atomic():
            CatalogVersion.objects.get_or_create(pk=1)
            row = CatalogVersion.objects.select_for_update().get(pk=1)
            yield current
            if reporting:
                current.promises.clear()
            judge(actor=actor, current=current)
            if current.catalog:
                row.version += 1
                row.next_change_at = _next_change(timezone.now())
                row.save(update_fields=["version", "next_change_at"])
                transaction.on_commit(partial(notify.notify, row.version))
    finally:
        _running.reset(token)


def judge(*, actor: Actor, current: _Change) -> None:
    """What follows from a change as a whole: who is bound now, and whether more is promised than can be provisioned.

    Raises:
        ValidationError: it is.
    """
    for pool in Pool.objects.filter(pk__in=current.pools).order_by("pk"):
        _settle(actor=actor, pool=pool)
    for pool in Pool.objects.filter(pk__in=current.promises).order_by("pk"):
        promises.refuse_overpromise(pool)


def save(*, actor: Actor, instance: M, action: str = "") -> M:
    """Creates or changes one object.

    Raises:
        ValidationError: by field, when a value breaks a rule or a fixed field would change.
    """
    with change(actor=actor) as current:
        stored = type(instance)._default_manager.filter(pk=instance.pk).first() if instance.pk else None
        before = snapshot(stored) if stored is not None else None
        if stored is not None:
            rules.refuse_fixed(stored, instance)
            rules.number_policy(stored, instance)
            rules.check_key(stored, instance)
        instance.full_clean()
        rules.check_user_name(stored, instance)
        rules.check_directions(stored, instance)
        rules.check_scaling_webhook(stored, instance)
        after = snapshot(instance)
        if stored is not None:
            for name in secrets_of(instance):
                if getattr(stored, name) != getattr(instance, name):
                    after[name] = "(changed)" if getattr(instance, name) else ""
        if before == after:
            return instance
        if before is not None:
            ownership.refuse_change(actor, instance, (name for name in after if before.get(name) != after[name]))
        with rules.an_admin_remains(instance):
            instance.save()
        if isinstance(instance, Pool):
            versions.keep(instance, cast("Pool | None", stored), actor.name)
        shown_before, shown_after = difference(before, after)
        record(
            actor=actor,
            action=action or ("change" if stored is not None else "create"),
            instance=instance,
            before=shown_before,
            after=shown_after,
        )
        _touch(current, instance)
        if isinstance(instance, Backend) and isinstance(stored, Backend):
            current.pools.add(stored.pool_id)  # it may have moved to another pool
        if isinstance(instance, Membership):
            _open_admin_site(instance.user)
    return instance


def delete(*, actor: Actor, instance: models.Model, belonging: bool = False) -> None:
    """Removes one object, and what belongs to it alone.

    Raises:
        ProtectedError: while other objects need it.
        ValidationError: it is a price that was charged, and more than what belongs to a pool.
    """
    with change(actor=actor) as current:
        ownership.refuse_delete(actor, instance)
        if isinstance(instance, Price) and not belonging:
            instance.refuse_delete()
        for one in rules.belongings(instance):
            delete(actor=actor, instance=one, belonging=True)
        _touch(current, instance)
        record(actor=actor, action="delete", instance=instance, before=snapshot(instance))
        user = instance.user if isinstance(instance, Membership) else None
        with rules.an_admin_remains(instance):
            instance.delete()
        if user is not None:
            _open_admin_site(user)


def withdraw(*, actor: Actor, membership: Membership) -> None:
    """Takes a role away that the identity provider gave, also from the last admin: who left there has nothing here."""
    with change(actor=actor):
        record(actor=actor, action="delete", instance=membership, before=snapshot(membership))
        user = membership.user
        membership.delete()
        _open_admin_site(user)


@dataclass(frozen=True, slots=True)
class Issued:
    """A fresh key or token, with the only copy of its secret."""

    row: ApiKey | AccessToken | Invitation
    credential: keys.Credential


def issue_key(
    *,
    actor: Actor,
    name: str,
    entitlement: Entitlement | None = None,
    project: Project | None = None,
    expires_at: datetime | None = None,
    credential: keys.Credential | None = None,
    replaces: bool = False,
    **options: Any,
) -> Issued:
    """Makes a key of an entitlement or a project. ``options``: other fields of the key.

    ``credential`` restores one whose secret the caller has kept (the demo's file). ``replaces``: it takes the place of
    one that works, so that there is room.

    Raises:
        ValidationError: a field is wrong, or the tenant has too many keys.
    """
    credential = credential or keys.make(keys.KEY_PREFIX)
    row = ApiKey(
        public_id=credential.public_id,
        digest=credential.digest,
        name=name,
        entitlement=entitlement,
        project=project,
        expires_at=expires_at,
        created_by=actor.user,
        **options,
    )
    rules.refuse_past(expires_at)
    owner = entitlement or project
    with change(actor=actor):
        if owner is not None:
            mine = _keys_of(owner.tenant)
            if not replaces and (mine & ApiKey.active_at(timezone.now())).count() >= MOST_KEYS:
                raise ValidationError(f"The tenant has {MOST_KEYS} API keys that work, the most. Revoke some first.")
            _forget_ended(_unnamed(mine))
        return Issued(save(actor=actor, instance=row, action="issue"), credential)


def _keys_of(tenant: Tenant) -> models.QuerySet[ApiKey]:
    return ApiKey.objects.filter(models.Q(entitlement__tenant=tenant) | models.Q(project__tenant=tenant))


def _unnamed(keys_: models.QuerySet[ApiKey]) -> models.QuerySet[ApiKey]:
    """Without those that something else names: a budget, or a custom resource that would make them again."""
    budgets = Budget.objects.filter(scope=BudgetScope.KEY).values("name")
    resources = Owner.objects.filter(kind="ApiKey").values("name")
    return keys_.exclude(public_id__in=budgets).exclude(public_id__in=resources)


def _forget_ended(rows: models.QuerySet[K]) -> None:
    """Takes away those that ended first, so that whoever makes and revokes for ever leaves no endless list. The audit
    log, the ledger and usage go by their ids and keep all of them."""
    ended = rows.filter(models.Q(revoked_at__isnull=False) | models.Q(expires_at__lte=timezone.now()))
    over = ended.count() - MOST_ENDED
    if over > 0:
        for row in ended.order_by(Coalesce("revoked_at", "expires_at"), "pk")[: min(over, 10)]:
            delete(actor=SYSTEM, instance=row)


def revoke_key(*, actor: Actor, key: ApiKey) -> ApiKey:
    """Ends a key now. Doing it twice changes nothing."""
    return _revoke(actor=actor, row=key)


def revoke_user(*, actor: Actor, tenant: Tenant, user: str) -> list[ApiKey]:
    """Ends all keys of a tenant that are attributed to ``user``, at once: one version of the catalog. Those that ended
    now; none where there was none."""
    with change(actor=actor):
        rows = _keys_of(tenant).filter(user=user, revoked_at__isnull=True).order_by("pk")
        return [revoke_key(actor=actor, key=key) for key in rows] if user else []


def rotate_key(*, actor: Actor, key: ApiKey, overlap_s: float = 0.0) -> Issued:
    """A new key of the same name; the old one works on for ``overlap_s`` seconds.

    Raises:
        ValidationError: when the old key no longer works, or the overlap is out of range.
    """
    if not 0 <= overlap_s <= 30 * 86_400:
        raise ValidationError({"overlap_s": "Use 0 to 2592000 seconds (30 days)."})
    ownership.refuse_rotation(key)
    with change(actor=actor):
        key = ApiKey.objects.select_for_update().get(pk=key.pk)
        now = timezone.now()
        if key.status_at(now) != "active":
            raise ValidationError(f"This key is {key.status_at(now)}. Create a new one instead of rotating it.")
        kept = {name: getattr(key, name) for name in KEPT_ON_ROTATION}
        issued = issue_key(actor=actor, replaces=True, **kept)
        if overlap_s == 0:
            revoke_key(actor=actor, key=key)
        else:
            end = now + timedelta(seconds=overlap_s)
            key.expires_at = end if key.expires_at is None else min(end, key.expires_at)
            save(actor=actor, instance=key, action="rotate")
    return issued


def issue_token(
    *,
    actor: Actor,
    user: User,
    name: str,
    expires_at: datetime | None = None,
    made_with: AccessToken | None = None,
    scope: str = TokenScope.ALL,
) -> Issued:
    """Makes a token to the management API that acts for ``user``.

    Args:
        made_with: the token that asks for it. The new one ends with it: at its time, or when it is revoked.

    Raises:
        ValidationError: it would expire later than ``made_with`` or than tokens may, that one has ended meanwhile, or
            the user has too many.
    """
    credential = keys.make(keys.TOKEN_PREFIX)
    rules.refuse_past(expires_at)
    expires_at = rules.within_life(expires_at)
    with change(actor=actor):
        if made_with is not None:
            # Under the lock of the catalog: a revocation that comes now finds the new one, or is found here.
            made_with = AccessToken.objects.get(pk=made_with.pk)
            if made_with.status_at(timezone.now()) != "active":
                raise ValidationError("The access token of this request has expired or was revoked.")
            if made_with.expires_at is not None and (expires_at is None or expires_at > made_with.expires_at):
                raise ValidationError(
                    {"expires_at": f"A token made with another one ends with it, {made_with.expires_at.isoformat()}."}
                )
            if made_with.scope == TokenScope.READ and scope != TokenScope.READ:
                raise ValidationError({"scope": "A token for reading makes no token for more."})
        if AccessToken.active_at(timezone.now()).filter(user=user).count() >= MOST_TOKENS:
            raise ValidationError(f"{user} has {MOST_TOKENS} access tokens, the most. Revoke one first.")
        _forget_ended(AccessToken.objects.filter(user=user))
        row = AccessToken(
            public_id=credential.public_id, digest=credential.digest, name=name, user=user, expires_at=expires_at,
            made_with=made_with, scope=scope,
        )  # fmt: skip
        return Issued(save(actor=actor, instance=row, action="issue"), credential)


def revoke_token(*, actor: Actor, token: AccessToken) -> AccessToken:
    """Ends a token and those made with it, now. Doing it twice changes nothing."""
    with change(actor=actor):
        ended = _revoke(actor=actor, row=token)
        parents = [ended.pk]
        while parents:  # those made with these, and so on
            rows = list(AccessToken.objects.filter(made_with_id__in=parents))
            for row in rows:
                _revoke(actor=actor, row=row)
            parents = [row.pk for row in rows]
    return ended


def drain_backend(*, actor: Actor, backend: Backend, draining: bool) -> Backend:
    """Takes a backend out of the choice of new work, or puts it back. What runs there finishes."""
    with change(actor=actor):
        backend = Backend.objects.select_for_update().get(pk=backend.pk)
        backend.draining, backend.leaving_since = draining, None
        return save(actor=actor, instance=backend, action="drain" if draining else "undrain")


def pause_tenant(*, actor: Actor, tenant: Tenant, reason: str = "") -> Tenant:
    """From now on new requests of its keys are refused (``tenant_paused``); what was admitted goes on."""
    with change(actor=actor):
        tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
        tenant.paused_since, tenant.paused_reason = tenant.paused_since or timezone.now(), reason
        return save(actor=actor, instance=tenant, action="pause")


def resume_tenant(*, actor: Actor, tenant: Tenant) -> Tenant:
    """Takes a pause back."""
    with change(actor=actor):
        tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
        tenant.paused_since, tenant.paused_reason = None, ""
        return save(actor=actor, instance=tenant, action="resume")


def retire_backend(*, actor: Actor, backend: Backend) -> Backend:
    """Drains a managed backend in order to remove it once nothing runs there any more.

    Raises:
        ValidationError: a person made it, and only a person ends it.
    """
    with change(actor=actor):
        backend = Backend.objects.select_for_update().get(pk=backend.pk)
        if not backend.managed:
            raise ValidationError("Only backends managed by a scaling driver can be removed automatically.")
        backend.draining, backend.leaving_since = True, backend.leaving_since or timezone.now()
        return save(actor=actor, instance=backend, action="retire")


def set_silent(*, pool_slug: str, answering: Mapping[str, bool]) -> None:
    """Notes which backends answer, as the pool's leader found them; what can no longer be kept is degraded, and binds
    again when they are back. Backends that are not named stay as they are."""
    with change(actor=SYSTEM) as current:
        for backend in Backend.objects.select_for_update().filter(pool__slug=pool_slug, slug__in=answering):
            since = None if answering[backend.slug] else backend.silent_since or timezone.now()
            if since == backend.silent_since:
                continue
            before = {"silent_since": backend.silent_since and backend.silent_since.isoformat()}
            backend.silent_since = since
            backend.save(update_fields=["silent_since"])
            after = {"silent_since": since and since.isoformat()}
            record(actor=SYSTEM, action="health", instance=backend, before=before, after=after)
            current.catalog = True
            current.pools.add(backend.pool_id)


def set_leases(verdicts: Mapping[str, tuple[str, str]]) -> None:
    """Notes what a cluster's scheduler says of entitlements' leases: by entitlement, the lease's state and the
    scheduler's reason. What is not bound there is not bound here."""
    with change(actor=SYSTEM) as current:
        for row in Entitlement.objects.select_for_update().filter(slug__in=verdicts):
            lease, reason = verdicts[row.slug]
            reason = reason[:300]
            if (row.lease, row.lease_reason) == (lease, reason):
                continue
            before = {"lease": row.lease, "lease_reason": row.lease_reason}
            row.lease, row.lease_reason = lease, reason
            row.save(update_fields=["lease", "lease_reason"])
            after = {"lease": lease, "lease_reason": reason}
            record(actor=SYSTEM, action="lease", instance=row, before=before, after=after)
            current.catalog = True
            current.pools.add(row.pool_id)


class Replaced(Exception):
    """What a change is meant to replace is there no more: somebody else was quicker."""


def set_policy(
    *,
    actor: Actor,
    pool: Pool,
    policy: str,
    params: dict[str, float | int | str],
    replaces: int | None = None,
    **around: object,
) -> Pool:
    """Changes what orders a pool's queue; a change is a new policy version.

    ``around``: ``modifiers``, ``routing``, ``routing_params`` and ``room``; what is not named stays as it is.
    ``replaces``: the only version that it may replace; None: any.

    Raises:
        Replaced: when another version serves by now.
        ValidationError: when the policy or a parameter does not exist or is out of range.
    """
    with change(actor=actor):
        pool = Pool.objects.select_for_update().get(pk=pool.pk)
        if replaces not in (None, pool.policy_version):
            raise Replaced(f"{pool.policy}@{pool.policy_version} serves, and this was to replace version {replaces}.")
        for name, value in {"policy": policy, "policy_params": params, **around}.items():
            setattr(pool, name, value)
        return save(actor=actor, instance=pool, action="policy")


def settle_due(*, now: datetime | None = None) -> None:
    """Lets entitlements begin and end by their dates. Called when ``CatalogVersion.next_change_at`` has passed."""
    now = now or timezone.now()
    with change(actor=SYSTEM) as current:
        row = CatalogVersion.objects.get(pk=1)
        if row.next_change_at is None or row.next_change_at > now:
            return  # another process was quicker
        current.catalog = True
        current.pools.update(Pool.objects.values_list("pk", flat=True))


def _revoke(*, actor: Actor, row: K) -> K:
    with change(actor=actor) as current:
        row = type(row)._default_manager.select_for_update().get(pk=row.pk)
        if row.revoked_at is None:
            row.revoked_at = timezone.now()
            row.save(update_fields=["revoked_at"])
            record(actor=actor, action="revoke", instance=row, after={"revoked_at": row.revoked_at.isoformat()})
            _touch(current, row)
    return row


def _touch(current: _Change, instance: models.Model) -> None:
    """Notes what has to follow from a write."""
    if instance._meta.model_name in CATALOGUED and instance._meta.app_label == "tenants":
        current.catalog = True
    match instance:
        case Backend():
            current.pools.add(instance.pool_id)
            if not instance.managed:  # what a driver reports of its own is a fact, no wish
                current.promises.add(instance.pool_id)
        case Entitlement():
            current.pools.add(instance.pool_id)
            current.promises.add(instance.pool_id)
        case Tier():
            pools = set(instance.entitlements.values_list("pool_id", flat=True))
            current.pools.update(pools)
            current.promises.update(pools)
        case Pool():
            current.pools.add(instance.pk)
            current.promises.add(instance.pk)


def _settle(*, actor: Actor, pool: Pool) -> None:
    """Stores the verdicts of :mod:`tenants.binding` that differ from the stored ones."""
    configured, live = promises.there(pool)
    rows = {e.slug: e for e in pool.entitlements.select_related("tier", "tenant").order_by("pk")}
    claims = [
        binding.Claim(
            e.slug,
            ServiceClass(e.tier.service_class),
            capacity.Amounts(e.concurrency, e.kv_tokens, e.tokens_per_s),
            EntitlementState(e.state),
            e.valid_from,
            e.valid_until,
            unfit=e.lease_reason if e.lease == Lease.PENDING else "",
        )
        for e in rows.values()
    ]
    for verdict in binding.judge(configured, live, claims, timezone.now()):
        row = rows[verdict.id]
        if (row.state, row.state_reason) == (verdict.state.value, verdict.reason):
            continue
        before = {"state": row.state, "state_reason": row.state_reason}
        row.state, row.state_reason = verdict.state.value, verdict.reason
        row.save(update_fields=["state", "state_reason"])
        after = {"state": row.state, "state_reason": row.state_reason}
        record(actor=actor, action="state", instance=row, before=before, after=after)


def _next_change(now: datetime) -> datetime | None:
    """When the earliest entitlement begins or ends by itself."""
    dates = Entitlement.objects.aggregate(
        begins=models.Min("valid_from", filter=models.Q(valid_from__gt=now)),
        ends=models.Min("valid_until", filter=models.Q(valid_until__gt=now)),
    )
    return min((date for date in dates.values() if date is not None), default=None)


def _open_admin_site(user: User) -> None:
    """Admins and operators may sign in to the back office; members have the console."""
    user = get_user_model()._default_manager.get(pk=user.pk)
    staff = user.is_superuser or user.memberships.filter(role__in=[Role.ADMIN, Role.OPERATOR]).exists()
    if user.is_staff != staff:
        user.is_staff = staff
        user.save(update_fields=["is_staff"])
