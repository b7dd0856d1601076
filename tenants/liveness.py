"""Which backends answer, from what the pool's leader sees each second to what the catalog remembers.

A backend that is away for a moment degrades nobody: only one that has not answered for :data:`GRACE_S` counts as
silent. One that answers again counts at once. Called from the dispatch service's own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from django.db import DatabaseError

from tenants import services
from tenants.connections import own_connection

log = logging.getLogger(__name__)

GRACE_S = 10.0


class Liveness:
    """What was last seen of every pool's backends, and what the catalog was last told."""

    def __init__(self) -> None:
        self._away_since: dict[tuple[str, str], float] = {}
        self._written: dict[str, dict[str, bool]] = {}

    def see(self, pool: str, answering: Mapping[str, bool], now_s: float) -> None:
        """Takes one look at a pool; writes when something has changed. Never raises: the next look tries again."""
        reported = self._written.get(pool, {})
        wanted = {}
        for backend, answers in answering.items():
            if answers:
                self._away_since.pop((pool, backend), None)
                wanted[backend] = True
            elif now_s - self._away_since.setdefault((pool, backend), now_s) >= GRACE_S:
                wanted[backend] = False
            elif backend in reported:
                wanted[backend] = reported[backend]
        if wanted != reported and self._write(pool, wanted):
            self._written[pool] = wanted

    @own_connection
    def _write(self, pool: str, wanted: Mapping[str, bool]) -> bool:
        try:
            services.set_silent(pool_slug=pool, answering=wanted)
        except DatabaseError as error:
            log.warning("which backends of pool %s answer could not be noted: %s", pool, type(error).__name__)
            return False
        return True
