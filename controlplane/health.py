"""``/healthz`` (alive) and ``/readyz`` (would serve), without Django, threads or the database."""

from __future__ import annotations

import time
from typing import Any

from scheduling.catalog import CatalogCache
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import StateError, StateUnavailable

LOOK_AGAIN_S = 0.3  # answers within this time are one look at Redis


class Readiness:
    """Whether a request would be served now, and if not, what is missing.

    Ready means: the catalog is loaded, Redis answers, and some pool has a leader and a replica that may get work.
    """

    def __init__(self, catalog: CatalogCache, redis_url: str) -> None:
        self.draining = False
        self._catalog = catalog
        self._resp = RespConnection(redis_url, name="readyz")
        self._stores: dict[str, PoolStore] = {}
        self._last: tuple[float, bool, dict[str, Any]] | None = None

    async def start(self) -> None:
        await self._resp.start()

    async def stop(self) -> None:
        await self._resp.close()

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
            except (StateUnavailable, StateError):
                missing.append("Redis: it does not answer")
            else:
                if not any(p["leader"] and p["ready_backends"] for p in pools.values()):
                    if not any(p["leader"] for p in pools.values()):
                        missing.append("a worker: no pool has a leader")
                    else:
                        missing.append("an engine: no replica has generated a token yet")
        return not missing, {"ready": not missing, "waiting_for": missing, "pools": pools}

    async def _pool(self, pool: str) -> dict[str, Any]:
        store = self._stores.get(pool)
        if store is None:
            store = self._stores[pool] = PoolStore(self._resp, pool)
        view = await store.view()
        ready = sum(backend.ready for backend in view.backends.values())
        return {"leader": bool(view.leader), "ready_backends": ready, "rebuilding": view.rebuilding_ms > 0}
