"""A month's bill: the same sum from the ledger's rows and from the hours, line by line, to the last decimal."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from rest_framework.test import APIClient

from scheduling.core.ledger.money import PICOS, amount
from scheduling.core.ledger.record import sane
from scheduling.gateway.answers.answer_types import Asked, settle_usage
from telemetry.api import statements
from telemetry.ledger import reservations, rollup, statement, usage, writer
from telemetry.models import LedgerEntry, ReservedHour, UsageHour
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import Adapter, Budget, Price
from tests.support import worlds
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db
OCTOBER = datetime(2026, 10, 1, tzinfo=UTC)  # with a clock change in Europe, on the 25th
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)


def _month(world: worlds.World, requests: int) -> None:
    """A ledger with everything that a bill meets: models, projects, keys, ends, prices and edges."""
    services.save(actor=SYSTEM, instance=Adapter(slug="sql", pool=world.pool, model="llama-sql"))
    terms: list[dict[str, Any]] = [
        {"valid_from": OCTOBER - timedelta(days=9), "per_million_input": "0.15", "per_million_output": "0.6"},
        {"valid_from": OCTOBER + timedelta(days=11, hours=7), "per_million_input": "0.123457",
         "per_million_cached": "0.01", "per_million_output": "0.7", "per_gpu_second": "0.000777", "slots_per_gpu": 3},
        {"valid_from": OCTOBER + timedelta(days=20), "model": "llama-sql", "per_million_input": 5},
    ]  # fmt: skip
    for term in terms:
        worlds.charged(Price(pool=world.pool, **term))
    dice = random.Random(20)
    edges = [
        OCTOBER - timedelta(microseconds=1), OCTOBER, NOVEMBER - timedelta(microseconds=1), NOVEMBER,
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=0),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    ]  # fmt: skip
    rows = []
    for number in range(requests):
        inside = OCTOBER + timedelta(seconds=dice.uniform(-86_400, 32 * 86_400))
        at = (edges[number] if number < len(edges) else inside).timestamp()
        outcome = dice.choice(["completed", "completed", "completed", "cancelled", "failed", "refused"])
        given = dice.randrange(5000)
        rows.append(
            replace(
                record(number), request_id=f"req_{number}", outcome=outcome, tenant=dice.choice(["acme", "globex"]),
                model=dice.choice(["llama", "llama-sql"]), key_id=(key := f"key{dice.randrange(4)}"),
                project="chat" if key == "key1" else "", user=dice.choice(["", "ada"]), input_tokens=given,
                cached_tokens=dice.randrange(given + 1), output_tokens=dice.randrange(900), received_s=at,
                granted_s=None if outcome == "refused" else at + dice.random(), first_token_s=None,
                done_s=at + 1 + 5 * dice.random(),
            )
        )  # fmt: skip
    writer.write(rows)


def _row_by_row() -> dict[str, Decimal]:
    """The month's cost by tenant, from the rows alone and by hand: nothing here is of the code that is tested."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for row in LedgerEntry.objects.filter(received_at__gte=OCTOBER, received_at__lt=NOVEMBER).exclude(
        outcome="refused"
    ):
        held = row.done_at - row.granted_at
        seconds = Decimal(held.days * 86_400 + held.seconds) + Decimal(held.microseconds) / 1_000_000
        if row.model == "llama-sql" and row.received_at >= OCTOBER + timedelta(days=20):
            cost = Decimal(5) * row.input_tokens / 1_000_000
        elif row.received_at >= OCTOBER + timedelta(days=11, hours=7):
            cost = (
                Decimal("0.123457") * (row.input_tokens - row.cached_tokens)
                + Decimal("0.01") * row.cached_tokens
                + Decimal("0.7") * row.output_tokens
            ) / 1_000_000 + Decimal("0.000777") * seconds / 3
        else:
            cost = (Decimal("0.15") * row.input_tokens + Decimal("0.6") * row.output_tokens) / 1_000_000
        sums[row.tenant] += cost
    return sums


def test_a_month_priced_row_by_row_and_by_the_hour_is_the_same_sum() -> None:
    _month(worlds.build(), 900)
    by_hand = _row_by_row()
    assert set(by_hand) == {"acme", "globex"}
    for source in ("ledger", "hours", "hours alone"):
        if source == "hours":
            rollup.roll_up()
        if source == "hours alone":
            LedgerEntry.objects.all().delete()
        for tenant, expected in by_hand.items():
            found = list(statement.lines(frozenset({tenant}), OCTOBER, NOVEMBER))
            (total,) = statement.totals(found).values()
            # the sum by hand has 28 digits; a third of a GPU has no end
            assert abs(amount(total) - expected) < Decimal("1e-17"), (source, tenant)
            assert sum((line.picos for line in found), Fraction(0)) == total
            coarse = dict(usage.cells(None, OCTOBER, NOVEMBER, ["tenant"]))[(tenant,)]
            assert coarse.costs == {"USD": total}, "whatever it is grouped by"
            assert coarse.counts[0] == sum(line.requests for line in found)
            print(f"{tenant}: {amount(total):f} USD from {source}, {expected:f} row by row")
    assert UsageHour.objects.filter(slot_us=None).count() == 0


def test_what_was_refused_is_free_and_what_was_cancelled_costs_what_it_used() -> None:
    world = worlds.build()
    worlds.charged(Price(pool=world.pool, valid_from=OCTOBER, per_million_input=1, per_million_output=1))
    at = (OCTOBER + timedelta(days=3)).timestamp()
    for number, (outcome, tokens) in enumerate((("completed", 100), ("cancelled", 7), ("failed", 3), ("refused", 50))):
        writer.write(
            [record(number, outcome=outcome, input_tokens=tokens, output_tokens=0, received_s=at, done_s=at + 1)]
        )
    for _ in range(2):
        (line,) = statement.lines(None, OCTOBER, NOVEMBER)
        assert (line.requests, line.input_tokens, amount(line.picos)) == (4, 110, Decimal("0.00011"))
        rollup.roll_up()


def test_a_price_that_was_charged_does_not_change_and_nothing_is_priced_anew() -> None:
    world = worlds.build()
    now = timezone.now()
    world.pool.created_at = now - timedelta(days=9)
    world.pool.save(update_fields=["created_at"])
    old = worlds.charged(
        Price(pool=world.pool, valid_from=(now - timedelta(days=5)).replace(minute=0, second=0, microsecond=0))
    )
    old.per_million_input = 9
    with pytest.raises(ValidationError, match="has been charged since"):
        services.save(actor=SYSTEM, instance=old)
    with pytest.raises(ValidationError, match="has been charged for that time"):
        services.save(actor=SYSTEM, instance=Price(pool=world.pool, valid_from=now - timedelta(days=2)))
    with pytest.raises(ValidationError, match="has been charged since"):
        services.delete(actor=SYSTEM, instance=old)
    old.refresh_from_db()
    services.save(actor=SYSTEM, instance=old)  # nothing changed: as a manifest that is applied again
    new = services.save(
        actor=SYSTEM, instance=Price(pool=world.pool, valid_from=now + timedelta(days=2), currency="EUR")
    )
    new.per_million_input = 3
    services.save(actor=SYSTEM, instance=new)  # it has not begun
    services.delete(actor=SYSTEM, instance=new)
    # time without any price may be given one
    services.save(actor=SYSTEM, instance=Price(pool=world.pool, valid_from=now - timedelta(days=30)))


def test_what_stood_ready_has_lines_of_its_own_used_and_idle() -> None:
    world = worlds.build()
    owner = world.entitlements["acme"]
    owner.tier.service_class = "guaranteed"
    services.save(actor=SYSTEM, instance=owner.tier)
    owner.refresh_from_db()
    owner.concurrency = 4
    services.save(actor=SYSTEM, instance=owner)
    worlds.charged(
        Price(
            pool=world.pool, valid_from=OCTOBER, per_reserved_used_second=2, per_reserved_idle_second=1, slots_per_gpu=2
        )
    )
    begin = OCTOBER + timedelta(days=8, hours=9, minutes=58)
    for minute in range(0, 5):
        reservations.record(begin + timedelta(minutes=minute))
        reservations.record(begin + timedelta(minutes=minute))  # twice is once
    reservations.record(begin + timedelta(minutes=300))  # nobody knows what stood ready meanwhile
    assert sorted(ReservedHour.objects.values_list("hour__hour", "slot_us")) == [
        (9, 4 * 2 * 60 * 10**6), (10, 4 * 2 * 60 * 10**6),
    ]  # fmt: skip
    at = (begin + timedelta(minutes=1)).timestamp()
    one = record(1, entitlement=owner.slug, input_tokens=0, output_tokens=0)
    writer.write([replace(one, received_s=at, granted_s=at, done_s=at + 100)])
    for _ in range(2):
        lines = {line.kind: line for line in statement.lines(None, OCTOBER, NOVEMBER)}
        assert (lines["reserved_used"].slot_us, lines["reserved_idle"].slot_us) == (100 * 10**6, 860 * 10**6)
        assert [lines[kind].picos / PICOS for kind in ("reserved_used", "reserved_idle")] == [100, 430]
        rollup.roll_up()
    owner.concurrency = 1
    services.save(actor=SYSTEM, instance=owner)
    idle = [line for line in statement.lines(None, OCTOBER, NOVEMBER) if line.kind == "reserved_idle"]
    assert [line.slot_us for line in idle] == [860 * 10**6], "what was recorded stays"


def _get(world: worlds.World, query: str, status: int = 200) -> Any:
    api = APIClient(HTTP_AUTHORIZATION=f"Bearer {world.tokens['carol'].credential.text}")
    answer = api.get(f"/api/v1/statements?{query}")
    assert answer.status_code == status, answer.content
    return answer


FOCUS_MANDATORY = (  # "Feature level: Mandatory" in FOCUS 1.2; those after the bar may be null
    "BilledCost BillingAccountId BillingCurrency BillingPeriodEnd BillingPeriodStart ChargeCategory ChargePeriodEnd "
    "ChargePeriodStart ContractedCost EffectiveCost InvoiceIssuerName ListCost PricingUnit PricingQuantity "
    "ProviderName PublisherName ServiceCategory ServiceName ChargeDescription|BillingAccountName ChargeClass"
)
FOCUS_UNIT = re.compile(r"[A-Z][a-z]+s|[A-Z][a-z]+-[A-Z][a-z]+s")  # plural, or compound: Tokens, Slot-Seconds
FOCUS_ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {"Generative AI"},
}


def focus_faults(row: dict[str, str]) -> list[str]:
    """Where a row is not what FOCUS 1.2 asks of it."""
    filled, may_be_null = (part.split() for part in FOCUS_MANDATORY.split("|"))
    faults = [f"{name} is missing" for name in (*filled, *may_be_null) if name not in row]
    faults += [f"{name} is null" for name in filled if name in row and not row[name]]
    faults += [f"{name}: {row[name]}" for name, allowed in FOCUS_ALLOWED.items() if row[name] not in allowed]
    for name, value in row.items():
        if name.endswith(("Start", "End")) and not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value):
            faults.append(f"{name}: {value} is no time in UTC")
        if name.endswith("Cost") and Decimal(value).is_nan():
            faults.append(f"{name}: {value} is no amount")
        if name.endswith("Unit") and not FOCUS_UNIT.fullmatch(value):
            faults.append(f"{name}: {value} is no unit")
    if not re.fullmatch(r"[A-Z]{3}", row["BillingCurrency"]):
        faults.append(f"BillingCurrency: {row['BillingCurrency']}")
    if not isinstance(json.loads(row["Tags"]), dict):
        faults.append(f"Tags: {row['Tags']}")
    return faults


def test_a_row_that_is_not_as_focus_wants_it_is_found() -> None:
    world = worlds.build()
    _month(world, 5)
    rollup.roll_up()
    text = b"".join(_get(world, "month=2026-10&format=focus").streaming_content).decode()
    row = next(csv.DictReader(io.StringIO(text)))
    assert focus_faults(row) == []
    broken = {
        "ConsumedUnit": "Slot seconds", "ChargePeriodStart": "2026-10-01", "ChargeCategory": "Use", "Tags": "[]",
        "ServiceName": "",
    }  # fmt: skip
    for name, value in broken.items():
        assert len(focus_faults(row | {name: value})) == 1, name
    assert focus_faults({name: value for name, value in row.items() if name != "PublisherName"}) == [
        "PublisherName is missing"
    ]


def test_files_have_the_sum_of_the_page_and_a_member_sees_only_its_own() -> None:
    world = worlds.build()
    _month(world, 200)
    rollup.roll_up()
    told = _get(world, "month=2026-10").json()
    assert {line["tenant"] for line in told["lines"]} == {"globex"}
    (total,) = told["totals"]
    assert total["currency"] == "USD"
    for kind, column in (("csv", "amount"), ("focus", "BilledCost")):
        text = b"".join(_get(world, f"month=2026-10&format={kind}").streaming_content).decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        assert abs(sum(Decimal(row[column]) for row in rows) - Decimal(total["amount"])) < Decimal("1e-15"), kind
        if kind == "focus":
            assert tuple(rows[0]) == statement.FOCUS
            assert [fault for row in rows for fault in focus_faults(row)] == []
            for row in rows:
                cost = Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"])
                assert abs(cost - Decimal(row["BilledCost"])) < Decimal("1e-12")
                assert (
                    OCTOBER.isoformat()[:10]
                    <= row["ChargePeriodStart"][:10]
                    < row["ChargePeriodEnd"][:10]
                    <= "2026-11-01"
                )
    _get(world, "month=2026-13", 400)
    _get(world, "month=9999-12", 400)
    assert _get(world, "month=2026-10&tenant=acme").json()["lines"] == []


def test_a_statement_with_more_lines_than_json_has_says_to_take_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds.build()
    _month(world, 40)
    lines = len(_get(world, "month=2026-10").json()["lines"])
    monkeypatch.setattr(statements, "MAX_LINES", lines)
    _get(world, "month=2026-10")
    monkeypatch.setattr(statements, "MAX_LINES", lines - 1)
    assert "Take format=csv" in _get(world, "month=2026-10", 400).json()["detail"]
    assert b"".join(_get(world, "month=2026-10&format=csv").streaming_content).count(b"\n") == lines + 1


def test_users_are_told_only_while_the_ledger_knows_all_of_the_month() -> None:
    world = worlds.build()
    _get(world, "month=2020-01&by_user=1", 400)


@pytest.mark.parametrize("shares", [[0], [1001], ["50"], [50, 50], [True], "50", {"50": 1}, list(range(1, 10)), [10.5]])
def test_thresholds_that_are_none_are_refused(shares: Any) -> None:
    world = worlds.build()
    with pytest.raises(ValidationError):
        services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["acme"], hard_amount=1, alert_at=shares))


@pytest.mark.parametrize("cached", [-1, 101, 10**30])
def test_cached_tokens_beyond_the_input_are_not_believed(cached: int) -> None:
    asked = Asked(True, output_bound=1000, input_tokens=100)
    told = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}
    for value, expected in ((cached, 0), (64, 64)):
        raw = msgspec.Raw(json.dumps(told | {"prompt_tokens_details": {"cached_tokens": value}}).encode())
        usage_told, _ = settle_usage(raw, asked, 3, 9)
        assert (usage_told.prompt_tokens, usage_told.cached_tokens) == (100, expected)
    assert sane(replace(record(1), input_tokens=100, cached_tokens=cached)).cached_tokens == 0


def test_budgets_and_focus_say_of_how_many_requests_nobody_knows_the_tokens() -> None:
    world = worlds.build()
    now = timezone.now()
    worlds.charged(
        Price(pool=world.pool, valid_from=now - timedelta(days=40), per_million_input=1, per_million_output=2)
    )
    services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["acme"], hard_amount=1))
    services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["globex"], hard_amount=1))
    at = {"tenant": "acme", "received_s": now.timestamp(), "granted_s": now.timestamp(), "done_s": now.timestamp()}
    lost = at | {"outcome": "failed", "reason": "gateway_lost", "first_token_s": None, "output_tokens": 0}
    ran = record(1, first_token_s=now.timestamp(), input_tokens=500_000, output_tokens=0, **at)
    writer.write([ran, record(2, input_tokens=0, **lost), record(3, input_tokens=0, **lost)])
    api = APIClient()
    api.force_login(world.users["adam"])
    told = {row["tenant"]: row for row in api.get("/api/v1/spending").json()["budgets"]}
    assert (Decimal(told["acme"]["spent"]), told["acme"]["tokens_unknown"]) == (Decimal("0.5"), 2)
    assert told["globex"]["tokens_unknown"] == 0
    answer: Any = api.get(f"/api/v1/statements?month={now:%Y-%m}&format=focus")
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert [(row["SkuMeter"], row["x_TokensUnknown"]) for row in rows] == [
        ("input", "2"), ("cached", "0"), ("output", "0"),
    ]  # fmt: skip
