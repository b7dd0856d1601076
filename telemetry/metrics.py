"""Every metric of the product: one table, and the object that counts.

The gateway calls :class:`Metrics` on its event loop, so counting is dictionary arithmetic; text is made only when
somebody scrapes. Gauges of pools and backends come from the leaders' stored snapshots, read by a thread of its own.
``docs/reference/metrics.md`` shows the same table and a test compares the two.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.registry import Collector

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.ledger.slo import turned_away
from scheduling.core.outcomes import Outcome
from telemetry import disk_gauges
from telemetry.feed.store import LiveStore
from telemetry.feed.window import MEASURES, QUEUE, TBT, TTFT, TTLT, durations_ms
from telemetry.pool_gauges import LEFT_OUT, SHOWN, SKEW, Labels, PoolGauges, Samples

__all__ = ["CONTENT_TYPE", "TABLE", "Metric", "Metrics", "make_metrics"]

PREFIX = "quartermaster_"
MAX_TENANTS = 1000  # label values, where no setting says otherwise; every further tenant counts as "other"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str  # without the prefix
    kind: str  # counter | gauge | histogram
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    of_backend: str = ""  # a gauge that is this figure of each backend in the leaders' snapshots


_WAIT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_TOTAL = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200)

TABLE: tuple[Metric, ...] = (
    Metric(
        "requests_total", "counter", "requests", ("pool", "tier", "tenant", "outcome", "reason"),
        "Requests with a valid key that ended.",
    ),
    Metric("rejected_total", "counter", "requests", ("reason",), "Requests answered without a valid key or route."),
    Metric(
        "tokens_total", "counter", "tokens", ("pool", "tenant", "direction"),
        "Tokens of ended requests; direction is input or output.",
    ),
    Metric(
        "slo_violations_total", "counter", "requests", ("pool", "tier", "tenant"),
        "Requests that violated their SLO: served too late, failed, or left by their clients after they were due.",
    ),
    Metric(
        "slo_kept_total", "counter", "requests", ("pool", "tier", "tenant"),
        "Requests that met their SLO.",
    ),
    Metric(
        "slo_asked_total", "counter", "requests", ("pool", "tier", "tenant"),
        "Requests to which an SLO applies: met, violated, or refused with 429 or 503. Attainment is kept / asked.",
    ),
    Metric(
        "storm_refusals_total", "counter", "requests", ("pool", "tenant", "reason"),
        "Requests of keys that storm: refused without a look at shared state, or wrong ones without end. They have no "
        "ledger row and are not in requests_total.",
    ),
    Metric(
        "engine_usage_rejected_total", "counter", "answers", ("pool", "backend"),
        "Complete answers whose usage was missing or impossible; they are charged by the gateway's own count.",
    ),
    Metric(
        "engine_answers_rejected_total", "counter", "answers", ("pool", "backend", "cause"),
        "Answers of engines that were not passed on; cause is broken (not in the API's format) or foreign "
        "(belongs to another request).",
    ),
    Metric(
        "prefill_preemptions_total", "counter", "prompts", ("pool", "backend"),
        "Long prompts that were taken back from an engine for an interactive request that would have been late; they "
        "wait again and resume.",
    ),
    Metric(
        "queue_wait_seconds", "histogram", "seconds", ("pool", "tier", "outcome"),
        "Time in the queue, also of requests that stopped waiting; 0 if granted at once.", _WAIT,
    ),
    Metric(
        "time_to_first_token_seconds", "histogram", "seconds", ("pool", "tier"),
        "Time from arrival to the first token.", _FIRST,
    ),
    Metric(
        "time_per_output_token_seconds", "histogram", "seconds", ("pool", "tier"),
        "Mean time between the tokens of a completed request.", _TOKEN,
    ),
    Metric(
        "time_to_last_token_seconds", "histogram", "seconds", ("pool", "tier"),
        "Time from arrival to the last token of a completed request.", _TOTAL,
    ),
    Metric("open_requests", "gauge", "requests", (), "Open requests of this process."),
    Metric("waiting_requests", "gauge", "requests", (), "Open requests of this process that wait for a slot."),
    Metric("connections", "gauge", "connections", (), "Client connections of this process, including WebSockets."),
    Metric("connections_limit", "gauge", "connections", (), "Maximum number of client connections of this process."),
    Metric("websockets", "gauge", "connections", (), "Open WebSockets (consoles) of this process."),
    Metric("websockets_limit", "gauge", "connections", (), "Maximum number of WebSockets of this process."),
    Metric(
        "connections_refused_total", "counter", "connections", ("reason",),
        "Connections that the web server refused and closed before a request was handled: too many, too large or "
        "too slow.",
    ),
    Metric("upstream_connections", "gauge", "connections", (), "Connections from this process to engines."),
    Metric(
        "unstored_records", "gauge", "records", (),
        "Ledger records that this process keeps until they are stored in the database.",
    ),
    Metric(
        "clock_skew_seconds", "gauge", "seconds", ("process", "pool"),
        "How far the clock of this web process, or of a pool's leader, is ahead of the clock of Redis.",
    ),
    Metric("tasks", "gauge", "tasks", (), "asyncio tasks of this process: its own, and about two per open request."),
    Metric("state_available", "gauge", "", (), "1 while this process reaches Redis, else 0."),
    Metric(
        "state_refuses_writes", "gauge", "", (),
        "1 while Redis answers this process but refuses writes (such as out of memory, or a failed save), else 0.",
    ),
    Metric("redis_used_memory_bytes", "gauge", "bytes", (), "Memory that Redis uses, as it reports."),
    Metric(
        "redis_max_memory_bytes", "gauge", "bytes", (),
        "Memory that Redis may use (maxmemory); missing: no limit is set.",
    ),
    Metric(
        "redis_evicts", "gauge", "", (),
        "1 if Redis deletes keys when its memory is full (maxmemory-policy is not noeviction), so that state can be "
        "lost without an error; else 0. Missing: Redis does not say.",
    ),
    Metric(
        "home_disk_free_bytes", "gauge", "bytes", (),
        "Room left on the disk of QUARTERMASTER_HOME: with `make up` the database, Redis' file, logs and files.",
    ),
    Metric("home_disk_bytes", "gauge", "bytes", (), "Size of that disk."),
    Metric(
        "sqlite_bytes", "gauge", "bytes", (),
        "Size of the SQLite database in QUARTERMASTER_HOME with its log; missing where there is none.",
    ),
    Metric(
        "label_values_left_out", "gauge", "", ("label",),
        "Tenants that this process counts as other, and entitlements without gauges of their own: beyond the limits "
        "that QUARTERMASTER_METRICS_TENANTS and QUARTERMASTER_METRICS_ENTITLEMENTS set.",
    ),
    Metric(
        "snapshots_available", "gauge", "", (),
        "1 if the figures of pools were read from Redis at the last attempt, else 0.",
    ),
    Metric(
        "snapshot_age_seconds", "gauge", "seconds", ("pool",),
        "Age of the pool's figures; it grows while the pool has no leader. Beyond 15 s it is the pool's only gauge.",
    ),
    Metric("leader_epoch", "gauge", "", ("pool",), "Epoch of the pool's leader; it rises with each takeover."),
    Metric(
        "state_rebuilt_total", "counter", "", ("pool",),
        "How often the leader rewrote totals in Redis because they differed from the leases.",
    ),
    Metric(
        "state_lost_timestamp_seconds", "gauge", "seconds", ("pool",),
        "When the pool's data in Redis was found lost, Unix time; missing: never.",
    ),
    Metric(
        "ledger_unread", "gauge", "entries", ("pool",),
        "Entries of the ledger stream that could not be read and were set aside in Redis.",
    ),
    Metric("queue_depth", "gauge", "requests", ("pool",), "Requests waiting in the pool."),
    Metric("queue_oldest_seconds", "gauge", "seconds", ("pool",), "How long the oldest waiting request has waited."),
    Metric("running", "gauge", "sequences", ("pool",), "What leases run on engines: each answer or prompt is one."),
    Metric("slots", "gauge", "sequences", ("pool",), "Slots of ready backends: what can run at once."),
    Metric("kv_used_tokens", "gauge", "tokens", ("pool",), "KV cache reserved by leases; may be more than there is."),
    Metric("kv_capacity_tokens", "gauge", "tokens", ("pool",), "KV cache of ready backends."),
    Metric(
        "entitlement_weight", "gauge", "", ("pool", "entitlement"),
        "Weight of the entitlement, by which admission and ordering compare.",
    ),
    Metric(
        "entitlement_debt", "gauge", "", ("pool", "entitlement"),
        "Debt of the entitlement: above 0 it was served below its baseline, below 0 above it.",
    ),
    Metric(
        "entitlement_burst", "gauge", "", ("pool", "entitlement"),
        "Burst of the entitlement: how far it was recently served above its baseline.",
    ),
    Metric(
        "entitlement_share", "gauge", "", ("pool", "entitlement"),
        "Tokens that the entitlement had, as a multiple of its part of what its class had; 1 is its part.",
    ),
    Metric(
        "bucket_gap_tokens", "gauge", "tokens", ("pool", "entitlement"),
        "Tokens in the bucket beyond what ledger and leases allow, in the last minute that was compared.",
    ),
    Metric("backend_up", "gauge", "", ("pool", "backend"), "1 while the backend gets work, else 0."),
    Metric(
        "backend_asleep", "gauge", "", ("pool", "backend"),
        "1 while the backend sleeps and can be woken, or starts because its pool was asleep, else 0.",
    ),
    Metric(
        "pool_wakes_in_seconds", "gauge", "seconds", ("pool",),
        "Time until a sleeping pool is expected to serve; missing: it serves, or no request would wake it.",
    ),
    Metric("backend_running", "gauge", "sequences", ("pool", "backend"), "Likewise there.", of_backend="running"),
    Metric(
        "backend_engine_waiting", "gauge", "requests", ("pool", "backend"),
        "Requests in the engine's own queue, as it reports.", of_backend="engine_waiting",
    ),
    Metric(
        "backend_foreign_requests", "gauge", "requests", ("pool", "backend"),
        "Requests in the engine that were not granted by Quartermaster: the minimum of the last five scrapes.",
        of_backend="foreign",
    ),
    Metric(
        "backend_adapter_loaded", "gauge", "", ("pool", "backend", "adapter"),
        "1 if the engine lists the LoRA adapter, else 0; missing: unknown.",
    ),
    Metric(
        "backend_prefill_credit_tokens", "gauge", "tokens", ("pool", "backend"),
        "Limit on prompt tokens granted to the backend that have no first output token yet; 0: no limit.",
        of_backend="prefill_credit",
    ),
    Metric(
        "backend_speed_ratio", "gauge", "ratio", ("pool", "backend"),
        "Speed beside the fastest backend of its pool, by the times between tokens; missing: unknown.",
        of_backend="speed",
    ),
    Metric(
        "backend_kv_usage_ratio", "gauge", "ratio", ("pool", "backend"),
        "Share of the KV cache in use, as the engine reports, 0 to 1.", of_backend="kv_usage",
    ),
    Metric(
        "backend_output_tokens_per_second", "gauge", "tokens/s", ("pool", "backend"),
        "Output tokens per second, from the engine's counters.", of_backend="output_tokens_per_s",
    ),
    Metric(
        "backend_gpu_utilization_ratio", "gauge", "ratio", ("pool", "backend"),
        "GPU utilization, 0 to 1.", of_backend="gpu_util",
    ),
    Metric(
        "backend_gpu_memory_used_bytes", "gauge", "bytes", ("pool", "backend"),
        "GPU memory in use.", of_backend="gpu_mem_used_bytes",
    ),
    Metric(
        "backend_gpu_memory_total_bytes", "gauge", "bytes", ("pool", "backend"),
        "Total GPU memory.", of_backend="gpu_mem_total_bytes",
    ),
)  # fmt: skip

_CONNECTIONS = ("connections", "connections_limit", "websockets", "websockets_limit")
_PROCESS_GAUGES = frozenset(
    {"open_requests", "waiting_requests", "upstream_connections", "tasks", "unstored_records", "state_refuses_writes"}
)


class _Series:
    """Counts per bucket of one histogram, for one combination of labels."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0


class _Histogram:
    """The series of one histogram."""

    __slots__ = ("bounds", "labels_of", "series")

    def __init__(self, bounds: tuple[float, ...], labels_of: Callable[[Labels], Labels]) -> None:
        """``labels_of``: its labels of requests that ended alike."""
        self.bounds = bounds
        self.labels_of = labels_of
        self.series: dict[Labels, _Series] = {}

    def of(self, alike: Labels) -> _Series:
        labels = self.labels_of(alike)
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = _Series(self.bounds)
        return series


class _Alike:
    """What requests count for that ended alike: of one pool, tier and tenant, for one reason. One look-up finds all
    that a request adds to; the page adds up."""

    __slots__ = ("input_tokens", "kept", "missed", "output_tokens", "requests", "series", "turned_away")

    def __init__(self) -> None:
        self.requests = self.input_tokens = self.output_tokens = 0
        self.kept = self.missed = self.turned_away = 0
        self.series: list[_Series | None] = [None] * len(MEASURES)


class Metrics:
    """What this process counts; implements ``scheduling.gateway.ports.GatewayMetrics``.

    Counting happens on one thread, :meth:`render` may run on any.
    """

    def __init__(
        self,
        store: LiveStore | None = None,
        clock: Callable[[], float] = time.time,
        home: Path | None = None,
        max_tenants: int = MAX_TENANTS,
        max_entitlements: int = SHOWN,
    ) -> None:
        """``home``: whose disk is measured. ``max_tenants``, ``max_entitlements``: how many have series of their
        own."""
        self._home = home
        self._max_tenants = max_tenants
        self._other_tenants: set[str] = set()
        self._counters: dict[str, dict[Labels, int]] = {metric.name: {} for metric in TABLE if metric.kind == "counter"}
        self._alike: dict[Labels, _Alike] = {}
        self._histograms = {
            TTFT: _Histogram(_FIRST, lambda alike: alike[:2]),
            TTLT: _Histogram(_TOTAL, lambda alike: alike[:2]),
            TBT: _Histogram(_TOKEN, lambda alike: alike[:2]),
            QUEUE: _Histogram(_WAIT, lambda alike: (*alike[:2], alike[3])),
        }
        self._gauges: dict[str, float] = dict.fromkeys(_PROCESS_GAUGES, 0.0)
        self._skew_s: float | None = None
        self._connections: dict[str, float] = {}  # nothing where no server counts them
        self._state_available = 0.0
        self._tenants: dict[str, str] = {}
        of_backend = {metric.name: metric.of_backend for metric in TABLE if metric.of_backend}
        self._pools = PoolGauges(store, of_backend, clock, max_entitlements) if store is not None else None
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self._collect))
        for own in (ProcessCollector, PlatformCollector, GCCollector):
            own(registry=self._registry)

    def ended(self, record: LedgerRecord) -> None:
        """A request with a valid key reached its terminal state."""
        tenant = self._tenants.get(record.tenant) or self._label(record.tenant)
        labels: Labels = (record.pool, record.tier, tenant, record.outcome, record.reason)
        alike = self._alike.get(labels)
        if alike is None:
            alike = self._alike[labels] = _Alike()
        alike.requests += 1
        alike.input_tokens += record.input_tokens
        alike.output_tokens += record.output_tokens
        if record.slo_met is None:
            alike.turned_away += turned_away(record)
        elif record.slo_met:
            alike.kept += 1
        else:
            alike.missed += 1
        of_measure = alike.series
        for measure, value_ms in durations_ms(record):
            series = of_measure[measure]
            if series is None:
                series = of_measure[measure] = self._histograms[measure].of(labels)
            value = value_ms / 1000
            series.counts[bisect_left(series.bounds, value)] += 1
            series.total += value

    def rejected(self, reason: str, status: int) -> None:
        """A request without a valid key, or outside any route, was answered."""
        self._count("rejected_total", (reason,))

    def usage_rejected(self, pool: str, backend: str) -> None:
        """An engine's usage could not be true, or was missing."""
        self._count("engine_usage_rejected_total", (pool, backend))

    def answer_rejected(self, pool: str, backend: str, cause: str) -> None:
        """An engine's answer was not passed on."""
        self._count("engine_answers_rejected_total", (pool, backend, cause))

    def prefill_preempted(self, pool: str, backend: str) -> None:
        """A long prompt was taken back from an engine."""
        self._count("prefill_preemptions_total", (pool, backend))

    def storm_refused(self, pool: str, tenant: str, reason: str) -> None:
        """A request of a key that storms was refused without asking."""
        self._count("storm_refusals_total", (pool, self._tenants.get(tenant) or self._label(tenant), reason))

    def state_available(self, available: bool) -> None:
        """Redis became reachable or unreachable."""
        self._state_available = float(available)

    def gauge(self, name: str, value: float | None) -> None:
        """Sets a gauge of this process. Only the skew of its clock may be None: not known.

        Raises:
            KeyError: the name is not one of them.
        """
        if name == SKEW:
            self._skew_s = value
            return
        if name not in self._gauges or value is None:
            raise KeyError(f"{name!r} is not a gauge of a process: use {', '.join(sorted(_PROCESS_GAUGES))}")
        self._gauges[name] = value

    def connections(self, inside: int, most: int, sockets: int, most_sockets: int, refused: Mapping[str, int]) -> None:
        """What the server counts: connections, WebSockets, their limits, and those it refused, by reason."""
        self._connections = dict(zip(_CONNECTIONS, (inside, most, sockets, most_sockets), strict=True))
        self._counters["connections_refused_total"] = {(reason,): count for reason, count in refused.items()}

    def render(self) -> bytes:
        """The page for Prometheus (:data:`CONTENT_TYPE`). Takes milliseconds, and up to ``pool_gauges.FIRST_S``
        after a start: use a thread."""
        if self._pools is not None:
            self._pools.wanted()
        return generate_latest(self._registry)

    def close(self) -> None:
        """Ends the thread that reads snapshots."""
        if self._pools is not None:
            self._pools.close()

    def _count(self, name: str, labels: Labels) -> None:
        """Adds one to a counter of :data:`TABLE`."""
        counter = self._counters[name]
        counter[labels] = counter.get(labels, 0) + 1

    def _label(self, tenant: str) -> str:
        if len(self._tenants) >= self._max_tenants:
            self._other_tenants.add(tenant)
            return OTHER
        self._tenants[tenant] = tenant
        return tenant

    def _added_up(self) -> dict[str, dict[Labels, int]]:
        """The counters of requests that ended."""
        found: dict[str, dict[Labels, int]] = {
            name: {}
            for name in ("requests_total", "tokens_total", "slo_asked_total", "slo_kept_total", "slo_violations_total")
        }

        def add(name: str, labels: Labels, count: int) -> None:
            found[name][labels] = found[name].get(labels, 0) + count

        for labels, alike in list(self._alike.items()):
            pool, tier, tenant, outcome, _ = labels
            add("requests_total", labels, alike.requests)
            if outcome != Outcome.REFUSED:
                add("tokens_total", (pool, tenant, "input"), alike.input_tokens)
                add("tokens_total", (pool, tenant, "output"), alike.output_tokens)
            for name, count in (
                ("slo_asked_total", alike.kept + alike.missed + alike.turned_away),
                ("slo_kept_total", alike.kept),
                ("slo_violations_total", alike.missed),
            ):
                if count:
                    add(name, (pool, tier, tenant), count)
        return found

    def _collect(self) -> Iterator[Any]:
        histograms = {
            "queue_wait_seconds": self._histograms[QUEUE],
            "time_to_first_token_seconds": self._histograms[TTFT],
            "time_per_output_token_seconds": self._histograms[TBT],
            "time_to_last_token_seconds": self._histograms[TTLT],
        }
        gauges: Samples = {name: [((), value)] for name, value in list(self._gauges.items())}
        gauges |= {name: [((), value)] for name, value in self._connections.items()}
        gauges["state_available"] = [((), self._state_available)]
        if self._home is not None:
            gauges |= disk_gauges.samples(self._home)
        if self._pools is not None:
            gauges |= self._pools.samples()
            self._counters |= self._pools.counted()
        gauges.setdefault(LEFT_OUT, []).append((("tenant",), len(self._other_tenants)))
        if self._skew_s is not None:
            gauges.setdefault(SKEW, []).append((("web", ""), self._skew_s))
        counters = self._counters | self._added_up()
        for metric in TABLE:
            name = PREFIX + metric.name
            if metric.kind == "counter":
                counter = CounterMetricFamily(name, metric.help, labels=metric.labels)
                for labels, count in list(counters[metric.name].items()):
                    counter.add_metric(labels, count)
                yield counter
            elif metric.kind == "histogram":
                yield _histogram_family(name, metric, histograms[metric.name])
            else:
                gauge = GaugeMetricFamily(name, metric.help, labels=metric.labels)
                for labels, value in gauges.get(metric.name, ()):
                    gauge.add_metric(labels, value)
                yield gauge


class _Families(Collector):
    """Adapts a generator to the client library's registry."""

    def __init__(self, collect: Callable[[], Iterable[Any]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Any]:
        return self._collect()

    def describe(self) -> Iterable[Any]:
        return []


def _histogram_family(name: str, metric: Metric, histogram: _Histogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, metric.help, labels=metric.labels)
    bounds = [f"{bound:g}" for bound in histogram.bounds] + ["+Inf"]
    for labels, series in list(histogram.series.items()):
        so_far, buckets = 0, []
        for bound, count in zip(bounds, list(series.counts), strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric(labels, buckets, series.total)
    return family


def make_metrics(redis_url: str | None = None) -> Metrics:
    """The metrics of a web process, as the shell plugs them in."""
    url = settings.QUARTERMASTER_REDIS_URL if redis_url is None else redis_url
    env = settings.ENV
    return Metrics(
        LiveStore(url) if url else None,
        home=settings.HOME,
        max_tenants=env.metrics_tenants,
        max_entitlements=env.metrics_entitlements,
    )
