"""A budget in money, from the ledger through the leader's figures in a real Redis to the gateways that refuse."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from scheduling.core.ledger.money import PICOS, amount
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.gateway.entry.budgets import Asked
from scheduling.gateway.entry.quotas import Quotas
from scheduling.gateway.errors import Refusal, render
from scheduling.state.resp import RespConnection
from scheduling.state.usage import PoolUsage, period_bounds_s, read_usage
from telemetry.ledger import writer
from telemetry.ledger.quotas import RedisBoard, UsageFeed, alerts_of, read_spent
from telemetry.models import Alert
from tenants import services, specs
from tenants.audit import SYSTEM
from tenants.models import Budget, Price
from tests.support import worlds
from tests.support.telemetry_world import record

pytestmark = pytest.mark.django_db
TOKENS = 1000  # in and out of each request: a dollar


def _world(**budget: Any) -> worlds.World:
    world = worlds.build()
    hour = timezone.now() - timedelta(days=40)
    worlds.charged(Price(pool=world.pool, valid_from=hour, per_million_input=0, per_million_output=1000))
    services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["acme"], **budget))
    return world


def _asked(**changes: Any) -> Asked:
    return replace(Asked("acme", "", "", "key1", "llama", "llama", 0, TOKENS), **changes)


def _ended(number: int, now_s: float, **changes: Any) -> LedgerRecord:
    values = {
        "tenant": "acme", "pool": "llama", "model": "llama", "key_id": "key1", "user": "", "input_tokens": 0,
        "output_tokens": TOKENS, "received_s": now_s - 1, "granted_s": now_s - 1, "done_s": now_s,
        "outcome": "completed",
    } | changes  # fmt: skip
    return replace(record(number), request_id=f"req_{number}", **values)


async def _read(redis_url: str) -> dict[str, PoolUsage]:
    resp = RespConnection(redis_url, name="budgets")
    await resp.start()
    try:
        return await read_usage(resp)
    finally:
        await resp.close()


class Fleet:
    """Gateways and the leader over one Redis. Time is handed in; figures move only when they are told to."""

    def __init__(self, redis_url: str, gateways: int) -> None:
        self.catalog = specs.load_catalog()
        self.url = redis_url
        self.feed = UsageFeed(RedisBoard(redis_url), dict, catalog=lambda: self.catalog)
        self.gateways = [Quotas(RespConnection(redis_url, name=f"g{n}")) for n in range(gateways)]
        for gateway in self.gateways:
            gateway.configure(self.catalog)
        self.open: dict[int, Quotas] = {}
        self.spent = 0
        self.number = 0

    def begin(self, gateway: Quotas, now_s: float, **asked: Any) -> bool:
        self.number += 1
        try:
            gateway.budgets.begin(_asked(**asked), f"req_{self.number}", now_s)
        except Refusal as refusal:
            if refusal.reason is not Reason.BUDGET_EXCEEDED:
                raise
            return False
        self.open[self.number] = gateway
        return True

    def end_all(self, now_s: float) -> None:
        """What is open ends, is in the ledger, and is told by the leader."""
        records = [_ended(number, now_s) for number in self.open]
        for one, gateway in zip(records, self.open.values(), strict=True):
            gateway.end(one)
        self.open.clear()
        self.spent += len(records)
        self.feed.count("llama", writer.write(records))
        self.feed.publish("llama", 1, now_s)

    def told(self, now_s: float, usage: dict[str, PoolUsage]) -> None:
        for gateway in self.gateways:
            gateway.take(usage, now_s)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("gateways", [1, 3])
def test_a_hard_budget_is_overrun_by_at_most_what_is_in_flight(redis_url: str, gateways: int) -> None:
    import asyncio

    _world(hard_amount=20)
    fleet = Fleet(redis_url, gateways)
    now_s = max(time.time(), period_bounds_s(time.time(), "month")[0] + 60)
    fleet.feed.publish("llama", 1, now_s)  # the leader has read the ledger; from here on it counts
    refused, in_flight = 0, 0
    for turn in range(12):
        now_s += 1
        for _ in range(3):
            for gateway in fleet.gateways:
                if not fleet.begin(gateway, now_s):
                    refused += 1
                    in_flight = in_flight or len(fleet.open)  # at the first refusal
        fleet.end_all(now_s + 0.5)
        if turn % 2:  # figures come late: every other second
            now_s += 1
            fleet.told(now_s, asyncio.run(_read(redis_url)))
    assert refused
    assert fleet.spent >= 20, "what the budget has is spent"
    # one gateway alone knows all: nothing is over. Others are not seen for two turns: what they let in meanwhile
    assert fleet.spent - 20 <= (0 if gateways == 1 else 2 * 3 * (gateways - 1))
    for gateway in fleet.gateways:
        assert not fleet.begin(gateway, now_s), "and it stays so"


def test_one_gateway_counts_open_requests_at_the_most_they_can_cost(redis_url: str) -> None:
    _world(hard_amount=3)
    fleet = Fleet(redis_url, 1)
    now_s = time.time()
    assert [fleet.begin(fleet.gateways[0], now_s) for _ in range(5)] == [True, True, True, False, False]
    gateway = fleet.gateways[0]
    gateway.end(_ended(1, now_s, output_tokens=0, outcome="cancelled"))  # it cost nothing: its place is free again
    assert fleet.begin(gateway, now_s)
    assert not fleet.begin(gateway, now_s)


def test_slot_time_counts_as_it_passes(redis_url: str) -> None:
    world = worlds.build()
    hour = timezone.now() - timedelta(days=40)
    worlds.charged(Price(pool=world.pool, valid_from=hour, per_gpu_second=2, slots_per_gpu=4))
    services.save(actor=SYSTEM, instance=Budget(tenant=world.tenants["acme"], hard_amount=5))
    fleet = Fleet(redis_url, 1)
    now_s = period_bounds_s(time.time(), "month")[0] + 3600
    (gateway,) = fleet.gateways
    assert fleet.begin(gateway, now_s)
    assert fleet.begin(gateway, now_s + 9.9), "half a dollar a second, for 9.9 s"
    assert not fleet.begin(gateway, now_s + 10.1)


def test_a_refusal_says_how_much_and_until_when(redis_url: str) -> None:
    _world(hard_amount=Decimal("12.5"), currency="USD")
    fleet = Fleet(redis_url, 1)
    now_s = datetime(2026, 11, 30, 22, 0, tzinfo=UTC).timestamp()
    told = PoolUsage(now_s, "2026-11-30", "2026-11", spent={"acme tenant ": str(13 * PICOS)})
    fleet.told(now_s, {"llama": told})
    with pytest.raises(Refusal) as caught:
        fleet.gateways[0].budgets.begin(_asked(), "a", now_s)
    answer = render(caught.value)
    headers = dict(answer.headers)
    assert (answer.status, headers[b"x-quartermaster-reason"]) == (429, b"budget_exceeded")
    assert headers[b"x-should-retry"] == b"false"
    assert b"12.5 USD a month" in answer.body
    assert 7200 <= int(headers[b"retry-after"]) <= 7200 + 61
    fleet.gateways[0].budgets.begin(_asked(), "b", now_s + 7300)  # December


@pytest.mark.parametrize(
    ("scope", "name", "hit", "missed"),
    [
        ("tenant", "", {}, {"tenant": "globex"}),
        ("user", "ada", {"user": "ada"}, {"user": "bob"}),
        ("user", "ada", {"user": "ada"}, {"user": ""}),
    ],
)
def test_a_budget_counts_only_requests_of_the_scope_that_it_names(
    redis_url: str, scope: str, name: str, hit: dict[str, str], missed: dict[str, str]
) -> None:
    _world(scope=scope, name=name, hard_amount=1)
    fleet = Fleet(redis_url, 1)
    now_s = time.time()
    (gateway,) = fleet.gateways
    assert fleet.begin(gateway, now_s, **hit)
    assert not fleet.begin(gateway, now_s, **hit)
    assert fleet.begin(gateway, now_s, **missed)


def test_what_the_leader_counts_is_what_the_ledger_says(redis_url: str) -> None:
    _world(scope="user", name="ada", soft_amount=100)
    fleet = Fleet(redis_url, 0)
    month_s = period_bounds_s(time.time(), "month")[0]
    now_s = max(time.time(), month_s + 7200)
    fleet.feed.publish("llama", 1, now_s)
    rows = [
        _ended(
            n, now_s, user=("ada", "bob")[n % 2], output_tokens=7 * n, outcome=("completed", "cancelled")[n % 3 == 0]
        )
        for n in range(1, 40)
    ]
    rows.append(_ended(40, now_s, user="ada", outcome="refused"))
    rows.append(_ended(41, month_s - 3600, user="ada"))  # of the month before
    fleet.feed.count("llama", writer.write(rows))
    fleet.feed.publish("llama", 1, now_s)
    counted = fleet.feed._pools["llama"].spent
    budgets = {b.account: b for b in fleet.catalog.budgets["acme"]}
    assert counted == read_spent("llama", budgets, now_s)
    assert amount(counted["acme user ada"]) == sum(Decimal(7 * n) / 1000 for n in range(2, 40, 2))


def test_thresholds_are_told_once_and_the_forecast_before_it_is_too_late(redis_url: str) -> None:
    world = _world(soft_amount=50, hard_amount=100, alert_at=[10, 50, 80])
    spec = specs.load_catalog().budgets["acme"][0]
    begin_s, end_s = period_bounds_s(datetime(2026, 11, 10, tzinfo=UTC).timestamp(), "month")

    def kinds(dollars: float, now_s: float) -> list[tuple[str, int]]:
        return [(kind, share) for kind, share, _ in alerts_of(spec, dollars * PICOS, now_s)]

    assert kinds(1, begin_s + 3600) == [], "no pace is known in the first day"
    assert kinds(5, begin_s + 86_400) == [("budget_forecast", 100)], "150 by the end"
    assert kinds(11, begin_s + 15 * 86_400) == [("budget_share", 10)]
    assert kinds(55, end_s - 60) == [("budget_share", 10), ("budget_share", 50), ("budget_soft", 100)]
    assert ("budget_hard", 100) in kinds(100, end_s - 60)
    fleet = Fleet(redis_url, 0)
    now_s = max(time.time(), period_bounds_s(time.time(), "month")[0] + 60)
    writer.write([_ended(n, now_s) for n in range(12)])
    for _ in range(3):
        fleet.feed.publish("llama", 1, now_s)
    told = list(Alert.objects.filter(kind="budget_share").values_list("tenant", "line"))
    assert [tenant for tenant, _ in told] == [world.tenants["acme"].slug]
    assert "12.00 of 100.00 USD" in told[0][1]
