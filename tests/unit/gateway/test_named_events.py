"""Streams with named events pass unchanged however reads cut them; what is not theirs ends them."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.gateway.answers import named_events
from scheduling.gateway.answers.answer_types import Asked
from scheduling.gateway.answers.named_events import MessageFrames, NamedFrames, ResponseFrames
from scheduling.gateway.answers.sse import MAX_LINES
from scheduling.gateway.bodies.media import image_size, inline_tokens

ASKED = Asked.of(chat=False, output_bound=100, estimate=10, exact=0, body_bytes=300, context=8192)
SAID = st.one_of(
    st.text(), st.sampled_from(["\n\nevent: error\ndata: {}\n\n", "data: [DONE]", '"type":"error"', "\u2028"])
)


def event(kind: str, **fields: Any) -> bytes:
    body = json.dumps({"type": kind, **fields}, ensure_ascii=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {body}\n\n".encode()


def message(texts: list[str], usage: Any, stop: str = "end_turn") -> list[bytes]:
    start = {"id": "m", "type": "message", "content": [], "usage": {"input_tokens": 15, "output_tokens": 0}}
    return [
        event("message_start", message=start),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(event("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in texts),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": stop}, usage=usage),
        event("message_stop"),
    ]


def response(texts: list[str], usage: Any, status: str = "completed") -> list[bytes]:
    def whole(state: str, **more: Any) -> dict[str, Any]:
        return {"id": "r", "object": "response", "status": state, "output": [], **more}

    return [
        event("response.created", response=whole("in_progress")),
        event("response.in_progress", response=whole("in_progress")),
        *(event("response.output_text.delta", delta=text) for text in texts),
        event("response.completed", response=whole(status, usage=usage)),
    ]


USAGE = {"input_tokens": 15, "output_tokens": 4}
KINDS = [(MessageFrames, message), (ResponseFrames, response)]


def feed(frames: NamedFrames, data: bytes, points: list[int]) -> bytes:
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return b"".join(frames.feed(data[a:b]) for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize(("kind", "make"), KINDS)
@given(texts=st.lists(SAID, min_size=1, max_size=6), points=st.lists(st.integers(0, 10**6), max_size=20))
def test_a_stream_passes_unchanged_wherever_reads_end(
    kind: Any, make: Any, texts: list[str], points: list[int]
) -> None:
    data = b"".join(make(texts, USAGE))
    frames = kind(False, ASKED)
    assert feed(frames, data, points) == data
    assert (frames.done, frames.failed, frames.count, frames.id in ("m", "r")) == (True, "", len(texts), True)
    assert frames.usage is not None
    assert (frames.usage.prompt_tokens, frames.usage.completion_tokens) == (15, 4)


@pytest.mark.parametrize(("kind", "make"), KINDS)
@pytest.mark.parametrize(
    "usage", [None, {}, {"input_tokens": -1, "output_tokens": 4}, {"input_tokens": 15, "output_tokens": 101}]
)
def test_a_usage_that_cannot_be_true_is_ours_for_the_client_too(kind: Any, make: Any, usage: Any) -> None:
    frames = kind(False, ASKED)
    out = feed(frames, b"".join(make(["a ", "b"], usage)), [])
    assert frames.done
    assert not frames.believed
    assert b'"input_tokens":10' in out
    assert frames.usage is not None
    assert 1 <= frames.usage.completion_tokens <= 100


def test_greetings_of_a_response_wait_for_the_first_event_that_is_work() -> None:
    created, progress, first, *_ = response(["a"], USAGE)
    frames = ResponseFrames(False, ASKED)
    assert frames.feed(created) == frames.feed(progress) == b""
    assert frames.feed(first) == created + progress + first


BAD: list[tuple[Any, bytes]] = [
    (MessageFrames, event("content_block_delta", index=0, delta={"text": "a"})),
    (MessageFrames, event("message_start", message={"id": "m"}) * 2),
    (MessageFrames, event("message_start", message={"id": "m"}) + event("message_stop")),
    (MessageFrames, event("error", error={"type": "x", "message": "at 10.0.0.7"})),
    (MessageFrames, event("surprise")),
    (MessageFrames, b'event: ping\ndata: {"type":"message_stop"}\n\n'),
    (MessageFrames, b"event: ping\ndata: nonsense\n\n"),
    (MessageFrames, b'data: {"type":"ping"}\n\n'),
    (MessageFrames, b'event: ping\ndata: {"type":"ping"}\ndata: {}\n\n'),
    (ResponseFrames, event("response.output_text.delta", delta="a")),
    (ResponseFrames, event("response.created", response={"id": "r"})),
    (ResponseFrames, event("response.failed", response={})),
    (ResponseFrames, event("error", message="at 10.0.0.7")),
    (ResponseFrames, b"".join(response(["a"], USAGE, "failed"))),
    (ResponseFrames, response([], USAGE)[0] + response([], USAGE)[-1].replace(b'"r"', b'"other"')),
    (ResponseFrames, response([], USAGE)[0] + event("response.output_text.delta", delta="") * 500),
]


@pytest.mark.parametrize(("kind", "data"), BAD)
def test_what_is_not_of_the_api_ends_the_stream(kind: Any, data: bytes) -> None:
    frames = kind(False, ASKED)
    out = frames.feed(data)
    assert frames.failed
    assert not frames.done
    assert b"10.0.0.7" not in out


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480)
GIF = b"GIF89a" + struct.pack("<HH", 100, 50) + b"\0\0\0"
# one pixel, two colours, a remark, and then a picture of 300 x 200 at 10, 20
WIDE_GIF = b"GIF89a\1\0\1\0\x80\0\0" + b"\0" * 6 + b"!\xfe\2ab\0," + struct.pack("<HHHH", 10, 20, 300, 200)
WEBP = b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + (199).to_bytes(3, "little") + (99).to_bytes(3, "little")
WEBP_PLAIN = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 200 | 1 << 14, 100)
WEBP_EXACT = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0/" + (199 | 99 << 14).to_bytes(4, "little") + b"\0" * 5
JPEG = b"\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x11\x08" + struct.pack(">HH", 300, 400)


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (PNG, (640, 480)), (GIF, (100, 50)), (WIDE_GIF, (310, 220)), (WEBP, (200, 100)), (WEBP_PLAIN, (200, 100)),
        (WEBP_EXACT, (200, 100)), (JPEG, (400, 300)), (b"RIFF", None),
    ],
)  # fmt: skip
def test_an_image_says_how_large_it_is(head: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(head) == size


@given(st.binary(max_size=400))
def test_no_bytes_make_reading_an_images_size_fail(data: bytes) -> None:
    for head in (
        b"",
        PNG[:8],
        GIF[:6],
        JPEG[:2],
        WIDE_GIF[:13],
        *(b"RIFF\0\0\0\0WEBPVP8" + end for end in (b"X", b"L", b" ")),
    ):
        image_size(head + data)


def test_audio_counts_by_its_length() -> None:
    assert inline_tokens("A" * (64_000 * 4 // 3), "audio", "p") == pytest.approx(101, abs=1)


@pytest.mark.parametrize(
    ("kind", "early"),
    [
        (MessageFrames, event("ping", pad="x" * 400)),
        (
            ResponseFrames,
            event(
                "response.in_progress",
                response={"id": "r", "object": "response", "status": "in_progress", "output": [], "pad": "x" * 400},
            ),
        ),
    ],
)
def test_what_an_engine_says_before_its_answer_is_kept_in_bounded_memory(
    kind: type[NamedFrames], early: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_events, "MAX_EARLY_BYTES", 3 * len(early))
    frames = kind(False, ASKED)
    assert frames.feed(early * 3) == b""
    assert not frames.failed
    assert frames.feed(early) == b""
    assert frames.failed == "too much before the answer begins"


@pytest.mark.parametrize(("kind", "made"), KINDS)
def test_an_event_has_few_lines(kind: type[NamedFrames], made: Any) -> None:
    first = made(["a"], USAGE)[0]
    few, many = b":\n" * (MAX_LINES - 2), b":\n" * MAX_LINES  # the event has two of its own
    frames = kind(False, ASKED)
    frames.feed(few + first)
    assert not frames.failed
    frames = kind(False, ASKED)
    frames.feed(many + first)
    assert "lines" in frames.failed
