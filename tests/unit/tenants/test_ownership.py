"""What a custom resource sets, only the operator changes; what it does not mention stays free."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.core.exceptions import ValidationError

from scheduling.core.capacity.pool import Amounts
from scheduling.core.types import EntitlementState, ServiceClass
from tenants import services
from tenants.audit import Actor
from tenants.binding import Claim, judge
from tenants.models import Lease, Owner, Tenant
from tests.support import worlds

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 23, tzinfo=UTC)
PERSON, OPERATOR = Actor("ann", "api"), Actor("llm/acme", "kubernetes")


@pytest.fixture
def owned() -> Tenant:
    row = services.save(actor=OPERATOR, instance=Tenant(slug="acme", description="Of the cluster."))
    Owner.objects.create(kind="Tenant", name="acme", namespace="llm", uid="1", attributes=["description"])
    return row


def test_a_field_that_a_resource_sets_cannot_be_changed_by_a_person(owned: Tenant) -> None:
    owned.description = "Mine."
    with pytest.raises(ValidationError, match="Tenant llm/acme in Kubernetes sets this"):
        services.save(actor=PERSON, instance=owned)
    assert Tenant.objects.get(slug="acme").description == "Of the cluster."
    services.save(actor=OPERATOR, instance=owned)
    assert Tenant.objects.get(slug="acme").description == "Mine."


def test_what_the_resource_does_not_mention_stays_free(owned: Tenant) -> None:
    assert services.pause_tenant(actor=PERSON, tenant=owned, reason="unpaid").paused_since is not None


def test_a_row_that_a_resource_keeps_cannot_be_deleted_by_a_person(owned: Tenant) -> None:
    with pytest.raises(ValidationError, match="Delete it there"):
        services.delete(actor=PERSON, instance=owned)
    services.delete(actor=OPERATOR, instance=owned)
    assert not Tenant.objects.filter(slug="acme").exists()


def test_a_share_without_a_lease_is_not_bound_however_much_room_the_catalog_sees() -> None:
    room = Amounts(100, 100_000, 1000)
    claim = Claim("a", ServiceClass.GUARANTEED, Amounts(4), EntitlementState.PENDING, unfit="0/1 nodes are available")
    [verdict] = judge(room, room, [claim], NOW)
    assert (verdict.state, verdict.reason) == (EntitlementState.PENDING, "Kubernetes: 0/1 nodes are available")
    cheap = Claim("b", ServiceClass.SPOT, Amounts(4), EntitlementState.PENDING, unfit="0/1 nodes are available")
    assert next(judge(room, room, [cheap], NOW)).state is EntitlementState.BOUND  # it reserves nothing


def test_what_the_scheduler_says_becomes_the_entitlements_state() -> None:
    row = worlds.build().entitlements["acme"]
    assert row.tier.service_class == "guaranteed"
    services.set_leases({row.slug: (Lease.PENDING, "Insufficient slots")})
    row.refresh_from_db()
    assert (row.lease, row.state_reason) == (Lease.PENDING, "Kubernetes: Insufficient slots")
    assert row.state == EntitlementState.DEGRADED  # it was bound, and keeps its place
    services.set_leases({row.slug: (Lease.BOUND, "")})
    row.refresh_from_db()
    assert (row.lease, row.state) == (Lease.BOUND, EntitlementState.BOUND)
