"""Does this Redis belong to this installation? A worker of another one must not lead its pools."""

from __future__ import annotations

import asyncio
import logging
import time

from scheduling.state.installation import KEPT_MS, KEY, claim
from scheduling.state.resp import RespConnection
from scheduling.state.types import StateError, StateUnavailable

log = logging.getLogger("quartermaster.dispatch")

EVERY_S = 3.0
UNKNOWN_S = 0.25  # while it has not been said whose it is
TELL_AGAIN_S = 60.0


class Installation:
    """What one process knows of it. ``marks``: its own, and others of its installation; empty: it does not ask, and may
    lead."""

    def __init__(self, resp: RespConnection, marks: tuple[str, ...]) -> None:
        self._resp = resp
        self._mark, *others = marks or ("",)
        self._others = frozenset(others)
        self._whose: str | None = None if marks else ""  # None: nobody has said yet
        self._told_s = float("-inf")

    @property
    def ours(self) -> bool:
        """Whether this process may lead, by the last answer; while Redis is away that stands."""
        return self._whose == self._mark

    async def run(self) -> None:
        """Claims again and again, until cancelled."""
        while self._mark:
            await self.look()
            await asyncio.sleep(UNKNOWN_S if self._whose is None else EVERY_S)

    async def look(self) -> None:
        """Claims once. Raises nothing where Redis is away."""
        try:
            whose = await claim(self._resp, self._mark, self._others) if self._mark else ""
        except (StateUnavailable, StateError) as error:
            if isinstance(error, StateError):
                log.error("whose Redis this is cannot be read from %s: %s", KEY, error)
            return
        before, self._whose = self._whose, whose
        if self.ours:
            if before not in (None, self._mark):
                log.warning("this Redis is no longer used by another installation: this process leads again")
            self._told_s = float("-inf")
        elif time.monotonic() - self._told_s >= TELL_AGAIN_S:
            self._told_s = time.monotonic()
            log.error(
                "this Redis is used by another installation (%s is %s, this one's mark is %s), so this process leads "
                "no pool: give each installation a Redis of its own (QUARTERMASTER_REDIS_URL). "
                "Where QUARTERMASTER_SECRET_KEY was just changed, give this process the former one in "
                "QUARTERMASTER_SECRET_KEY_FALLBACKS, or end all processes that have it; it is free %d s later",
                KEY,
                whose or "another",
                self._mark,
                KEPT_MS // 1000,
            )
