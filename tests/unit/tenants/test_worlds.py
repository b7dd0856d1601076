"""The small world of many tests is the same whether the services make it or its rows are written again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from tenants import services
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Tenant, Tier
from tests.support import worlds

pytestmark = pytest.mark.django_db


def rows() -> dict[str, list[str]]:
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            found[table] = sorted(map(repr, cursor.fetchall()))
    return found


def test_rows_that_are_written_again_are_those_of_the_services_in_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "_first", [])
    made = []
    for _ in range(2):
        with transaction.atomic():
            world = worlds.build()
            made.append((rows(), world.keys["acme"].credential.text, world.tokens["olga"].row.user.username))
            transaction.set_rollback(True)
    assert made[0] == made[1]
    assert len(made[0][0]["tenants_auditentry"]) > 20


def test_rows_are_not_written_again_in_another_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A price of the past can be made in the hour of its pool only."""
    monkeypatch.setattr(worlds, "_first", [])
    worlds.build()
    [first] = worlds._first
    first.world.pool.created_at = made = datetime(2026, 11, 28, 17, 59, 50, tzinfo=UTC)
    assert first.fresh(made + timedelta(seconds=9))
    assert not first.fresh(made + timedelta(seconds=10))
    first.world.pool.created_at = made - timedelta(minutes=30)
    assert first.fresh(made - timedelta(minutes=30) + timedelta(seconds=worlds.FRESH_S))
    assert not first.fresh(made - timedelta(minutes=30) + timedelta(seconds=worlds.FRESH_S + 1))


def test_beside_other_rows_the_services_make_it() -> None:
    services.save(actor=SYSTEM, instance=Tenant(slug="first"))
    assert worlds.build().pool.pk
    assert AuditEntry.objects.order_by("id").first().object_id == "first"
    assert len(set(AuditEntry.objects.values_list("number", flat=True))) == AuditEntry.objects.count()


def test_where_the_shipped_tiers_are_gone_the_services_make_it() -> None:
    """As after a test that empties the database."""
    for _ in range(2):
        with transaction.atomic():
            Tier.objects.all().delete()
            assert worlds.build().entitlements["acme"].tier in Tier.objects.all()
            transaction.set_rollback(True)
