"""What is written each minute keeps others from SQLite's lock for a few statements, however many entitlements and keys
there are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from telemetry.ledger import reservations, rollup, writer
from telemetry.models import ReservedHour, UsageHour
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Entitlement
from tests.support import worlds
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db(transaction=True)
BEGIN = datetime(2026, 10, 8, 9, 59, 30, tzinfo=UTC)


class _Statements:
    """Those inside a transaction, which holds the lock."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if connection.in_atomic_block:
            self.seen.append(sql)
        return execute(sql, params, many, context)


@contextmanager
def held() -> Any:
    watch = _Statements()
    with connection.execute_wrapper(watch):
        yield watch.seen


def _reserved(many: int) -> None:
    world = worlds.build()
    owner = world.entitlements["acme"]
    owner.tier.service_class = "guaranteed"
    services.save(actor=SYSTEM, instance=owner.tier)
    Entitlement.objects.bulk_create(
        Entitlement(
            slug=f"team-{n}", tenant=owner.tenant, pool=owner.pool, tier=owner.tier, concurrency=2, state="bound"
        )
        for n in range(many)
    )


def test_what_stands_ready_is_recorded_by_as_many_statements_for_two_hundred_entitlements_as_for_one() -> None:
    _reserved(200)
    reservations.record(BEGIN)
    with held() as statements:
        reservations.record(BEGIN + timedelta(minutes=1))  # in two hours
        reservations.record(BEGIN + timedelta(minutes=2))
    teams = ReservedHour.objects.filter(entitlement__startswith="team-")
    assert set(teams.values_list("hour__hour", "slot_us")) == {(9, 2 * 30 * 10**6), (10, 2 * 90 * 10**6)}
    assert teams.count() == 400
    assert len(statements) < 40


def test_an_hour_whose_sums_are_stored_is_not_written_again() -> None:
    writer.write([record(n) for n in range(50)])
    rollup.roll_up()
    before = sorted(UsageHour.objects.values_list())
    assert before
    with held() as statements:
        rollup.roll_up()
    assert not [sql for sql in statements if UsageHour._meta.db_table in sql]
    writer.write([record(50)])
    UsageHour.objects.filter(pk=before[0][0]).update(slo_retries=None)  # as an older release left it
    rollup.roll_up()
    assert sum(hour.requests for hour in UsageHour.objects.all()) == 51
    assert not UsageHour.objects.filter(slo_retries=None)


def test_many_changed_rows_of_an_hour_are_written_some_at_a_time() -> None:
    writer.write([replace(record(n), key_id=f"key-{n}") for n in range(450)])
    with held() as statements:
        rollup.roll_up()
    assert sum(hour.requests for hour in UsageHour.objects.all()) == 450
    inserts = f'INSERT INTO "{UsageHour._meta.db_table}"'
    assert max(sql.count("(%s") for sql in statements if sql.startswith(inserts)) <= 200
    assert len([sql for sql in statements if "COALESCE(SUM" in sql]) == 3, "a transaction for each"
