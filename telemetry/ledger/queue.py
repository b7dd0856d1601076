"""The requests that wait and run in a pool now, and how an operator ends one.

Blocking client with short limits and no retries, for threads of web processes. The order of what waits is the leader's
(``docs/internals/state.md``, ``preview``); asking for it leaves the mark on which the leader writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from scheduling.state.blocking import blocking_client
from scheduling.state.codec import Entry, decode_entry, encode_cancel
from scheduling.state.types import ASKED_MS, gateway_channel, preview_key

MAX_RUNNING = 500  # requests that are listed


class QueueUnavailable(Exception):
    """Redis does not answer."""


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request that waits or runs."""

    pool: str
    id: str
    entry: Entry

    @property
    def waits(self) -> bool:
        return not self.entry.granted_ms

    @property
    def tenant(self) -> str:
        return self.entry.queued_request().tenant


class QueueStore:
    """Every method raises :class:`QueueUnavailable` when Redis does not answer within half a second."""

    def __init__(self, url: str) -> None:
        self._redis = blocking_client(url)

    def preview(self, pool: str) -> dict[str, Any] | None:
        """The order of what waits, as the leader last wrote it; asks it to go on."""
        try:
            key = preview_key(pool)
            self._redis.set(f"{key}:asked", 1, px=ASKED_MS)
            text = self._redis.get(key)
        except redis.RedisError as error:
            raise QueueUnavailable(type(error).__name__) from error
        return None if text is None else msgspec.json.decode(text)

    def now_s(self, pool: str) -> float:
        """State time (``docs/internals/state.md``) [s]: the clock of the times of waiting and running requests."""
        try:
            seconds, micros = self._redis.time()
            offset_ms = self._redis.hget(f"qm:{{{pool}}}:clock", "offset")
        except redis.RedisError as error:
            raise QueueUnavailable(type(error).__name__) from error
        return seconds + micros / 1e6 + int(offset_ms or 0) / 1000

    def running(self, pool: str, most: int = MAX_RUNNING) -> list[LiveRequest]:
        """What runs, oldest grant first; ``most`` of it where there is more."""
        return sorted(self._all(pool, "held", most), key=lambda each: (each.entry.granted_ms, each.id))

    def waiting(self, pool: str, most: int = MAX_RUNNING) -> list[LiveRequest]:
        """What waits, in no order; ``most`` of it where there is more."""
        return self._all(pool, "queue", most)

    def _all(self, pool: str, table: str, most: int) -> list[LiveRequest]:
        requests: dict[str, LiveRequest] = {}
        try:
            for name, data in self._redis.hscan_iter(f"qm:{{{pool}}}:{table}", count=MAX_RUNNING):
                try:
                    requests[name.decode()] = LiveRequest(pool, name.decode(), decode_entry(data))
                except ValueError:
                    continue  # of another version: its pool's leader ends it
                if len(requests) >= most:
                    break
        except redis.RedisError as error:
            raise QueueUnavailable(type(error).__name__) from error
        return list(requests.values())

    def find(self, request_id: str, pools: Iterable[str]) -> LiveRequest | None:
        """A request that waits or runs in one of these pools."""
        try:
            for pool in pools:
                for table in ("queue", "held"):
                    data: Any = self._redis.hget(f"qm:{{{pool}}}:{table}", request_id)
                    if data is not None:
                        with suppress(ValueError):
                            return LiveRequest(pool, request_id, decode_entry(data))
        except redis.RedisError as error:
            raise QueueUnavailable(type(error).__name__) from error
        return None

    def cancel(self, item: LiveRequest) -> bool:
        """Tells its gateway to end it; False where that gateway is not connected."""
        try:
            return bool(self._redis.publish(gateway_channel(item.entry.gateway), encode_cancel(item.id)))
        except redis.RedisError as error:
            raise QueueUnavailable(type(error).__name__) from error
