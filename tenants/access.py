"""The only door to tenant data: from a signed-in user to what it may see and do.

admin     sees and writes everything; ends anybody's access tokens
operator  sees everything; changes pools' policies, drains backends
member    sees its own tenants and what they use; makes and ends keys of their entitlements
nobody    sees nothing

A row that is out of sight does not exist: looking for it answers 404, naming it in a body is an unknown name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from allauth.usersessions.models import UserSession
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.db.models import Exists, Model, OuterRef, Q, QuerySet

from tenants.models import (
    AccessToken,
    Adapter,
    ApiKey,
    AuditEntry,
    Backend,
    Budget,
    Entitlement,
    GroupRule,
    Invitation,
    Membership,
    Owner,
    Pool,
    Price,
    Project,
    Quota,
    Role,
    Slo,
    Tenant,
    Tier,
)

M = TypeVar("M", bound=Model)


def _entitled(column: str) -> Callable[[frozenset[int]], Q]:
    """Rows that a tenant's entitlements refer to. A subquery, so that nothing appears twice."""

    def rule(tenants: frozenset[int]) -> Q:
        return Q(pk__in=Entitlement.objects.filter(tenant_id__in=tenants).values(column))

    return rule


def _prices(tenants: frozenset[int]) -> Q:
    """Of pools that a tenant's entitlements are in, but for those of adapters that are none of its own: their names and
    prices are other tenants'."""
    mine = Entitlement.objects.filter(tenant_id__in=tenants)
    adapters = Adapter.objects.filter(
        pk__in=mine.values("adapter_id"), pool_id=OuterRef("pool_id"), model=OuterRef("model")
    )
    return Q(pool_id__in=mine.values("pool_id")) & (Q(model="") | Q(Exists(adapters)))


# What members see of each model. A model that is not listed is closed to everybody.
_VISIBLE_TO_MEMBERS: dict[type[Model], Callable[[frozenset[int]], Q]] = {
    Tenant: lambda tenants: Q(pk__in=tenants),
    Membership: lambda tenants: Q(tenant_id__in=tenants),
    Entitlement: lambda tenants: Q(tenant_id__in=tenants),
    ApiKey: lambda tenants: Q(entitlement__tenant_id__in=tenants) | Q(project__tenant_id__in=tenants),
    Project: lambda tenants: Q(tenant_id__in=tenants),
    AuditEntry: lambda tenants: Q(tenant_id__in=tenants),
    Pool: _entitled("pool_id"),
    Adapter: _entitled("adapter_id"),
    Price: lambda tenants: _prices(tenants),
    Quota: lambda tenants: Q(tenant_id__in=tenants),
    Budget: lambda tenants: Q(tenant_id__in=tenants),
    Tier: _entitled("tier_id"),
    Slo: _entitled("tier__slo_id"),
    Owner: lambda tenants: Q(pk__in=[]),  # what is changed where is of use to those who may change it
    Backend: lambda tenants: Q(pk__in=[]),  # where engines stand is the operators' business
    GroupRule: lambda tenants: Q(pk__in=[]),
    Invitation: lambda tenants: Q(pk__in=[]),
    User: lambda tenants: Q(pk__in=[]),  # names of members are in Membership
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What one user may do, as of the moment it was read."""

    user_id: int | None = None
    username: str = ""
    role: Role | None = None  # the highest one
    tenant_ids: frozenset[int] = frozenset()  # of which it is a member

    @property
    def sees_all(self) -> bool:
        return self.role in (Role.ADMIN, Role.OPERATOR)

    @property
    def may_write(self) -> bool:
        """Everything: tenants, tiers, pools, entitlements, memberships."""
        return self.role == Role.ADMIN

    @property
    def may_operate(self) -> bool:
        """Policies and draining."""
        return self.sees_all

    def may_manage_keys(self, tenant: Tenant) -> bool:
        """Make, rotate and revoke keys of this tenant."""
        return self.may_write or tenant.pk in self.tenant_ids

    def visible(self, model: type[M]) -> QuerySet[M]:
        """The rows of a model that are in sight.

        Raises:
            LookupError: for a model that nobody thought about; better than showing it.
        """
        if model in (AccessToken, UserSession):  # one's own; all for who has to be able to end them
            rows = model._default_manager.all()
            return rows if self.may_write else rows.filter(user_id=self.user_id)
        if model not in _VISIBLE_TO_MEMBERS:
            raise LookupError(f"tenants.access has no rule for {model.__name__}: add one")
        if self.sees_all:
            return model._default_manager.all()
        if not self.tenant_ids:
            return model._default_manager.none()
        return model._default_manager.filter(_VISIBLE_TO_MEMBERS[model](self.tenant_ids))


NOBODY = Scope()


def scope_for(user: AbstractBaseUser | AnonymousUser | None) -> Scope:
    """What this user may do now: one query. Superusers are admins."""
    if user is None or not user.is_authenticated or not user.is_active:
        return NOBODY
    rows = list(Membership.objects.filter(user_id=user.pk).values_list("role", "tenant_id"))
    roles = {role for role, _ in rows}
    if getattr(user, "is_superuser", False):
        roles.add(Role.ADMIN)
    role = next((role for role in (Role.ADMIN, Role.OPERATOR, Role.MEMBER) if role in roles), None)
    tenants = frozenset(tenant for _, tenant in rows if tenant is not None)
    return Scope(user_id=user.pk, username=user.get_username(), role=role, tenant_ids=tenants)


MOST_OPERATORS = 500


def operators() -> list[str]:
    """Names of the admins and operators who can sign in."""
    users = get_user_model()._default_manager.filter(is_active=True)
    may = Q(is_superuser=True) | Q(memberships__role__in=[Role.ADMIN, Role.OPERATOR])
    names = users.filter(may).order_by("username").values_list("username", flat=True)
    return list(names.distinct()[:MOST_OPERATORS])


def scope_of(request: Any) -> Scope:
    """The scope of a request's user, read once per request and user."""
    scope = getattr(request, "_quartermaster_scope", None)
    user = request.user
    if scope is None or scope.user_id != user.pk:
        scope = scope_for(user)
        request._quartermaster_scope = scope
    return scope
