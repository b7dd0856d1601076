"""The leader's side of quotas: publishes what tenants and keys with limits used to gateways, and raises an alert when
a tenant's limit is passed.

The figures are sums of the ledger: read from the database when a term or a day begins and every few minutes, and moved
on with every batch of records in between. Called from the dispatch service's telemetry thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import redis
from django.db import InterfaceError, OperationalError
from django.db.models import Q, Sum

from scheduling.core.ledger import LedgerRecord, sane
from scheduling.core.outcomes import Outcome
from scheduling.core.types import QuotaSpec
from scheduling.state.blocking import blocking_client
from scheduling.state.usage import (
    PERIODS,
    USAGE_KEY,
    PoolUsage,
    decode_usage,
    encode_usage,
    period_bounds_s,
    period_names,
)
from telemetry.alerts.lifecycle import raise_alert
from telemetry.ledger import rollup
from telemetry.models import LedgerEntry, UsageHour
from tenants.connections import own_connection

log = logging.getLogger(__name__)

READ_AGAIN_S = 300.0
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


class UsageFeed:
    """What tenants with quotas, and keys with a limit a day, used, per pool that this process leads."""

    def __init__(self, board: Board, quotas: Quotas, keys: Keys = _none) -> None:
        self._board = board
        self._quotas = quotas
        self._keys = keys
        self._pools: dict[str, _Pool] = {}
        self._stored_alerts: set[str] = set()  # alerts that are stored already
        self.shares: dict[tuple[str, str], tuple[int, int]] = {}  # (tenant, period): tokens used, and the limit
        self._available = True

    def count(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """Records that are in the ledger now, and were not before (:func:`telemetry.ledger.writer.write`)."""
        usage = self._pools.get(pool)
        if usage is None:
            return
        for record in records:
            usage.as_of_s = max(usage.as_of_s, record.done_s)
            record = sane(record)
            if record.outcome == Outcome.REFUSED:
                continue
            if record.key_id in usage.keys and period_names(record.received_s)[0] == usage.day:
                tokens = record.input_tokens + record.output_tokens
                usage.of_keys[record.key_id] = usage.of_keys.get(record.key_id, 0) + tokens
            if record.tenant not in usage.tenants:
                continue
            cell = usage.tokens.setdefault(record.tenant, [0, 0])
            for index, name in enumerate(period_names(record.received_s)):
                if name == (usage.day, usage.month)[index]:
                    cell[index] += record.input_tokens + record.output_tokens

    def publish(self, pool: str, epoch: int, now_s: float) -> None:
        """Publishes the pool's figures and checks the limits. Once a second; never raises."""
        try:
            quotas, keys = self._quotas(), self._keys()
            if not quotas and not keys:
                self._pools.pop(pool, None)
                self.shares = {}
                return
            usage = self._current(pool, epoch, frozenset(quotas), keys, now_s)
            tokens = {tenant: (day, month) for tenant, (day, month) in usage.tokens.items()}
            told = PoolUsage(usage.as_of_s, usage.day, usage.month, tokens, usage.of_keys)
            everywhere = self._board.put(pool, told)
            self._check(quotas, everywhere, now_s)
            self._available = True
        except redis.RedisError as error:
            if self._available:
                log.warning("usage figures of pool %s: Redis does not answer (%s)", pool, type(error).__name__)
            self._available = False
        except Exception:
            log.exception("usage figures of pool %s could not be told; the last ones stay in force", pool)

    def _current(self, pool: str, epoch: int, tenants: frozenset[str], keys: frozenset[str], now_s: float) -> _Pool:
        day, month = period_names(now_s)
        usage = self._pools.get(pool)
        if (
            usage is None
            or (usage.epoch, usage.tenants, usage.day) != (epoch, tenants, day)
            or usage.keys != keys
            or now_s - usage.read_s >= READ_AGAIN_S
        ):
            as_of_s = usage.as_of_s if usage is not None else 0.0
            usage = _Pool(
                epoch, tenants, keys, day, month, now_s, as_of_s, read_ledger(pool, tenants, now_s),
                read_keys(pool, keys, now_s),
            )  # fmt: skip
            self._pools[pool] = usage
        return usage

    def _check(
        self, quotas: Mapping[str, tuple[QuotaSpec, ...]], everywhere: Mapping[str, PoolUsage], now_s: float
    ) -> None:
        self.shares = {}
        for tenant, limits in quotas.items():
            try:
                self._check_tenant(tenant, limits, everywhere, now_s)
            except (OperationalError, InterfaceError):
                raise  # the database is away, for all of them
            except Exception:
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

    @own_connection
    def _tell(self, kind: str, tenant: str, period: str, used: int, limit: int, now_s: float) -> None:
        name = f"{kind}:{tenant}:{period_names(now_s)[PERIODS.index(period)]}:{limit}"
        if name in self._stored_alerts:
            return
        what = "Its requests are refused until the period ends." if kind == "quota_hard" else "Nothing is refused yet."
        line = f"{tenant} used {used} of {limit} tokens of the {period}. {what}"
        raise_alert(kind, name, line, tenant=tenant, used_tokens=used, limit_tokens=limit)
        self._stored_alerts.add(name)


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
