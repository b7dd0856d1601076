"""The leader's side of quotas, budgets and daily limits of keys: tells gateways what was used, and raises alerts when
limits are passed.

The figures are sums of the ledger: read from the database when a term or a day begins and every few minutes, and moved
on with every batch of records in between. Called from the dispatch service's telemetry thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Protocol

import redis
from django.db.models import Q, Sum

from scheduling.core.ledger.money import BudgetSpec, RateSpec, account, amount, forecast
from scheduling.core.ledger.record import LedgerRecord, sane
from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import Catalog, QuotaSpec
from scheduling.state.blocking import blocking_client
from scheduling.state.usage import (
    PERIODS,
    USAGE_KEY,
    PoolUsage,
    decode_usage,
    encode_usage,
    period_bounds_s,
    period_names,
    spent_of_record,
)
from telemetry.alerts.lifecycle import raise_alert
from telemetry.ledger import rollup
from telemetry.ledger.usage import Cell, cells
from telemetry.models import LedgerEntry, UsageHour
from tenants.connections import is_outage, own_connection

log = logging.getLogger(__name__)

READ_AGAIN_S = 300.0
LOST_KEPT = 10_000  # requests whose gateways may still say how they ended
OF_HOURS = (rollup.OF_HOUR["input_tokens"], rollup.OF_HOUR["output_tokens"])
Quotas = Callable[[], Mapping[str, tuple[QuotaSpec, ...]]]
Keys = Callable[[], frozenset[str]]
KEYS_A_STATEMENT = 500  # databases bound how many values one names


def _none() -> frozenset[str]:
    return frozenset()


class Board(Protocol):
    """Where the figures are published."""

    def put(self, pool: str, usage: PoolUsage) -> dict[str, PoolUsage]:
        """Writes one pool's figures; all pools' as they are now."""


class RedisBoard:
    """The hash of ``scheduling/state/usage.py``, through a blocking client with short limits."""

    def __init__(self, url: str) -> None:
        self._redis = blocking_client(url)

    def put(self, pool: str, usage: PoolUsage) -> dict[str, PoolUsage]:
        """Raises redis.RedisError."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hset(USAGE_KEY, pool, encode_usage(usage))
            pipe.hgetall(USAGE_KEY)
            values = pipe.execute()[1]
        decoded = {name.decode(): decode_usage(value) for name, value in values.items()}
        return {name: one for name, one in decoded.items() if one is not None}


@dataclass(frozen=True, slots=True)
class Money:
    """Budgets by account, and the rates that spending is counted with."""

    budgets: Mapping[str, BudgetSpec] = field(default_factory=dict)
    rates: Mapping[str, tuple[RateSpec, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Pool:
    epoch: int
    tenants: frozenset[str]
    keys: frozenset[str]
    day: str
    month: str
    read_s: float
    as_of_s: float = 0.0
    tokens: dict[str, list[int]] = field(default_factory=dict)  # tenant -> [day, month]
    of_keys: dict[str, int] = field(default_factory=dict)  # key -> day
    money: Money = field(default_factory=lambda: Money())
    spent: dict[str, Fraction] = field(default_factory=dict)  # account -> [picos] of the month


class UsageFeed:
    """What tenants with quotas, and keys with a limit a day, used, per pool that this process leads."""

    def __init__(
        self, board: Board, quotas: Quotas, keys: Keys = _none, catalog: Callable[[], Catalog] | None = None
    ) -> None:
        self._board = board
        self._quotas = quotas
        self._keys = keys
        self._catalog = catalog
        self._money: tuple[Catalog | None, Money] = (None, Money())  # of that catalog
        self._pools: dict[str, _Pool] = {}
        self._lost: OrderedDict[str, LedgerRecord] = OrderedDict()  # what counts as it was lost with its gateway
        self._stored_alerts: set[str] = set()  # alerts that are stored already
        self.shares: dict[tuple[str, str], tuple[int, int]] = {}  # (tenant, period): tokens used, and the limit
        self._available = True
        self._stored = True  # whether the database answered, and took what was to be stored

    def count(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """Records that are in the ledger now, and were not before (:func:`telemetry.ledger.writer.write`)."""
        usage = self._pools.get(pool)
        if usage is None:
            return
        for record in records:
            usage.as_of_s = max(usage.as_of_s, record.done_s)
            record = sane(record)
            lost = self._lost.pop(record.request_id, None)
            if record.reason == Reason.GATEWAY_LOST:
                self._lost[record.request_id] = record
                if len(self._lost) > LOST_KEPT:
                    self._lost.popitem(last=False)
            elif lost is not None:  # its gateway was only cut off: this stands in the ledger in the other's place
                _add(usage, lost, -1)
            _add(usage, record, 1)

    def publish(self, pool: str, epoch: int, now_s: float) -> None:
        """Publishes the pool's figures and checks the limits. Once a second; never raises."""
        try:
            quotas, keys, money = self._quotas(), self._keys(), self._accounts()
            if not quotas and not keys and not money.budgets:
                self._pools.pop(pool, None)
                self.shares = {}
                return
            usage = self._current(pool, epoch, frozenset(quotas), keys, money, now_s)
            tokens = {tenant: (day, month) for tenant, (day, month) in usage.tokens.items()}
            spent = {name: str(-(-picos.numerator // picos.denominator)) for name, picos in usage.spent.items()}
            pool_usage = PoolUsage(usage.as_of_s, usage.day, usage.month, tokens, usage.of_keys, spent)
            everywhere = self._board.put(pool, pool_usage)
            self._check(quotas, everywhere, now_s)
            self._check_budgets(money, everywhere, now_s)
            self._available = self._stored = True
        except redis.RedisError as error:
            if self._available:
                log.warning("usage figures of pool %s: Redis does not answer (%s)", pool, type(error).__name__)
            self._available = False
        except Exception as error:
            if is_outage(error):  # once a second: the log says it when it begins
                if self._stored:
                    log.warning(
                        "usage figures of pool %s: the database does not answer (%s)", pool, type(error).__name__
                    )
                self._stored = False
                return
            log.exception("usage figures of pool %s could not be told; the last ones stay in force", pool)

    def _accounts(self) -> Money:
        catalog = None if self._catalog is None else self._catalog()
        if catalog is not None and self._money[0] is not catalog:
            budgets = {budget.account: budget for of_tenant in catalog.budgets.values() for budget in of_tenant}
            self._money = (catalog, Money(budgets, catalog.rates))
        return self._money[1]

    def _current(
        self, pool: str, epoch: int, tenants: frozenset[str], keys: frozenset[str], money: Money, now_s: float
    ) -> _Pool:
        day, month = period_names(now_s)
        usage = self._pools.get(pool)
        if (
            usage is None
            or (usage.epoch, usage.tenants, usage.day) != (epoch, tenants, day)
            or usage.keys != keys
            or usage.money != money
            or now_s - usage.read_s >= READ_AGAIN_S
        ):
            as_of_s = usage.as_of_s if usage is not None else 0.0
            tokens = read_ledger(pool, tenants, now_s) if tenants else {}
            of_keys = read_keys(pool, keys, now_s) if keys else {}
            spent = read_spent(pool, money.budgets, now_s) if money.budgets else {}
            usage = _Pool(epoch, tenants, keys, day, month, now_s, as_of_s, tokens, of_keys, money, spent)
            self._pools[pool] = usage
        return usage

    def _check(
        self, quotas: Mapping[str, tuple[QuotaSpec, ...]], everywhere: Mapping[str, PoolUsage], now_s: float
    ) -> None:
        self.shares = {}
        for tenant, limits in quotas.items():
            try:
                self._check_tenant(tenant, limits, everywhere, now_s)
            except Exception as error:
                if is_outage(error):
                    raise  # for all of them
                log.exception("the quotas of tenant %s could not be checked", tenant)  # the others' can

    def _check_tenant(
        self, tenant: str, limits: Sequence[QuotaSpec], everywhere: Mapping[str, PoolUsage], now_s: float
    ) -> None:
        for quota in limits:
            used = sum(usage.tokens(tenant, quota.period, now_s) for usage in everywhere.values())
            if limit := quota.hard_tokens or quota.soft_tokens:
                self.shares[tenant, quota.period] = (used, limit)
            for kind, limit in (("quota_soft", quota.soft_tokens), ("quota_hard", quota.hard_tokens)):
                if limit is not None and used >= limit:
                    self._tell(kind, tenant, quota.period, used, limit, now_s)

    def _check_budgets(self, money: Money, everywhere: Mapping[str, PoolUsage], now_s: float) -> None:
        for name, budget in money.budgets.items():
            spent = sum(usage.picos(name, now_s) for usage in everywhere.values())
            for kind, share, limit in alerts_of(budget, spent, now_s):
                self._tell_spent(kind, share, budget, spent, limit, now_s)

    @own_connection
    def _tell_spent(self, kind: str, share: int, budget: BudgetSpec, spent: float, limit: int, now_s: float) -> None:
        name = f"{kind}:{budget.account}:{period_names(now_s)[1]}:{share}:{limit}"[:200]
        if name in self._stored_alerts:
            return
        of = " ".join(filter(None, (budget.tenant, "" if budget.scope == "tenant" else budget.scope, budget.name)))
        sentence = {
            "budget_hard": "Its requests are refused until the month ends.",
            "budget_forecast": "At this pace it will be passed before the month ends.",
        }.get(kind, "Nothing is refused yet.")
        money = f"{amount(round(spent)):.2f} of {amount(limit):.2f} {budget.currency} of the month"
        raise_alert(kind, name, f"{of} spent {money}. {sentence}"[:300], tenant=budget.tenant, subject=of[:200])
        self._stored_alerts.add(name)

    @own_connection
    def _tell(self, kind: str, tenant: str, period: str, used: int, limit: int, now_s: float) -> None:
        name = f"{kind}:{tenant}:{period_names(now_s)[PERIODS.index(period)]}:{limit}"
        if name in self._stored_alerts:
            return
        what = "Its requests are refused until the period ends." if kind == "quota_hard" else "Nothing is refused yet."
        line = f"{tenant} used {used} of {limit} tokens of the {period}. {what}"
        raise_alert(kind, name, line, tenant=tenant, used_tokens=used, limit_tokens=limit)
        self._stored_alerts.add(name)


def _add(usage: _Pool, record: LedgerRecord, sign: int) -> None:
    """What a request that ran used, or takes it back (-1)."""
    if record.outcome == Outcome.REFUSED:
        return
    tokens, (day, month) = sign * (record.input_tokens + record.output_tokens), period_names(record.received_s)
    if record.key_id in usage.keys and day == usage.day:
        usage.of_keys[record.key_id] = usage.of_keys.get(record.key_id, 0) + tokens
    if usage.money.budgets and month == usage.month:
        for name, picos in spent_of_record(record, usage.money.rates, usage.money.budgets):
            usage.spent[name] = usage.spent.get(name, Fraction(0)) + sign * picos
    if record.tenant not in usage.tenants:
        return
    cell = usage.tokens.setdefault(record.tenant, [0, 0])
    for index, name in enumerate((day, month)):
        if name == (usage.day, usage.month)[index]:
            cell[index] += tokens


@own_connection
def read_ledger(pool: str, tenants: frozenset[str], now_s: float) -> dict[str, list[int]]:
    """Tokens of the running day and month by tenant: complete hours from the roll-up, the rest from the ledger."""
    day = datetime.fromtimestamp(period_bounds_s(now_s, "day")[0], tz=UTC)
    month = datetime.fromtimestamp(period_bounds_s(now_s, "month")[0], tz=UTC)
    seam = max(month, rollup.rolled_until() or month)
    used: dict[str, list[int]] = {}
    mine = {"pool": pool, "tenant__in": tenants}
    hours = UsageHour.objects.filter(hour__gte=month, hour__lt=seam, **mine)
    entries = LedgerEntry.objects.filter(~Q(outcome=Outcome.REFUSED.value), received_at__gte=seam, **mine)
    sources = ((hours, "hour", OF_HOURS), (entries, "received_at", (rollup.INPUT, rollup.OUTPUT)))
    for rows, moment, (given, output) in sources:
        today = Q(**{f"{moment}__gte": day})
        sums = rows.order_by().values("tenant").annotate(
            in_day=Sum(given, filter=today, default=0), out_day=Sum(output, filter=today, default=0),
            in_month=Sum(given, default=0), out_month=Sum(output, default=0),
        )  # fmt: skip
        for row in sums:
            cell = used.setdefault(row["tenant"], [0, 0])
            cell[0] += row["in_day"] + row["out_day"]
            cell[1] += row["in_month"] + row["out_month"]
    return used


@own_connection
def read_keys(pool: str, keys: frozenset[str], now_s: float) -> dict[str, int]:
    """Tokens of the running day by key, of those that used any: from the roll-up and the ledger, likewise."""
    day = datetime.fromtimestamp(period_bounds_s(now_s, "day")[0], tz=UTC)
    seam = max(day, rollup.rolled_until() or day)
    used: dict[str, int] = {}
    names = sorted(keys)
    for start in range(0, len(names), KEYS_A_STATEMENT):
        mine = {"pool": pool, "key_id__in": names[start : start + KEYS_A_STATEMENT]}
        hours = UsageHour.objects.filter(hour__gte=day, hour__lt=seam, **mine)
        entries = LedgerEntry.objects.filter(~Q(outcome=Outcome.REFUSED.value), received_at__gte=seam, **mine)
        for rows, (given, output) in ((hours, OF_HOURS), (entries, (rollup.INPUT, rollup.OUTPUT))):
            sums = rows.order_by().values("key_id").annotate(given=Sum(given, default=0), out=Sum(output, default=0))
            for row in sums:
                used[row["key_id"]] = used.get(row["key_id"], 0) + row["given"] + row["out"]
    return used


def alerts_of(budget: BudgetSpec, spent: float, now_s: float) -> list[tuple[str, int, int]]:
    """What operators have to be told of a budget: the kind of alert, the share that was passed [%] and of how much."""
    alerts = []
    if budget.limit is not None:
        passed = (share for share in budget.alert_at if 100 * spent >= share * budget.limit)
        alerts += [("budget_share", share, budget.limit) for share in passed]
        begin_s, end_s = period_bounds_s(now_s, "month")
        expected = forecast(Fraction(spent), begin_s, now_s, end_s)
        if expected is not None and spent < budget.limit <= expected:
            alerts.append(("budget_forecast", 100, budget.limit))
    for kind, limit in (("budget_soft", budget.soft), ("budget_hard", budget.hard)):
        if limit is not None and spent >= limit:
            alerts.append((kind, 100, limit))
    return alerts


@own_connection
def read_spent(pool: str | None, budgets: Mapping[str, BudgetSpec], now_s: float) -> dict[str, Fraction]:
    """What was spent in the running month by account [picos], of a pool or of all: as a bill says it."""
    spent: dict[str, Fraction] = {}
    for name, cell in of_accounts(pool, budgets, now_s):
        picos = cell.costs.get(budgets[name].currency, Fraction(0))
        spent[name] = spent.get(name, Fraction(0)) + picos
    return spent


def of_accounts(pool: str | None, budgets: Mapping[str, BudgetSpec], now_s: float) -> Iterator[tuple[str, Cell]]:
    """What was used in the running month by account, of a pool or of all; an account may come more than once."""
    month, until = (datetime.fromtimestamp(bound, tz=UTC) for bound in period_bounds_s(now_s, "month"))
    only = {} if pool is None else {"pool": pool}
    for scope in sorted({budget.scope for budget in budgets.values()}):
        tenants = frozenset(budget.tenant for budget in budgets.values() if budget.scope == scope)
        groups = ["tenant"] if scope == "tenant" else ["tenant", scope]
        for key, cell in cells(tenants, month, until, groups, None, **only):
            name = account(key[0], scope, "" if scope == "tenant" else key[1])
            if name in budgets:
                yield name, cell
