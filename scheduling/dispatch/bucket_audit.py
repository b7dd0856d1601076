"""Do buckets, ledger and leases agree? Compared in the background, never mended.

Once a minute the leader reads, at one instant, every bucket's level, what the requests in flight were charged, and the
last entry of the ledger stream. Between two such looks everything that moved a bucket is known: entries of the ledger
that it read itself. So for each entitlement

    level = level before + refill - (tokens of what ended + charges in flight now - charges in flight before)

unless the bucket was full in between, when some refill was lost; hence two bounds:

    highest = min(depth, the above)
    lowest  = min(depth, level before + refill) - (what ended, at least its charge, + charges in flight now)

A level outside is a fault: a hand, a script that failed half-way, a request that was settled twice or never. Which it
was, nobody can tell; so it is shown and logged, and left as it is. A fault is seen by the one comparison whose minute
it happened in. Not compared: the minute of a loss, of a new rate or depth, of more than ``MOST_IN_FLIGHT`` requests in
flight; and only the lower bound of who may run over budget, for the ledger does not say who was charged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from scheduling.core.rights import rights_of
from scheduling.core.types import Catalog
from scheduling.state.store import PoolStore
from scheduling.state.types import BucketLevel, LedgerEntry, PoolAudit, PoolSnapshot

log = logging.getLogger("quartermaster.dispatch")

EVERY_S = 60.0
MOST_IN_FLIGHT = 10_000  # requests in flight that are looked through
MAX_SETTLED = 200_000  # entries kept between two looks: more than a pool ends in a minute
AFTER_LOSS_S = 70.0  # buckets are put right for a minute
TOLERANCE = 1.0, 0.001  # tokens, and share of what moved

Settled = tuple[tuple[int, int], str, int, int]  # id, entitlement, tokens taken, at most taken in between


class BucketAudit:
    """What one leader of one pool compares. ``gaps``: by how many tokens each compared bucket was beyond its bounds at
    the last comparison; above 0: too full, below: too empty."""

    def __init__(self, store: PoolStore) -> None:
        self.gaps: dict[str, float] = {}
        self._store = store
        self._before: PoolAudit | None = None
        self._now: PoolAudit | None = None  # waits until the ledger was read so far
        self._empty = 0  # reads of an empty ledger stream since then
        self._read = (0, 0)
        self._settled: list[Settled] = []
        self._due_s = 0.0

    def settled(self, entries: Sequence[LedgerEntry]) -> None:
        """Entries of the ledger stream were read, in order; some may come again. No entries: it is empty."""
        if not entries:
            self._empty += 1
        for entry in entries:
            ms, _, number = entry.id.partition("-")
            at = (int(ms), int(number))
            if at <= self._read:
                continue
            self._read = at
            if entry.record is not None and entry.took:
                most = max(entry.took, entry.record.input_tokens_est + entry.record.output_bound)
                self._settled.append((at, entry.record.entitlement, entry.took, most))
        if len(self._settled) > MAX_SETTLED:
            self._settled.clear()
            self._before = self._now = None

    async def look(self, snapshot: PoolSnapshot, catalog: Catalog) -> None:
        """Once a second. Raises StateUnavailable."""
        clock_s = asyncio.get_running_loop().time()
        if self._now is not None and (self._read >= self._now.ledger_id or self._empty > 1):
            self._compare(self._now, catalog)
        if self._now is None and clock_s >= self._due_s:
            self._due_s = clock_s + EVERY_S
            if snapshot.lost_ms and snapshot.now_ms - snapshot.lost_ms < AFTER_LOSS_S * 1000:
                self._before = None
                return
            self._now, self._empty = await self._store.audit(MOST_IN_FLIGHT), 0
            if self._now is None:
                self._before = None

    def _compare(self, now: PoolAudit, catalog: Catalog) -> None:
        before, self._before, self._now = self._before, now, None
        ours = [s for s in self._settled if s[0] <= now.ledger_id]
        self._settled = [s for s in self._settled if s[0] > now.ledger_id]
        if before is None or before.born != now.born or now.now_ms <= before.now_ms:
            self.gaps = {}
            return
        took: dict[str, int] = {}
        most: dict[str, int] = {}
        for at, name, tokens, at_most in ours:
            if at > before.ledger_id:
                took[name] = took.get(name, 0) + tokens
                most[name] = most.get(name, 0) + at_most
        gaps: dict[str, float] = {}
        for name in before.buckets.keys() | now.buckets.keys():
            spec = catalog.entitlements.get(name)
            if spec is None or spec.tokens_per_s <= 0:
                continue
            bounds = bounds_of(name, before, now, took.get(name, 0), most.get(name, 0), spec.burst_tokens)
            if bounds is None:
                continue
            lowest, highest, level = bounds
            if rights_of(spec).over_budget:
                highest = max(level, highest)
            slack = TOLERANCE[0] + TOLERANCE[1] * most.get(name, 0)
            gap = level - highest if level > highest else min(0.0, level - lowest)
            gaps[name] = gap if abs(gap) > slack else 0.0
            if gaps[name]:
                log.error(
                    "pool %s: the bucket of %s holds %.0f tokens, by ledger and leases it can hold %.0f to %.0f; "
                    "it is left as it is", self._store.pool_id, name, level, lowest, highest,
                )  # fmt: skip
        self.gaps = gaps


def bounds_of(
    name: str, before: PoolAudit, now: PoolAudit, took: int, most: int, depth: float
) -> tuple[float, float, float] | None:
    """Lowest and highest level that a bucket can have, and the one it has [tokens]; None where its rate or depth
    changed. ``took`` of it by what ended, ``most`` at any moment of it. One that is not there is full."""
    first, last = before.buckets.get(name), now.buckets.get(name)
    bucket = last or first
    if bucket is None or bucket.depth != depth or (first is not None and last is not None and not _alike(first, last)):
        return None
    began = first.level if first is not None else depth
    level = last.level if last is not None else depth
    refilled = began + bucket.rate * (now.now_ms - before.now_ms) / 1000
    flies, flew = _of(now.reserved, name), _of(before.reserved, name)
    return min(depth, refilled) - most - flies, min(depth, refilled - (took + flies - flew)), level


def _alike(a: BucketLevel, b: BucketLevel) -> bool:
    return (a.rate, a.depth) == (b.rate, b.depth)


def _of(reserved: Mapping[str, int], name: str) -> int:
    return reserved.get(name, 0)
