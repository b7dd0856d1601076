"""Frames pass unchanged however they are cut, and accounting finds what it needs in them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.gateway import sse
from scheduling.gateway.sse import Frames, FrameTooLong

# what a model may say: everything, and above all what looks like our own marks
SAID = st.one_of(
    st.text(),
    st.sampled_from(
        [
            "data: [DONE]", "\n\ndata: [DONE]\n\n", '"choices":[]', '"finish_reason":"stop"', "\r\n\r\n", "\u2028",
            '{"error": "x"}', 'data: {"error"', "\x00", '"usage":{"prompt_tokens":9}', '\\"choices\\":[]', "[DONE]",
        ]
    ),
)  # fmt: skip
USAGE = {"prompt_tokens": 15, "total_tokens": 19, "completion_tokens": 4}


def frame(value: Any, *, spaced: bool = False) -> bytes:
    separators = (", ", ": ") if spaced else (",", ":")
    return b"data: " + json.dumps(value, separators=separators, ensure_ascii=False).encode() + b"\n\n"


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(p % (len(data) + 1) for p in points)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(SAID, max_size=8), st.lists(st.integers(0, 10**6), max_size=30), st.booleans(), st.booleans())
def test_frames_pass_unchanged_and_usage_is_found_wherever_reads_end(
    texts: list[str], points: list[int], strip: bool, spaced: bool
) -> None:
    content = [frame(piece(t, "stop" if i == len(texts) - 1 else None), spaced=spaced) for i, t in enumerate(texts)]
    usage, done = frame({"id": "c", "choices": [], "usage": USAGE}, spaced=spaced), b"data: [DONE]\n\n"
    frames = Frames(strip_usage=strip)
    out = [frames.feed(part) for part in cut(b"".join([*content, usage, done]), points)]
    assert b"".join(out) == b"".join([*content, *([] if strip else [usage]), done])
    assert frames.done
    assert not frames.failed
    assert (frames.input_tokens, frames.output_tokens) == (15, 4)
    assert frames.count == len(texts)
    assert frames.finish == ("stop" if texts else "")
    for part in out:
        assert part == b"" or part.endswith(b"\n\n"), "only whole frames leave"


@given(st.lists(SAID, min_size=1, max_size=5), st.lists(st.integers(0, 10**6), max_size=20))
def test_an_error_frame_of_the_engine_is_held_back(texts: list[str], points: list[int]) -> None:
    content = b"".join(frame(piece(t)) for t in texts)
    frames = Frames(strip_usage=True)
    out = b""
    for part in cut(content + frame({"error": {"message": "node-7 died"}}) + b"data: [DONE]\n\n", points):
        out += frames.feed(part)
        if frames.failed:
            break
    assert frames.failed
    assert out == content
    assert frames.count == len(texts)


@given(st.binary(max_size=400), st.lists(st.integers(0, 500), max_size=20))
def test_any_bytes_at_all_pass_in_order_and_never_raise(data: bytes, points: list[int]) -> None:
    frames = Frames(strip_usage=False)
    out = b"".join(frames.feed(part) for part in cut(data, points))
    assert data.startswith(out)


def test_other_line_ends_are_frame_ends_too() -> None:
    frames = Frames(strip_usage=True)
    usage = frame({"choices": [], "usage": USAGE}).replace(b"\n\n", b"\r\n\r\n")
    content = frame(piece("a", "length")).replace(b"\n\n", b"\r\n\r\n")
    assert frames.feed(content + usage + b"data: [DONE]\r\n\r\n") == content + b"data: [DONE]\r\n\r\n"
    assert (frames.finish, frames.output_tokens, frames.done) == ("length", 4, True)


def test_usage_in_every_chunk_is_not_the_usage_frame() -> None:
    frames = Frames(strip_usage=True)
    data = frame(piece("a") | {"usage": USAGE})
    assert frames.feed(data) == data
    assert frames.output_tokens is None


def test_a_frame_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_FRAME_BYTES", 1000)
    frames = Frames(strip_usage=True)
    frames.feed(b"data: " + b"x" * 900)
    with pytest.raises(FrameTooLong):
        frames.feed(b"x" * 200)
