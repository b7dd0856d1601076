"""A dispatch service in a process of its own, to be stopped and killed: ``python -m tests.support.dispatch_process``.

    ... REDIS_URL POOL NUMBER [--deaf] [--fenceless] [--die STEP COUNT]

Its grants say that they are of policy ``fifo@NUMBER``. ``--deaf``: a leader that never notices that its lease is over.
``--fenceless``: scripts that do not look at the epoch. Both are broken variants (docs/reference/promises.md, 8).
``--die``: ends itself with SIGKILL when it comes to that step of a dispatch (:data:`STEPS`) for the COUNTth time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from scheduling.core.types import Catalog
from scheduling.dispatch.leader import Leadership
from scheduling.dispatch.runner import DispatchService, DispatchSetup
from scheduling.dispatch.term import Term
from scheduling.state.script import load_scripts, make_script
from scheduling.state.store import PoolStore
from tests.support.dispatch_world import Engines, Floors, Telemetry
from tests.support.state_world import backend, entitlement, pool_spec

FENCE = "if fenced(ARGV[1]) then return 'fenced' end"


def without_fence() -> dict[str, Any]:
    return {name: make_script(name, s.text.replace(FENCE, "")) for name, s in load_scripts().items()}


async def never_ends(self: Leadership) -> None:
    """In place of ``keep``: extends the leadership and takes no answer for an end."""
    while True:
        await asyncio.sleep(0.5)
        await self._store.elect(self._holder, self.epoch, first_start=False)


# Where a dispatch can be interrupted: (object, method, before or after it)
_STEPS: dict[str, tuple[Any, str, bool]] = {
    "before it looks at the pool": (PoolStore, "look", True),
    "after it has decided, before it grants": (PoolStore, "grant", True),
    "when its grants are made, before it books them": (PoolStore, "grant", False),
    "when it has seen the pool, before it decides": (PoolStore, "look", False),
    "when it has heard of an arrival": (Term, "_apply", False),
    "before it sweeps": (PoolStore, "sweep", True),
    "after it has swept": (PoolStore, "sweep", False),
    "before it extends its leadership": (PoolStore, "elect", True),
}
STEPS = tuple(_STEPS)


def dies_at(patch: pytest.MonkeyPatch, step: str, count: int) -> None:
    where, name, before = _STEPS[step]
    method: Callable[..., Any] = getattr(where, name)
    times = itertools.count(1)

    def die() -> None:
        if next(times) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    async def dying(*args: Any, **kwargs: Any) -> Any:
        if before:
            die()
        answer = await method(*args, **kwargs)
        if not before:
            die()
        return answer

    def dying_at_once(*args: Any, **kwargs: Any) -> Any:
        method(*args, **kwargs)
        die()

    patch.setattr(where, name, dying if asyncio.iscoroutinefunction(method) else dying_at_once)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("redis_url")
    parser.add_argument("pool")
    parser.add_argument("number", type=int)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--fenceless", action="store_true")
    parser.add_argument("--die", nargs=2, metavar=("STEP", "COUNT"))
    args = parser.parse_args()
    patch = pytest.MonkeyPatch()
    if args.deaf:
        patch.setattr(Leadership, "keep", never_ends)
    if args.fenceless:
        scripts = without_fence()
        patch.setattr("scheduling.state.store.load_scripts", lambda: scripts)
    if args.die:
        dies_at(patch, args.die[0], int(args.die[1]))
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
