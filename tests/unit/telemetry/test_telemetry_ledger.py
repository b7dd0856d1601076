"""The ledger: each request once, exactly, whatever is repeated or refused; and nothing in it that was said."""

from __future__ import annotations

import dataclasses
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import psycopg
import pytest
from django.apps import apps
from django.db import (
    DatabaseError,
    DataError,
    Error,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connection,
    models,
)  # fmt: skip
from django.utils import timezone

from scheduling.core.ledger.record import MAX_TOKENS, LedgerRecord
from telemetry import tasks
from telemetry.ledger import rollup, selectors, writer
from telemetry.ledger.lately import ended_since
from telemetry.models import LedgerEntry, UsageHour
from telemetry.recorder import ConfiguredEntitlements, Recorder
from tests.support.telemetry_world import NOW, record, refused, sample

pytestmark = pytest.mark.django_db


class Published:
    """A publisher that only remembers."""

    def __init__(self) -> None:
        self.samples: list[Any] = []

    def publish(self, sample: Any, window: Any, entitlements: Any) -> None:
        self.samples.append((sample, window, entitlements))


def recorder(**changes: Any) -> Recorder:
    values: dict[str, Any] = {
        "publisher": Published(),
        "entitlements": dict,
        "start_purge": lambda: None,
        "clock": lambda: NOW,
    }
    return Recorder(**(values | changes))


def test_a_record_is_stored_with_every_field() -> None:
    writer.write([record(1)])
    row = LedgerEntry.objects.get()
    for f in dataclasses.fields(LedgerRecord):
        if f.name == "trace":
            continue  # a collector's business
        value = getattr(record(1), f.name)
        column = f.name
        if f.name in ("received_s", "queued_s", "granted_s", "first_token_s", "done_s"):
            column = f.name[:-2] + "_at"
            value = datetime.fromtimestamp(value, tz=UTC)
        assert getattr(row, column) == value, f.name


@pytest.mark.parametrize("epoch_s", [0.0, 1.0, 1_795_712_345.0, 1_795_712_345.678_901, 1_795_712_399.999_999_7, 4e9])
def test_a_time_is_stored_as_djangos_own_adapter_stores_it(epoch_s: float) -> None:
    adapt = connection.ops.adapt_datetimefield_value
    assert list(writer.moments()([epoch_s, None])) == [adapt(datetime.fromtimestamp(epoch_s, tz=UTC)), None]


def test_every_column_of_the_ledger_is_written() -> None:
    columns = {f.column for f in LedgerEntry._meta.concrete_fields if not f.primary_key}
    assert sorted(writer._COLUMNS) == sorted(columns)


def test_the_same_records_again_change_nothing() -> None:
    r = recorder()
    batch = [record(n) for n in range(700)]
    r.write_ledger("llama", batch)
    r.write_ledger("llama", [*batch[300:], record(701)])
    r.write_ledger("llama", [record(1, output_tokens=9999)])
    assert LedgerEntry.objects.count() == 701
    assert LedgerEntry.objects.get(request_id=record(1).request_id).output_tokens == 101


def test_what_was_lost_with_its_gateway_is_put_right_once_by_what_that_gateway_says_later() -> None:
    class Sink:
        def __init__(self) -> None:
            self.output_tokens: list[int] = []

        def count(self, pool: str, records: list[LedgerRecord]) -> None:
            self.output_tokens += [r.output_tokens for r in records]

        def sample(self, *_: Any) -> None:
            pass

    sink = Sink()
    r = recorder(sinks=[sink])
    lost = [record(n, outcome="failed", reason="gateway_lost", input_tokens=0, output_tokens=0) for n in (1, 2, 3)]
    r.write_ledger("llama", lost)
    rollup.roll_up()
    r.write_ledger("llama", [record(1), lost[1]])
    r.write_ledger("llama", [*lost, record(1), record(1, output_tokens=9999)])  # the same again, by a new leader
    r.write_ledger("llama", [lost[1], record(2, output_tokens=50), lost[1]])
    ends = dict(LedgerEntry.objects.values_list("request_id", "output_tokens"))
    assert ends == {record(1).request_id: 101, record(2).request_id: 50, record(3).request_id: 0}
    assert sink.output_tokens == [0, 0, 0, 101, 50], "quotas and budgets count each once"
    rollup.OVERLAP, kept = 0, rollup.OVERLAP  # however many came between the loss and the word
    try:
        rollup.roll_up()
    finally:
        rollup.OVERLAP = kept
    (hour,) = UsageHour.objects.all()
    assert (hour.requests, hour.completed, hour.failed, hour.output_tokens) == (3, 2, 1, 151)


def test_what_was_lost_and_put_right_in_one_batch_is_stored_as_it_ended() -> None:
    lost = record(1, outcome="failed", reason="gateway_lost", output_tokens=0)
    assert writer.write([lost, record(1)]) == [record(1)]
    assert LedgerEntry.objects.get().reason == "stop"


def test_traces_are_made_of_what_is_stored_once_it_is_stored() -> None:
    taken: list[int] = []

    class Traces:
        def take(self, records: list[LedgerRecord]) -> None:
            taken.append(LedgerEntry.objects.filter(request_id__in=[r.request_id for r in records]).count())

    r = recorder(traces=Traces())
    with mock.patch.object(writer, "write", side_effect=OperationalError), pytest.raises(OperationalError):
        r.write_ledger("llama", [record(1), record(2)])
    r.write_ledger("llama", [record(1), record(2)])
    assert taken == [2]


def test_after_a_database_error_in_the_middle_the_retry_stores_each_once() -> None:
    batch = [record(n) for n in range(3 * writer.BATCH)]
    real, calls = writer._write_batch, []

    def cut(rows: list[writer.Row]) -> set[str]:
        calls.append(len(rows))
        if len(calls) == 2:
            raise OperationalError("server closed the connection unexpectedly")
        return real(rows)

    r = recorder()
    with mock.patch.object(writer, "_write_batch", cut), pytest.raises(OperationalError):
        r.write_ledger("llama", batch)
    assert LedgerEntry.objects.count() == writer.BATCH
    r.write_ledger("llama", batch)
    assert LedgerEntry.objects.count() == len(batch)
    assert r._window("llama").pool.completed == len(batch), "the dashboard counted a retry"


def test_one_record_the_database_refuses_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    real = writer._insert

    def picky(rows: list[writer.Row]) -> set[str]:
        if any(record(2).request_id in row for row in rows):
            raise DataError("value out of range")
        return real(rows)

    with mock.patch.object(writer, "_insert", picky):
        writer.write([record(n) for n in range(5)])
    assert LedgerEntry.objects.count() == 4
    assert "cannot be stored" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        InternalError("cannot execute INSERT in a read-only transaction"),
        ProgrammingError("permission denied for table telemetry_ledgerentry"),
        InterfaceError("connection already closed"),
    ],
    ids=["read-only", "no rights", "closed"],
)
def test_what_a_database_takes_from_nobody_is_no_fault_of_a_row_and_loses_none(error: Error) -> None:
    with mock.patch.object(writer, "_insert", side_effect=error), pytest.raises(type(error)):
        writer.write([record(n) for n in range(5)])
    assert LedgerEntry.objects.count() == 0
    assert len(writer.write([record(n) for n in range(5)])) == 5


@pytest.mark.parametrize("never_s", [1e12, 1e18, 1e300])
def test_a_record_of_a_time_that_no_calendar_has_holds_up_no_other(never_s: float) -> None:
    stored = writer.write([record(1), record(2, granted_s=never_s), record(3)])
    assert [one.request_id for one in stored] == [record(1).request_id, record(3).request_id]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="an index that is built")
@pytest.mark.django_db(transaction=True)
def test_a_table_that_is_locked_keeps_the_thread_that_publishes_for_no_longer_than_a_second() -> None:
    known, needed = connection.get_connection_params(), ("host", "port", "user", "password", "dbname")
    with psycopg.connect(**{name: known[name] for name in needed if name in known}) as other:
        other.execute(f"LOCK TABLE {LedgerEntry._meta.db_table} IN SHARE MODE")
        release = threading.Timer(10, other.rollback)
        release.start()
        took_s = []
        for _ in range(2):
            began_s = time.monotonic()
            with pytest.raises(OperationalError, match="lock timeout"):
                writer.write([record(1)])
            took_s.append(time.monotonic() - began_s)
        release.cancel()
        other.rollback()
    assert took_s[0] < 4.0, "leaders that publish nothing for 4 s count as gone"
    assert took_s[1] < took_s[0]
    assert len(writer.write([record(1)])) == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a server that became a standby")
@pytest.mark.django_db(transaction=True)
def test_a_postgresql_that_became_read_only_loses_no_record() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        same_connection = mock.patch.object(connection, "close"), mock.patch.object(writer, "close_old_connections")
        with pytest.raises(DatabaseError), same_connection[0], same_connection[1]:
            writer.write([record(1), record(2)])
        cursor.execute("SET default_transaction_read_only = off")
    assert len(writer.write([record(1), record(2)])) == 2


def test_text_and_numbers_that_do_not_fit_are_made_to_fit() -> None:
    odd = record(
        1,
        model="m" * 5000 + "\x00",
        why="a\x00b" * 500,
        output_bound=10**30,
        output_tokens_est=float("inf"),
        sequences=-5,
        ran_before_s=float("nan"),
    )
    writer.write([odd])
    row = LedgerEntry.objects.get()
    assert (len(row.model), len(row.why)) == (200, 300)
    assert "\x00" not in row.why
    assert row.output_bound == MAX_TOKENS
    assert row.output_tokens_est == 0.0
    assert (row.sequences, row.ran_before_s) == (1, 0.0)


def test_sums_are_exact_per_tenant_tier_outcome_and_reason() -> None:
    writer.write([record(1), record(2, slo_met=False), refused(3), record(4, tenant="globex", tier="standard")])
    assert selectors.sums() == [
        {
            "tenant": "acme", "tier": "premium", "outcome": "completed", "reason": "stop", "requests": 2,
            "completed": 2, "refused": 0, "failed": 0, "cancelled": 0, "input_tokens": 240, "output_tokens": 202,
            "slo_met": 1, "slo_total": 2,
        },
        {
            "tenant": "acme", "tier": "premium", "outcome": "refused", "reason": "concurrency", "requests": 1,
            "completed": 0, "refused": 1, "failed": 0, "cancelled": 0, "input_tokens": 0, "output_tokens": 0,
            "slo_met": 0, "slo_total": 0,
        },
        {
            "tenant": "globex", "tier": "standard", "outcome": "completed", "reason": "stop", "requests": 1,
            "completed": 1, "refused": 0, "failed": 0, "cancelled": 0, "input_tokens": 120, "output_tokens": 101,
            "slo_met": 1, "slo_total": 1,
        },
    ]  # fmt: skip


def test_sums_of_named_requests_leave_out_others_traffic() -> None:
    batch = [record(n) for n in range(1200)]
    writer.write(batch)
    (row,) = selectors.sums(request_ids=[r.request_id for r in batch[:1100]])
    assert (row["requests"], row["output_tokens"]) == (1100, 1100 * 101)


def test_sums_are_of_the_time_range_that_was_asked() -> None:
    writer.write([record(1, received_s=NOW - 100), record(2, received_s=NOW)])
    since = datetime.fromtimestamp(NOW, tz=UTC)
    assert [row["requests"] for row in selectors.sums(since=since)] == [1]
    assert [row["requests"] for row in selectors.sums(until=since)] == [1]


def test_retention_deletes_what_is_older_and_nothing_else() -> None:
    now_s = timezone.now().timestamp()
    day = 86_400
    with mock.patch.object(tasks, "CHUNK", 3):
        writer.write([record(n, received_s=now_s - n * day) for n in range(1, 11)])
        assert tasks.purge(days=4) in (6, 7)  # the one of four days ago goes with its hour
    left = LedgerEntry.objects.values_list("received_at", flat=True)
    assert min(left) >= (timezone.now() - timedelta(days=4)).replace(minute=0, second=0, microsecond=0)


def test_retention_is_started_once_an_hour_and_its_trouble_is_nobodys() -> None:
    now = [NOW]
    started: list[float] = []

    def start() -> None:
        started.append(now[0])
        raise ConnectionError("no broker")

    r = recorder(start_purge=start, clock=lambda: now[0])
    for minute in range(0, 130, 10):
        now[0] = NOW + minute * 60
        r.write_ledger("llama", [])
    assert started == [NOW, NOW + 3600, NOW + 7200]


def test_a_sample_reaches_the_publisher_with_the_pools_own_window() -> None:
    published = Published()
    r = recorder(publisher=published)
    r.write_ledger("llama", [record(1)])
    r.write_ledger("qwen", [record(2, pool="qwen"), record(3, pool="qwen")])
    r.sample(sample())
    ((_, window, _),) = published.samples
    assert window.pool.completed == 1


def test_a_new_leaders_last_minute_has_what_ended_before_it_led() -> None:
    writer.write([record(1), record(2, done_s=NOW - 50, received_s=NOW - 300), record(3, done_s=NOW - 61)])
    writer.write([record(4, pool="qwen"), refused(5, received_s=NOW, done_s=NOW)])
    published = Published()
    r = recorder(publisher=published, reread=ended_since)
    r.write_ledger("llama", [record(1)])  # the one before it stored it, and did not say so
    r.sample(sample(epoch=2))
    ((_, window, _),) = published.samples
    assert (window.pool.completed, window.pool.refused, window.pool.slo.asked) == (2, 1, 3)
    assert window.span_s(NOW) == 60, "its rates are those of a whole minute"


def test_a_new_leader_without_a_database_publishes_what_it_knows_and_reads_the_rest_later() -> None:
    now, asked = [NOW], []

    def reread(pool: str, since_s: float) -> Any:
        asked.append(now[0] - NOW)
        if now[0] < NOW + 10:
            raise OperationalError("gone")
        return [record(1)], since_s

    published = Published()
    r = recorder(publisher=published, reread=reread, clock=lambda: now[0])
    for second in range(15):
        now[0] = NOW + second
        r.sample(sample(now[0]))
    assert [window.pool.completed for _, window, _ in published.samples[-1:]] == [1]
    assert (len(published.samples), asked) == (15, [0, 5, 10]), "asked now and then, and once it knows never again"


@pytest.mark.django_db(transaction=True)  # the catalog gives their connection back, and with it an open transaction
def test_entitlements_are_read_again_when_the_catalog_changed_and_kept_without_a_database() -> None:
    from tests.support import worlds

    now = [0.0]
    configured = ConfiguredEntitlements(clock=lambda: now[0])
    assert configured() == {}
    worlds.build()
    assert configured() == {}, "asked again too soon"
    now[0] = 10.0
    assert set(configured()) == {"acme-llama", "globex-llama"}
    assert (configured.engine_of("llama"), configured.engine_of("deleted")) == ("vllm", None)
    now[0] = 20.0
    with mock.patch("tenants.specs.catalog_version", side_effect=OperationalError("gone")):
        assert set(configured()) == {"acme-llama", "globex-llama"}


# --- prompts and answers are not kept (docs/reference/promises.md, 33)

WORDS_OF_CONTENT = ("prompt", "message", "content", "answer", "body", "text", "completion_text", "choices", "delta")


def test_the_ledgers_fields_are_these_and_none_holds_what_was_said() -> None:
    fields = {f.name: f for f in LedgerEntry._meta.fields}
    assert set(fields) == {
        "id", "request_id", "pool", "model", "tenant", "tier", "entitlement", "key_id", "gateway", "outcome", "reason",
        "status", "streamed", "attempts", "backend", "policy", "why", "input_tokens_est", "output_tokens_est",
        "output_bound", "input_tokens", "output_tokens", "received_at", "queued_at", "granted_at", "first_token_at",
        "done_at", "ttft_slo_s", "tbt_slo_s", "ttlt_slo_s", "slo_met", "category", "estimate_source",
        "output_tokens_p90", "output_rank", "admission", "user", "instead_of", "instead_why",
        "cached_tokens", "project", "interruptions", "sequences", "client_retry", "ran_before_s",
    }  # fmt: skip
    assert {f.name for f in dataclasses.fields(LedgerRecord)} - {"trace"} == {
        {"received_at": "received_s", "queued_at": "queued_s", "granted_at": "granted_s", "done_at": "done_s",
         "first_token_at": "first_token_s"}.get(name, name)
        for name in fields if name != "id"
    }  # fmt: skip


# Long fields that hold figures of ours: what was fitted, asked of a lab and found by it, sizes and times of a recording
# (which have no field for text), points of the charts; and addresses.
FIGURES = {
    "Calibration.step_time", "Calibration.trust", "LabRecording.packed", "LabRun.asked", "LabRun.figures",
    "PastPoint.point", "AlertRule.webhook", "NotificationChannel.target", "SavedView.query",
}  # fmt: skip


def test_no_model_of_telemetry_has_room_for_a_prompt() -> None:
    for model in apps.get_app_config("telemetry").get_models():
        for field in model._meta.fields:
            assert not any(word in field.name.split("_") for word in WORDS_OF_CONTENT), f"{model.__name__}.{field.name}"
            if f"{model.__name__}.{field.name}" in FIGURES:
                continue
            assert not isinstance(field, models.TextField | models.JSONField | models.BinaryField | models.FileField)
            if isinstance(field, models.CharField):
                assert field.max_length <= 300
