"""From a body's bytes to a bounded request and the body its engine gets.

Everything that can be wrong with an input is said here as a 400 with the field's path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from scheduling.core.estimate.tokens import BYTES_PER_TOKEN, raw_tokens
from scheduling.core.outcomes import Reason
from scheduling.core.types import PoolSpec, PrefixCache
from scheduling.gateway.errors import Refusal
from scheduling.gateway.openai_types import (
    ABSENT,
    MAX_SCHEMA_BYTES,
    ChatRequest,
    CompletionRequest,
    Message,
    StreamOptions,
    StructuredOutputs,
    consume,
)

MESSAGE_TOKENS = 4  # a chat template's frame around one message
MAX_MESSAGE_CHARS, MAX_PATH_CHARS = 300, 200  # characters of a parser's message that a client sees
MAX_PARTS = 65_536  # strings, objects and arrays of a body: each costs the parser 0.4 us, while every stream waits

UNKNOWN = "Object contains unknown field `"  # how the parser begins to say so

_decode_chat = msgspec.json.Decoder(ChatRequest, dec_hook=consume).decode
_decode_completion = msgspec.json.Decoder(CompletionRequest, dec_hook=consume).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
# arguments of the tokenizer's own method, which some versions of vLLM pass on with the template's
_NOT_FOR_CLIENTS = frozenset({
    "chat_template", "conversation", "messages", "tools", "documents", "tokenize", "tokenizer", "tokenizer_kwargs",
    "padding", "truncation", "max_length", "add_generation_prompt", "continue_final_message",
})  # fmt: skip
# vLLM hands these on with what its own parts exchange: a request could have another's cache read
_NOT_FOR_EXTENSIONS = ("kv_", "ec_", "cache_salt")
_USAGE = StreamOptions(include_usage=True)


@dataclass(slots=True)
class Prepared:
    """A request that may be sent: its sizes, and its body for the engine (made late, when its priority is known)."""

    body: ChatRequest | CompletionRequest
    chat: bool
    stream: bool
    wants_usage: bool  # the client asked for the usage frame
    output_bound: int
    raw_input: float  # uncalibrated input tokens; exact ones for token ids
    exact_input: bool
    client_priority: int
    bound_given: bool  # by the client; else it is the pool's default, which may be lowered to fit
    teaches: bool = True  # whether the engine's count says how good ``raw_input`` is: not where it may leave parts out

    def set_bound(self, bound: int) -> None:
        self.output_bound = self.body.max_tokens = bound

    def upstream(self, model: str, priority: int, cache_salt: str | None = None) -> bytes:
        """The JSON for the engine, which serves the model as ``model``; ``priority``: lower is sooner; ``cache_salt``
        (``scheduling.gateway.cache_salt``) stands where the client's own was."""
        body = self.body
        body.model = model
        body.priority = priority
        body.cache_salt = cache_salt
        return _encode(body)


def _invalid(detail: str, param: str | None = None) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, detail=detail, param=param)


def parse(data: bytes, chat: bool) -> ChatRequest | CompletionRequest:
    """The typed request; raises :class:`Refusal` (400) for anything else, however it is malformed."""
    decode = _decode_chat if chat else _decode_completion
    try:
        if not data.isascii():
            data.decode()  # the parser looks into no part that goes to the engine as it is, and the engine would fail
        if len(data) > 3 * MAX_PARTS and _parts(data) > MAX_PARTS:  # a shorter one has no room for more, as in [[],[],
            raise _invalid(f"The body has more than {MAX_PARTS} strings, objects and arrays. Send a shorter one.")
        try:
            return decode(data)
        except msgspec.ValidationError as exc:
            if not str(exc).startswith(UNKNOWN):
                raise
            return decode(_without_unknown_nulls(data, chat))
    except msgspec.ValidationError as exc:
        raise _invalid(*_explained(str(exc), chat)) from None
    except RecursionError:
        raise _invalid("The body is nested too deeply.") from None
    except (msgspec.DecodeError, ValueError) as exc:
        raise _invalid(f"The body is not valid JSON: {str(exc)[:MAX_MESSAGE_CHARS]}.") from None


def _parts(data: bytes) -> int:
    """How many strings, objects and arrays are in this JSON. Takes milliseconds for megabytes."""
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    strings = unescaped.count(b'"') // 2
    if strings > MAX_PARTS:
        return strings
    outside = b"".join(unescaped.split(b'"')[::2])
    return strings + outside.count(b"{") + outside.count(b"[")


def _explained(error: str, chat: bool) -> tuple[str, str | None]:
    """What a parser said, as a sentence and the path of the field it is about."""
    message, _, path = error.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if message.startswith(UNKNOWN):
        name = message.removeprefix(UNKNOWN).rstrip("`")
        path = f"{path}.{name}" if path else name
        message = (
            "This field is not known here and would not reach the model: leave it out "
            "(docs/reference/v1.md lists them all)"
        )
    elif chat and "content[" in path and path.endswith(".type"):
        message += ". Only text parts are taken; media is refused"
    path = path[:MAX_PATH_CHARS]
    return (f"{path}: {message[:MAX_MESSAGE_CHARS]}." if path else f"{message[:MAX_MESSAGE_CHARS]}."), path or None


_Names = dict[str, "_Names | None"]


def _names(struct: type) -> _Names:
    """The fields of a struct, and of the structs in them."""
    fields: _Names = {}
    for name, hint in get_type_hints(struct).items():
        inside = [kind for kind in _kinds(hint) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        fields[name] = _names(inside[0]) if inside else None
    return fields


def _kinds(hint: Any) -> list[Any]:
    return [hint] + [kind for inner in get_args(hint) for kind in _kinds(inner)]


_CHAT_NAMES, _COMPLETION_NAMES = _names(ChatRequest), _names(CompletionRequest)


def _without_unknown_nulls(data: bytes, chat: bool) -> bytes:
    """The body without unknown fields whose value is null: clients write out what they do not use."""
    body = _decode_any(data)
    _drop_nulls(body, _CHAT_NAMES if chat else _COMPLETION_NAMES)
    return _encode(body)


def _drop_nulls(value: Any, names: _Names) -> None:
    if isinstance(value, list):
        for item in value:
            _drop_nulls(item, names)
    elif isinstance(value, dict):
        for name in [name for name, content in value.items() if content is None and name not in names]:
            del value[name]
        for name, inside in names.items():
            if inside is not None and name in value:
                _drop_nulls(value[name], inside)


def prepare(data: bytes, chat: bool, pool: PoolSpec) -> Prepared:
    """Checks the request against what the pool serves, applies the output bound, drops what does not go upstream."""
    body = parse(data, chat)
    if body.model != pool.model and body.model not in pool.aliases:
        raise Refusal(Reason.UNKNOWN_MODEL, model=body.model, param="model")
    bound = body.max_tokens
    teaches = body.truncate_prompt_tokens is None
    if isinstance(body, ChatRequest):
        if body.max_completion_tokens is not None:
            bound = body.max_completion_tokens
            body.max_completion_tokens = None
        if body.top_logprobs and not body.logprobs:
            raise _invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        if body.tools is not None:
            _check_tools(body)
        if body.chat_template_kwargs is not None:
            _check_template(body.chat_template_kwargs)
        raw, exact = _chat_tokens(body), False
        if body.documents is not None:
            raw += sum(raw_tokens(text) for document in body.documents for text in document.values())
            teaches = False  # a template may know nothing of documents
    else:
        if isinstance(body.prompt, str):
            raw, exact = raw_tokens(body.prompt), False
        else:
            raw, exact = float(len(body.prompt)), True
        if body.suffix:
            raw += raw_tokens(body.suffix)
        if not body.prompt:
            raise _invalid("prompt is empty.", "prompt")
    if body.cache_salt is not None and pool.prefix_cache is PrefixCache.UNSALTED:
        raise _invalid("The engines behind this model take no cache_salt.", "cache_salt")
    if body.response_format is not None:
        schema = body.response_format.json_schema
        if schema is not None and _size(schema.schema) > MAX_SCHEMA_BYTES:
            raise _invalid(f"The schema is larger than {MAX_SCHEMA_BYTES} bytes.", "response_format.json_schema.schema")
    if body.vllm_xargs is not None:
        _check_extensions(body.vllm_xargs)
    _constrain(body)
    given = bound is not None
    if bound is None:
        bound = pool.default_output_tokens
    elif bound > pool.max_output_tokens:
        raise _invalid(f"At most {pool.max_output_tokens} output tokens can be asked for here.", "max_tokens")
    if body.min_tokens is not None and body.min_tokens > bound:
        raise _invalid("min_tokens is larger than the output bound.", "min_tokens")
    body.max_tokens = bound
    stream = bool(body.stream)
    wants_usage = body.stream_options is not None and body.stream_options.include_usage is True
    if body.stream_options is not None and not stream:
        raise _invalid("stream_options is only allowed when stream is true.", "stream_options")
    body.stream = True if stream else None
    body.stream_options = _USAGE if stream else None  # every stream is accounted, asked for or not
    return Prepared(body, chat, stream, wants_usage, bound, raw, exact, body.priority or 0, given, teaches)


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


def _check_template(kwargs: Mapping[str, object]) -> None:
    """What a template may be told, but not another template, nor how the engine renders and tokenises it."""
    for name in kwargs:
        if name in _NOT_FOR_CLIENTS or name.startswith("return_"):
            raise _invalid(f"{name} cannot be set here.", "chat_template_kwargs")


def _check_extensions(arguments: Mapping[str, object]) -> None:
    for name in arguments:
        if name.startswith(_NOT_FOR_EXTENSIONS):
            raise _invalid(f"vllm_xargs: {name} cannot be set here.", f"vllm_xargs.{name}")


def _constrain(body: ChatRequest | CompletionRequest) -> None:
    """Bounds ``structured_outputs`` and moves the older ``guided_*`` fields into it."""
    if (
        body.structured_outputs is None
        and body.guided_regex is None
        and body.guided_choice is None
        and body.guided_grammar is None
        and body.guided_json is ABSENT
    ):
        return
    guided = {
        "json": body.guided_json,
        "regex": body.guided_regex,
        "choice": body.guided_choice,
        "grammar": body.guided_grammar,
    }
    given = {name: value for name, value in guided.items() if value is not None and value is not ABSENT}
    if "json" in given and bytes(body.guided_json) == b"null":
        del given["json"]
    body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar = ABSENT, None, None, None
    if given:
        first = f"guided_{next(iter(given))}"
        if len(given) > 1:
            raise _invalid("Only one of the guided_* fields can be given.", first)
        if body.structured_outputs is not None:
            raise _invalid("structured_outputs and the older guided_* fields exclude each other.", first)
        body.structured_outputs = StructuredOutputs(**given)  # type: ignore[arg-type]
    outputs = body.structured_outputs
    if outputs is not None and _size(outputs.json) > MAX_SCHEMA_BYTES:
        raise _invalid(f"The schema is larger than {MAX_SCHEMA_BYTES} bytes.", "structured_outputs.json")


def _check_tools(body: ChatRequest) -> None:
    if sum(_size(tool.function.parameters) for tool in body.tools or ()) > MAX_SCHEMA_BYTES:
        raise _invalid(f"The tools' parameters are larger than {MAX_SCHEMA_BYTES} bytes.", "tools")


def _chat_tokens(body: ChatRequest) -> float:
    total = 0.0
    for message in body.messages:
        content = message.content
        if type(content) is str:
            total += raw_tokens(content) + MESSAGE_TOKENS
        else:
            total += MESSAGE_TOKENS
            for part in content or ():
                assert not isinstance(part, str)
                total += raw_tokens(part.text or "")
                if part.refusal is not None or part.thinking is not None:
                    total += raw_tokens(part.refusal or "") + raw_tokens(part.thinking or "")
        if message.reasoning_content is not None:
            _rename_reasoning(body, message)
        if message.reasoning is not None:
            total += raw_tokens(message.reasoning)
        if message.refusal or message.name or message.tool_call_id:  # templates may write each of them
            total += raw_tokens(message.refusal or "") + raw_tokens(message.name or "")
            total += raw_tokens(message.tool_call_id or "")
        for call in message.tool_calls or ():
            total += raw_tokens(call.id) + raw_tokens(call.function.name) + raw_tokens(call.function.arguments)
    for tool in body.tools or ():
        function = tool.function
        total += raw_tokens(function.name) + raw_tokens(function.description or "")
        total += _size(function.parameters) / BYTES_PER_TOKEN
    for value in (body.chat_template_kwargs or {}).values():
        if isinstance(value, str):
            total += raw_tokens(value)
    return total


def _rename_reasoning(body: ChatRequest, message: Message) -> None:
    """An engine gets an assistant's reasoning under the one name that it reads."""
    if message.reasoning is not None and message.reasoning != message.reasoning_content:
        at = next(n for n, one in enumerate(body.messages) if one is message)
        path = f"messages[{at}].reasoning_content"
        raise _invalid(f"{path}: It differs from reasoning, which is its newer name: send one of them.", path)
    message.reasoning, message.reasoning_content = message.reasoning_content, None
