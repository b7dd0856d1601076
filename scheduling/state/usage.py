"""How many tokens each tenant with a quota used today and this month, and each key with a limit a day: told by the
leaders, read by the gateways.

One hash, one field per pool, written by that pool's leader with **absolute** sums of the ledger: a write that is lost,
doubled or late is put right by the next, and nothing is ever counted twice. ``as_of_s`` is the end of the newest
request in the sums; a gateway adds what it saw end later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from scheduling.state.resp import RespConnection

USAGE_KEY = "qm:usage"
PERIODS = ("day", "month")
MAX_TOKENS_OF_PERIOD = 2**60  # a larger sum is none of requests, and would not fit where alerts are stored


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """What one pool's ledger says. ``tenants`` has [tokens of the day, tokens of the month] (UTC)."""

    as_of_s: float
    day: str  # 2026-11-21
    month: str  # 2026-11
    tenants: dict[str, tuple[int, int]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)  # tokens of the day, of keys that have a limit of them

    def tokens(self, tenant: str, period: str, now_s: float) -> int:
        """Tokens of the period that is now; 0 where the figures are of an earlier one."""
        index = PERIODS.index(period)
        if (self.day, self.month)[index] != period_names(now_s)[index]:
            return 0
        return _believed(self.tenants.get(tenant, (0, 0))[index])

    def tokens_of_key(self, key: str, now_s: float) -> int:
        """Tokens of this day, likewise."""
        return _believed(self.keys.get(key, 0)) if self.day == period_names(now_s)[0] else 0


def _believed(tokens: int) -> int:
    return tokens if 0 <= tokens <= MAX_TOKENS_OF_PERIOD else 0


def period_names(at_s: float) -> tuple[str, str]:
    """The day and the month (UTC) that a moment [epoch s] lies in."""
    at = datetime.fromtimestamp(at_s, tz=UTC)
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
