"""KV room: how many KV tokens does a replica offer for reservations?

Formula: what its requests are expected to use of what they reserve (:mod:`scheduling.core.capacity.kv_overcommit`),
less what they have in common (:mod:`scheduling.core.capacity.kv_sharing`), corrected by what its engine shows
(:class:`scheduling.core.capacity.kv_overcommit.KvPressure`).
Inputs: the engine's usage and preemptions at each scrape; once a second what is reserved and expected.
Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.core.capacity.kv_overcommit import MAX_OVERCOMMIT, Expected, KvPressure
from scheduling.core.capacity.kv_sharing import EngineUse, KvSharing


def inherited(offered: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """What a new leader goes on from, by what each replica was ``offered`` with [times its cache] under the one before:
    the overcommit of the pool, and the part of it by replica, 0 to 1. One was offered with more than was expected and
    another was full, so no single figure gives each what runs there was granted by."""
    most = max(offered.values(), default=1.0)
    if most <= 1.0:
        return 1.0, {}
    return most, {name: max(0.0, times - 1.0) / (most - 1.0) for name, times in offered.items()}


@dataclass(slots=True)
class KvRoom:
    """What one replica offers."""

    pressure: KvPressure = field(default_factory=KvPressure)
    sharing: KvSharing = field(default_factory=KvSharing)
    overcommit: float = 1.0  # times its cache that is expected to fit
    most: float = MAX_OVERCOMMIT  # times its cache that may be offered

    def look(
        self, now_s: float, found: EngineUse, expected: Expected, tbt_s: float | None, most: float = MAX_OVERCOMMIT
    ) -> None:
        """Once a second, with what is reserved of the replica and expected of its pool. ``tbt_s``: the strictest time
        between tokens that is promised to what runs; None: none is. ``now_s``: a monotonic clock [s]."""
        self.pressure.binds = found.reserved + expected.usual > self.offered(found.kv_tokens)  # as offered until now
        self.pressure.usual = expected.usual * expected.share / max(1, found.kv_tokens)
        self.most = most
        self.sharing.seen(now_s, found, expected.prompts, tbt_s)
        self.overcommit = expected.overcommit(found.kv_tokens, most, self.sharing.counted)

    def offered(self, kv_tokens: int) -> int:
        """KV tokens that may be reserved, with ``kv_tokens`` in its cache."""
        return self.pressure.offered(kv_tokens, self.overcommit, self.most, self.sharing.pace)
