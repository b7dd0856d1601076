"""Which telemetry a user may see. Users' tenants and roles are decided by ``tenants.access`` alone."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import QuerySet

from telemetry.models import LedgerEntry
from tenants.access import Scope, scope_for
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Viewer:
    """What a user may see: ``tenants`` is None for those who see everything, else the names of its own tenants."""

    role: str
    tenants: frozenset[str] | None

    @property
    def sees_something(self) -> bool:
        return self.tenants is None or bool(self.tenants)

    def requests(self) -> QuerySet[LedgerEntry]:
        """The ledger's visible rows."""
        if self.tenants is None:
            return LedgerEntry.objects.all()
        return LedgerEntry.objects.filter(tenant__in=self.tenants)


def viewer_in(scope: Scope) -> Viewer:
    """Telemetry's view of a scope of the catalog."""
    if scope.sees_all:
        return Viewer(str(scope.role), None)
    names = scope.visible(Tenant).values_list("slug", flat=True)
    return Viewer(str(scope.role or ""), frozenset(names))


def viewer_for(user: AbstractBaseUser | AnonymousUser | None) -> Viewer:
    """What this user may see now: at most two queries."""
    return viewer_in(scope_for(user))
