"""Where the latest snapshots rest: Redis. The leader's publisher writes, web processes read.

| key | type | holds |
|---|---|---|
| ``qm:live:{<pool>}`` | hash | ``epoch``, ``seq``, ``snapshot`` (JSON, ``docs/reference/feed.md``) |
| ``qm:live:{<pool>}:history`` | list | points (JSON), newest first, at most 900 |
| ``qm:live:pools`` | sorted set | pool -> time of its last snapshot |
| ``qm:live:rules`` | sorted set | pool -> when its leader last looked at the alert rules |

Everything expires 15 minutes after its pool's leader fell silent; of a pool that was deleted it goes within seconds.
Blocking client with short limits and no retries: callers are threads of their own, never an event loop.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from scheduling.state.blocking import blocking_client
from scheduling.state.memory import deletes_by
from scheduling.state.resp import WRITES_KEY
from telemetry.feed.history import POINTS, Point

KEEP_S = 900
SILENT_S = 3.0  # after so long without a snapshot nobody leads the pool
# What every release writes.
_OF_SNAPSHOT = ("pool", "at", "seq", "queue", "slo", "tenants", "entitlements", "backends")
_OF_POINT = ("at", "tenants")
_CODES = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.BusyLoadingError: "LOADING",
}
_TOO_MANY = "max number of clients reached"

# A leader that was paused may wake after another took over: its epoch is lower, and nothing of it is stored.
_STORE = """
local stored = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if stored > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'seq', ARGV[2], 'snapshot', ARGV[3])
redis.call('LPUSH', KEYS[2], ARGV[4])
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[5]) - 1)
redis.call('EXPIRE', KEYS[1], ARGV[6])
redis.call('EXPIRE', KEYS[2], ARGV[6])
return 1
"""


class LiveUnavailable(Exception):
    """Redis does not answer, or refuses what it is asked, so nobody knows what happens now."""

    def __init__(self, what: str, refuses: str = "") -> None:
        """``refuses``: the code of Redis' error, such as "NOPERM"; empty: it did not answer."""
        super().__init__(what)
        self.refuses = refuses


@dataclass(frozen=True, slots=True)
class Memory:
    """What Redis says of its memory [bytes]."""

    used: int
    most: int  # 0: no limit
    evicts: bool | None  # whether it deletes keys when it is full; None: it does not say


@dataclass(frozen=True, slots=True)
class Stored:
    """A pool's latest snapshot."""

    epoch: int
    seq: int
    snapshot: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heads:
    """Of each pool, when its leader last published and last looked at the alert rules [epoch s]."""

    published: Mapping[str, float]
    rules: Mapping[str, float]


class LiveStore:
    """The stored snapshots of all pools.

    Every method raises :class:`LiveUnavailable` when Redis does not answer within half a second.
    """

    def __init__(self, url: str) -> None:
        self._redis: Any = blocking_client(url)  # redis-py's own types do not tell text from bytes
        self._store = self._redis.register_script(_STORE)

    def store(self, pool: str, epoch: int, seq: int, snapshot: bytes, point: bytes) -> bool:
        """Keeps a snapshot and its history point; False when a later leader has written already."""
        try:
            kept = self._store(
                keys=[_key(pool), _history_key(pool)], args=[epoch, seq, snapshot, point, POINTS, KEEP_S]
            )
            if kept:
                now_s = time.time()
                self._redis.zadd("qm:live:pools", {pool: now_s})
                self._redis.zremrangebyscore("qm:live:pools", "-inf", now_s - KEEP_S)
        except redis.RedisError as error:
            raise unavailable(error) from error
        return bool(kept)

    def keep_only(self, pools: Collection[str]) -> list[str]:
        """Deletes what is stored of other pools; returns their names. Only pools without a leader are deleted: a
        process that has not heard of a new pool must not take it from its leader."""
        try:
            silent = self._redis.zrangebyscore("qm:live:pools", "-inf", time.time() - SILENT_S)
            gone = sorted(set(map(bytes.decode, silent)) - set(pools))
            for name in gone:
                self._redis.delete(_key(name), _history_key(name))
                self._redis.zrem("qm:live:pools", name)
                self._redis.zrem("qm:live:rules", name)
        except redis.RedisError as error:
            raise unavailable(error) from error
        return gone

    def rules_looked_at(self, pool: str, at_s: float) -> None:
        """The pool's leader has looked at the alert rules."""
        try:
            self._redis.zadd("qm:live:rules", {pool: at_s})
        except redis.RedisError as error:
            raise unavailable(error) from error

    def memory(self) -> Memory | None:
        """None where Redis does not tell."""
        try:
            info = self._redis.info("memory")
            most, policy = int(info.get("maxmemory", 0)), info.get("maxmemory_policy")
            evicts = None if policy is None else bool(deletes_by(most, policy))
            return Memory(int(info["used_memory"]), most, evicts)
        except redis.ResponseError:
            return None
        except (KeyError, ValueError):
            return None
        except redis.RedisError as error:
            raise unavailable(error) from error

    def heads(self) -> Heads:
        """Of each pool, when its leader last published, and last looked at the alert rules."""
        try:
            published = self._redis.zrange("qm:live:pools", 0, -1, withscores=True)
            rules = self._redis.zrange("qm:live:rules", 0, -1, withscores=True)
        except redis.RedisError as error:
            raise unavailable(error) from error
        return Heads({name.decode(): at_s for name, at_s in published}, {name.decode(): at_s for name, at_s in rules})

    def refuses(self) -> str:
        """The code of the error with which Redis refuses a write; empty: it takes it."""
        try:
            self._redis.set(WRITES_KEY, 1, px=1000)
        except redis.ResponseError as error:
            return _code_of(error)
        except redis.RedisError as error:
            raise unavailable(error) from error
        return ""

    def pools(self) -> list[str]:
        """Pools that had a leader within the last 15 minutes, by name."""
        try:
            names = self._redis.zrangebyscore("qm:live:pools", time.time() - KEEP_S, "+inf")
        except redis.RedisError as error:
            raise unavailable(error) from error
        return sorted(name.decode() for name in names)

    def load(self, pool: str) -> Stored | None:
        """The latest snapshot; None where there is none, or none that this release reads."""
        try:
            fields = self._redis.hmget(_key(pool), "epoch", "seq", "snapshot")
        except redis.RedisError as error:
            raise unavailable(error) from error
        if fields[2] is None:
            return None
        # Another release may have written it: a page without this pool is better than none of its pools.
        snapshot = _read(fields[2], _OF_SNAPSHOT)
        return None if snapshot is None else Stored(int(fields[0]), int(fields[1]), snapshot)

    def load_all(self, versions: Mapping[str, tuple[int, int]] | None = None) -> dict[str, Stored | None]:
        """The latest snapshot of every pool; None for one whose ``(epoch, seq)`` is the one in ``known``."""
        by_pool: dict[str, Stored | None] = {}
        for pool in self.pools():
            if versions and pool in versions:
                try:
                    numbers = self._redis.hmget(_key(pool), "epoch", "seq")
                except redis.RedisError as error:
                    raise unavailable(error) from error
                if None not in numbers and (int(numbers[0]), int(numbers[1])) == versions[pool]:
                    by_pool[pool] = None
                    continue
            stored = self.load(pool)
            if stored is not None:
                by_pool[pool] = stored
        return by_pool

    def history(self, pool: str, points: int = POINTS) -> list[Point]:
        """At most ``points`` latest points, oldest first, without those that this release cannot read."""
        try:
            rows = self._redis.lrange(_history_key(pool), 0, points - 1)
        except redis.RedisError as error:
            raise unavailable(error) from error
        return [point for row in reversed(rows) if (point := _read(row, _OF_POINT)) is not None]

    def close(self) -> None:
        self._redis.close()


def unavailable(error: redis.RedisError) -> LiveUnavailable:
    return LiveUnavailable(type(error).__name__, _code_of(error))


def _code_of(error: redis.RedisError) -> str:
    """Redis' code; redis-py takes it away where it has a class of its own for it. Empty: Redis did not answer."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, redis.ResponseError):
        return str(error).partition(" ")[0]
    return _TOO_MANY if _TOO_MANY in str(error) else ""


def _read(row: bytes, keys: Collection[str]) -> dict[str, Any] | None:
    """The stored row, or None if it lacks one of ``keys``: a row of another release must not end every socket."""
    try:
        value = msgspec.json.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) and all(key in value for key in keys) else None


def _key(pool: str) -> str:
    return f"qm:live:{{{pool}}}"


def _history_key(pool: str) -> str:
    return f"qm:live:{{{pool}}}:history"
