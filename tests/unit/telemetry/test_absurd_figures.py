"""One row with a figure that no request can have, however it got in, changes nothing for anybody else: usage is
answered, hours are added up, quotas are told, alerts are delivered."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.utils import timezone
from rest_framework.test import APIClient

from scheduling.core.ledger.record import MAX_TOKENS, sane
from scheduling.core.types import QuotaSpec
from scheduling.state import codec
from scheduling.state.usage import PoolUsage
from telemetry import tasks
from telemetry.alerts import lifecycle
from telemetry.ledger import rollup, usage, writer
from telemetry.ledger.quotas import UsageFeed, read_ledger
from telemetry.models import Alert, LedgerEntry, UsageHour
from tests.support import worlds
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db
LARGEST = 2**63 - 1


def _hour(days: int = 2) -> float:
    return (timezone.now() - timedelta(days=days)).replace(minute=0, second=0, microsecond=0).timestamp()


def _poison(start_s: float, **figures: int) -> None:
    """Two rows of acme that an older version took over from an engine, between two sound ones of globex."""
    rows = [
        replace(
            record(n + int(start_s)), tenant=("globex", "acme")[n % 2], input_tokens=10, output_tokens=5,
            received_s=start_s + n, granted_s=start_s + n + 1, first_token_s=start_s + n + 2, done_s=start_s + n + 3,
        )
        for n in range(4)
    ]  # fmt: skip
    writer.write(rows)
    LedgerEntry.objects.filter(tenant="acme", request_id__in=[r.request_id for r in rows]).update(**figures)


@pytest.mark.parametrize(
    "figures",
    [
        {"input_tokens": LARGEST, "output_tokens": LARGEST},
        {"input_tokens": -LARGEST, "output_tokens": -LARGEST},
        {"output_tokens": 10**18},
        {"input_tokens": LARGEST, "input_tokens_est": LARGEST, "output_tokens": LARGEST, "output_bound": LARGEST},
    ],
)
def test_a_poisoned_row_stops_neither_hours_nor_usage_nor_quotas(figures: dict[str, int]) -> None:
    start = _hour()
    _poison(start, **figures)
    since, until = (datetime.fromtimestamp(at, tz=UTC) for at in (start, start + 3600))

    def check() -> None:
        rows = {row["tenant"]: row for row in usage.usage(None, since, until, ["tenant"])}
        assert (rows["globex"]["input_tokens"], rows["globex"]["output_tokens"]) == (20, 10)
        assert rows["acme"]["requests"] == 2
        for name in ("input_tokens", "output_tokens"):
            assert 0 <= rows["acme"][name] <= 2 * MAX_TOKENS
        list(usage.usage(None, since, until, ["reason"]))  # of the ledger alone
        told = read_ledger("llama", frozenset({"acme", "globex"}), start + 60)
        assert sum(told["globex"]) == 60
        assert all(0 <= tokens <= 4 * MAX_TOKENS for tokens in told["acme"])

    check()
    rollup.roll_up()
    check()
    assert not UsageHour.objects.filter(input_tokens__gt=rollup.MAX_SHARE_OF_HOUR).exists()


def test_hours_that_were_poisoned_are_added_up_again_and_count_as_nothing_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollup, "OVERLAP", 0)
    start = _hour()
    _poison(start, input_tokens=10)
    rollup.roll_up()
    since, until = (datetime.fromtimestamp(at, tz=UTC) for at in (start, start + 3600))
    UsageHour.objects.filter(tenant="acme").update(input_tokens=LARGEST)
    UsageHour.objects.create(hour=since - timedelta(hours=1), tenant="acme", **_counts(input_tokens=LARGEST))
    rows = {row["tenant"]: row for row in usage.usage(None, since - timedelta(hours=1), until, ["tenant"])}
    assert rows["acme"]["input_tokens"] == 0
    assert rows["globex"]["input_tokens"] == 20
    monkeypatch.setattr(rollup, "_mended", False)
    rollup.roll_up()
    rows = {row["tenant"]: row for row in usage.usage(None, since, until, ["tenant"])}
    assert rows["acme"]["input_tokens"] == 20


def _counts(**figures: int) -> dict[str, Any]:
    return dict.fromkeys(rollup.FIGURES, 0) | {"requests": 1} | figures


def test_an_hour_that_cannot_be_added_up_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _hour(3), _hour(2)
    for at in (first, second):
        _poison(at, input_tokens=10)
    add_up = rollup._added_up

    def failing(hour: datetime) -> list[UsageHour]:
        if hour.timestamp() == first:
            raise DatabaseError("integer overflow")
        return add_up(hour)

    monkeypatch.setattr(rollup, "_added_up", failing)
    with pytest.raises(DatabaseError):
        rollup.roll_up()
    assert UsageHour.objects.filter(hour__gte=datetime.fromtimestamp(second, tz=UTC)).exists()
    monkeypatch.setattr(rollup, "_added_up", add_up)
    rollup.roll_up()
    assert UsageHour.objects.filter(hour=datetime.fromtimestamp(first, tz=UTC)).exists()


def test_alerts_are_delivered_although_adding_up_fails(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.QUARTERMASTER_ALERT_WEBHOOK = "http://127.0.0.1:9/"
    told: list[str] = []
    monkeypatch.setattr(lifecycle, "post", lambda address, secret, name, content: told.append(content["name"]))

    def fails() -> int:
        raise DatabaseError("integer overflow")

    monkeypatch.setattr(rollup, "roll_up", fails)
    Alert.objects.create(kind="quota_hard", name="one", line="one")
    with pytest.raises(DatabaseError):
        tasks.roll_up()
    assert told == ["one"]


def test_an_alert_that_cannot_be_sent_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.QUARTERMASTER_ALERT_WEBHOOK = "http://127.0.0.1:9/"
    told: list[str] = []

    def post(address: str, secret: str, name: str, content: dict[str, Any]) -> None:
        if content["name"] == "bad":
            raise OverflowError("no such number")
        told.append(content["name"])

    monkeypatch.setattr(lifecycle, "post", post)
    for name in ("bad", "good"):
        Alert.objects.create(kind="quota_hard", name=name, line=name)
    assert lifecycle.deliver() == 1
    assert told == ["good"]


class _Board:
    def __init__(self, others: dict[str, PoolUsage]) -> None:
        self.pools = others

    def put(self, pool: str, usage: PoolUsage) -> dict[str, PoolUsage]:
        self.pools[pool] = usage
        return self.pools


def test_a_tenants_absurd_sum_is_no_alert_and_keeps_no_other_from_theirs() -> None:
    now = timezone.now().timestamp()
    day = f"{timezone.now():%Y-%m-%d}"
    board = _Board({"other": PoolUsage(now, day, day[:7], {"acme": (10**23, 10**23), "globex": (500, 500)})})
    limits = {name: (QuotaSpec("day", None, 100),) for name in ("acme", "globex")}
    feed = UsageFeed(board, lambda: limits)
    feed.publish("llama", 1, now)
    assert set(Alert.objects.values_list("tenant", flat=True)) == {"globex"}
    assert feed.shares["acme", "day"][0] == 0


def test_records_of_older_gateways_are_read_as_what_can_be_true() -> None:
    poisoned = replace(record(1), input_tokens=10**23, output_tokens=-(2**63), input_tokens_est=12, output_bound=34)
    read = codec.decode_ledger_fields("llama", [b"r", codec.encode_ledger(poisoned)])
    assert (read.input_tokens, read.output_tokens) == (12, 34)
    sound = record(2)
    assert sane(sound) is sound
    writer.write([poisoned])
    row = LedgerEntry.objects.get(request_id=poisoned.request_id)
    assert (row.input_tokens, row.output_tokens) == (12, 34)


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("groups", ["tenant", "reason", "hour,tenant"])
def test_usage_is_answered_over_rest_with_poisoned_rows(format: str, groups: str) -> None:
    world = worlds.build()
    start = _hour()
    _poison(start, input_tokens=LARGEST, output_tokens=LARGEST)
    for who in ("adam", "carol"):
        api = APIClient()
        api.force_login(world.users[who])
        for _ in range(2):
            since = datetime.fromtimestamp(start - 3600, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            answer = api.get(f"/api/v1/usage?group_by={groups}&from={since}&format={format}")
            assert answer.status_code == 200
            assert answer.getvalue() if answer.streaming else answer.content
            rollup.roll_up()
