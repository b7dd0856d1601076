"""How long clients say that they wait: who would be answered too late goes last, and nobody gains by a short time."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.deadline import client_due_s, few_tokens
from scheduling.core.estimate.tokens import TokenCalibration
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.contracts import RequestQueue
from scheduling.core.policies.rounds import Round
from scheduling.core.types import BackendView, PoolView, QueuedRequest, ServiceClass
from scheduling.gateway.entry.guard import CLIENT_TIMEOUT, CLIENT_TIMEOUTS, ROUTE_TIMEOUT, Head
from scheduling.gateway.estimate.estimates import make_estimate, make_queued
from tests.unit.gateway.test_gateway_prepare import ACCESS, POOL, chat

TOKEN_S = 0.02
VIEW = PoolView({"b1": BackendView("b1", 8, 100_000, prefill_per_s=8_000.0)}, token_s=TOKEN_S)


@pytest.mark.parametrize("name", CLIENT_TIMEOUTS)
@pytest.mark.parametrize(
    ("said", "believed"),
    [
        (b"5", 5.0), (b"2.5", 2.5), (b"599", 599.0), (b"600", None), (b"600.0", None), (b"0", None), (b"-3", None),
        (b"None", None), (b"", None), (b"nan", None), (b"inf", None), (b"1e400", None), (b"5" * 4000, None),
    ],
)  # fmt: skip
def test_what_is_no_time_or_the_sdks_default_is_not_said_and_refuses_nothing(
    name: bytes, said: bytes, believed: float | None
):
    head = Head([(name, said)], 10_000)
    assert (head.hints or {}).get(CLIENT_TIMEOUT) == believed


@pytest.mark.parametrize(
    ("said", "believed"),
    [(b"15000", 15.0), (b"250", 0.25), (b"600000", None), (b"0", None), (b"-1", None), (b"15s", None), (b"nan", None)],
)
def test_a_proxys_timeout_is_believed_like_a_clients(said: bytes, believed: float | None):
    head = Head([(ROUTE_TIMEOUT, said)], 10_000)
    assert (head.hints or {}).get(ROUTE_TIMEOUT) == believed


def queued(timeout_s: float | None, route_s: float | None = None, **body: object) -> QueuedRequest:
    prepared = chat(max_tokens=200, **body)
    estimate = make_estimate(prepared, POOL, TokenCalibration())
    said = {CLIENT_TIMEOUT: timeout_s, ROUTE_TIMEOUT: route_s}
    hints = {name: value for name, value in said.items() if value is not None} or None
    return make_queued("r", 1000.0, ACCESS, prepared, estimate, hints, "gw")


def test_a_stream_has_to_begin_before_its_client_goes_and_a_whole_answer_to_be_there():
    stream, whole, silent = queued(5.0, stream=True), queued(5.0), queued(None)
    assert (stream.leaves_s, stream.leaves_tokens) == (1005.0, 0.0)
    assert whole.leaves_s == 1005.0
    assert 0 < whole.leaves_tokens <= whole.output_tokens
    assert client_due_s(whole, TOKEN_S) == 1005.0 - TOKEN_S * whole.leaves_tokens
    assert client_due_s(silent, TOKEN_S) == float("inf")
    assert [stream.ttft_deadline_s, stream.hint_deadline_s] == [silent.ttft_deadline_s, silent.hint_deadline_s]


def test_a_stream_that_a_proxy_breaks_off_has_to_be_whole_by_then():
    stream, whole = queued(None, 15.0, stream=True), queued(None, 15.0)
    assert stream.leaves_s == whole.leaves_s == 1015.0
    assert stream.leaves_tokens == whole.leaves_tokens > 0


def test_of_a_client_and_a_proxy_the_one_counts_that_leaves_sooner():
    hasty, cut = queued(5.0, 15.0, stream=True), queued(60.0, 15.0, stream=True)
    assert (hasty.leaves_s, hasty.leaves_tokens) == (1005.0, 0.0)
    assert cut.leaves_s == 1015.0
    assert cut.leaves_tokens > 0


def test_an_answer_may_well_be_as_short_as_one_in_four():
    estimate = make_estimate(chat(max_tokens=200), POOL, TokenCalibration())
    known = dataclasses.replace(
        estimate, output_lengths=(10.0, 40.0, 400.0), output_probabilities=(0.2, 0.3, 0.5), output_tokens=214.0
    )
    assert few_tokens(known) == 40.0
    assert few_tokens(dataclasses.replace(known, output_lengths=(), output_probabilities=())) == 107.0


# --- what the order makes of it

BASE = QueuedRequest(
    id="r", seq=0, arrival_s=0.0, entitlement="e", tenant="t", tier="standard", rank=1, weight=30.0,
    service_class=ServiceClass.ELASTIC, input_tokens=800, output_bound=400, output_tokens=100.0, kv_tokens=1200,
    ttft_deadline_s=20.0,
)  # fmt: skip


def request(name: str, seq: int, **changes: object) -> QueuedRequest:
    return dataclasses.replace(BASE, id=name, entitlement=name, tenant=name, seq=seq, **changes)  # type: ignore[arg-type]


def order(queue: RequestQueue, now_s: float) -> list[str]:
    out = []
    while (chosen := queue.select(Round(VIEW, lambda r: True), now_s)) is not None:
        out.append(chosen.id)
    return out


def filled(*requests: QueuedRequest, policy: str = "unified") -> RequestQueue:
    queue = make_named(policy, {}).queue()
    for each in requests:
        queue.push(each, each.arrival_s)
    return queue


def test_who_would_be_answered_after_its_client_went_is_served_last():
    hasty = request("hasty", 0, leaves_s=5.0, leaves_tokens=150.0)  # 3 s of tokens
    stream = request("stream", 1, leaves_s=5.0)
    patient = request("patient", 2)
    assert order(filled(hasty, stream, patient), 1.0) == ["hasty", "stream", "patient"], "in time"
    assert order(filled(hasty, stream, patient), 2.5) == ["stream", "patient", "hasty"]
    assert order(filled(hasty, stream, patient), 6.0) == ["patient", "hasty", "stream"]


def test_no_lower_tier_gives_way_for_somebody_whose_client_would_be_gone():
    """A request that is late for its own tier goes first, and those of spot that wait are relegated for it."""
    low = [request(f"low{n}", n + 1, service_class=ServiceClass.SPOT, ttft_deadline_s=60.0) for n in range(3)]
    owner = request("owner", 0, service_class=ServiceClass.GUARANTEED, ttft_deadline_s=1.0)
    gone = dataclasses.replace(owner, leaves_s=1.0, ttft_deadline_s=50.0)
    assert order(filled(owner, *low, policy="relegate+edf"), 2.0) == ["owner", "low0", "low1", "low2"]
    assert order(filled(gone, *low, policy="relegate+edf"), 2.0) == ["low0", "low1", "low2", "owner"]


TIMES = st.none() | st.tuples(st.floats(0.1, 60.0), st.floats(0.0, 400.0))


@given(times=st.lists(TIMES, min_size=2, max_size=12), now_s=st.floats(0.0, 15.0))
def test_whatever_time_a_client_says_nobody_else_is_served_later_for_it(
    times: list[tuple[float, float] | None], now_s: float
):
    honest = [request(f"r{n}", n, ttft_deadline_s=20.0 + n) for n in range(len(times))]
    said = [
        each if time is None else dataclasses.replace(each, leaves_s=time[0], leaves_tokens=time[1])
        for each, time in zip(honest, times, strict=True)
    ]
    before, after = order(filled(*honest), now_s), order(filled(*said), now_s)
    silent = [each.id for each in said if each.leaves_s is None]
    assert all(after.index(name) <= before.index(name) for name in silent)
    assert sorted(after) == sorted(before), "nobody is lost"
