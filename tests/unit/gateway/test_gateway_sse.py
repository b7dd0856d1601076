"""Whatever an engine sends, a client's events are completion chunks in our own framing; what is right passes unchanged
however it is cut, and accounting finds what it needs in it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduling.gateway.answers import sse
from scheduling.gateway.answers.answer_types import Asked, Usage
from scheduling.gateway.answers.named_events import MessageFrames
from scheduling.gateway.answers.sse import Frames
from scheduling.gateway.config import GatewayConfig

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
ASKED = Asked.of(chat=True, output_bound=100, estimate=10, exact=0, body_bytes=300, context=8192)
DONE = b"data: [DONE]\n\n"


def frame(value: Any, *, spaced: bool = False) -> bytes:
    separators = (", ", ": ") if spaced else (",", ":")
    return b"data: " + json.dumps(value, separators=separators, ensure_ascii=False).encode() + b"\n\n"


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(p % (len(data) + 1) for p in points)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(
    st.lists(SAID, min_size=1, max_size=8),
    st.lists(st.integers(0, 10**6), max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_frames_pass_unchanged_and_usage_is_found_wherever_reads_end(
    texts: list[str], points: list[int], strip: bool, spaced: bool
) -> None:
    content = [frame(piece(t, "stop" if i == len(texts) - 1 else None), spaced=spaced) for i, t in enumerate(texts)]
    usage = frame({"id": "c", "choices": [], "usage": USAGE}, spaced=spaced)
    frames = Frames(strip_usage=strip, asked=ASKED)
    out = [frames.feed(part) for part in cut(b"".join([*content, usage, DONE]), points)]
    whole = b"".join(out)
    assert whole.startswith(b"".join(content))
    rest = whole.removeprefix(b"".join(content)).split(b"\n\n")
    assert rest[-2:] == [b"data: [DONE]", b""]
    assert [json.loads(one[6:]) for one in rest[:-2]] == ([] if strip else [{"id": "c", "choices": [], "usage": USAGE}])
    assert frames.done
    assert not frames.failed
    assert not frames.surplus
    assert frames.usage == Usage(15, 19, 4)
    assert frames.believed
    assert frames.count == len(texts)
    assert frames.finish == "stop"
    for part in out:
        assert part == b"" or part.endswith(b"\n\n"), "only whole frames leave"


def test_a_stream_of_several_answers_has_begun_when_each_of_them_has_a_token() -> None:
    """vLLM names the role in all of them as soon as one has its first token."""

    def said(index: int, text: str, finish: str | None = None) -> bytes:
        return frame({"id": "c", "choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]})

    frames, told = Frames(strip_usage=True, asked=replace(ASKED, choices=3)), list[int]()
    frames.feed(said(0, "") + said(1, "") + said(2, "") + said(0, "a"))
    frames.when_begun(lambda: told.append(frames.count))
    frames.feed(said(0, "b") + said(2, "a"))
    assert told == []
    frames.feed(said(1, "", "stop"))
    assert told == [7], "one that ends without a word has been prefilled, too"
    frames.feed(said(1, "c"))
    assert told == [7]
    Frames(strip_usage=True, asked=ASKED).when_begun(lambda: told.append(0))
    assert told == [7, 0], "of one answer its first frame is enough"


@given(st.lists(SAID, min_size=1, max_size=5), st.lists(st.integers(0, 10**6), max_size=20))
def test_an_error_frame_of_the_engine_is_held_back(texts: list[str], points: list[int]) -> None:
    content = b"".join(frame(piece(t)) for t in texts)
    frames = Frames(strip_usage=True, asked=ASKED)
    out = b""
    for part in cut(content + frame({"error": {"message": "node-7 died"}}) + DONE, points):
        out += frames.feed(part)
        if frames.failed:
            break
    assert frames.failed
    assert not frames.suspect
    assert out == content
    assert frames.count == len(texts)


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(["id", "choices", "usage", "model", "object", "created", "error", "x"])
FIELDS = st.sampled_from(["index", "delta", "text", "finish_reason", "logprobs", "x"])
CHOICE = st.dictionaries(FIELDS, JSON_VALUE | st.just({"content": "a"}), max_size=5)
NEARLY = st.dictionaries(NAMES, JSON_VALUE | st.lists(CHOICE | JSON_VALUE, max_size=2), max_size=7)
PARTS = st.one_of(
    st.binary(max_size=60),
    NEARLY.map(lambda v: frame(v)),
    st.builds(lambda v: frame(piece("a") | v), NEARLY),
    st.tuples(NEARLY.map(lambda v: frame(v)), st.integers(0, 500), st.binary(min_size=1, max_size=3)).map(
        lambda t: t[0][: t[1] % len(t[0])] + t[2] + t[0][t[1] % len(t[0]) :]
    ),
    st.sampled_from(
        [
            frame(piece("a")), frame(piece("b", "stop")), DONE, b"\n\n", b"\r\n\r\n", b": x\n\n", b"event: a\n",
            frame({"id": "c", "choices": [], "usage": USAGE}), b"data:", b"data: ", b"\n", b"\r", b"\x00",
        ]
    ),
)  # fmt: skip


@given(st.lists(PARTS, max_size=10), st.lists(st.integers(0, 3000), max_size=20), st.booleans(), st.booleans())
def test_whatever_bytes_come_every_event_is_a_chunk_of_the_api(
    parts: list[bytes], points: list[int], strip: bool, chat: bool
) -> None:
    frames = Frames(strip_usage=strip, asked=Asked.of(chat, 100, 10, 0, 300, 8192))
    out = b""
    for part in cut(b"".join(parts), points):
        out += frames.feed(part)
        if frames.failed or frames.done:
            break
    assert not (frames.failed and frames.done)
    if not out:
        return
    text = out.decode()
    assert text.endswith("\n\n")
    events = text.split("\n\n")[:-1]
    ended = events[-1] == "data: [DONE]"
    assert ended == frames.done
    for event in events[:-1] if ended else events:
        assert event.startswith("data: ")
        assert not {"\n", "\r", "\x00"} & set(event)
        chunk = json.loads(event.removeprefix("data: "))
        assert isinstance(chunk["choices"], list)
        assert not chunk.get("error")
        for choice in chunk["choices"]:
            assert choice.get("index", 0) == 0
            assert isinstance(choice["delta"] if chat else choice["text"], dict if chat else str)
            assert isinstance(choice.get("finish_reason"), str | None)
        if usage := chunk.get("usage"):
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert 0 <= usage["completion_tokens"] <= 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "holds",
    [
        test_frames_pass_unchanged_and_usage_is_found_wherever_reads_end,
        test_an_error_frame_of_the_engine_is_held_back,
        test_whatever_bytes_come_every_event_is_a_chunk_of_the_api,
    ],
)
def test_it_holds_in_ten_thousand_examples(holds: Any) -> None:
    settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))(holds)()


def test_other_line_ends_are_frame_ends_too() -> None:
    frames = Frames(strip_usage=True, asked=ASKED)
    usage = frame({"id": "c", "choices": [], "usage": USAGE}).replace(b"\n\n", b"\r\n\r\n")
    content = frame(piece("a", "length"))
    assert frames.feed(content.replace(b"\n\n", b"\r\n\r\n") + usage + b"data: [DONE]\r\n\r\n") == content + DONE
    assert (frames.finish, frames.usage, frames.done) == ("length", Usage(15, 19, 4), True)


def test_usage_in_every_chunk_is_not_the_usage_frame_and_is_not_passed_on() -> None:
    frames = Frames(strip_usage=True, asked=ASKED)
    assert frames.feed(frame(piece("a") | {"usage": USAGE})) == frame(piece("a"))
    assert frames.usage is None


def test_a_client_that_asked_for_usage_gets_it_from_an_engine_that_sends_none() -> None:
    frames = Frames(strip_usage=False, asked=ASKED)
    out = frames.feed(frame(piece("")) + frame(piece("a")) + frame(piece("b", "stop")) + DONE).split(b"\n\n")
    assert out[-2:] == [b"data: [DONE]", b""]
    last = json.loads(out[-3].removeprefix(b"data: "))
    assert (last["id"], last["choices"]) == ("c", [])
    assert last["usage"] == {"prompt_tokens": 10, "total_tokens": 12, "completion_tokens": 2}
    assert not frames.believed


@pytest.mark.parametrize(
    ("frames", "characters", "tokens"), [(5, 20, 5), (1, 400, 100), (0, 0, 0), (3, 48, 3), (90, 90, 60)]
)
def test_a_token_is_a_frame_unless_frames_hold_far_more_text(frames: int, characters: int, tokens: int) -> None:
    assert sse.own_count(frames, characters, 60 if frames == 90 else 1000) == tokens


def test_a_frame_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_FRAME_BYTES", 1000)
    frames = Frames(strip_usage=True, asked=ASKED)
    assert frames.feed(b"data: " + b"x" * 900) == b""
    assert not frames.failed
    assert frames.feed(b"x" * 200) == b""
    assert frames.failed


@pytest.mark.parametrize("kind", [Frames, MessageFrames])
def test_a_stream_is_as_long_as_a_whole_answer_and_so_much_for_each_frame(
    monkeypatch: pytest.MonkeyPatch, kind: type[Frames]
) -> None:
    monkeypatch.setattr(sse, "MAX_STREAM_BYTES", 100_000)
    monkeypatch.setattr(sse, "FRAME_BYTES", 10)
    asked = replace(ASKED, output_bound=1)
    comment = b": " + b"x" * 1000 + b"\n\n"
    frames = kind(strip_usage=True, asked=asked)
    fed = 0
    while not frames.failed:
        frames.feed(comment)
        fed += len(comment)
    assert frames.failed == "the stream is longer than any answer that was asked for"
    assert 100_000 + 10 * 64 < fed < 102_500


def test_an_event_has_few_lines() -> None:
    for lines, failed in ((sse.MAX_LINES, ""), (sse.MAX_LINES + 1, "an event has more than 1024 lines")):
        frames = Frames(strip_usage=True, asked=ASKED)
        assert frames.feed(b":\n" * lines + b"\n") == b""
        assert frames.failed == failed


def test_an_engine_may_send_a_comment_a_quarter_second_until_its_first_token_is_due() -> None:
    """No empty line need follow each of them, so all belong to the first event."""
    frames = Frames(strip_usage=True, asked=ASKED)
    for _ in range(4 * int(GatewayConfig().first_token_timeout_s)):
        assert frames.feed(b": still here\n") == b""
    assert frames.feed(frame(piece("Hello"))) == frame(piece("Hello"))
    assert not frames.failed


class CloselyRead(Frames):
    """Looks at each frame as at the first and the last."""

    def _plain(self, frames: list[bytes], at: int) -> int:
        return 0


@given(
    st.lists(PARTS | st.sampled_from([frame(piece("a")), frame(piece("a")) * 40]), max_size=12),
    st.lists(st.integers(0, 3000), max_size=8),
)
def test_frames_that_are_like_most_are_read_as_closely_as_they_would_be_alone(
    parts: list[bytes], points: list[int]
) -> None:
    asked = replace(ASKED, output_bound=2)  # some streams are too long
    both = Frames(strip_usage=True, asked=asked), CloselyRead(strip_usage=True, asked=asked)
    for part in cut(frame(piece("a")) + b"".join(parts), points):
        quick, close = (frames.feed(part) for frames in both)
        assert quick == close
        for name in ("failed", "done", "count", "finish", "usage", "believed", "suspect", "refused", "empty", "tokens"):
            assert getattr(both[0], name) == getattr(both[1], name), name
        if both[0].failed or both[0].done:
            break
