"""May this Redis delete keys when it is full? Managed services often let it; then state is lost and nobody is told."""

from __future__ import annotations

import asyncio
import logging

from scheduling.state.memory import evicting_policy
from scheduling.state.resp import RespConnection
from scheduling.state.types import StateError, StateUnavailable

log = logging.getLogger("quartermaster.dispatch")

EVERY_S = 60.0


class EvictionWatch:
    """Says in the log when Redis begins and ceases to be one that may delete keys. One per process."""

    def __init__(self, resp: RespConnection) -> None:
        self._resp = resp
        self._policy = ""

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Looks once. What Redis does not say stays as it was."""
        try:
            policy = evicting_policy(await self._resp.call("INFO", "memory"))
        except (StateUnavailable, StateError):
            return
        if policy == self._policy:
            return
        if policy:
            log.error(
                "this Redis deletes keys when its memory is full (maxmemory-policy is %s): leases, budgets and ledger "
                "records can be lost without an error. Set maxmemory-policy to noeviction",
                policy,
            )
        else:
            log.info("this Redis deletes no keys any more when its memory is full")
        self._policy = policy
