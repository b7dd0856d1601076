"""Every five seconds: what each entitlement had and wanted, and where it stands after it (token pools, eq. 1-3).

The leader looks at the pool once a second anyway; between two ticks those looks are averaged. Tokens come from the
meter in shared state: gateways report what running requests have produced with every renewal, and the end of a request
adds the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from scheduling.core.admission.entitlement import Baseline, Looks, Usage, baseline_of, tick, usage_of
from scheduling.core.types import Catalog, EntitlementState, PoolSpec, QueuedRequest, Standing
from scheduling.state.types import SERVICE_MS, EntitlementTotals, PoolSnapshot

_NOTHING = EntitlementTotals(0, 0, 0, None, None)


class Standings:
    """The standings of one pool's bound entitlements, kept by its leader. Times are seconds of Redis."""

    def __init__(self, pool: PoolSpec, catalog: Catalog, snapshot: PoolSnapshot) -> None:
        """Goes on from what the former leader published."""
        self.now: dict[str, Standing] = dict(snapshot.standings)
        self._since = snapshot
        self._ticked = False
        self._looks = 0
        self._sums: dict[str, Looks] = defaultdict(Looks)
        self.configure(pool, catalog)

    def configure(self, pool: PoolSpec, catalog: Catalog) -> None:
        """Takes coefficients and baselines from a catalog; they count from the next tick on."""
        self._pool = pool
        self._baselines: Mapping[str, Baseline] = {
            spec.id: baseline_of(spec)
            for spec in catalog.entitlements.values()
            if spec.pool == pool.id and spec.state in (EntitlementState.BOUND, EntitlementState.DEGRADED)
        }

    def age_s(self, snapshot: PoolSnapshot) -> float:
        """Since the last tick."""
        return (snapshot.now_ms - self._since.now_ms) / 1000

    @property
    def shares(self) -> dict[str, float]:
        """Of the tokens of its class, by entitlement; empty before the first tick, since they are not in Redis."""
        return {name: standing.share for name, standing in self.now.items()} if self._ticked else {}

    @property
    def gone(self) -> list[str]:
        """Entitlements that have a standing and are bound no more."""
        return [name for name in self.now if name not in self._baselines]

    def look(self, snapshot: PoolSnapshot, waiting: Iterable[QueuedRequest]) -> None:
        """One look at the pool; ``waiting`` is what waits now."""
        kv_running = snapshot.kv_running(waiting)
        self._looks += 1
        for name, e in snapshot.entitlements.items():
            sums = self._sums[name]
            sums.running += e.running
            sums.waiting += e.waiting
            sums.kv_tokens += kv_running.get(name, 0)

    def tick(self, snapshot: PoolSnapshot, waiting: Iterable[QueuedRequest]) -> dict[str, Standing]:
        """The standings after the time since the last tick, which :attr:`now` is from here on."""
        elapsed_s = max(0.0, self.age_s(snapshot))
        usage = self._usage(snapshot, waiting, elapsed_s) if elapsed_s > 0 else {}
        pool = self._pool
        self.now = tick(self._baselines, usage, self.now, pool.coefficients, pool.slo_mean_s, elapsed_s)
        self._ticked = True
        self._since = snapshot
        self._looks = 0
        self._sums.clear()
        return self.now

    def _usage(self, snapshot: PoolSnapshot, waiting: Iterable[QueuedRequest], elapsed_s: float) -> dict[str, Usage]:
        backlog: dict[str, float] = defaultdict(float)
        for request in waiting:
            backlog[request.entitlement] += request.input_tokens + request.output_tokens
        usage = {}
        for name in self._baselines:
            e = snapshot.entitlements.get(name, _NOTHING)
            before = self._since.entitlements.get(name, _NOTHING)
            usage[name] = usage_of(
                self._sums.get(name, Looks()),
                self._looks,
                elapsed_s,
                served_tokens=_grown(e.served_tokens, before.served_tokens),
                refused_tokens=_grown(e.refused_tokens, before.refused_tokens),
                refusals=_grown(e.refusals, before.refusals),
                backlog_tokens=backlog[name],
                service_s=(e.service_ms or snapshot.service_ms or SERVICE_MS) / 1000,
            )
        return usage


def _grown(now: int, before: int) -> int:
    """By how much a counter has grown; one that is smaller began anew."""
    return now - before if now >= before else max(0, now)
