"""What is one more than a bound is refused by name, and the bound itself is not."""

from __future__ import annotations

import base64
import struct
from typing import Any

import httpx
import msgspec
import pytest

from scheduling.core.ledger.money import MAX_PICOS
from scheduling.engines import figures
from scheduling.engines.client import MAX_BODY_BYTES, EngineProtocolError, fetch
from scheduling.gateway.bodies.checks import check_media
from scheduling.gateway.bodies.media import MAX_MEDIA, MAX_PIXELS, image_size, inline_tokens
from scheduling.gateway.bodies.openai_types import MAX_MESSAGES, MAX_TOOLS, Message
from scheduling.gateway.bodies.prepare import media_tokens
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


def image(kind: str, side: int = 0) -> dict[str, Any]:
    """Of a PNG or of another format, as a part of a chat."""
    size = struct.pack(">II", side, side)
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size if kind == "png" else b"II*\0" + b"\0" * 60
    url = f"data:image/{kind};base64,{base64.b64encode(head).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def film(*frames: dict[str, Any]) -> dict[str, Any]:
    data = [frame["image_url"]["url"].partition(",")[2] for frame in frames]
    return {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + ",".join(data)}}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([image("png", 4_000)] * 33, None),
        ([image("png", 4_000)] * 34, f"more than {MAX_PIXELS}"),
        ([image("png", 30_000)], f"more than {MAX_PIXELS}"),
        ([image("tiff")] * 3, None),
        ([image("tiff")] * 4, "send PNG, JPEG, GIF or WebP"),
        ([film(*[image("png", 4_000)] * 33)], None),
        ([film(*[image("png", 4_000)] * 34)], f"more than {MAX_PIXELS}"),
    ],
)  # fmt: skip
def test_the_images_of_a_request_have_so_many_pixels_at_most(parts: list[Any], told: str | None) -> None:
    """An engine unpacks them all: sixty images of 6 kB took 32 GB of its memory."""
    asked = msgspec.convert([{"role": "user", "content": parts}], list[Message])
    if told is None:
        media_tokens(asked)
        return
    with pytest.raises(Refusal) as refused:
        media_tokens(asked)
    assert (refused.value.status, told in str(refused.value.fields)) == (400, True)


def test_the_size_of_a_photograph_stands_behind_remarks_of_any_length() -> None:
    remarks = b"\xff\xe2" + struct.pack(">H", 60_000) + b"x" * 59_998
    photo = b"\xff\xd8" + 3 * remarks + b"\xff\xc0\0\x11\x08" + struct.pack(">HH", 3_000, 4_000) + b"\0" * 9
    pixels: list[int] = []
    assert inline_tokens(base64.b64encode(photo).decode(), "image", "p", pixels) > 10_000
    assert pixels == [12_000_000]


def test_a_size_behind_pieces_without_end_is_not_searched_for() -> None:
    frame = b"\xff\xc0\0\x11\x08" + struct.pack(">HH", 3_000, 4_000) + b"\0" * 9
    assert image_size(b"\xff\xd8" + b"\xff\xe0\0\2" * 100 + frame) == (4_000, 3_000)
    assert image_size(b"\xff\xd8" + b"\xff\xe0\0\2" * 700_000 + frame) is None


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
