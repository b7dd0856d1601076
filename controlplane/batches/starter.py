"""Starts batches that no executor works on: after a kill, a lost message, or an outage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from controlplane.batches import services
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import EntitlementSpec
from scheduling.dispatch.ports import Sample

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


class BatchStarter:
    """A sink of the recorder: every five seconds, in a process that leads a pool."""

    def __init__(self) -> None:
        self._looked_s = 0.0

    def count(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """Batches count their own."""

    def sample(self, sample: Sample, entitlements: Mapping[str, EntitlementSpec]) -> None:
        """Never raises: what is lost is made up for five seconds later."""
        if abs(sample.at_s - self._looked_s) < LOOK_EVERY_S:
            return
        self._looked_s = sample.at_s
        try:
            if services.due():
                start_work()
        except Exception as error:
            log.warning("open batches could not be announced (%s)", type(error).__name__)


def start_work() -> None:
    """Sends :func:`controlplane.batches.tasks.work`."""
    from controlplane.batches.tasks import work

    work.apply_async((0,), retry=False, expires=30)
