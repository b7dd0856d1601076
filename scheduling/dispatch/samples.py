"""A pool at one moment, once a second, as its leader hands it upward.

Tokens served come from the meter in shared state: gateways tell with every renewal (each third of a lease) what running
requests have produced, so a rate over less than that would jump between nothing and everything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from scheduling.core.policies.contracts import QueuePart
from scheduling.core.types import PoolSpec, QueuedRequest, oldest_waits
from scheduling.dispatch.ports import BackendStatus, Sample
from scheduling.state.types import EntitlementTotals, PoolSnapshot

SERVED_OVER_S = 10.0  # what a rate of served tokens is averaged over: at least three renewals
_LOOKS = 12


class Sampler:
    """Makes the samples of one leader of one pool."""

    def __init__(self, leader: str, epoch: int) -> None:
        self._leader = leader
        self._epoch = epoch
        self._meters: deque[tuple[int, dict[str, int]]] = deque(maxlen=_LOOKS)  # (ms of Redis, served so far)

    def sample(
        self,
        snapshot: PoolSnapshot,
        pool: PoolSpec,
        policy: str,
        waiting: Iterable[QueuedRequest],
        backends: Sequence[BackendStatus],
        parts: Sequence[QueuePart] = (),
    ) -> Sample:
        """As far as shared state says it. ``waiting`` is what waits now; O(of it). ``parts``: what the policy's queue
        consists of. It is dated by this process' clock, as replicas' figures are: people compare it with theirs."""
        now_s = snapshot.now_ms / 1000.0
        waiting = list(waiting)
        oldest = oldest_waits(waiting, now_s)
        entitlements = snapshot.entitlements
        return Sample(
            at_s=time.time(),
            pool=pool,
            leader=self._leader,
            epoch=self._epoch,
            policy=policy,
            view=snapshot.pool_view(now_s),
            waiting={name: e.waiting for name, e in entitlements.items() if e.waiting},
            oldest_wait_s=max(oldest.values(), default=0.0),
            oldest_waits_s=oldest,
            bucket_levels={name: e.level_tokens for name, e in entitlements.items() if e.level_tokens is not None},
            backends=backends,
            standings=dict(snapshot.standings),
            kv_used=snapshot.kv_running(waiting),
            served_per_s=self._served(snapshot),
            totals_rebuilt=snapshot.rebuilt,
            ledger_unread=snapshot.counts.unread,
            state_lost_s=snapshot.lost_ms / 1000,
            waiting_sequences=_sequences(entitlements, waiting),
            parts=_leaves(parts),
        )

    def _served(self, snapshot: PoolSnapshot) -> dict[str, float]:
        meters = self._meters
        meters.append((snapshot.now_ms, {name: e.served_tokens for name, e in snapshot.entitlements.items()}))
        while len(meters) > 2 and meters[0][0] < snapshot.now_ms - SERVED_OVER_S * 1000:
            meters.popleft()
        (then_ms, before), (now_ms, after) = meters[0], meters[-1]
        if now_ms <= then_ms:
            return {}
        # A counter that shrank began anew with a lost state.
        grown = {name: total - before.get(name, 0) for name, total in after.items() if total > before.get(name, 0)}
        return {name: tokens * 1000.0 / (now_ms - then_ms) for name, tokens in grown.items()}


def _leaves(parts: Sequence[QueuePart]) -> dict[str, int]:
    """Parts in which something waits; a band that is itself cut into queues stands for none of them."""
    cut = {part.name.partition(", ")[0] for part in parts if ", " in part.name}
    return {p.name: p.waiting for p in parts if p.waiting and p.name.removesuffix(" band") not in cut}


def _sequences(entitlements: Mapping[str, EntitlementTotals], waiting: Iterable[QueuedRequest]) -> dict[str, int]:
    """Places that what waits will take. How many wait is counted in Redis; how wide they are, in the leader's copy."""
    wide = {name: counts.waiting for name, counts in entitlements.items() if counts.waiting}
    for request in waiting:
        if request.sequences > 1 and request.entitlement in wide:
            wide[request.entitlement] += request.sequences - 1
    return wide
