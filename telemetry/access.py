"""Which telemetry a user may see. Users' tenants and roles are decided by ``tenants.access`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import Max, QuerySet

from telemetry.ledger import whose
from telemetry.models import LedgerEntry
from tenants.access import Scope, scope_for
from tenants.models import AuditEntry, Tenant


@dataclass(frozen=True, slots=True)
class Viewer:
    """What a user may see: ``tenants`` is None for those who see everything, else the names of its own tenants."""

    role: str
    tenants: frozenset[str] | None
    former: Mapping[str, datetime] = field(default_factory=dict)  # until when another tenant had one of these names

    @property
    def sees_something(self) -> bool:
        return self.tenants is None or bool(self.tenants)

    def requests(self) -> QuerySet[LedgerEntry]:
        """The ledger's visible rows."""
        if self.tenants is None:
            return LedgerEntry.objects.all()
        return LedgerEntry.objects.filter(whose.of(self.tenants, self.former, "received_at"))

    def tenants_at(self, at_s: float) -> frozenset[str] | None:
        """Those of :attr:`tenants` that had their names at a moment of the past [epoch s]."""
        if self.tenants is None or not self.former:
            return self.tenants
        return self.tenants - {name for name, until in self.former.items() if at_s < until.timestamp()}


def viewer_in(scope: Scope) -> Viewer:
    """Telemetry's view of a scope of the catalog."""
    if scope.sees_all:
        return Viewer(str(scope.role), None)
    names = frozenset(scope.visible(Tenant).values_list("slug", flat=True))
    ended = AuditEntry.objects.filter(kind="tenant", object_id__in=names, action="delete", outcome="done")
    former = dict(ended.order_by().values_list("object_id").annotate(Max("at"))) if names else {}
    return Viewer(str(scope.role or ""), names, former)


def viewer_for(user: AbstractBaseUser | AnonymousUser | None) -> Viewer:
    """What this user may see now: at most three queries."""
    return viewer_in(scope_for(user))
