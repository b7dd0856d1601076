"""Reads that are nobody's secret and need no scope. Everything of a tenant's is read through ``tenants.access``."""

from __future__ import annotations

from scheduling.core.types import Slo
from tenants.models import Tier
from tenants.specs import slo_spec


def tier_slos() -> dict[str, Slo]:
    """The promise of every tier, by the tier's name."""
    return {tier.slug: slo_spec(tier.slo) for tier in Tier.objects.select_related("slo")}
