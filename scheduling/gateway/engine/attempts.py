"""What attempts at replicas came to: counted here, told to the leader once a second, acted upon at once.

A replica that fails fast has the least outstanding work and so draws every request (a magnet). Whoever sees that pauses
it for all gateways (``PoolStore.pause``) before the leader has decided anything; the leader probes it, and ejects it by
the share of its attempts that fail (:mod:`scheduling.dispatch.replicas.outliers`).

A tenant whose requests fail wherever they run, on replicas that serve others meanwhile, says nothing of a replica: its
failures count no more, or one tenant could have all replicas of a pool but one ejected. The leader hears of each all
the same, and asks the replica for a token (:mod:`scheduling.dispatch.replicas.progress`).

An answer without content is none of these failures, since a model may have nothing to say. It is told by tenant, for
the leader to compare replicas by: one that answers everything with nothing is a magnet as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduling.state.types import MAX_PAUSE_S, Attempts

CONTRADICTED_S = 30.0  # so long a success at one replica says that the failures of another are its own
FAILURES_IN_A_ROW = 2  # then it is paused: one may be the request's fault
FAILURE_PAUSE_S = 1.0  # the leader, which probes it, needs less
REFUSAL_PAUSE_S = 1.0  # and twice as long each time, while it admits nothing
PAUSE_AGAIN_S = 0.5  # those that were on their way when it was paused fail as well: they pause nothing again
MAX_WHY_CHARS = 200
OWN_REPLICAS = 2  # where a tenant's requests have to fail to be the cause
OWN_SHARE = 0.5  # of them, on each replica that it tried
OWN_S = 30.0  # without another failure, or answer without content: it begins anew
MAX_TENANTS = 100  # told by themselves for each replica and report


@dataclass(slots=True)
class _Replica:
    succeeded: int = 0  # since the last report, as the four after it
    failed: int = 0
    cut: int = 0
    refused: int = 0
    moved: int = 0
    why: str = ""
    by_tenant: dict[str, tuple[int, int]] = field(default_factory=dict)  # tried and failed since the last report
    empty_by_tenant: dict[str, tuple[int, int]] = field(default_factory=dict)  # tried and empty, where some were
    row: int = 0  # failures and refusals since the last success
    succeeded_s: float = float("-inf")
    paused_s: float = float("-inf")


def _count(by_tenant: dict[str, tuple[int, int]], tenant: str, tried: int, bad: int) -> None:
    """An attempt of a tenant of which some were bad."""
    before = by_tenant.get(tenant)
    if before is not None or len(by_tenant) < MAX_TENANTS:
        by_tenant[tenant] = ((before or (0, 0))[0] + tried, (before or (0, 0))[1] + bad)


@dataclass(slots=True)
class _Tried:
    """A tenant's attempts at one replica since its first failure there."""

    since_s: float
    failed: int = 0
    cut: int = 0
    succeeded: int = 0


@dataclass(slots=True)
class _Failing:
    """A tenant that had failures lately."""

    failed_s: float = 0.0
    at: dict[str, _Tried] = field(default_factory=dict)


class AttemptCounts:
    """The attempts of one gateway. Times are its monotonic clock."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[str, _Replica]] = {}
        self._failing: dict[tuple[str, str], _Failing] = {}  # by pool and tenant
        self._emptied: dict[str, float] = {}  # by pool: when an answer without content came [s]

    def _at(self, pool: str, backend: str) -> _Replica:
        replicas = self._pools.setdefault(pool, {})
        replica = replicas.get(backend)
        if replica is None:
            replica = replicas[backend] = _Replica()
        return replica

    def succeeded(self, pool: str, backend: str, tenant: str) -> None:
        """A stream began, or a whole answer came."""
        at = self._at(pool, backend)
        if self._failing and (failing := self._failing.get((pool, tenant))) is not None:
            failing.at.setdefault(backend, _Tried(time.monotonic())).succeeded += 1
            _count(at.by_tenant, tenant, 1, 0)
        if self._emptied and pool in self._emptied:
            _count(at.empty_by_tenant, tenant, 1, 0)
        at.succeeded += 1
        at.moved += 1
        at.row = 0
        at.succeeded_s = time.monotonic()

    def empty(self, pool: str, backend: str, tenant: str) -> None:
        """An answer that :meth:`succeeded` was told of has ended without content."""
        if pool in self._emptied:
            _count(self._at(pool, backend).empty_by_tenant, tenant, 0, 1)
        self._emptied[pool] = time.monotonic()

    def moved(self, pool: str, backend: str, pieces: int) -> None:
        """Pieces of a stream arrived."""
        self._at(pool, backend).moved += pieces

    def failed(
        self, pool: str, backend: str, tenant: str, why: str, *, misconfigured: bool = False, began: bool = False
    ) -> float:
        """For how long to pause it [s]; 0: not. ``misconfigured``: no request can be the cause; ``began``: its stream
        had begun, and :meth:`succeeded` was told."""
        at = self._at(pool, backend)
        if not misconfigured:
            now_s = time.monotonic()
            failing = self._failing.get((pool, tenant))
            if failing is None:
                failing = self._failing[pool, tenant] = _Failing()
            else:
                _count(at.by_tenant, tenant, 0 if began else 1, 1)
            failing.failed_s = now_s
            tried = failing.at.setdefault(backend, _Tried(now_s))
            tried.failed += 1
            tried.cut += began
            if self.is_own_fault(pool, tenant):
                return 0.0
        at.failed += 1
        at.cut += began
        at.row += 1
        at.why = why[:MAX_WHY_CHARS]
        return self._pause(at, FAILURE_PAUSE_S) if misconfigured or at.row >= FAILURES_IN_A_ROW else 0.0

    def refused(self, pool: str, backend: str, why: str, retry_after_s: float | None) -> float:
        """Likewise, of a replica that admitted nothing and may have said for how long."""
        at = self._at(pool, backend)
        at.refused += 1
        at.why = why[:MAX_WHY_CHARS]
        wanted = REFUSAL_PAUSE_S * 2.0 ** min(at.row, 10) if retry_after_s is None else retry_after_s
        pause_s = self._pause(at, min(MAX_PAUSE_S, max(REFUSAL_PAUSE_S, wanted)))
        if pause_s:
            at.row += 1
        return pause_s

    def _pause(self, at: _Replica, pause_s: float) -> float:
        now_s = time.monotonic()
        if now_s - at.paused_s < PAUSE_AGAIN_S:
            return 0.0
        at.paused_s = now_s
        return pause_s

    def is_own_fault(self, pool: str, tenant: str) -> bool:
        """Whether a tenant's requests fail on every replica that it tried, while each of these served others."""
        failing = self._failing.get((pool, tenant))
        if failing is None or len(failing.at) < OWN_REPLICAS:
            return False
        return all(
            tried.failed >= OWN_SHARE * (tried.failed + tried.succeeded - tried.cut)
            and self._at(pool, backend).succeeded_s > tried.since_s
            for backend, tried in failing.at.items()
        )

    def contradicted(self, pool: str, backend: str, tenant: str) -> bool:
        """Whether another replica of the pool has lately done what this one does not."""
        if self.is_own_fault(pool, tenant):
            return False
        since_s = time.monotonic() - CONTRADICTED_S
        replicas = self._pools.get(pool, {})
        return any(name != backend and at.succeeded_s >= since_s for name, at in replicas.items())

    def take(self) -> dict[str, dict[str, Attempts]]:
        """What is new since the last call, by pool and replica."""
        since_s = time.monotonic() - OWN_S
        self._failing = {who: failing for who, failing in self._failing.items() if failing.failed_s >= since_s}
        self._emptied = {pool: at_s for pool, at_s in self._emptied.items() if at_s >= since_s}
        fresh: dict[str, dict[str, Attempts]] = {}
        for pool, replicas in self._pools.items():
            new = {
                name: Attempts(
                    at.succeeded, at.failed, at.refused, at.moved, at.why, at.cut, at.by_tenant, at.empty_by_tenant
                )
                for name, at in replicas.items()
                if at.succeeded or at.failed or at.refused or at.moved or at.by_tenant or at.empty_by_tenant
            }
            for name in new:
                at = replicas[name]
                at.succeeded = at.failed = at.cut = at.refused = at.moved = 0
                at.why, at.by_tenant, at.empty_by_tenant = "", {}, {}
            if new:
                fresh[pool] = new
        return fresh

    def keep_only(self, backends: Iterable[str]) -> None:
        """Forgets replicas that are no longer configured."""
        configured = set(backends)
        for pool in list(self._pools):
            self._pools[pool] = {name: at for name, at in self._pools[pool].items() if name in configured}
            if not self._pools[pool]:
                del self._pools[pool]
