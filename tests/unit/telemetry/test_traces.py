"""Traces of ledger records, at a real OTLP/HTTP receiver."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from scheduling.core.ledger.tracing import CHAT, engine_traceparent, span_id, trace_line, trace_of
from telemetry.traces import Traces, make_traces
from tests.support.otlp_receiver import Receiver, plain, receiving
from tests.support.telemetry_world import NOW, record, refused

CLIENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LINE = trace_line(CHAT, CLIENT)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def traces(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
    monkeypatch.setattr("atexit.register", lambda _: None)
    made = make_traces({"llama": "sglang"}.get)
    yield made
    receiver.answering.set()
    made.close()


def moment(span: Span) -> tuple[float, float]:
    return round(span.start_time_unix_nano / 1e9 - NOW, 3), round(span.end_time_unix_nano / 1e9 - NOW, 3)


def test_a_request_is_one_trace_with_a_span_for_each_of_its_parts(traces: Traces, receiver: Receiver) -> None:
    made = record(1, trace=CHAT, request_id="req_1")
    traces.take([made, record(2, trace=CHAT, request_id="req_2")])
    traces.flush()
    spans = receiver.of("req_1")
    assert set(spans) == {"request", "admit", "queue", "dispatch", "first_token", "end"}
    whole = spans["request"]
    assert (whole.name, whole.kind) == (f"chat {made.model}", Span.SPAN_KIND_SERVER)
    assert spans["dispatch"].kind == Span.SPAN_KIND_CLIENT
    assert whole.parent_span_id == b""
    for name in ("admit", "queue", "dispatch"):
        assert spans[name].parent_span_id == whole.span_id, name
    for name in ("first_token", "end"):
        assert spans[name].parent_span_id == spans["dispatch"].span_id, name
    assert len({s.span_id for s in spans.values()}) == 6
    assert {name: moment(s) for name, s in spans.items()} == {
        "request": (-3.0, 0.0), "admit": (-3.0, -3.0), "queue": (-3.0, -2.9), "dispatch": (-2.9, 0.0),
        "first_token": (-2.9, -2.5), "end": (-2.5, 0.0),
    }  # fmt: skip
    assert receiver.of("req_2")["request"].trace_id != whole.trace_id
    assert receiver.resources[0]["service.name"] == "quartermaster"


def test_the_whole_carries_the_names_that_tools_know_and_the_story_of_the_ledger(
    traces: Traces, receiver: Receiver
) -> None:
    made = record(1, trace=CHAT, request_id="req_1")
    traces.take([made])
    traces.flush()
    spans = receiver.of("req_1")
    found = plain(spans["request"].attributes)
    assert {k: v for k, v in found.items() if k.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "sglang", "gen_ai.system": "sglang",
        "gen_ai.request.model": made.model, "gen_ai.request.max_tokens": made.output_bound,
        "gen_ai.usage.input_tokens": made.input_tokens, "gen_ai.usage.output_tokens": made.output_tokens,
        "gen_ai.response.finish_reasons": [made.reason],
    }  # fmt: skip
    for name in ("tenant", "pool", "tier", "entitlement", "outcome", "reason"):
        assert found[f"quartermaster.{name}"] == getattr(made, name), name
    assert found["http.response.status_code"] == made.status
    there = plain(spans["dispatch"].attributes)
    assert (there["quartermaster.backend"], there["quartermaster.policy"], there["quartermaster.why"]) == (
        made.backend,
        made.policy,
        made.why,
    )
    assert there["gen_ai.provider.name"] == "sglang"
    assert {s.status.code for s in spans.values()} == {Status.STATUS_CODE_UNSET}


def test_the_provider_is_the_pools_kind_of_engine_and_is_left_out_where_the_pool_is_gone(
    traces: Traces, receiver: Receiver
) -> None:
    traces.take([record(1, trace=CHAT, request_id="req_1", pool="deleted")])
    traces.flush()
    for name, span in receiver.of("req_1").items():
        assert not {"gen_ai.provider.name", "gen_ai.system"} & plain(span.attributes).keys(), name


def test_a_refused_request_has_no_more_than_its_admission_and_a_failed_one_is_an_error(
    traces: Traces, receiver: Receiver
) -> None:
    traces.take(
        [
            refused(1, trace=CHAT, request_id="req_1"),
            refused(2, trace=CHAT, request_id="req_2", reason="no_backend", status=503),
            record(3, trace=CHAT, request_id="req_3", outcome="failed", reason="backend_lost"),
            refused(4, trace=CHAT, request_id="req_4", reason="queue_timeout", queued_s=NOW - 2.0),
        ]
    )
    traces.flush()
    assert set(receiver.of("req_1")) == {"request", "admit"}
    assert plain(receiver.of("req_1")["request"].attributes)["error.type"] == "concurrency"
    codes = [receiver.of(f"req_{n}")["request"].status.code for n in (1, 2, 3)]
    assert codes == [Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR, Status.STATUS_CODE_ERROR]
    gave_up = receiver.of("req_4")
    assert set(gave_up) == {"request", "admit", "queue"}
    assert moment(gave_up["queue"]) == (-2.0, 0.0)


def test_the_clients_trace_is_continued_and_its_wish_not_to_be_recorded_obeyed(
    traces: Traces, receiver: Receiver
) -> None:
    traces.take(
        [
            record(1, trace=LINE, request_id="req_1"),
            record(2, trace=LINE[:-1] + "0", request_id="req_2"),
            record(3, trace="", request_id="req_3"),
        ]
    )
    traces.flush()
    whole = receiver.of("req_1")["request"]
    assert whole.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert whole.parent_span_id.hex() == "00f067aa0ba902b7"
    assert {plain(s.attributes).get("quartermaster.request_id") for s in receiver.spans} == {"req_1", None}
    assert len(receiver.spans) == 6


def test_the_engine_is_told_the_span_that_the_worker_writes_later(traces: Traces, receiver: Receiver) -> None:
    for line in (CHAT, LINE):
        traces.take([record(1, trace=line, request_id=f"req_{len(line)}")])
        traces.flush()
        told = engine_traceparent(f"req_{len(line)}", line).split("-")
        dispatch = receiver.of(f"req_{len(line)}")["dispatch"]
        assert told == ["00", dispatch.trace_id.hex(), dispatch.span_id.hex(), "01"]
    assert engine_traceparent("req_1", LINE[:-1] + "0").endswith("-00")


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"00", CLIENT.upper(), CLIENT + b"-x", CLIENT[:-1], b"ff" + CLIENT[2:], b"00-" + b"0" * 32 + CLIENT[35:],
        CLIENT[:36] + b"0" * 16 + b"-01", CLIENT + b" ", CLIENT + b"\r\nx: y", b"x" * 5000,
        b"cc" + CLIENT[2:] + b"-" * 200,
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_dropped(wrong: bytes) -> None:
    assert trace_line(CHAT, wrong) == CHAT


def test_a_later_version_is_read_as_the_known_one() -> None:
    assert trace_line(CHAT, b"cc" + CLIENT[2:] + b"-more") == LINE


@given(st.binary(max_size=80), st.text(max_size=30))
def test_whatever_a_client_sends_ids_are_valid_and_lines_are_one_line(sent: bytes, request_id: str) -> None:
    line = trace_line(CHAT, sent)
    assert len(line) <= 70
    assert line.isprintable()
    trace = trace_of(request_id, line)
    assert 0 < trace.trace_id < 2**128
    assert 0 < span_id(request_id, "x") < 2**64


def test_a_collector_that_hangs_holds_nobody_up_and_memory_is_bounded(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything up to the end happens while the collector has not answered once."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2000")
    monkeypatch.setattr("atexit.register", lambda _: None)
    receiver.answering.clear()
    traces = make_traces(lambda _: "vllm")
    records = [record(n, trace=CHAT, request_id=f"req_{n}") for n in range(1000)]
    traces.take(records)
    tracemalloc.start()
    try:
        for _ in range(5):
            traces.take(records)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert not receiver.spans
    assert 2000 - 6 <= traces.waiting <= 2000
    assert traces.dropped == 6 * 6000 - traces.waiting
    assert grown < 2_000_000
    receiver.answering.set()
    traces.close()
    assert len(receiver.spans) + traces.dropped == 6 * 6000


def test_a_collector_that_is_away_is_one_line_and_its_return_another(
    traces: Traces, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    receiver.status = 400
    for n in range(4):
        traces.take([record(n, trace=CHAT)])
        traces.flush()
    receiver.status = 200
    traces.take([record(9, trace=CHAT, request_id="req_9")])
    traces.flush()
    told = [r.getMessage() for r in caplog.records if "trace" in r.getMessage()]
    assert len(told) == 2
    assert "24 spans were lost" in told[1]
    assert "request" in receiver.of("req_9")
    assert (traces.lost, traces.waiting) == (24, 0)


def test_at_the_end_nobody_waits_for_a_collector_that_is_away(traces: Traces, receiver: Receiver) -> None:
    receiver.status = 400
    traces.take([record(0, trace=CHAT)])
    traces.flush()
    asked = receiver.requests
    traces.take([record(n, trace=CHAT) for n in range(50)])
    traces.close()
    assert receiver.requests <= asked + 1, "at most an export that had begun"
    assert traces.waiting == 0
