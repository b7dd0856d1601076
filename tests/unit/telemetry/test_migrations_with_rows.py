"""Migrations undone and applied again with rows in their tables: nothing is lost, and what is not known is not 0."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from telemetry.ledger import rollup, usage, writer
from telemetry.models import LedgerEntry, UsageHour
from tests.support.telemetry_world import record, refused

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE_RETRIES, BEFORE_USAGE_RETRIES = "0027_sequences", "0028_client_retry"


@pytest.fixture(autouse=True)
def latest_again() -> Iterator[None]:
    yield
    call_command("migrate", "telemetry", verbosity=0)


def to(name: str) -> Any:
    """The models as they were then."""
    executor = MigrationExecutor(connection)
    executor.migrate([("telemetry", name)])
    return executor.loader.project_state([("telemetry", name)]).apps


def _an_hour_with_retries() -> datetime:
    since = (timezone.now() - timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
    at = since.timestamp() + 60
    of_hour = {"received_s": at, "granted_s": at + 1, "first_token_s": at + 2, "done_s": at + 3}
    away = {"received_s": at, "granted_s": None, "first_token_s": None, "done_s": at}
    writer.write([
        record(1, slo_met=True, **of_hour), record(2, slo_met=True, client_retry=1, **of_hour),
        refused(3, client_retry=2, **away),
    ])  # fmt: skip
    return since.astimezone(UTC)


def _told(since: datetime) -> tuple[Any, ...]:
    [row] = usage.usage(None, since, since + timedelta(hours=1), ["tenant"])
    return row["requests"], row["slo_retries"], row["attainment"], row["attainment_first"]


def test_hours_survive_the_way_back_and_forth_and_their_retries_are_unknown_until_the_ledger_is_read_again() -> None:
    since = _an_hour_with_retries()
    rollup.roll_up()
    told = _told(since)
    assert told[:2] == (3, 2)
    kept = LedgerEntry.objects.count()
    old = to(BEFORE_USAGE_RETRIES).get_model("telemetry", "UsageHour")
    assert [hour.requests for hour in old.objects.all()] == [3]
    old.objects.update(completed=2)  # what the release before writes is kept, too
    call_command("migrate", "telemetry", verbosity=0)
    assert [(h.requests, h.completed, h.slo_retries) for h in UsageHour.objects.all()] == [(3, 2, None)]
    assert LedgerEntry.objects.count() == kept
    rollup.roll_up()
    assert _told(since) == told, "the ledger still knows"


def test_an_hour_that_only_the_release_before_added_up_has_no_first_attempts() -> None:
    since = _an_hour_with_retries()
    rollup.roll_up()
    attainment = _told(since)[2]
    to(BEFORE_USAGE_RETRIES)
    call_command("migrate", "telemetry", verbosity=0)
    LedgerEntry.objects.all().delete()
    rollup.roll_up()
    assert _told(since) == (3, None, attainment, None)


def test_requests_survive_the_way_back_before_retries_were_known() -> None:
    _an_hour_with_retries()
    before = sorted(LedgerEntry.objects.values_list("request_id", "outcome"))
    old = to(BEFORE_RETRIES).get_model("telemetry", "LedgerEntry")
    assert sorted(old.objects.values_list("request_id", "outcome")) == before
    call_command("migrate", "telemetry", verbosity=0)
    assert sorted(LedgerEntry.objects.values_list("request_id", "outcome")) == before
