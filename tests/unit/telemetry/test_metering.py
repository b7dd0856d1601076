"""Usage by the hour: equal to the ledger however often it is added up, outliving it, priced, and told to gateways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import QuotaSpec
from scheduling.state import usage as usage_module
from scheduling.state.usage import PoolUsage
from telemetry import tasks
from telemetry.ledger import quotas, rollup, statement, usage, writer
from telemetry.ledger.quotas import UsageFeed, read_ledger
from telemetry.models import Alert, LedgerEntry, UsageHour
from telemetry.recorder import Recorder
from tenants.models import Price
from tests.support import worlds
from tests.support.telemetry_world import record, refused

pytestmark = pytest.mark.django_db
HOUR_S = 3600.0


def _noon() -> float:
    """A whole hour some days ago, so that everything after it has passed."""
    return (timezone.now() - timedelta(days=3)).replace(hour=12, minute=0, second=0, microsecond=0).timestamp()


def _fill(count: int, start_s: float, spacing_s: float, **changes: Any) -> None:
    rows = []
    for n in range(count):
        at = start_s + n * spacing_s
        one = record(n + 10_000 * int(start_s), **changes)
        rows.append(
            replace(
                one, tenant=("acme", "globex")[n % 2], key_id=f"key{n % 3}", input_tokens=n, output_tokens=2 * n,
                received_s=at, granted_s=at + 1, first_token_s=at + 1.5, done_s=at + 3,
            )
        )  # fmt: skip
    writer.write(rows)


def _sums(rows: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in rows:
        total += Counter({name: row[name] for name in (*usage.COUNTS, "slo_met", "slo_total", "slo_retries")})
    return total


@pytest.mark.django_db(transaction=True)
def test_nobody_waits_to_write_while_hours_are_read() -> None:
    start = _noon()
    _fill(30, start, 600)
    sums: list[bool] = []

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "SUM(" in sql and LedgerEntry._meta.db_table in sql:
            sums.append(connection.in_atomic_block)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        rollup.roll_up()
    assert sums == [False] * 5, "SQLite has one writer: a transaction that reads an hour keeps all others waiting"


def test_the_hours_equal_the_ledger_after_any_number_of_runs_and_late_rows() -> None:
    start = _noon()
    _fill(50, start, 150)
    rollup.roll_up()
    for _ in range(3):
        rollup.roll_up()
    writer.write([refused(1, received_s=start + 10), record(2, received_s=start + 20)])  # late, into an old hour
    _fill(30, start + 4 * HOUR_S, 60)
    assert rollup.roll_up() > 0
    rollup.roll_up()
    day = (datetime.fromtimestamp(start, tz=UTC), timezone.now())
    by_hours = UsageHour.objects.all()
    truth = {(r.tenant, r.key_id): [0, 0, 0] for r in LedgerEntry.objects.all()}
    for r in LedgerEntry.objects.all():
        cell = truth[r.tenant, r.key_id]
        cell[0] += 1
        if r.outcome != "refused":
            cell[1] += r.input_tokens
            cell[2] += r.output_tokens
    found = {key: [0, 0, 0] for key in truth}
    for h in by_hours:
        cell = found[h.tenant, h.key_id]
        for index, value in enumerate((h.requests, h.input_tokens, h.output_tokens)):
            cell[index] += value
    assert found == truth
    assert _sums(usage.usage(None, *day, ["tenant", "key"])) == _sums(usage.usage(None, *day, ["outcome"]))


def test_the_hour_that_runs_is_added_up_every_ten_minutes_and_once_it_is_over() -> None:
    start = _noon()
    known: list[int] = []

    def look(minute: int) -> None:
        now = datetime.fromtimestamp(start + 60 * minute, UTC)
        with mock.patch.object(timezone, "now", return_value=now):
            rollup.roll_up()
        hours = UsageHour.objects.filter(hour=datetime.fromtimestamp(start, UTC))
        known.append(sum(hours.values_list("requests", flat=True)))

    with mock.patch.object(rollup, "OVERLAP", 3):
        _fill(10, start, 1)
        look(2)
        _fill(10, start + 200, 1)
        look(4)
        look(9)
        look(11)
        _fill(10, start + 3000, 1)
        look(59)
        assert known == [10, 10, 10, 20, 30]
        _fill(10, start + 3570, 1)
        look(59)
        _fill(10, start + HOUR_S, 1)  # more rows than are looked at again
        look(61)
        assert known[-2:] == [30, 40], "what was left out while it ran is there once it is over"


def test_a_quiet_ledger_is_not_read_each_minute(django_assert_max_num_queries: Any) -> None:
    _fill(40, _noon(), 600)
    for _ in range(3):
        rollup.roll_up()
    with django_assert_max_num_queries(10):  # for eight hours of rows
        assert rollup.roll_up() == 0
    writer.write([record(7, received_s=_noon() + 60)])
    assert rollup.roll_up() > 0


def test_slot_time_is_exact_to_the_microsecond() -> None:
    start = _noon()
    times = ((1.0, 2.0), (1.999999, 2.0), (0.25, 90061.000001), (3.000001, 3.000001), (5.0, 4.0))  # the last: a clock
    writer.write(
        [record(n, received_s=start, granted_s=start + a, first_token_s=start + a, done_s=start + b)
         for n, (a, b) in enumerate(times)]
    )  # fmt: skip
    rows = LedgerEntry.objects.filter(granted_at__isnull=False)
    expected = [usage.slot_us_of(row) for row in rows if row.done_at >= row.granted_at]
    assert sorted(expected) == [0, 1, 1_000_000, 90_060_750_001]
    rollup.roll_up()
    assert sum(UsageHour.objects.values_list("slot_us", flat=True)) == sum(expected)
    [whole] = usage.usage(None, datetime.fromtimestamp(start, UTC), timezone.now(), ["tenant"])
    assert whole["slot_s"] == round(sum(expected) / 1e6, 3)


def test_usage_tells_first_attempts_apart_and_knows_nothing_of_hours_in_which_nobody_did() -> None:
    start = _noon()
    of_hour = {"received_s": start + 60, "granted_s": start + 61, "first_token_s": start + 62, "done_s": start + 63}
    away = {"granted_s": None, "first_token_s": None, "done_s": start + 60, "received_s": start + 60}
    writer.write([
        record(1, slo_met=True, **of_hour), record(2, slo_met=False, **of_hour),
        record(3, slo_met=True, client_retry=1, **of_hour), refused(4, **away), refused(5, client_retry=2, **away),
        refused(6, reason="invalid_request", client_retry=1, **away),
    ])  # fmt: skip
    since = datetime.fromtimestamp(start, UTC)

    def told() -> tuple[Any, ...]:
        [row] = usage.usage(None, since, since + timedelta(hours=1), ["tenant"])
        return row["slo_asked"], row["slo_retries"], row["attainment_first"], row["attainment"]

    assert told() == (5, 2, 0.3333, 0.4), "of the ledger"
    rollup.roll_up()
    LedgerEntry.objects.all().delete()
    assert told() == (5, 2, 0.3333, 0.4), "of the hour"
    UsageHour.objects.update(slo_retries=None, slo_retries_met=None)
    assert told() == (5, None, None, 0.4), "an older release added it up"


def test_sums_say_of_how_many_requests_nobody_knows_the_tokens() -> None:
    start = _noon()
    of_hour = {"received_s": start + 60, "granted_s": start + 61, "done_s": start + 63}
    lost = of_hour | {"outcome": "failed", "reason": "gateway_lost", "first_token_s": None, "output_tokens": 0}
    writer.write([
        record(1, first_token_s=start + 62, input_tokens=100, output_tokens=10, **of_hour),
        record(2, input_tokens=0, **lost), record(3, input_tokens=0, **lost),
        record(4, input_tokens=70, **lost),  # since an answer alone is unknown, and the prompt estimated
        record(5, input_tokens=0, **lost | {"granted_s": None}),  # it never ran
    ])  # fmt: skip
    since = datetime.fromtimestamp(start, UTC)
    worlds.charged(Price(pool=worlds.build().pool, valid_from=since, per_million_input=1))

    def told() -> tuple[Any, ...]:
        [row] = usage.usage(None, since, since + timedelta(hours=1), ["tenant"])
        [line] = statement.lines(None, since, since + timedelta(hours=1))
        return row["input_tokens"], row["tokens_unknown"], line.row()["input_tokens"], line.row()["tokens_unknown"]

    assert told() == (170, 3, 170, 3), "of the ledger"
    costs = [usage.cost_of(row) for row in LedgerEntry.objects.order_by("request_id")]
    assert [cost and cost["amount"] for cost in costs] == [0.0001, None, None, 0.00007, 0.0]
    rollup.roll_up()
    LedgerEntry.objects.all().delete()
    assert told() == (170, 3, 170, 3), "of the hour"
    UsageHour.objects.update(tokens_unknown=None)
    assert told() == (170, None, 170, None), "an older release added it up"


def test_what_the_ledger_forgot_stays_in_the_hours_and_a_straggler_does_not_spoil_it() -> None:
    start = _noon()
    _fill(40, start, 60)
    rollup.roll_up()
    before = list(UsageHour.objects.order_by("id").values())
    assert tasks.purge(days=1) == 40
    assert not LedgerEntry.objects.exists()
    writer.write([record(7, received_s=start + 5)])
    rollup.roll_up()
    assert list(UsageHour.objects.order_by("id").values()) == before
    since = datetime.fromtimestamp(start, tz=UTC)
    (row,) = usage.usage(None, since, since + timedelta(hours=1), ["pool"])
    assert row["requests"] == 40


def test_a_range_that_begins_and_ends_within_hours_is_exact() -> None:
    start = _noon()
    _fill(240, start, 60)
    rollup.roll_up()
    since = datetime.fromtimestamp(start + 30 * 60, tz=UTC)
    until = since + timedelta(hours=2, minutes=7)
    (row,) = usage.usage(None, since, until, ["pool"])
    assert row["requests"] == 127
    assert row["input_tokens"] == sum(range(30, 157))
    by_hour = list(usage.usage(None, since, until, ["hour"]))
    assert sorted(r["requests"] for r in by_hour) == [30, 37, 60]
    (month,) = usage.usage(None, since, until, ["month"])
    assert month["requests"] == 127
    (only,) = usage.usage(None, since, until, ["key"], key="key0", tenant="acme")
    assert only["requests"] == sum(1 for n in range(30, 157) if n % 3 == 0 and n % 2 == 0)


def test_each_hour_costs_what_its_price_says_by_tokens_and_by_the_slots_share_of_a_gpu() -> None:
    world = worlds.build()
    start = _noon()
    hour = datetime.fromtimestamp(start, tz=UTC)
    for price in (
        Price(pool=world.pool, valid_from=hour, per_million_input=1, per_million_output=10, currency="EUR"),
        Price(pool=world.pool, valid_from=hour + timedelta(hours=1), per_gpu_second=8, slots_per_gpu=4, currency="EUR"),
    ):
        worlds.charged(price)
    _fill(10, start, 60)  # tokens 0..9 in, twice that out
    _fill(10, start + HOUR_S, 60)  # 2 s in a slot each: done - granted
    for rolled in (False, True):
        if rolled:
            rollup.roll_up()
        first, second = usage.usage(None, hour, hour + timedelta(hours=2), ["hour"])
        assert first["cost"] == pytest.approx(45 * 1e-6 + 90 * 10e-6)
        assert (second["slot_s"], second["cost"]) == (20, pytest.approx(20 * 8 / 4))
        assert second["currency"] == "EUR"
        (whole,) = usage.usage(None, hour, hour + timedelta(hours=2), ["pool"])
        assert whole["cost"] == pytest.approx(first["cost"] + second["cost"])


def test_an_adapter_is_billed_under_its_own_name_by_its_pools_price() -> None:
    world = worlds.build()
    start = _noon()
    hour = datetime.fromtimestamp(start, tz=UTC)
    worlds.charged(Price(pool=world.pool, valid_from=hour, per_million_input=1))
    for number, (model, tokens) in enumerate((("llama", 10), ("llama-sql", 30), ("llama-sql", 40))):
        writer.write([record(number, received_s=start + number, model=model, input_tokens=tokens, output_tokens=0)])
    for rolled in (False, True):
        if rolled:
            rollup.roll_up()
        rows = usage.usage(None, hour, hour + timedelta(hours=1), ["model"])
        billed = {row["model"]: (row["requests"], row["input_tokens"], row["cost"]) for row in rows}
        assert billed == {"llama": (1, 10, pytest.approx(10e-6)), "llama-sql": (2, 70, pytest.approx(70e-6))}


def test_amounts_of_two_currencies_are_never_added() -> None:
    world = worlds.build()
    start = _noon()
    hour = datetime.fromtimestamp(start, tz=UTC)
    for offset, currency in ((0, "EUR"), (1, "USD")):
        begins = hour + timedelta(hours=offset)
        price = Price(pool=world.pool, valid_from=begins, per_million_input=1, currency=currency)
        worlds.charged(price)
    _fill(4, start, 1)
    _fill(4, start + HOUR_S, 1)
    (whole,) = usage.usage(None, hour, hour + timedelta(hours=2), ["pool"])
    assert (whole["cost"], whole["currency"]) == (None, "mixed")


# --- what gateways are told


class Board:
    def __init__(self) -> None:
        self.pools: dict[str, PoolUsage] = {}

    def put(self, pool: str, told: PoolUsage) -> dict[str, PoolUsage]:
        self.pools[pool] = told
        return dict(self.pools)


def _today_s() -> float:
    return timezone.now().replace(hour=13, minute=30, second=0, microsecond=0).timestamp()


def test_the_leaders_figure_is_the_ledgers_sum_and_moves_with_each_batch() -> None:
    now = _today_s()
    board = Board()
    feed = UsageFeed(board, lambda: {"acme": (QuotaSpec("day", 100, 1000),)})
    first = replace(record(1, received_s=now - 60), tenant="acme", input_tokens=30, output_tokens=20, done_s=now - 50)
    writer.write([first, replace(record(2, received_s=now - 86_400 * 40), tenant="acme", input_tokens=999)])
    feed.publish("llama", 1, now)
    assert board.pools["llama"].tenants["acme"] == (50, 50)
    second = replace(record(3, received_s=now), tenant="acme", input_tokens=5, output_tokens=5, done_s=now + 2)
    writer.write([second])
    feed.count("llama", [second, replace(refused(4), tenant="acme")])
    feed.publish("llama", 1, now + 1)
    assert board.pools["llama"].tenants["acme"][0] == 60
    assert board.pools["llama"].as_of_s == now + 2
    another = UsageFeed(board, lambda: {"acme": (QuotaSpec("day", 100, 1000),)})  # another leader, from the catalog
    another.publish("llama", 2, now + 2)
    assert board.pools["llama"].tenants["acme"][0] == 60


def test_each_second_of_a_pool_does_not_work_out_the_day_anew_for_each_quota_in_each_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread does that for all pools of a process, and publishes them."""
    worked_out: list[float] = []

    class Counted(datetime):
        @classmethod
        def fromtimestamp(cls, timestamp: float, tz: Any = None) -> Any:
            worked_out.append(timestamp)
            return super().fromtimestamp(timestamp, tz)

    quotas = {f"team-{n}": (QuotaSpec("day", 100, 1000), QuotaSpec("month", 100, 1000)) for n in range(50)}
    feed, now = UsageFeed(Board(), lambda: quotas), _today_s()
    for pool in range(6):
        feed.publish(f"pool-{pool}", 1, now)
    monkeypatch.setattr(usage_module, "datetime", Counted)
    for pool in range(6):
        feed.publish(f"pool-{pool}", 1, now + 1)
    assert len(worked_out) < 6 * 50
    assert len(feed.shares) == 100


@pytest.mark.parametrize("by", ["one more batch", "reading again"])
def test_what_was_lost_with_its_gateway_counts_in_quotas_and_once_when_that_gateway_was_only_cut_off(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that comes back says so of all its requests, one after the other: nothing is added up anew for each."""
    now = _today_s()
    board = Board()
    feed = UsageFeed(board, lambda: {"acme": (QuotaSpec("day", 100, 1000),)}, lambda: frozenset({"k1"}))
    feed.publish("llama", 1, now)
    end = replace(
        record(1, received_s=now), tenant="acme", key_id="k1", input_tokens=30, output_tokens=20, done_s=now + 1
    )
    lost = replace(end, outcome="failed", reason="gateway_lost", output_tokens=0)
    if by == "one more batch":
        monkeypatch.setattr(quotas, "read_ledger", lambda *_: pytest.fail("the ledger was read again"))
    for after_s, said, used in ((2, lost, 30), (quotas.READ_AGAIN_S + 3, end, 50)):
        feed.count("llama", writer.write([said]))
        feed.publish("llama", 1, now + (2 if by == "one more batch" else after_s))
        assert board.pools["llama"].tenants["acme"] == (used, used)
        assert board.pools["llama"].keys == {"k1": used}


def test_the_leader_tells_what_each_key_with_a_limit_used_today_and_of_no_other_key() -> None:
    now = _noon()

    def used(number: int, at_s: float, tokens: int, key: str = "daily", pool: str = "llama") -> LedgerRecord:
        return replace(
            record(number, received_s=at_s), key_id=key, pool=pool, input_tokens=tokens, output_tokens=1,
            done_s=at_s + 5,
        )  # fmt: skip

    yesterday = used(4, now - 13 * HOUR_S, 999)
    writer.write([used(1, now, 30), used(2, now, 7, key="free"), used(3, now, 5, pool="other"), yesterday])
    board = Board()
    feed = UsageFeed(board, dict, lambda: frozenset({"daily"}))
    feed.publish("llama", 1, now + 60)
    assert board.pools["llama"].keys == {"daily": 31}
    more = used(5, now + 50, 70)
    writer.write([more])
    feed.count("llama", [more, used(6, now + 50, 8, key="free"), replace(refused(7), key_id="daily")])
    feed.publish("llama", 1, now + 61)
    assert board.pools["llama"].tokens_of_key("daily", now + 61) == 102
    assert board.pools["llama"].tokens_of_key("daily", now + 86_400) == 0
    rollup.roll_up()  # complete hours are in the roll-up then
    assert UsageHour.objects.exists()
    another = UsageFeed(board, dict, lambda: frozenset({"daily"}))  # another leader, from the catalog
    another.publish("llama", 2, now + 120)
    assert board.pools["llama"].keys == {"daily": 102}
    UsageFeed(board, dict, frozenset).publish("llama", 3, now + 120)  # no key has a limit: nobody asks
    assert board.pools["llama"].keys == {"daily": 102}


def test_a_batch_that_comes_again_is_counted_once_whoever_leads() -> None:
    """It was stored, and its deletion from the stream was lost; the second time with a new request, and one twice."""
    now = _today_s()
    board, counted = Board(), []

    class Sink:
        def count(self, pool: str, records: Sequence[LedgerRecord]) -> None:
            counted.extend(r.request_id for r in records)

        def sample(self, sample: Any, entitlements: Any) -> None:
            """Nothing happens here each second."""

    def leader(epoch: int) -> tuple[Recorder, UsageFeed]:
        feed = UsageFeed(board, lambda: {"acme": (QuotaSpec("day", 100, 1000),)})
        feed.publish("llama", epoch, now)
        options: dict[str, Any] = {"usage": feed, "sinks": [Sink()], "start_purge": lambda: None, "clock": lambda: now}
        return Recorder(mock.Mock(), dict, **options), feed

    def used(feed: UsageFeed, epoch: int) -> int:
        feed.publish("llama", epoch, now + 1)
        return board.pools["llama"].tenants["acme"][0]

    batch = [
        replace(record(n), tenant="acme", input_tokens=3, output_tokens=2, received_s=now - 9, done_s=now - 5)
        for n in range(4)
    ]
    first, feed = leader(1)
    first.write_ledger("llama", batch[:3])
    assert used(feed, 1) == 15
    first.write_ledger("llama", [*batch, batch[3]])
    assert used(feed, 1) == 20
    second, feed = leader(2)
    second.write_ledger("llama", batch)
    assert used(feed, 2) == 20
    assert counted == [r.request_id for r in batch]


def test_what_is_stored_before_the_database_goes_away_is_counted_and_only_the_rest_comes_again() -> None:
    now = _today_s()
    board = Board()
    feed = UsageFeed(board, lambda: {"acme": (QuotaSpec("day", 100, 1000),)})
    feed.publish("llama", 1, now)
    r = Recorder(mock.Mock(), dict, usage=feed, start_purge=lambda: None, clock=lambda: now)
    batch = [
        replace(record(n), tenant="acme", input_tokens=1, output_tokens=0, received_s=now - 9, done_s=now - 5)
        for n in range(writer.BATCH + 1)
    ]
    real = writer._write_batch

    def cut(rows: list[writer.Row]) -> set[str]:
        if len(rows) == 1:
            raise OperationalError("server closed the connection unexpectedly")
        return real(rows)

    with mock.patch.object(writer, "_write_batch", cut), pytest.raises(OperationalError):
        r.write_ledger("llama", batch)
    r.write_ledger("llama", batch)
    feed.publish("llama", 1, now + 1)
    assert board.pools["llama"].tenants["acme"][0] == writer.BATCH + 1


def test_the_months_figure_outlives_the_ledger() -> None:
    now = _today_s()
    if timezone.now().day < 5:
        pytest.skip("the month is too young")
    writer.write([replace(record(1, received_s=now - 3 * 86_400), tenant="acme", input_tokens=70, output_tokens=0)])
    rollup.roll_up()
    tasks.purge(days=1)
    assert read_ledger("llama", frozenset({"acme"}), now)["acme"] == [0, 70]


def test_passing_a_limit_is_told_once_per_period_over_all_pools() -> None:
    now = _today_s()
    board = Board()
    feed = UsageFeed(board, lambda: {"acme": (QuotaSpec("day", 100, 1000),)})
    day = f"{datetime.fromtimestamp(now, tz=UTC):%Y-%m-%d}"
    board.pools["other"] = PoolUsage(now, day, day[:7], {"acme": (90, 90)})
    writer.write([replace(record(1, received_s=now), tenant="acme", input_tokens=10, output_tokens=0)])
    for _ in range(3):
        feed.publish("llama", 1, now)
    (alert,) = Alert.objects.all()
    assert (alert.kind, alert.tenant, alert.used_tokens, alert.limit_tokens) == ("quota_soft", "acme", 100, 100)
    board.pools["other"] = PoolUsage(now, day, day[:7], {"acme": (990, 990)})
    UsageFeed(board, lambda: {"acme": (QuotaSpec("day", 100, 1000),)}).publish("llama", 2, now)
    assert sorted(Alert.objects.values_list("kind", flat=True)) == ["quota_hard", "quota_soft"]
