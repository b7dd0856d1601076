"""Starts the strategic loop of the pools that this process leads."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import EntitlementSpec
from scheduling.dispatch.ports import Sample

log = logging.getLogger(__name__)

TEND_EVERY_S = 10.0


class Starter:
    """A sink of the recorder: every ten seconds, of each pool that is led here."""

    def __init__(self) -> None:
        self._tended_s: dict[str, float] = {}

    def count(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """The loop reads the ledger itself."""

    def sample(self, sample: Sample, entitlements: Mapping[str, EntitlementSpec]) -> None:
        """Starts the tasks that are due. Never raises: what fails is tried again ten seconds later."""
        if sample.at_s - self._tended_s.get(sample.pool.id, 0.0) < TEND_EVERY_S:
            return
        self._tended_s[sample.pool.id] = sample.at_s
        try:
            start_tending(sample.pool.id, sample.oldest_waits_s, sample.leader)
        except Exception as error:
            log.warning("tuning of pool %s could not be started (%s)", sample.pool.id, type(error).__name__)


def start_tending(pool: str, oldest_waits_s: Mapping[str, float], leader: str) -> None:
    """Sends :func:`controlplane.tuning.tasks.tend_pool`."""
    from controlplane.tuning.tasks import tend_pool  # SciPy: seconds that a worker need not wait for at its start

    waits = {tier: round(wait_s, 1) for tier, wait_s in oldest_waits_s.items()}
    tend_pool.apply_async((pool, waits, leader), retry=False)
