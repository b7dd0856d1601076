"""``/healthz`` (alive) and ``/readyz`` (would serve), without Django, threads or the database."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from scheduling.catalog import CatalogCache
from scheduling.state.resp import SILENCE_S, WRITES_KEY, RespConnection
from scheduling.state.skew import ClockSkew
from scheduling.state.store import PoolStore
from scheduling.state.types import StateError, StateUnavailable

LOOK_AGAIN_S = 0.3  # answers within this time are one look at Redis
LEADER_GONE_S = 5.0  # a pool changes hands within this time, and serves meanwhile


class Readiness:
    """Whether a request would be served now, and if not, what is missing.

    Ready means: the catalog is loaded, Redis answers, and some pool has a leader or had one a few seconds ago, a
    replica that may get work, and totals that agree with its leases (its leader writes them anew within a second or
    two).
    """

    def __init__(self, catalog: CatalogCache, redis_url: str) -> None:
        self.draining = False
        self._reached = False  # Redis, at any time
        self._catalog = catalog
        self._resp = RespConnection(redis_url, name="readyz", silence=SILENCE_S)
        self._skew = ClockSkew(self._resp.time_s)
        self._stores: dict[str, PoolStore] = {}
        self._led_s: dict[str, float] = {}  # when a leader of the pool was last seen
        self._last: tuple[float, bool, dict[str, Any]] | None = None

    async def start(self) -> None:
        await self._resp.start()

    async def stop(self) -> None:
        await self._resp.close()

    async def takes_requests(self) -> bool:
        """Whether this process may be asked at all, whatever it would answer: what every process lacks at once (Redis,
        a pool, engines) is said by those that are there, and no reason to have none. One that never reached Redis may
        have a wrong address, and must not take the place of one that has the right one."""
        if not self._reached:
            with suppress(StateUnavailable, StateError):
                await self._resp.call("PING")
                self._reached = True
        return self._reached and self._catalog.loaded and not self.draining

    async def look(self) -> tuple[bool, dict[str, Any]]:
        """(ready, report); the report's ``waiting_for`` names what is missing, in words for people."""
        now = time.monotonic()
        if self.draining:
            return False, {"ready": False, "waiting_for": ["this process is shutting down"], "pools": {}}
        if self._last is None or now - self._last[0] > LOOK_AGAIN_S:
            self._last = (now, *await self._look())
        return self._last[1], self._last[2]

    async def _look(self) -> tuple[bool, dict[str, Any]]:
        missing: list[str] = []
        pools: dict[str, dict[str, Any]] = {}
        if not self._catalog.loaded:
            missing.append("the database: no configuration was read yet")
        elif not self._catalog.current.pools:
            missing.append("a pool: none is configured")
        else:
            try:
                for pool in self._catalog.current.pools:
                    pools[pool] = await self._pool(pool)
                await self._resp.call("SET", WRITES_KEY, 1, "PX", 1000)
            except (StateUnavailable, StateError) as error:
                missing.append(f"Redis: {self._redis_says(error)}")
            else:
                since_s = time.monotonic() - LEADER_GONE_S
                led = {name for name in pools if self._led_s.get(name, float("-inf")) >= since_s}
                serving = {n: p for n, p in pools.items() if n in led and (p["ready_backends"] or p["wakes_in_s"])}
                if not serving:
                    able = [n for n, p in pools.items() if n not in led and (p["ready_backends"] or p["wakes_in_s"])]
                    if not led:
                        missing.append("a worker: no pool has a leader")
                    elif able:
                        missing += [f"a worker: pool {name} has no leader" for name in able]
                    else:
                        missing.append("an engine: no replica is ready; *Backends* in the console says why")
                elif all(p["totals_differ"] for p in serving.values()):
                    missing += [f"the state of pool {n}: {d}" for n, p in serving.items() for d in p["totals_differ"]]
        await self._skew.measure()
        skew_s = self._skew.seconds
        report = {"ready": not missing, "waiting_for": missing, "pools": pools}
        return not missing, report | {"clock_skew_s": None if skew_s is None else round(skew_s, 3)}

    def _redis_says(self, error: Exception) -> str:
        if self._resp.refusing:
            return f"it takes no writes: {self._resp.refusing}"
        if self._resp.available:
            return f"it refuses what is asked: {error}"
        if self._resp.not_let_in:
            return f"this process is not let in: {self._resp.not_let_in}"
        return self._resp.answered or "it does not answer"

    async def _pool(self, pool: str) -> dict[str, Any]:
        store = self._stores.get(pool)
        if store is None:
            store = self._stores[pool] = PoolStore(self._resp, pool)
        view = await store.view()
        if view.leader:
            self._led_s[pool] = time.monotonic()
        ready = sum(backend.ready for backend in view.backends.values())
        report: dict[str, Any] = {
            "leader": bool(view.leader),
            "ready_backends": ready,
            "wakes_in_s": view.waking_ms / 1000 if view.waking_ms and not ready else None,
            "rebuilding": view.rebuilding_ms > 0,
        }
        return report | {
            "totals_differ": view.differences(),
            "totals_rebuilt": {"count": view.rebuilt, "last": _moment(view.rebuilt_ms)},
            "ledger_unread": view.counts.unread,
            "state_lost": _moment(view.lost_ms),
        }


def _moment(ms: int) -> str | None:
    """A moment of Redis [ms]; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms else None
