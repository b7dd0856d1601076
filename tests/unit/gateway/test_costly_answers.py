"""How much of the process' time one answer of an engine may take, whatever is in it: everybody's streams wait
meanwhile. Of CPU, in times of what Python's own parser takes for two million numbers, so that it holds on slow
machines."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections.abc import Callable

import pytest

from scheduling.gateway.answers.answer_types import (
    MAX_CALLS,
    MAX_DIGITS,
    MAX_ERROR_BYTES,
    Asked,
    Broken,
    check_digits,
    input_error,
    read_answer,
    read_chunk,
)
from scheduling.gateway.answers.named_events import MessageFrames, ResponseFrames
from scheduling.gateway.answers.sse import Frames

ASKED = Asked(True, 512, 10)
SIZE = 4 * 1024 * 1024
# Before, in these times: runs of digits 136, calls of tools 2.3, parts of a figure 2.1.
LONGEST = 1.5


def _took(work: Callable[[], object]) -> float:
    began = time.process_time()
    with contextlib.suppress(Broken):
        work()
    return time.process_time() - began


def _cost(read: Callable[[], object]) -> float:
    """The least of three pairs measured one after the other: what else the machine does slows both of a pair."""
    numbers = b"[%b]" % b",".join([b"1"] * 2_000_000)
    return min(_took(read) / _took(lambda: json.loads(numbers)) for _ in range(3))


def _answer(message: bytes = b'"content":"hi"', choice: bytes = b'"logprobs":null', usage: bytes = b"") -> bytes:
    return (
        b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":'
        b'"assistant",%b},"finish_reason":"stop",%b}],"usage":{"prompt_tokens":5,"completion_tokens":5%b}}'
    ) % (message, choice, usage)


def _filled(piece: bytes) -> bytes:
    return b",".join([piece] * (SIZE // (len(piece) + 1)))


WHOLE = {
    "runs of digits": lambda: _answer(b'"content":"%b"' % ((b"1" * MAX_DIGITS + b" ") * (SIZE // MAX_DIGITS))),
    "calls of tools": lambda: _answer(b'"tool_calls":[%b]' % _filled(b"{}")),
    "log probabilities": lambda: _answer(choice=b'"logprobs":{%b}' % _filled(b'"a":{}')),
    "parts of a figure": lambda: _answer(usage=b',"prompt_tokens_details":{"x":[%b]}' % _filled(b"{}")),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_no_whole_answer_holds_up_the_process(kind: str) -> None:
    data = WHOLE[kind]()
    assert _cost(lambda: read_answer(data, ASKED, None)) < LONGEST


def test_no_frame_of_a_stream_holds_up_the_process() -> None:
    frame = (
        b'{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[%b]}}]}'
    ) % _filled(b"{}")
    assert _cost(lambda: read_chunk(frame, True).choices[0].characters) < LONGEST


HEAD = b'"id":"x","object":"chat.completion.chunk","created":1,"model":"m"'
FIGURES = b'"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}'
RESPONSE = b'"id":"x","object":"response","status":"in_progress"'
FRAMES: dict[str, tuple[type[Frames], bytes, bytes]] = {  # what comes before, and a place for fields
    "a chunk with a running count": (Frames, b"", b'data: {%b,"choices":[],%b%%b}' % (HEAD, FIGURES)),
    "a message's beginning": (
        MessageFrames, b"", b'event: message_start\ndata: {"type":"message_start","message":{"id":"m"%b}}'
    ),
    "a message's figures": (
        MessageFrames,
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m"}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}%b}',
    ),
    "a response's event": (
        ResponseFrames,
        b"",
        b'event: response.created\ndata: {"type":"response.created","response":{%b,"output":[]}%%b}' % RESPONSE,
    ),
    "a response": (
        ResponseFrames,
        b"",
        b'event: response.created\ndata: {"type":"response.created","response":{%b,"output":[]%%b}}' % RESPONSE,
    ),
}  # fmt: skip


def _fed(kind: type[Frames], first: bytes, event: bytes) -> Frames:
    frames = kind(False, ASKED)
    frames.feed(first + event + b"\n\n")
    return frames


@pytest.mark.parametrize("what", FRAMES)
def test_names_that_no_answer_has_do_not_hold_up_a_stream(what: str) -> None:
    """Each becomes an object and a key: before, 4 MB of them took five times as long as now."""
    kind, first, event = FRAMES[what]
    names = b"".join(b',"%x":0' % number for number in range(20_000))
    assert _fed(kind, first, event % names).failed == "most of a frame is in fields that answers do not have"
    few = b"".join(b',"%x":0' % number for number in range(1_000))
    assert not _fed(kind, first, event % few).failed
    assert not _fed(kind, first, event % (b',"metadata":"%b"' % (b"x" * 1_000_000))).failed


def test_what_a_response_answers_may_be_long() -> None:
    kind, first, event = FRAMES["a response"]
    items = b'{"type":"message","content":[{"type":"output_text","text":"%b"}]}' % (b"x" * 1_000)
    long = event.replace(b'"output":[]', b'"output":[%b]' % b",".join([items] * 1_000)) % b',"tools":[{"type":"x"}]'
    assert not _fed(kind, first, long).failed
    for wrong in (b"5", b"[5]", b'"%b"' % (b"x" * 100_000)):
        told = _fed(kind, first, event.replace(b'"output":[]', b'"output":' + wrong) % b"")
        assert told.failed == "an event of the stream has no response"


@pytest.mark.parametrize("wrong", [b"[%b]" % b",".join([b"1"] * 50_000), b'"%b"' % (b"x" * 100_000)])
def test_a_long_response_that_is_no_object_ends_its_stream(wrong: bytes) -> None:
    frames = ResponseFrames(True, ASKED)
    frames.feed(b'event: response.created\ndata: {"type":"response.created","response":%b}\n\n' % wrong)
    assert frames.failed == "a part of a frame is not an object"


def test_of_an_error_that_is_very_long_nothing_is_read() -> None:
    error = b'{"error":{"message":"too long","param":"messages"%b}}'
    assert input_error(error % b"") == ("too long", "messages")
    assert input_error(error % (b',"input":"%b"' % (b"x" * 100_000))) == ("too long", "messages")
    assert input_error(error % (b',"input":"%b"' % (b"x" * MAX_ERROR_BYTES))) == ("", None)


def test_a_number_that_clients_cannot_read_is_found_wherever_it_stands() -> None:
    chance, plain = random.Random(3), re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
    lengths = (1, 3, MAX_DIGITS - 1, MAX_DIGITS, MAX_DIGITS + 1, MAX_DIGITS + 2, 9000)
    found = 0
    for _ in range(300):
        pieces = [b"1" * chance.choice(lengths) if chance.random() < 0.4 else b" ," * chance.randint(1, 3000)]
        pieces = [b"[", *pieces * chance.randint(1, 4), b"1" * chance.choice(lengths), b"]"]
        data = b"".join(pieces)
        unreadable = plain.search(data) is not None
        found += unreadable
        with pytest.raises(Broken, match="digits") if unreadable else contextlib.nullcontext():
            check_digits(data)
    assert 50 < found < 250


def test_as_many_calls_of_tools_as_the_bound_are_counted_and_one_more_is_broken() -> None:
    call = b'{"index":0,"function":{"name":"f","arguments":"{{{{"}}'
    few = read_answer(_answer(b'"tool_calls":[%b]' % b",".join([call] * MAX_CALLS)), ASKED, None)
    assert not few.empty
    with pytest.raises(Broken, match="more than 1024 tools"):
        read_answer(_answer(b'"tool_calls":[%b]' % b",".join([call] * (MAX_CALLS + 1))), ASKED, None)
    with pytest.raises(Broken, match="calls of tools"):
        read_answer(_answer(b'"tool_calls":{"a":1}'), ASKED, None)
    assert read_answer(_answer(b'"tool_calls":null'), ASKED, None).empty
