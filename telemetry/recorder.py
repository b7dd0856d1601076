"""Takes what the dispatch loop reports: ledger records for the catalog, samples for the live feed.

Implements ``scheduling.dispatch.ports.TelemetryPort``. Called from one dedicated thread, never from an event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from django.conf import settings

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import Catalog, EntitlementSpec, QuotaSpec
from scheduling.dispatch.ports import Sample
from telemetry.alerts.watch import AlertWatch
from telemetry.events import Happenings
from telemetry.feed.past import Past
from telemetry.feed.publisher import GroupSender, Publisher
from telemetry.feed.store import LiveStore
from telemetry.feed.window import WINDOW_S, Window
from telemetry.ledger import writer
from telemetry.ledger.lately import Reread, ended_since
from telemetry.ledger.quotas import RedisBoard, UsageFeed

if TYPE_CHECKING:
    from telemetry.traces import Traces

log = logging.getLogger(__name__)

PURGE_EVERY_S = 3600.0
ROLL_UP_EVERY_S = 60.0
REREAD_EVERY_S = 5.0  # by a new leader, while the database does not answer
_CATALOG_EVERY_S = 2.0

Entitlements = Callable[[], Mapping[str, EntitlementSpec]]


class ConfiguredEntitlements:
    """All entitlements by id, read again when the catalog's version changed. Keeps the old ones without a database."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")
        self._version = -1
        self._catalog = Catalog(0, {}, {}, {})
        self._looked_at: Catalog | None = None
        self._daily: frozenset[str] = frozenset()  # of that catalog

    def __call__(self) -> Mapping[str, EntitlementSpec]:
        return self.catalog().entitlements

    def quotas(self) -> Mapping[str, tuple[QuotaSpec, ...]]:
        return self.catalog().quotas

    def keys_with_a_day(self) -> frozenset[str]:
        """The keys that have a limit of tokens a day."""
        catalog = self.catalog()
        if catalog is not self._looked_at:
            self._looked_at = catalog
            self._daily = frozenset(key.id for key in catalog.keys.values() if key.tokens_per_day)
        return self._daily

    def engine_of(self, pool: str) -> str | None:
        """The kind of its engines; None for a pool that is gone."""
        spec = self.catalog().pools.get(pool)
        return None if spec is None else spec.engine

    def catalog(self) -> Catalog:
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + _CATALOG_EVERY_S
            try:
                from tenants import specs  # models load only after Django is set up

                version = specs.catalog_version()
                if version != self._version:
                    self._catalog = specs.load_catalog()
                    self._version = version
            except Exception as error:
                log.debug("live feed: keeping the entitlements of version %d (%s)", self._version, type(error).__name__)
        return self._catalog


def start_roll_up() -> None:
    """Queues :func:`telemetry.tasks.roll_up`. A lost start is made up for in the next minute."""
    from telemetry.tasks import roll_up

    roll_up.apply_async(retry=False)


def start_purge() -> None:
    """Queues :func:`telemetry.tasks.purge_ledger`. A lost start is made up for in the next hour."""
    from telemetry.tasks import purge_ledger

    purge_ledger.apply_async(retry=False)


class Sink(Protocol):
    """A part that acts on what happened. Telemetry calls it and knows no more of it. Neither method raises."""

    def count(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """Requests that ended, and are stored now. None comes twice."""

    def sample(self, sample: Sample, entitlements: Mapping[str, EntitlementSpec]) -> None:
        """The pool's second."""


class Recorder:
    """What the dispatch service reports to: the ledger, the live feed, metrics, alerts and quotas."""

    def __init__(
        self,
        publisher: Publisher,
        entitlements: Entitlements,
        start_purge: Callable[[], None] = start_purge,
        clock: Callable[[], float] = time.time,
        *,
        usage: UsageFeed | None = None,
        start_roll_up: Callable[[], None] = start_roll_up,
        watch: AlertWatch | None = None,
        past: Past | None = None,
        happenings: Happenings | None = None,
        traces: Traces | None = None,
        reread: Reread | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        """``reread``: what ended in a pool since a moment, for the last minute of a leader that was not there."""
        self._publisher = publisher
        self._entitlements = entitlements
        self._start_purge = start_purge
        self._clock = clock
        self._usage = usage
        self._start_roll_up = start_roll_up
        self._watch = watch
        self._past = past
        self._happenings = happenings
        self._traces = traces
        self._rolled_s = float("-inf")
        self._reread = reread
        self._sinks = tuple(sinks)
        self._windows: dict[str, Window] = {}
        self._terms: dict[str, int] = {}  # of each pool: the epoch whose last minute is whole
        self._reread_s: dict[str, float] = {}
        self._purged_s = float("-inf")

    def write_ledger(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """Counts records into the pool's window and stores them; idempotent by request id: a batch that comes again
        is counted by nothing that adds up.

        Raises:
            django.db.Error: hand the same records in again later.
        """
        now_s = self._clock()
        self._window(pool).add(records, now_s)
        for start in range(0, len(records), writer.BATCH):  # what is stored is counted, whatever becomes of the rest
            stored = writer.write(records[start : start + writer.BATCH])
            if self._usage is not None:
                self._usage.count(pool, stored)
            for sink in self._sinks:
                sink.count(pool, stored)
            if self._traces is not None:
                self._traces.take(stored)
        self._purge_hourly(now_s)

    def bucket_debts(
        self, pool: str, budgets: Mapping[str, tuple[float, float]], before_s: float, now_s: float
    ) -> dict[str, float]:
        """What buckets lack by the ledger (:mod:`telemetry.debts`). Raises what the database does."""
        from telemetry.debts import bucket_debts  # models load only after Django is set up

        return bucket_debts(pool, budgets, before_s, now_s)

    def sample(self, sample: Sample) -> None:
        """Publishes the pool's next snapshot. Never raises."""
        snapshot = None
        self._catch_up(sample)
        try:
            snapshot = self._publisher.publish(sample, self._window(sample.pool.id), self._entitlements())
        except Exception:
            log.exception("a sample of pool %s was lost", sample.pool.id)
        if self._usage is not None:
            self._usage.publish(sample.pool.id, sample.epoch, sample.at_s)
        for sink in self._sinks:
            sink.sample(sample, self._entitlements())
        if self._watch is not None and snapshot is not None:
            self._watch.look(snapshot, self._usage.shares if self._usage is not None else {})
        if self._past is not None and snapshot is not None:
            self._past.add(snapshot)
        if self._happenings is not None and snapshot is not None:
            self._happenings.add(snapshot)
        self._roll_up(self._clock())

    def pools(self, names: Collection[str]) -> None:
        """Forgets pools that no longer exist. Never raises."""
        for pool in self._windows.keys() - set(names):
            del self._windows[pool]
            self._terms.pop(pool, None)
            self._reread_s.pop(pool, None)
        self._publisher.keep_only(names)

    def _window(self, pool: str) -> Window:
        return self._windows.setdefault(pool, Window())

    def _catch_up(self, sample: Sample) -> None:
        """A new leader's last minute: what ended before it led is read from the ledger. Never raises."""
        pool, now_s = sample.pool.id, self._clock()
        if self._reread is None or self._terms.get(pool) == sample.epoch:
            return
        if now_s - self._reread_s.get(pool, float("-inf")) < REREAD_EVERY_S:
            return
        self._reread_s[pool] = now_s
        try:
            records, since_s = self._reread(pool, now_s - WINDOW_S)
        except Exception as error:
            log.warning("what pool %s did in the last minute is not known (%s)", pool, type(error).__name__)
            return
        window = self._window(pool)
        window.add(records, now_s)
        window.knows_since(since_s)
        self._terms[pool] = sample.epoch

    def _roll_up(self, now_s: float) -> None:
        """Once a minute."""
        if now_s - self._rolled_s < ROLL_UP_EVERY_S:
            return
        self._rolled_s = now_s
        try:
            self._start_roll_up()
        except Exception as error:
            log.warning("adding up the ledger could not be started (%s); next try in a minute", type(error).__name__)

    def _purge_hourly(self, now_s: float) -> None:
        if now_s - self._purged_s < PURGE_EVERY_S:
            return
        self._purged_s = now_s
        try:
            self._start_purge()
        except Exception as error:
            log.warning("the ledger's retention could not be started (%s); next try in an hour", type(error).__name__)


def costs_of_day(now_s: float) -> dict[str, tuple[float, str]]:
    """What each tenant cost since midnight UTC, and in which currency; without those whose currencies are mixed."""
    from telemetry.ledger.usage import usage

    now = datetime.fromtimestamp(now_s, UTC)
    rows = usage(None, now.replace(hour=0, minute=0, second=0, microsecond=0), now, ["tenant"])
    return {row["tenant"]: (row["cost"], row["currency"]) for row in rows if row["cost"]}


def make_recorder(redis_url: str | None = None, sinks: Sequence[Sink] = ()) -> Recorder:
    """The recorder of a worker process, as the shell plugs it in, with the sinks that act on what happens."""
    url = redis_url or settings.QUARTERMASTER_REDIS_URL
    configured = ConfiguredEntitlements()
    traces = None
    if settings.ENV.traces:
        from telemetry.traces import make_traces  # OpenTelemetry: half a second and 22 MB, spent only where used

        traces = make_traces(configured.engine_of)
    publisher = Publisher(LiveStore(url), GroupSender())
    return Recorder(
        publisher,
        configured,
        usage=UsageFeed(RedisBoard(url), configured.quotas, configured.keys_with_a_day, configured.catalog),
        watch=AlertWatch(looked=publisher.rules_looked_at, costs=costs_of_day),
        reread=ended_since,
        happenings=Happenings(),
        past=Past(),
        traces=traces,
        sinks=sinks,
    )
