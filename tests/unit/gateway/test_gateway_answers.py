"""What every ending tells the client: statuses, bodies, retry advice, rate-limit headers, and the table of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduling.core.outcomes import ENDINGS, Outcome, Reason
from scheduling.core.types import EntitlementSpec, EntitlementState
from scheduling.gateway.answers.dialects import MESSAGES, OPENAI, RESPONSES, Dialect
from scheduling.gateway.errors import Refusal, error_event, render, table
from scheduling.gateway.headers import MAX_RETRY_S, Limits, duration, retry_after
from tests.support.gateway_world import TIER

FIELDS: dict[str, Any] = {
    "state": "pending", "model": "m", "detail": "It is wrong.", "what": "body", "limit": 5, "input": 3, "output": 4,
    "inflight": 2, "need": 9, "waited_s": 1.5, "wakes_s": 20.0, "period": "day", "used": 7, "left": "2h0m0s",
    "original": "req_1", "how": "stop", "of": "key", "more": "", "currency": "EUR",
    "most": "The context",
}  # fmt: skip
ENDED = [r for r in Reason if ENDINGS[r].outcome is not Outcome.COMPLETED]


@pytest.mark.parametrize("reason", ENDED)
def test_every_reason_has_an_answer_in_the_shape_clients_know(reason: Reason) -> None:
    answer = render(Refusal(reason, **FIELDS))
    headers = dict(answer.headers)
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == reason.value
    assert error["message"]
    assert "{" not in error["message"]
    assert answer.status == ENDINGS[reason].status
    assert headers[b"x-quartermaster-reason"] == reason.value.encode()
    assert int(headers[b"content-length"]) == len(answer.body)
    retryable = ENDINGS[reason].retry and (answer.status in (408, 409, 429) or answer.status >= 500)
    assert (b"retry-after-ms" in headers) == retryable
    assert (headers.get(b"x-should-retry") == b"false") == (not ENDINGS[reason].retry)


def test_waiting_that_cannot_help_is_not_advised() -> None:
    headers = dict(render(Refusal(Reason.TOKEN_BUDGET, need=5, retry_s=None)).headers)
    assert headers[b"x-should-retry"] == b"false"
    assert b"retry-after" not in headers


def test_an_error_event_is_one_frame_whatever_it_says() -> None:
    event = error_event(Reason.UNKNOWN_MODEL, model="a\n\ndata: [DONE]\r\n\u2028\x00")
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event


@pytest.mark.parametrize("dialect", [OPENAI, MESSAGES, RESPONSES])
@pytest.mark.parametrize("reason", [r for r in ENDED if ENDINGS[r].outcome is not Outcome.REFUSED])
def test_the_last_event_of_a_broken_stream_is_a_whole_sentence(reason: Reason, dialect: Dialect) -> None:
    data = json.loads(dialect.event(reason, "req_1", 3).partition(b"data: ")[2])
    message = data["message"] if "message" in data else data["error"]["message"]
    assert message.endswith(".")
    assert "{" not in message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, b"0s"), (0, b"0s"), (0.2, b"1s"), (1, b"1s"), (59.5, b"1m0s"), (360, b"6m0s"), (7205, b"2h0m5s")],
)
def test_resets_are_written_as_clients_read_them(seconds: float, text: bytes) -> None:
    assert duration(seconds) == text


def test_retry_times_spread_by_a_quarter_and_end_at_two_minutes() -> None:
    assert dict(retry_after(10, 0.0))[b"retry-after-ms"] == b"7500"
    assert dict(retry_after(10, 0.999999))[b"retry-after-ms"] == b"12499"
    assert dict(retry_after(10, 0.5))[b"retry-after"] == b"10"
    assert dict(retry_after(0, 0.5))[b"retry-after"] == b"1"
    assert int(dict(retry_after(1e9))[b"retry-after"]) == MAX_RETRY_S
    assert len({dict(retry_after(10))[b"retry-after-ms"] for _ in range(50)}) > 10


def test_limits_are_those_of_the_entitlement() -> None:
    spec = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 100.0, 1000.0, 0, 4)
    headers = dict(Limits(spec).render(3, 400.0))
    assert headers == {
        b"x-ratelimit-limit-requests": b"4",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"0s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"400",
        b"x-ratelimit-reset-tokens": b"6s",
    }
    over = dict(Limits(spec).render(9, None))
    assert over[b"x-ratelimit-remaining-requests"] == b"0"
    assert over[b"x-ratelimit-reset-requests"] == b"1s"
    assert b"x-ratelimit-limit-tokens" not in over


def test_without_a_token_budget_the_tokens_are_those_that_requests_in_flight_may_have() -> None:
    spec = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)
    headers = dict(Limits(spec, 8192).render(3, None))
    assert headers[b"x-ratelimit-limit-tokens"] == b"32768"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"8192"
    assert headers[b"x-ratelimit-reset-tokens"] == b"0s"
    full = dict(Limits(spec, 8192).render(5, None))
    assert (full[b"x-ratelimit-remaining-tokens"], full[b"x-ratelimit-reset-tokens"]) == (b"0", b"1s")


def test_the_table_of_endings_is_current() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
    assert page.read_text() == table(), "run: python -m scheduling.gateway.errors > docs/reference/errors.md"
