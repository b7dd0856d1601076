"""Puts the parts together: what the movers ask for, from what the catalog and the eyes offer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from django.conf import settings
from django.db import OperationalError

from controlplane import alive
from controlplane.batches.http import FileRoutes
from controlplane.batches.starter import BatchStarter
from controlplane.gateway_config import gateway_config, installation_marks, secrets_for
from controlplane.responses.http import ResponseRoutes
from controlplane.scaling.controller import Controller
from controlplane.scaling.planner_loop import Scaler
from controlplane.tuning.starter import Starter
from scheduling.catalog import CatalogCache
from scheduling.core.ledger.record import LedgerRecord
from scheduling.dispatch.ports import Sample, TelemetryPort
from scheduling.dispatch.runner import DispatchSetup
from scheduling.gateway.app import GatewayApp
from scheduling.gateway.ports import GatewayMetrics, Places
from telemetry.feed.sources import SourceWatch, sources
from telemetry.feed.store import LiveStore
from telemetry.recorder import make_recorder
from tenants import specs
from tenants.connections import lock_wait
from tenants.epochs import BookedEpochs
from tenants.kept_connection import kept_connection
from tenants.liveness import Liveness


def make_catalog() -> CatalogCache:
    """The catalog, as a process that serves follows them."""
    return CatalogCache(specs.CatalogReader(), kept_connection(specs.catalog_version))


def make_gateway(catalog: CatalogCache, metrics: GatewayMetrics, places: Places | None = None) -> GatewayApp:
    """The ``/v1`` application of this process. Its catalog is read by ``start``. ``places``: the server's connections,
    of which tenants have shares."""
    env = settings.ENV
    responses = ResponseRoutes(env, secrets_for(b"kept responses")) if env.responses_kept else None
    routes = [FileRoutes(env)] if responses is None else [FileRoutes(env), responses]
    return GatewayApp(gateway_config(env), catalog, env.redis_url, metrics, places, routes, responses)


def make_source_watch(catalog: CatalogCache) -> SourceWatch:
    """What looks, once a second, whether this web process can see what it shows."""

    def pools() -> dict[str, frozenset[str]] | None:
        if not catalog.loaded:
            return None
        current, tenants = catalog.current, defaultdict[str, set[str]](set)
        for entitlement in current.entitlements.values():
            tenants[entitlement.pool].add(entitlement.tenant)
        return {pool: frozenset(tenants[pool]) for pool in current.pools}

    from telemetry.alerts.leaderless import LeaderWatch  # models load only after Django is set up

    watch = LeaderWatch(pools=lambda: sources.pools(None) or ())
    return SourceWatch(sources, LiveStore(settings.ENV.redis_url), catalog, pools, on_look=watch.look)


# A sample writes in up to four places. Where SQLite was locked last, hardly at all: each pool that this process leads
# would wait so long, and with ten of them none is published for ten seconds.
LOCK_WAIT_S, LOCKED_S = 0.5, 0.05


class Eyes:
    """What the dispatch service tells: records and samples go to telemetry, which backends answer to the catalog.

    One thread does all of it. Whoever holds SQLite's lock must not keep it from publishing: what could not be written
    is written later, but a pool that is not published for five seconds has no scheduler to everybody who looks.
    """

    def __init__(
        self, recorder: TelemetryPort, liveness: Liveness, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._recorder = recorder
        self._liveness = liveness
        self._clock = clock
        self._wait_s = LOCK_WAIT_S

    @kept_connection
    def write_ledger(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        try:
            with lock_wait(self._wait_s):
                self._recorder.write_ledger(pool, records)
        except OperationalError:
            self._wait_s = LOCKED_S
            raise
        self._wait_s = LOCK_WAIT_S

    def bucket_debts(
        self, pool: str, budgets: Mapping[str, tuple[float, float]], before_s: float, now_s: float
    ) -> dict[str, float]:
        return self._recorder.bucket_debts(pool, budgets, before_s, now_s)

    @kept_connection
    def sample(self, sample: Sample) -> None:
        answering = {b.id: b.state in ("ready", "draining", "asleep", "waking") for b in sample.backends}
        began_s = self._clock()
        with lock_wait(self._wait_s):
            self._recorder.sample(sample)
            self._liveness.see(sample.pool.id, answering, sample.at_s)
        if self._clock() - began_s >= LOCK_WAIT_S:  # neither says what it could not write
            self._wait_s = LOCKED_S

    def pools(self, names: Collection[str]) -> None:
        self._recorder.pools(names)


def make_dispatch() -> DispatchSetup:
    """What the dispatch service of a worker process needs."""
    return DispatchSetup(
        redis_url=settings.ENV.redis_url,
        load_catalog=specs.CatalogReader(),
        catalog_version=kept_connection(specs.catalog_version),
        telemetry=Eyes(make_recorder(sinks=(Scaler(Controller()), Starter(), BatchStarter())), Liveness()),
        epochs=BookedEpochs(),
        kv_overcommit=settings.ENV.kv_overcommit,
        prefill_preemption=settings.ENV.prefill_preemption,
        installation=installation_marks(),
        alive=settings.ENV.home / alive.NAME,
    )
