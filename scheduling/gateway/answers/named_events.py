"""Streams whose events have names, as Anthropic's /v1/messages and OpenAI's /v1/responses have them, and their whole
answers. Read as :mod:`scheduling.gateway.answers.sse` and :mod:`scheduling.gateway.answers.answer_types` read the
older form: every event that leaves was understood, its figures are bounded by what was asked, and the last one ends
the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from scheduling.gateway.answers.answer_types import (
    ABSENT,
    FAILED,
    FRAMES_SLACK,
    MAX_DIGITS,
    UNKNOWN_BYTES,
    WRONG,
    Asked,
    Broken,
    Moment,
    Short,
    Unread,
    Usage,
    WholeAnswer,
    broken,
    check_digits,
    check_names,
    decode_top,
    encode,
    settle_usage,
)
from scheduling.gateway.answers.sse import MAX_FRAME_BYTES, Frames, lines_of

MAX_EARLY_BYTES = 2 * MAX_FRAME_BYTES  # a response tells its instructions and tools when it is made and when it begins


class _Figures(Struct):
    """Usage as both APIs tell it: Anthropic counts what was cached beside the input, OpenAI within it."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    input_tokens_details: Raw = ABSENT  # of the Responses API

    @property
    def read(self) -> int:
        return self.input_tokens + (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)


_decode_figures = msgspec.json.Decoder(_Figures).decode


def _settle(raw: Raw, asked: Asked, pieces: int, characters: int) -> tuple[Usage, bool]:
    """The usage to go by, and whether it is what the engine said."""
    try:
        figures = _decode_figures(raw)
    except WRONG:
        return settle_usage(ABSENT, asked, pieces, characters)
    if min(figures.input_tokens, figures.cache_read_input_tokens or 0, figures.cache_creation_input_tokens or 0) < 0:
        return settle_usage(ABSENT, asked, pieces, characters)
    usage: dict[str, Any] = {"prompt_tokens": figures.read, "completion_tokens": figures.output_tokens}
    if figures.cache_read_input_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": figures.cache_read_input_tokens}
    elif figures.input_tokens_details is not ABSENT:
        usage["prompt_tokens_details"] = figures.input_tokens_details
    return settle_usage(Raw(encode(usage)), asked, pieces, characters)


class NamedFrames(Frames):
    """One stream of named events. A kind of them says in ``_event`` what each means."""

    __slots__ = ("_early_bytes", "_early_events", "_id")

    def __init__(self, strip_usage: bool, asked: Asked) -> None:
        super().__init__(False, asked)
        self._most = 4 * asked.output_bound + FRAMES_SLACK  # each block or item has events of its own
        self._id = ""
        self._early_events: list[bytes] = []  # events that come before the engine has done anything
        self._early_bytes = 0  # of these, which are kept until one comes that is sent

    @property
    def id(self) -> str:
        return self._id

    def _each(self, data: bytes, *, check: bool = False) -> bytes:
        out: list[bytes] = []
        frames = data.split(b"\n\n")
        for number, frame in enumerate(frames):
            if not frame:
                continue
            try:
                name, payload = _named(frame)
                if payload is None:
                    continue
                if check:
                    payload.decode()
                self.seen += 1
                if self.seen > self._most:
                    raise Broken("the stream has more events than were asked for")
                if len(payload) > MAX_DIGITS:
                    check_digits(payload)
                sent = self._event(name, payload)
            except UnicodeDecodeError:
                self._fail("an event is not UTF-8")
                break
            except Broken as exc:
                self._fail(exc.why)
                self.suspect = not exc.by_engine
                break
            piece = _frame(name, sent)
            if self._early(name):
                self._early_bytes += len(piece)
                if self._early_bytes > MAX_EARLY_BYTES:
                    self._fail("too much before the answer begins")
                    break
                self._early_events.append(piece)
                continue
            if self._early_events:
                out += self._early_events
                self._early_events.clear()
            if sent:
                out.append(piece)
            if self.done:
                self.surplus = bool(self._rest) or any(frames[number + 1 :])
                break
        return b"".join(out)

    def _early(self, name: str) -> bool:
        """Whether such an event says nothing of the engine's work: it waits for the next that does, so that until then
        the request can be tried elsewhere."""
        return False

    def _event(self, name: str, payload: bytes) -> bytes:
        """What is sent for an event; empty: it is held back. Raises :class:`Broken`."""
        raise NotImplementedError

    def _piece(self, characters: int) -> None:
        self.count += 1
        self._characters += characters


def _frame(name: str, payload: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), payload)


def _named(frame: bytes) -> tuple[str, bytes | None]:
    """Name and data of an event; None where it has no data (a comment). Raises :class:`Broken`."""
    name, data = b"", None
    for line in lines_of(frame):
        if not line or line.startswith(b":"):
            continue
        field, _, value = line.partition(b":")
        if field == b"data":
            if data is not None:
                raise Broken("an event has several lines of data")
            data = value.strip(b" ")
        elif field == b"event":
            name = value.strip(b" ")
        elif field not in (b"id", b"retry"):
            raise Broken("the stream is not made of server-sent events")
    if data is not None and b"\r" in data:
        raise Broken("an event has a line end within its JSON")
    if len(name) > 128 or not name.replace(b"_", b"").replace(b".", b"").isalnum():
        if data is None:
            return "", None
        raise Broken("an event has no name")
    return name.decode("ascii"), data


# --- Anthropic's messages


class _Delta(Struct):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: Short | None = None

    @property
    def characters(self) -> int:
        return len(self.text or "") + len(self.thinking or "") + len(self.partial_json or "")


class _Started(Struct):
    id: Short
    usage: Raw = ABSENT


class _MessageEvent(Struct):
    type: Short
    message: _Started | None = None
    delta: _Delta | None = None
    usage: Raw = ABSENT
    error: Raw = ABSENT


class _Block(Struct):
    type: Short
    text: str | None = None
    thinking: str | None = None
    input: Raw = ABSENT

    @property
    def characters(self) -> int:
        return len(self.text or "") + len(self.thinking or "") + len(bytes(self.input))


class _Message(Struct):
    id: Short
    type: Short
    content: list[_Block]
    stop_reason: Short | None = None
    usage: Raw = ABSENT
    error: Raw = ABSENT


_decode_message_event = msgspec.json.Decoder(_MessageEvent).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_EVENTS = frozenset({
    "message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta",
    "content_block_stop", "ping", "error",
})  # fmt: skip


def _finish(stop_reason: str | None) -> str:
    return "length" if stop_reason == "max_tokens" else stop_reason or ""


class MessageFrames(NamedFrames):
    """A stream of ``/v1/messages``."""

    __slots__ = ()

    def _early(self, name: str) -> bool:
        return name == "ping" and not self._id

    def _event(self, name: str, payload: bytes) -> bytes:
        try:
            event = _decode_message_event(payload)
        except WRONG:
            raise broken(payload, "an event of the stream is not one of a message") from None
        if event.type not in _EVENTS or event.type != name:
            raise Broken("an event that messages do not have")
        if name == "error" or event.error is not ABSENT:
            raise Broken(FAILED, by_engine=True)
        if name == "message_start":
            if event.message is None or self._id:
                raise Broken("a message begins without its head, or twice")
            self._id = event.message.id
            return self._head(payload, event.message)
        if name == "ping":
            return payload
        if not self._id:
            raise Broken("a message has no beginning")
        if name == "content_block_delta" and event.delta is not None:
            self._piece(event.delta.characters)
        elif name == "message_delta":
            self.finish = self.finish or _finish(event.delta.stop_reason if event.delta is not None else None)
            self.usage, self.believed = _settle(event.usage, self._asked, 0, self._characters)
            if not self.believed:
                return _with_usage(payload, self.usage)
        elif name == "message_stop":
            if not self.finish or self.usage is None:
                raise Broken("the message ended without a reason or its usage")
            self.done = True
        return payload

    def _head(self, payload: bytes, message: _Started) -> bytes:
        """The beginning tells the input's tokens: ours, where the engine's cannot be true."""
        usage, believed = _settle(message.usage, self._asked, 0, 0)
        if believed:
            return payload
        check_names(payload)
        top = decode_top(payload)
        check_names(bytes(top["message"]))
        inner = decode_top(bytes(top["message"]))
        inner["usage"] = Raw(encode({"input_tokens": usage.prompt_tokens, "output_tokens": 0}))
        top["message"] = Raw(encode(inner))
        return encode(top)


def _with_usage(payload: bytes, usage: Usage) -> bytes:
    """Raises :class:`Broken`."""
    check_names(payload)
    top = decode_top(payload)
    top["usage"] = Raw(encode({"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}))
    return encode(top)


def read_message(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    """A whole message. Raises :class:`Broken`."""
    message, top = _whole(data, _decode_message, "the answer is not a message")
    if message.type != "message":
        raise Broken("the answer is not a message")
    characters = sum(block.characters for block in message.content)
    usage, believed = _settle(message.usage, asked, 0, characters)
    if not believed:
        top["usage"] = Raw(encode({"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}))
    if model is not None:
        top["model"] = Raw(encode(model))
    return WholeAnswer(message.id, _finish(message.stop_reason), usage, believed, encode(top), not characters)


# --- OpenAI's responses


class _Incomplete(Struct):
    reason: Short | None = None


class _Told(Struct, kw_only=True):
    id: Short
    object: Short
    status: Short
    created_at: Moment | float = 0
    incomplete_details: _Incomplete | None = None
    usage: Raw = ABSENT
    error: Raw = ABSENT

    @property
    def finish(self) -> str:
        if self.status == "completed":
            return "stop"
        return "length" if self.status == "incomplete" else ""


class _Response(_Told, kw_only=True):
    output: list[dict[str, Raw]]


class _Streamed(_Told, kw_only=True):
    """A response in an event."""

    output: Raw  # likewise, of which nothing is read: an object for each item takes ten times as long as to pass it

    @property
    def is_one(self) -> bool:
        if memoryview(self.output).nbytes > UNKNOWN_BYTES:
            return bytes(memoryview(self.output)[:1]) == b"["
        try:
            _decode_items(self.output)
        except WRONG:
            return False
        return True


class _ResponseEvent(Struct):
    type: Short
    response: Raw = ABSENT
    delta: str | Unread | None = None


_decode_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_streamed = msgspec.json.Decoder(_Streamed).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_response_event = msgspec.json.Decoder(_ResponseEvent).decode
_ENDS = frozenset({"response.completed", "response.incomplete"})


class ResponseFrames(NamedFrames):
    """A stream of ``/v1/responses``. Where its answer may be kept (``dress``) its last event is held back until it is:
    ``complete`` is the response then, and :meth:`last` the event."""

    __slots__ = ("_last_event", "_last_name", "complete", "dress")

    def __init__(self, strip_usage: bool, asked: Asked) -> None:
        super().__init__(strip_usage, asked)
        self.dress: Callable[[bytes], bytes] | None = None  # what a response that is not complete is sent as
        self.complete = b""
        self._last_event: dict[str, Raw] = {}
        self._last_name = ""

    def last(self, response: bytes) -> bytes:
        """The event that ends the stream, with this response."""
        self._last_event["response"] = Raw(response)
        return _frame(self._last_name, encode(self._last_event))

    def _early(self, name: str) -> bool:
        return name in ("response.created", "response.in_progress")

    def _event(self, name: str, payload: bytes) -> bytes:
        try:
            event = _decode_response_event(payload)
        except WRONG:
            raise broken(payload, "an event of the stream is not one of a response") from None
        if event.type != name or not name.startswith("response."):
            raise Broken(
                FAILED if name == "error" else "an event that responses do not have", by_engine=name == "error"
            )
        if name == "response.failed":
            raise Broken(FAILED, by_engine=True)
        if name in ("response.created", "response.in_progress") or name in _ENDS:
            check_names(payload)
            check_names(bytes(event.response))
            response = self._read(event.response)
            if name in _ENDS:
                payload = self._last(payload, event, response)
                if self.dress is None:
                    return payload
                self._last_event, self._last_name = decode_top(payload), name
                self.complete = bytes(self._last_event["response"])
                return b""
            if self.dress is not None:
                top = decode_top(payload)
                top["response"] = Raw(self.dress(bytes(event.response)))
                return encode(top)
        elif not self._id:
            raise Broken("a response has no beginning")
        elif name.endswith(".delta"):
            self._piece(len(event.delta) if isinstance(event.delta, str) else 0)
        return payload

    def _read(self, raw: Raw) -> _Streamed:
        try:
            response = _decode_streamed(raw)
        except WRONG:
            raise Broken("an event of the stream has no response") from None
        if not response.is_one:
            raise Broken("an event of the stream has no response")
        if self._id and response.id != self._id:
            raise Broken("an event of another answer")
        self._id = response.id
        return response

    def _last(self, payload: bytes, event: _ResponseEvent, response: _Streamed) -> bytes:
        if not response.finish:
            raise Broken(FAILED if response.status == "failed" else "the response ended unfinished", by_engine=True)
        self.finish, self.done = response.finish, True
        self.usage, self.believed = _settle(response.usage, self._asked, 0, self._characters)
        if self.believed:
            return payload
        inner = decode_top(bytes(event.response))
        inner["usage"] = Raw(encode(_response_usage(self.usage)))
        top = decode_top(payload)
        top["response"] = Raw(encode(inner))
        return encode(top)


def _response_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def read_response(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    """A whole response. Raises :class:`Broken`."""
    response, top = _whole(data, _decode_response, "the answer is not a response")
    if not response.finish:
        raise Broken(FAILED, by_engine=True)
    characters = sum(len(bytes(item.get("arguments", ABSENT))) for item in response.output)
    characters += sum(len(bytes(item.get("content", ABSENT))) // 64 for item in response.output)  # at least so many
    usage, believed = _settle(response.usage, asked, 0, characters)
    if not believed:
        top["usage"] = Raw(encode(_response_usage(usage)))
    if model is not None:
        top["model"] = Raw(encode(model))
    return WholeAnswer(response.id, response.finish, usage, believed, encode(top), not response.output)


def _whole(data: bytes, decode: Any, why: str) -> tuple[Any, dict[str, Raw]]:
    try:
        if not data.isascii():
            data.decode()
        answer, top = decode(data), decode_top(data)
    except WRONG:
        raise broken(data, why) from None
    if answer.error is not ABSENT and bytes(answer.error) != b"null":
        raise Broken(FAILED, by_engine=True)
    if len(data) > MAX_DIGITS:
        check_digits(data)
    return answer, top
