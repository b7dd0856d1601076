"""What each tenant with a quota or a budget used today and this month, and each key with a limit a day: told by the
leaders, read by the gateways.

One hash, one field per pool, written by that pool's leader with **absolute** sums of the ledger: a write that is lost,
doubled or late is put right by the next, and nothing is ever counted twice. ``as_of_s`` is the end of the newest
request in the sums; a gateway adds what it saw end later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache

import msgspec

from scheduling.core.ledger.money import MAX_PICOS, BudgetSpec, RateSpec, accounts_of, rate_at
from scheduling.core.ledger.record import LedgerRecord, sane
from scheduling.state.resp import RespConnection

USAGE_KEY = "qm:usage"
PERIODS = ("day", "month")
DAY_S = 86_400
MAX_TOKENS_OF_PERIOD = 2**60  # a larger sum is none of requests, and would not fit where alerts are stored


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """What one pool's ledger says. ``tenants`` has [tokens of the day, tokens of the month] (UTC), ``spent`` what was
    spent in the month by account, in its budget's currency [picos as text: more digits than JSON's numbers have]."""

    as_of_s: float
    day: str  # 2026-11-21
    month: str  # 2026-11
    tenants: dict[str, tuple[int, int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)  # tokens of the day, of keys that have a limit of them
    spent: dict[str, str] = field(default_factory=dict)

    def tokens(self, tenant: str, period: str, now_s: float) -> int:
        """Tokens of the period that is now; 0 where the figures are of an earlier one."""
        index = PERIODS.index(period)
        if (self.day, self.month)[index] != period_names(now_s)[index]:
            return 0
        return _believed(self.tenants.get(tenant, (0, 0))[index])

    def tokens_of_key(self, key: str, now_s: float) -> int:
        """Tokens of this day, likewise."""
        return _believed(self.keys.get(key, 0)) if self.day == period_names(now_s)[0] else 0

    def picos(self, account: str, now_s: float) -> float:
        """Spent in the month that is now; 0 where the figures are of an earlier one."""
        text = self.spent.get(account, "0")
        if self.month != period_names(now_s)[1] or not text.isdecimal() or len(text) > len(str(MAX_PICOS)):
            return 0.0
        return float(min(int(text), MAX_PICOS))


def _believed(tokens: int) -> int:
    return tokens if 0 <= tokens <= MAX_TOKENS_OF_PERIOD else 0


def spent_of_record(
    record: LedgerRecord, rates: Mapping[str, tuple[RateSpec, ...]], budgets: Mapping[str, BudgetSpec]
) -> list[tuple[str, Fraction]]:
    """What a request that ran adds to the accounts of ``budgets`` [picos]."""
    rate = rate_at(rates.get(record.pool, ()), record.model, record.received_s)
    if rate is None:
        return []
    record = sane(record)
    granted_s = record.done_s if record.granted_s is None else record.granted_s
    slot_us = max(0, round((record.done_s - granted_s) * 1e6))
    cost = rate.cost(record.input_tokens, record.cached_tokens, record.output_tokens, slot_us)
    accounts = accounts_of(record.tenant, record.project, record.user, record.key_id)
    return [(name, cost) for name in accounts if name in budgets and budgets[name].currency == rate.currency]


def period_names(at_s: float) -> tuple[str, str]:
    """The day and the month (UTC) that a moment [epoch s] lies in."""
    return _names_of(int(at_s // DAY_S))


@lru_cache(maxsize=64)
def _names_of(day: int) -> tuple[str, str]:
    """A leader asks once a second for each of its pools, each quota, and each pool in which it counts."""
    at = datetime.fromtimestamp(day * DAY_S, tz=UTC)
    return f"{at:%Y-%m-%d}", f"{at:%Y-%m}"


def period_bounds_s(at_s: float, period: str) -> tuple[float, float]:
    """When the day or month (UTC) around a moment begins and ends [epoch s]."""
    start = datetime.fromtimestamp(at_s, tz=UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return start.timestamp(), (start + timedelta(days=1)).timestamp()
    start = start.replace(day=1)
    return start.timestamp(), (start + timedelta(days=32)).replace(day=1).timestamp()


_decode = msgspec.json.Decoder(PoolUsage).decode


def encode_usage(usage: PoolUsage) -> bytes:
    return msgspec.json.encode(usage)


def decode_usage(data: bytes) -> PoolUsage | None:
    """None for what an older or newer version wrote."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return None


async def read_usage(resp: RespConnection) -> dict[str, PoolUsage]:
    """The figures of all pools by name.

    Raises:
        StateUnavailable: Redis does not answer.
    """
    flat = await resp.call("HGETALL", USAGE_KEY)
    pools: dict[str, PoolUsage] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        usage = decode_usage(value)
        if usage is not None:
            pools[name.decode()] = usage
    return pools
