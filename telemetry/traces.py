"""Traces: one per request, made from its ledger record after it ended, sent by OTLP/HTTP
(``docs/reference/traces.md``).

All times are in the record, so nothing is measured a second time and a gateway does nothing for it. Loaded only where
traces are on. What a collector does not take in time is dropped and counted, never waited for.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
    OTEL_RESOURCE_ATTRIBUTES,
    OTEL_SERVICE_NAME,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.ledger.tracing import DISPATCH, span_id, trace_of
from scheduling.core.outcomes import Outcome

log = logging.getLogger(__name__)

QUEUE = 16_384  # spans that wait to be sent, unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise: about 10 MB
TIMEOUT_S = 5.0  # one export, its retries included, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise
_SCOPE = InstrumentationScope("quartermaster")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
Attributes = Mapping[str, str | int | float | bool | Sequence[str]]
EngineOf = Callable[[str], str | None]  # the kind of a pool's engines; None where it is not known


class Tally(SpanExporter):
    """An exporter that counts, and says once when spans begin to be lost and once when they arrive again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False
        self.closing = False
        self.handled = 0  # taken from the queue, whatever became of them
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        if not (self.closing and self._failing):  # at the end nobody waits for a collector that is away
            try:
                result = self._exporter.export(spans)
            except Exception as error:
                log.debug("traces: %s", error)
        self.handled += len(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self.lost += len(spans)
        if failed and not self._failing:
            log.warning("traces cannot be sent; what waits longer than there is room for is dropped")
        elif self._failing and not failed:
            log.info("traces are sent again; %d spans were lost", self.lost)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Traces:
    """Makes spans of ledger records and hands them to the sender's queue. Never blocks, never raises."""

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Resource,
        engine_of: EngineOf,
        limit: int = QUEUE,
        delay_ms: float | None = None,
    ) -> None:
        self._tally = Tally(exporter)
        self._resource = resource
        self._engine_of = engine_of
        self._limit = limit
        # its own limit is never reached: it would drop without our knowing
        self._sender = BatchSpanProcessor(
            self._tally, max_queue_size=max(limit, 1024), schedule_delay_millis=delay_ms, max_export_batch_size=512
        )
        self._given = 0
        self.dropped = 0  # for want of room

    @property
    def waiting(self) -> int:
        """Spans that were neither sent nor lost yet."""
        return self._given - self._tally.handled

    @property
    def lost(self) -> int:
        """Spans that no collector took."""
        return self.dropped + self._tally.lost

    def take(self, records: Iterable[LedgerRecord]) -> None:
        """The traces of ended requests; those whose gateway has traces off, or whose client wants none, have none."""
        for record in records:
            if not record.trace:
                continue
            try:
                spans = spans_of(record, self._resource, self._engine_of(record.pool))
            except Exception:
                log.exception("request %s: its trace could not be made", record.request_id)
                continue
            if self.waiting + len(spans) > self._limit:
                self.dropped += len(spans)
                continue
            self._given += len(spans)
            for span in spans:
                self._sender.on_end(span)

    def flush(self) -> None:
        """Sends what waits now; returns when it was tried."""
        self._sender.force_flush()

    def close(self) -> None:
        """Sends what waits, if a collector is there."""
        self._tally.closing = True
        self._sender.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry's is not annotated


def make_traces(engine_of: EngineOf, environ: Mapping[str, str] = os.environ) -> Traces:
    """As the standard ``OTEL_*`` variables say; of its own it knows the queue's size and a time limit."""
    # they repeat themselves once per batch; Tally says it once
    for name in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    timeout = environ.get(OTEL_EXPORTER_OTLP_TRACES_TIMEOUT) or environ.get(OTEL_EXPORTER_OTLP_TIMEOUT)
    exporter = OTLPSpanExporter(timeout=None if timeout else TIMEOUT_S)
    own = {"service.instance.id": f"{socket.gethostname()}-{os.getpid()}"}
    if not environ.get(OTEL_SERVICE_NAME) and "service.name=" not in environ.get(OTEL_RESOURCE_ATTRIBUTES, ""):
        own["service.name"] = "quartermaster"
    try:
        limit = max(512, int(environ.get(OTEL_BSP_MAX_QUEUE_SIZE, QUEUE)))
    except ValueError:
        limit = QUEUE
    traces = Traces(exporter, Resource.create(own), engine_of, limit)
    atexit.register(traces.close)
    return traces


def spans_of(record: LedgerRecord, resource: Resource, engine: str | None) -> list[ReadableSpan]:
    """The spans of one request, the whole first: names, times and figures of the ledger, never a text. ``engine``: the
    kind of its pool's engines; without it no span names a provider."""
    trace = trace_of(record.request_id, record.trace)
    if not trace.sampled:
        return []

    def context(name: str) -> SpanContext:
        return SpanContext(trace.trace_id, span_id(record.request_id, name), is_remote=False, trace_flags=_SAMPLED)

    def make(
        name: str, title: str, parent: SpanContext | None, start_s: float, end_s: float, attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL, status: Status | None = None,
    ) -> ReadableSpan:  # fmt: skip
        start_ns = int(start_s * 1e9)
        return ReadableSpan(
            title, context(name), parent, resource, attributes, kind=kind, status=status or Status(),
            start_time=start_ns, end_time=max(start_ns, int(end_s * 1e9)), instrumentation_scope=_SCOPE,
        )  # fmt: skip

    client = None
    if trace.parent_id is not None:
        client = SpanContext(trace.trace_id, trace.parent_id, is_remote=True, trace_flags=_SAMPLED)
    provider = {} if engine is None else {"gen_ai.provider.name": engine}
    whole, done_s = context("request"), record.done_s
    granted_s, first_s = record.granted_s, record.first_token_s
    spans = [
        make(
            "request", f"{trace.operation} {record.model}", client, record.received_s, done_s,
            {**provider, **_of_request(record, trace.operation, engine)}, SpanKind.SERVER, _status(record),
        )
    ]  # fmt: skip
    until_s = next((s for s in (record.queued_s, granted_s) if s is not None), done_s)
    spans.append(make("admit", "admit", whole, record.received_s, until_s, _of_admission(record)))
    if record.queued_s is not None:
        spans.append(make("queue", "queue", whole, record.queued_s, granted_s if granted_s else done_s, {}))
    if granted_s is not None:
        dispatch = context(DISPATCH)
        about = {**provider, **_of_dispatch(record)}
        spans.append(make(DISPATCH, DISPATCH, whole, granted_s, done_s, about, SpanKind.CLIENT, _status(record)))
        if first_s is not None:
            spans.append(make("first_token", "first_token", dispatch, granted_s, first_s, {}))
            spans.append(make("end", "end", dispatch, first_s, done_s, {}))
    return spans


def _status(record: LedgerRecord) -> Status:
    if record.outcome == Outcome.FAILED or (record.outcome == Outcome.REFUSED and record.status >= 500):
        return Status(StatusCode.ERROR, record.reason)
    return Status()


def _of_request(record: LedgerRecord, operation: str, engine: str | None) -> Attributes:
    attributes: dict[str, str | int | float | bool | Sequence[str]] = {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": record.model,
        "http.response.status_code": record.status,
        "quartermaster.request_id": record.request_id,
        "quartermaster.pool": record.pool,
        "quartermaster.tenant": record.tenant,
        "quartermaster.tier": record.tier,
        "quartermaster.entitlement": record.entitlement,
        "quartermaster.key": record.key_id,
        "quartermaster.gateway": record.gateway,
        "quartermaster.outcome": record.outcome,
        "quartermaster.reason": record.reason,
        "quartermaster.streamed": record.streamed,
    }
    if engine is not None:
        attributes["gen_ai.system"] = engine  # the older name of the provider, which many tools still look for
    if record.output_bound:
        attributes["gen_ai.request.max_tokens"] = record.output_bound
    if record.input_tokens or record.output_tokens:
        attributes["gen_ai.usage.input_tokens"] = record.input_tokens
        attributes["gen_ai.usage.output_tokens"] = record.output_tokens
    if record.outcome == Outcome.COMPLETED:
        attributes["gen_ai.response.finish_reasons"] = (record.reason,)
    else:
        attributes["error.type"] = record.reason
    if record.slo_met is not None:
        attributes["quartermaster.slo_met"] = record.slo_met
    return attributes


def _of_admission(record: LedgerRecord) -> Attributes:
    attributes: dict[str, str | int | float] = {
        "quartermaster.estimate.input_tokens": record.input_tokens_est,
        "quartermaster.estimate.output_tokens": record.output_tokens_est,
    }
    if record.admission:
        attributes["quartermaster.admission"] = record.admission
    return attributes


def _of_dispatch(record: LedgerRecord) -> Attributes:
    return {
        "gen_ai.request.model": record.model,
        "quartermaster.backend": record.backend,
        "quartermaster.policy": record.policy,
        "quartermaster.why": record.why,
        "quartermaster.attempts": record.attempts,
        "quartermaster.interruptions": record.interruptions,
    }
