"""Buckets after Redis lost its data: they would be full again, so what the ledger says was used is taken from them.

During the pause after a loss, once gateways have sent the records that were not stored yet. Until the database answers
it is asked again, for a minute; after that buckets stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from scheduling.core.types import Catalog
from scheduling.dispatch.ports import TelemetryPort
from scheduling.state.store import PoolStore
from scheduling.state.types import BATCH, RESTORE_MS, BucketDebit, PoolSnapshot

log = logging.getLogger("quartermaster.dispatch")

LAST_S = 2.0  # of the pause (5 s): records are there by then


class Buckets:
    """The buckets of one pool, for one leader."""

    def __init__(self, store: PoolStore, epoch: int, telemetry: TelemetryPort, thread: Executor) -> None:
        self._store = store
        self._epoch = epoch
        self._telemetry = telemetry
        self._thread = thread
        self._asked: asyncio.Future[dict[str, float]] | None = None
        self._over = False

    async def look(self, snapshot: PoolSnapshot, catalog: Catalog) -> None:
        """Once a second; does nothing where nothing was lost. Raises Fenced, StateUnavailable."""
        if self._over:
            return
        if not snapshot.lost_ms or snapshot.now_ms - snapshot.lost_ms > RESTORE_MS:
            self._over = True
            if snapshot.lost_ms and self._asked is not None:
                log.error("pool %s: buckets stay full, the ledger could not be read", self._store.pool_id)
            return
        if snapshot.rebuilding_ms > LAST_S * 1000:
            return
        budgets = {
            e.id: (e.tokens_per_s, e.burst_tokens)
            for e in catalog.entitlements.values()
            if e.pool == self._store.pool_id and e.tokens_per_s > 0
        }
        if not budgets:
            self._over = True
        elif self._asked is None:
            self._ask(budgets, snapshot)
        elif self._asked.done():
            if self._asked.exception() is None:
                await self._debit(self._asked.result(), budgets)
            else:
                self._ask(budgets, snapshot)

    def _ask(self, budgets: dict[str, tuple[float, float]], snapshot: PoolSnapshot) -> None:
        self._asked = asyncio.get_running_loop().run_in_executor(
            self._thread, self._telemetry.bucket_debts, self._store.pool_id, budgets, snapshot.lost_ms / 1000,
            snapshot.now_ms / 1000,
        )  # fmt: skip
        self._asked.add_done_callback(lambda late: late.cancelled() or late.exception())

    async def _debit(self, owed: dict[str, float], budgets: dict[str, tuple[float, float]]) -> None:
        debits = [BucketDebit(name, tokens, *budgets[name]) for name, tokens in sorted(owed.items()) if name in budgets]
        for start in range(0, len(debits), BATCH):
            batch = debits[start : start + BATCH]
            if await self._store.debit(self._epoch, start, batch) != start + len(batch):
                break  # an earlier leader was here
        self._over = True
        log.info(
            "pool %s: %d buckets begin with what the ledger says was used, %.0f tokens",
            self._store.pool_id,
            len(debits),
            sum(owed.values()),
        )
