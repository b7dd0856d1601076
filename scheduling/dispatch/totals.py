"""Totals in shared state are counters: what once went wrong with one would stay wrong.

Sums that can be compared in O(1) are compared each second, all of them every :data:`COMPARE_S`; what differs is written
anew from the entries.
"""

from __future__ import annotations

import asyncio
import logging

from scheduling.state.store import PoolStore
from scheduling.state.types import PoolSnapshot

log = logging.getLogger("quartermaster.dispatch")

COMPARE_S = 30.0  # between two comparisons of every total with the entries
COMPARE_UP_TO = 10_000  # entries: Redis does nothing else meanwhile (4 ms for 1,000)


class Totals:
    """The totals of one pool, for one leader."""

    def __init__(self, store: PoolStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._due_s = 0.0  # at once: what is there may be of another version

    async def compare(self, snapshot: PoolSnapshot) -> bool:
        """Once a second; True where some were put right. Raises Fenced, StateUnavailable."""
        now_s = asyncio.get_running_loop().time()
        differences = snapshot.differences()
        entries = snapshot.counts.held + snapshot.counts.queue
        if not differences and (now_s < self._due_s or entries > COMPARE_UP_TO):
            return False
        rebuilt = await self._store.rebuild(self._epoch)
        self._due_s = now_s + COMPARE_S
        if rebuilt:
            log.error(
                "pool %s: shared state did not agree with its leases and queue and was put right: %s%s",
                self._store.pool_id,
                ", ".join(rebuilt[:8]),
                f"; {'; '.join(differences)}" if differences else "",
            )
        return bool(rebuilt)
