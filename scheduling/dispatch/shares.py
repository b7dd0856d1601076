"""Fair shares of a pool from term to term: what others granted is counted, and the next leader goes on from it.

Most requests are granted on arrival, by a script that knows no policy. The leader sees them all the same, without a
call of its own: it reads once a second how many run of each entitlement, and every ended request passes it on the way
to the database. Only for policies that count who had how much (``fair``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.core.policies.contracts import Served
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import Catalog
from scheduling.state.store import PoolStore
from scheduling.state.types import PoolSnapshot

log = logging.getLogger("quartermaster.dispatch")

Kept = dict[str, dict[str, float]]  # group of the policy -> entitlement -> tokens per weight


class KeptShares:
    """What each entitlement of a pool has had, by group of the policy; kept for the next leader."""

    def __init__(self, store: PoolStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._written: Kept = {}

    async def resume(self, scheduler: Scheduler) -> None:
        """Goes on from where the leader before was. Raises StateUnavailable."""
        data = await self._store.former_shares(self._epoch)
        if data is None:
            return
        try:
            kept = msgspec.json.decode(data, type=Kept)
        except msgspec.DecodeError as error:
            log.warning("pool %s: fair shares begin anew, those kept cannot be read: %s", self._store.pool_id, error)
            return
        scheduler.resume_shares(kept)

    def ended(self, scheduler: Scheduler, records: Iterable[LedgerRecord], catalog: Catalog) -> None:
        """Requests that ended, wherever they were granted. Who was lost with its gateway counts by its estimate."""
        for record in records:
            spec = catalog.entitlements.get(record.entitlement)
            used = (record.input_tokens, record.output_tokens)
            if record.reason == Reason.GATEWAY_LOST:
                used = (record.input_tokens_est, round(record.output_tokens_est))
            if spec is None or record.granted_s is None:
                scheduler.settle(record.request_id, *used)
                continue
            tier = spec.tier
            scheduler.served(
                Served(record.request_id, spec.id, tier.service_class, tier.weight, *used, record.sequences)
            )

    async def look(self, scheduler: Scheduler, snapshot: PoolSnapshot, catalog: Catalog) -> None:
        """Once a second: tells the scheduler what runs, and saves the share counters for the next leader. Raises
        StateUnavailable."""
        specs = catalog.entitlements
        scheduler.watch(
            (name, specs[name].tier.service_class, specs[name].tier.weight, e.running)
            for name, e in snapshot.entitlements.items()
            if e.running and name in specs
        )
        kept = scheduler.kept_shares()
        if kept != self._written:
            await self._store.keep_shares(self._epoch, msgspec.json.encode(kept))
            self._written = kept
