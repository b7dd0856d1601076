"""A dispatch service in a process of its own, to be stopped and killed: ``python -m tests.support.dispatch_process``.

    ... REDIS_URL POOL NUMBER [--deaf] [--fenceless]

Its grants say that they are of policy ``fifo@NUMBER``. ``--deaf``: a leader that never notices that its lease is over.
``--fenceless``: scripts that do not look at the epoch. Both are broken variants (docs/reference/promises.md, 8).
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import pytest

from scheduling.core.types import Catalog
from scheduling.dispatch.leader import Leadership
from scheduling.dispatch.runner import DispatchService, DispatchSetup
from scheduling.state.script import load_scripts, make_script
from tests.support.dispatch_world import Engines, Floors, Telemetry
from tests.support.state_world import backend, entitlement, pool_spec

FENCE = "if fenced(ARGV[1]) then return 'fenced' end"


def without_fence() -> dict[str, Any]:
    return {name: make_script(name, s.source.decode().replace(FENCE, "")) for name, s in load_scripts().items()}


async def never_ends(self: Leadership) -> None:
    """In place of ``keep``: extends the leadership and takes no answer for an end."""
    while True:
        await asyncio.sleep(0.5)
        await self._store.elect(self._holder, self.epoch, first_start=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("redis_url")
    parser.add_argument("pool")
    parser.add_argument("number", type=int)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--fenceless", action="store_true")
    args = parser.parse_args()
    patch = pytest.MonkeyPatch()
    if args.deaf:
        patch.setattr(Leadership, "keep", never_ends)
    if args.fenceless:
        scripts = without_fence()
        patch.setattr("scheduling.state.store.load_scripts", lambda: scripts)
    pool = pool_spec(args.pool, backends=(backend("b1", 1, pool=args.pool),), policy="fifo", policy_version=args.number)
    catalog = Catalog(1, {pool.id: pool}, {e.id: e for e in [entitlement("acme", pool.id)]}, {})
    service = DispatchService(
        DispatchSetup(
            args.redis_url, lambda: catalog, lambda: 1, Telemetry(), Floors(), f"d{args.number}", Engines().factory
        )
    )
    asyncio.run(service.serve())


if __name__ == "__main__":
    main()
