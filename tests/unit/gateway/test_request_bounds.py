"""What is one more than a bound is refused by name, and the bound itself is not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from scheduling.core.ledger.money import MAX_PICOS
from scheduling.engines import figures
from scheduling.engines.client import MAX_BODY_BYTES, EngineProtocolError, fetch
from scheduling.gateway.bodies.checks import check_media
from scheduling.gateway.bodies.media import MAX_MEDIA
from scheduling.gateway.bodies.openai_types import MAX_MESSAGES, MAX_TOOLS
from scheduling.gateway.engine.attempts import AttemptCounts
from scheduling.gateway.errors import Refusal
from scheduling.state.types import MAX_PAUSE_S
from scheduling.state.usage import PoolUsage, period_names
from tests.unit.gateway.test_gateway_prepare import USER, chat

NOW_S = 1_795_000_000.0


@pytest.mark.parametrize(
    ("field", "one", "most"),
    [
        ("messages", USER, MAX_MESSAGES),
        ("tools", {"type": "function", "function": {"name": "look", "parameters": {}}}, MAX_TOOLS),
    ],
)
def test_as_many_as_the_bound_are_taken_and_one_more_is_refused(field: str, one: dict[str, Any], most: int) -> None:
    chat(**{field: [one] * most})
    with pytest.raises(Refusal) as refused:
        chat(**{field: [one] * (most + 1)})
    assert refused.value.status == 400
    assert field in f"{refused.value.param} {refused.value.fields}"


def test_one_picture_more_than_the_bound_is_refused() -> None:
    check_media(MAX_MEDIA, "messages")
    with pytest.raises(Refusal) as refused:
        check_media(MAX_MEDIA + 1, "messages")
    assert refused.value.status == 400


@pytest.mark.parametrize(("asked_s", "paused_s"), [(5.0, 5.0), (MAX_PAUSE_S + 1, MAX_PAUSE_S), (1e9, MAX_PAUSE_S)])
def test_a_pause_that_an_engine_asks_for_is_shortened_to_the_bound(asked_s: float, paused_s: float) -> None:
    assert AttemptCounts().refused("demo", "gpu-1", "busy", asked_s) == paused_s


@pytest.mark.parametrize("value", [-1.0, figures.MAX_REQUESTS + 1.0, float("nan"), float("inf")])
def test_requests_that_no_engine_can_run_are_not_believed(value: float) -> None:
    assert figures.plausible("running", float(figures.MAX_REQUESTS), figures.MAX_REQUESTS) == figures.MAX_REQUESTS
    with pytest.raises(EngineProtocolError, match="cannot be"):
        figures.plausible("running", value, figures.MAX_REQUESTS)


@pytest.mark.parametrize(
    ("text", "believed"),
    [
        ("12", 12.0),
        (str(MAX_PICOS), float(MAX_PICOS)),
        (str(MAX_PICOS * 10), 0.0),
        ("-1", 0.0),
        ("1e40", 0.0),
        ("", 0.0),
    ],
)
def test_spending_that_no_requests_can_have_caused_counts_for_nothing(text: str, believed: float) -> None:
    day, month = period_names(NOW_S)
    assert PoolUsage(NOW_S, day, month, spent={"tenant:acme": text}).picos("tenant:acme", NOW_S) == believed


@pytest.mark.parametrize(("size", "taken"), [(MAX_BODY_BYTES, True), (MAX_BODY_BYTES + 1, False)])
async def test_a_control_answer_longer_than_the_bound_is_not_read(size: int, taken: bool) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=b"x" * size))
    async with httpx.AsyncClient(transport=transport) as http:
        asked = fetch(http, "GET", "http://engine.test/metrics", "/metrics", timeout_s=30)
        if taken:
            assert len((await asked)[1]) == size
        else:
            with pytest.raises(EngineProtocolError, match=f"more than {MAX_BODY_BYTES} bytes"):
                await asked
