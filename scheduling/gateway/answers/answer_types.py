"""What an engine may answer: typed, and its figures bounded by what was asked of it.

An engine is trusted with the words of an answer, not with their form nor with its own bookkeeping. A chunk or an answer
that is not of the API's shape is :class:`Broken`. A ``usage`` that cannot be true (more than was asked, less than was
seen, no whole number, missing) is replaced by our own count and never makes a request fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from scheduling.core.engine.status import INPUT_REFUSED
from scheduling.core.estimate.tokens import BYTES_PER_TOKEN

ABSENT = Raw()  # compared by identity
TEMPLATE_TOKENS = 4096  # what a chat template may add to a prompt
FRAMES_SLACK = 64  # frames of a stream beyond two per token that was asked for: roles, ends, remarks
MAX_TOKEN_CHARS = 512  # characters: no vocabulary has a longer one
MAX_CHARACTERS = 16  # of a token, as a mean: from there on a frame holds several tokens
MAX_DIGITS = 4300  # of a number: Python's JSON reads no longer one
MAX_CALLS = 1024  # of tools, in an answer or in a piece of one
MAX_DETAILS = 4096  # bytes of the parts of a figure
MAX_MESSAGE, MAX_PARAM = 500, 200  # characters of an engine's error that a client sees
FAILED = "the engine answered with an error"
_EMPTY_DETAILS = (b'"prompt_tokens_details":null', b'"completion_tokens_details":null')
_DIGITS = b"0123456789"

Short = Annotated[str, Meta(max_length=256)]
Moment = Annotated[int, Meta(ge=0, le=2**53)]
MAX_CHOICES = 16  # answers of one request: n times its prompts. Each is a sequence of its engine
Index = Annotated[int, Meta(ge=0, lt=MAX_CHOICES)]
Finish = Annotated[str, Meta(max_length=32)]


class Broken(Exception):
    """The engine's answer is not one that a client may be given. ``why`` is for operators; ``by_engine``: it says
    itself that it failed; ``ours``: it may be right, and we could not read it."""

    def __init__(self, why: str, *, by_engine: bool = False, ours: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.by_engine = by_engine
        self.ours = ours


class Function(Struct):
    name: str | None = None
    arguments: str | None = None


class Unread(Struct, gc=False):
    """An object whose fields are not read, so that many of them cost little."""


class ToolCall(Struct):
    index: Annotated[int, Meta(ge=0, lt=MAX_CALLS)] = 0
    id: str | None = None
    type: str | None = None
    function: Function | None = None


class MessagePiece(Struct):
    """A message, or a piece of one. Fields that are not here pass as they are."""

    role: Short | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Raw = ABSENT

    @property
    def characters(self) -> int:
        """Raises :class:`Broken` for calls of tools that are none."""
        content = self.content
        if (
            content is not None
            and self.reasoning is None
            and self.reasoning_content is None
            and self.refusal is None
            and self.tool_calls is ABSENT
        ):
            return len(content)  # as nearly all are
        count = len(self.content or "") + len(self.reasoning or self.reasoning_content or "") + len(self.refusal or "")
        for call in () if self.tool_calls is ABSENT else _calls(self.tool_calls):
            if call.function is not None:
                count += len(call.function.name or "") + len(call.function.arguments or "")
        return count


class ChatPiece(Struct):
    delta: MessagePiece
    index: Index = 0
    finish_reason: Finish | None = None
    logprobs: Unread | None = None

    @property
    def characters(self) -> int:
        return self.delta.characters


class TextPiece(Struct):
    """Of a text completion, streamed or whole."""

    text: str
    index: Index = 0
    finish_reason: Finish | None = None
    logprobs: Unread | None = None

    @property
    def characters(self) -> int:
        return len(self.text)


class ChatChoice(Struct):
    message: MessagePiece
    index: Index = 0
    finish_reason: Finish | None = None
    logprobs: Unread | None = None

    @property
    def characters(self) -> int:
        return self.message.characters


class _Top(Struct, kw_only=True):
    id: Short = ""
    object: Short = ""
    created: Moment = 0
    model: Short = ""
    usage: Raw = ABSENT
    error: Raw = ABSENT


class ChatChunk(_Top):
    choices: Annotated[list[ChatPiece], Meta(max_length=MAX_CHOICES)]


class TextChunk(_Top):
    choices: Annotated[list[TextPiece], Meta(max_length=MAX_CHOICES)]


class ChatAnswer(_Top):
    choices: Annotated[list[ChatChoice], Meta(min_length=1, max_length=MAX_CHOICES)]


class TextAnswer(_Top):
    choices: Annotated[list[TextPiece], Meta(min_length=1, max_length=MAX_CHOICES)]


class Usage(Struct, omit_defaults=True):
    """What a client is shown and a tenant is charged."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, int] | None = None
    completion_tokens_details: dict[str, int] | None = None

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, what the engine says its prefix cache held; ``_details`` has bounded it."""
        return (self.prompt_tokens_details or {}).get("cached_tokens", 0)


class _EngineUsage(Struct):
    """As an engine says it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int | None = None
    prompt_tokens_details: Raw = ABSENT
    completion_tokens_details: Raw = ABSENT


class _EngineError(Struct):
    message: str = ""
    param: str | None = None
    code: Raw = ABSENT  # in a stream, whose status was sent before: the status that it would have been


class _EngineErrorAnswer(Struct):
    error: _EngineError | None = None


# Fields of the objects that streams are made of, at their top and one level below: chunks, events, messages, responses.
_KNOWN = (
    "choices", "completed_at", "content", "content_block", "created", "created_at", "delta", "error", "id",
    "incomplete_details", "index", "input", "input_messages", "instructions", "item", "kv_transfer_params", "message",
    "metadata", "model", "object", "output", "output_messages", "part", "prompt", "prompt_logprobs", "prompt_text",
    "prompt_token_ids", "reasoning", "response", "role", "sequence_number", "text", "tool_choice", "tools", "type",
    "usage",
)  # fmt: skip
MAX_ERROR_BYTES = 1024 * 1024  # of an error that is read; vLLM's may repeat a part of the body
UNKNOWN_BYTES = 64 * 1024  # that an object may have in others
_decode_known = msgspec.json.Decoder(msgspec.defstruct("_Known", [(name, Raw, ABSENT) for name in _KNOWN])).decode
encode = msgspec.json.Encoder().encode
_decode_calls = msgspec.json.Decoder(list[ToolCall] | None).decode
_decode_unread = msgspec.json.Decoder(list[Unread] | None).decode
_decode_usage = msgspec.json.Decoder(_EngineUsage).decode
_decode_details = msgspec.json.Decoder(dict[Short, Any]).decode
_decode_error = msgspec.json.Decoder(_EngineErrorAnswer).decode
decode_top = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_chunk: dict[bool, Callable[[bytes], ChatChunk | TextChunk]] = {
    True: msgspec.json.Decoder(ChatChunk).decode,
    False: msgspec.json.Decoder(TextChunk).decode,
}
_decode_answer: dict[bool, Callable[[bytes], ChatAnswer | TextAnswer]] = {
    True: msgspec.json.Decoder(ChatAnswer).decode,
    False: msgspec.json.Decoder(TextAnswer).decode,
}
WRONG = (msgspec.MsgspecError, ValueError, RecursionError)  # whatever decoding may raise


class Asked(msgspec.Struct, frozen=True):
    """What bounds the figures of an answer. Tokens."""

    chat: bool
    output_bound: int
    input_tokens: int  # our estimate
    least_input: int = 1
    most_input: int = 2**31
    choices: int = 1  # answers: n times the prompts

    @classmethod
    def of(
        cls, chat: bool, output_bound: int, estimate: int, exact: int, body_bytes: int, context: int,
        prompts: int = 1, choices: int = 1, media: bool = False,
    ) -> Asked:  # fmt: skip
        """``output_bound``: of all answers together. ``exact``: tokens of prompts that were sent as token ids, else 0.
        ``context``: the model's length as it is configured, which may be less than the engine's. A byte of a body is
        never more than one token of each prompt that it is part of (``prompts``), but one of ``media`` may be many."""
        if exact:
            return cls(chat, output_bound, exact, exact, exact + TEMPLATE_TOKENS, choices)
        most = (2 * context if media else min(2 * context, body_bytes + TEMPLATE_TOKENS)) * prompts
        return cls(chat, output_bound, estimate, 1, most, choices)


def read_chunk(payload: bytes, chat: bool) -> ChatChunk | TextChunk:
    """One frame of a stream. Raises :class:`Broken`. UTF-8 is the caller's to check."""
    try:
        chunk = _decode_chunk[chat](payload)
    except WRONG:
        raise broken(payload, "a frame of the stream is not a completion chunk") from None
    if chunk.error is not ABSENT and bytes(chunk.error) != b"null":
        raise Broken(FAILED, by_engine=True)
    if len(payload) > MAX_DIGITS:
        check_digits(payload)
    return chunk


def plain_frames(frames: Sequence[bytes], answer_id: str, chat: bool) -> tuple[int, int]:
    """How many of the first events of a stream are as nearly all are: one line ``data: {...}`` with a piece of the
    answer, which does not end with it, and no usage; and how many characters they have. The first that is not is to be
    looked at closely. UTF-8 is the caller's to check."""
    decode = _decode_chunk[chat]
    count = characters = 0
    try:
        for frame in frames:
            if len(frame) > MAX_DIGITS or frame[:6] != b"data: " or b"\n" in frame or b"\r" in frame:
                break
            chunk = decode(frame[6:])
            choices = chunk.choices
            if chunk.id != answer_id or chunk.usage is not ABSENT or chunk.error is not ABSENT or len(choices) != 1:
                break
            piece = choices[0]
            if piece.index or piece.finish_reason:
                break
            characters += piece.characters
            count += 1
    except (*WRONG, Broken):
        pass
    return count, characters


def check_names(data: bytes) -> None:
    """Whether all but little of an object of a stream is in fields that such objects have. One with other names in all
    of its bytes takes ten times as long to take apart (:data:`decode_top`), while every stream waits.

    Raises:
        Broken: it is not.
    """
    if len(data) > UNKNOWN_BYTES:
        try:
            known = _decode_known(data)
        except WRONG:
            raise Broken("a part of a frame is not an object") from None
        if len(data) - sum(memoryview(getattr(known, name)).nbytes for name in _KNOWN) > UNKNOWN_BYTES:
            raise Broken("most of a frame is in fields that answers do not have")


def broken(data: bytes, why: str) -> Broken:
    try:
        top = decode_top(data)
    except WRONG:
        return Broken(f"{why}: it is not a JSON object")
    return Broken(FAILED, by_engine=True) if "error" in top else Broken(why)


def check_digits(data: bytes) -> None:
    """Raises :class:`Broken` for a number that clients cannot read."""
    if _has_long_run(data):
        try:
            msgspec.json.decode(data)
        except WRONG:
            raise Broken("a number has thousands of digits") from None


def _has_long_run(data: bytes) -> bool:
    """Whether more than :data:`MAX_DIGITS` digits follow one another. So many hold one of the places that are looked
    at, and no byte is read more than twice: a search from each byte costs the square of runs that end just before."""
    run = MAX_DIGITS + 1
    for at in range(MAX_DIGITS, len(data), run):
        if data[at] in _DIGITS:
            before, after = data[at - MAX_DIGITS : at], data[at : at + run]
            if len(before) - len(before.rstrip(_DIGITS)) + len(after) - len(after.lstrip(_DIGITS)) >= run:
                return True
    return False


def _calls(raw: Raw) -> list[ToolCall]:
    """Of tools. Their number is looked at before they are read: each costs many times the bytes of ``{}``."""
    data = bytes(raw)
    try:
        if data.count(b"{") > MAX_CALLS and len(_decode_unread(data) or ()) > MAX_CALLS:
            raise Broken(f"it calls more than {MAX_CALLS} tools")
        return _decode_calls(data) or []
    except WRONG:
        raise Broken("its calls of tools are none") from None


def without_usage(payload: bytes) -> bytes:
    """A chunk that was read, without its ``usage``. Raises :class:`Broken`."""
    check_names(payload)
    top = decode_top(payload)
    top.pop("usage", None)
    return encode(top)


def with_usage(payload: bytes, usage: Usage) -> bytes:
    """A chunk that was read, with this usage instead of its own. Raises :class:`Broken`."""
    check_names(payload)
    top = decode_top(payload)
    top["usage"] = Raw(encode(usage))
    return encode(top)


def usage_chunk(like: ChatChunk | TextChunk, usage: Usage) -> bytes:
    """The usage frame of a stream whose engine sent none."""
    return encode(
        {
            "id": like.id, "object": like.object, "created": like.created, "model": like.model, "choices": [],
            "usage": usage,
        }
    )  # fmt: skip


def own_count(frames: int, characters: int, bound: int) -> int:
    """Output tokens by what was seen: a token is a frame, unless frames hold far more text than tokens do."""
    count = frames if characters <= MAX_CHARACTERS * frames else max(frames, round(characters / BYTES_PER_TOKEN), 1)
    return min(count, bound)


def settle_usage(raw: Raw, asked: Asked, frames: int, characters: int) -> tuple[Usage, bool]:
    """The usage to charge, and whether it is the engine's own. ``frames``, ``characters``: what was seen of the answer
    (``frames`` 0 for a whole answer)."""
    least = max(1 if characters else 0, (frames - FRAMES_SLACK) // 2, characters // MAX_TOKEN_CHARS)
    try:
        usage_sent = _decode_usage(raw)
    except WRONG:
        usage_sent = None
    if (
        usage_sent is None
        or not asked.least_input <= usage_sent.prompt_tokens <= asked.most_input
        or not min(least, asked.output_bound) <= usage_sent.completion_tokens <= asked.output_bound
    ):
        input_tokens, output_tokens = asked.input_tokens, own_count(frames, characters, asked.output_bound)
        return Usage(input_tokens, input_tokens + output_tokens, output_tokens), False
    input_tokens, output_tokens = usage_sent.prompt_tokens, usage_sent.completion_tokens
    usage = Usage(
        input_tokens,
        input_tokens + output_tokens,
        output_tokens,
        _details(usage_sent.prompt_tokens_details, input_tokens),
        _details(usage_sent.completion_tokens_details, output_tokens),
    )
    return usage, usage_sent.total_tokens in (None, input_tokens + output_tokens)


def _details(raw: Raw, most: int) -> dict[str, int] | None:
    """The parts of a figure that can be parts of it."""
    data = b"null" if raw is ABSENT else bytes(raw)
    if data == b"null" or len(data) > MAX_DETAILS:  # as vLLM writes it where it has none
        return None
    try:
        details = _decode_details(data)
    except WRONG:
        return None
    parts = {name: value for name, value in details.items() if type(value) is int and 0 <= value <= most}
    return parts if 0 < len(parts) <= 16 else None


class WholeAnswer(msgspec.Struct):
    """A complete answer that a client may be given."""

    id: str
    finish: str
    usage: Usage
    believed: bool  # the usage is what the engine said
    body: bytes
    empty: bool = False  # it has no content, where it is a text


def read_answer(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    """A whole answer, made anew from its parts. ``model``: the name that clients know it by, where the engine has
    another. Raises :class:`Broken`."""
    try:
        if not data.isascii():
            data.decode()
        answer = _decode_answer[asked.chat](data)
        top = decode_top(data)
    except WRONG:
        raise broken(data, "the answer is not a completion") from None
    if answer.error is not ABSENT and bytes(answer.error) != b"null":
        raise Broken(FAILED, by_engine=True)
    if len(data) > MAX_DIGITS:
        check_digits(data)
    choices = answer.choices
    if len(choices) == 1 == asked.choices and not choices[0].index:
        finish, characters = choices[0].finish_reason or "", choices[0].characters
    elif len(choices) == asked.choices and {choice.index for choice in choices} == set(range(asked.choices)):
        finish = finish_of(choice.finish_reason for choice in choices)
        characters = sum(choice.characters for choice in choices)
    else:
        raise Broken(f"{asked.choices} answers were asked for, and it has others")
    usage, believed = settle_usage(answer.usage, asked, 0, characters)
    top["usage"] = Raw(_with_nulls(usage, answer.usage))
    if model is not None:
        top["model"] = Raw(encode(model))
    return WholeAnswer(answer.id, finish, usage, believed, encode(top), not characters)


def finish_of(reasons: Iterable[str | None]) -> str:
    """How an answer of several choices ended: at its bound if one of them did."""
    ends = [reason for reason in reasons if reason]
    return "length" if "length" in ends else ends[0] if ends else ""


def _with_nulls(usage: Usage, reported: Raw) -> bytes:
    """The usage as JSON, with the details that an engine wrote out as null."""
    body, raw = encode(usage), bytes(reported)
    for field in _EMPTY_DETAILS:
        if field in raw:
            body = b"%b,%b}" % (body[:-1], field)
    return body


def refuses_input(data: bytes) -> bool:
    """Whether an error in a stream says that the input is wrong."""
    try:
        error = _decode_error(data).error
        return error is not None and msgspec.json.decode(error.code) in INPUT_REFUSED
    except WRONG:
        return False


def input_error(data: bytes) -> tuple[str, str | None]:
    """What an engine says of an input that it refuses, and the field it names; empty where that cannot be read, or is
    so long that every stream would wait for it."""
    if len(data) > MAX_ERROR_BYTES:
        return "", None
    try:
        error = _decode_error(data).error
    except WRONG:
        return "", None
    return ("", None) if error is None else (error.message[:MAX_MESSAGE], error.param and error.param[:MAX_PARAM])
