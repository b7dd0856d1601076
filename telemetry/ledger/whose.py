"""Whose rows of the past somebody reads. Rows name their tenant, and a name may have been another tenant's before: what
that one left is not shown to who has the name now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from django.db.models import Q


def of(tenants: Collection[str], former: Mapping[str, datetime] | None, moment: str) -> Q:
    """Rows of these tenants. ``former``: until when another one had the name, for names that were given again;
    ``moment``: the column by which that is decided."""
    rows = Q(tenant__in=tenants)
    for name, until in (former or {}).items():
        rows &= ~Q(**{"tenant": name, f"{moment}__lt": until})
    return rows
