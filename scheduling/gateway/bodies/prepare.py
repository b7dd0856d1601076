"""From a body's bytes to a bounded request and the body its engine gets.

Everything that can be wrong with an input is said here as a 400 with the field's path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from scheduling.core.estimate.tokens import BYTES_PER_TOKEN, raw_tokens
from scheduling.core.inside_engine.digest import ARGUMENT
from scheduling.core.outcomes import Reason
from scheduling.core.types import PoolSpec, PrefixCache
from scheduling.engines.kinds import kind_of
from scheduling.gateway.bodies.checks import (
    check_arguments,
    check_bound,
    check_media,
    check_salt,
    check_schema,
    check_tools,
    invalid,
    size_of,
)
from scheduling.gateway.bodies.explain import MAX_MESSAGE_CHARS, UNKNOWN, explained
from scheduling.gateway.bodies.media import inline_tokens, linked_tokens
from scheduling.gateway.bodies.openai_types import (
    ABSENT,
    MAX_CHOICES,
    ChatRequest,
    CompletionRequest,
    Message,
    StreamOptions,
    StructuredOutputs,
    consume,
)
from scheduling.gateway.errors import Refusal

if TYPE_CHECKING:
    from scheduling.gateway.entry.auth import Access

MESSAGE_TOKENS = 4  # a chat template's frame around one message
# Of a body, while every stream waits: each of the former costs the parser 0.4 us, each of the latter 0.05 us.
MAX_PARTS = 65_536  # strings, objects and arrays
MAX_VALUES = 524_288  # with commas between them; more than any context has token ids

_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_PROMPTS = ("messages", "input", "prompt", "documents", "text_2", "items", "data_2")  # none of them: a file was sent
_USAGE = StreamOptions(include_usage=True)

T = TypeVar("T", bound=msgspec.Struct)


class Prepared(msgspec.Struct, eq=False):
    """A request that may be sent: its sizes, and its body for the engine (made late, when its priority is known)."""

    body: Any  # a struct of the endpoint's, with ``model``, ``priority`` and ``cache_salt``
    chat: bool
    stream: bool
    wants_usage: bool  # the client asked for the usage frame
    output_bound: int  # of one answer
    raw_input: float  # uncalibrated input tokens of all prompts; exact ones for token ids
    exact_input: bool
    client_priority: int
    bound_given: bool  # by the client; else it is the pool's default, which may be lowered to fit
    teaches: bool = True  # whether the engine's count says how good ``raw_input`` is: not where it may leave parts out
    prompts: int = 1
    copies: int = 1  # answers to each prompt
    longest: float = 0.0  # of several prompts: raw tokens of the longest
    kept: float = math.inf  # tokens of a prompt that the engine does not cut off
    media: float = 0.0  # of ``raw_input``: what images, audio and video are taken for
    plain: ChatRequest | None = None  # the same as a chat, where it is none: what it is judged by
    bound_field: str = "max_tokens"
    surely_left: int = 0  # the bound to send where an engine refuses one that may pass the context's end; 0: none may
    named: bool = False  # the body names the answer, beside the header: ``name_in``
    choices: int = 0  # answers in all

    def __post_init__(self) -> None:
        self.choices = self.prompts * self.copies

    @property
    def prompt_field(self) -> str:
        """What of the request is too long where its prompt is."""
        return next((name for name in _PROMPTS if getattr(self.body, name, None) is not None), "file")

    @property
    def may_hold_back(self) -> bool:
        """Whether an engine that writes its answer may send nothing for long: parsers of some models send what a tool
        is called with when all of it is there."""
        return bool(getattr(self.judged, "tools", None))

    def set_bound(self, bound: int) -> None:
        self.output_bound = bound
        setattr(self.body, self.bound_field, bound)

    @property
    def judged(self) -> Any:
        """What estimates and placement go by."""
        return self.body if self.plain is None else self.plain

    def refit(self, pool: PoolSpec) -> bool:
        """Makes it one for another pool, where that takes what it asks for."""
        bound = self.output_bound if self.bound_given else pool.default_output_tokens
        if bound > pool.max_output_tokens or (getattr(self.body, "min_tokens", None) or 0) > bound:
            return False
        if self.body.cache_salt is not None and pool.prefix_cache is PrefixCache.UNSALTED:
            return False
        if any(getattr(self.body, name, None) is not None for name in kind_of(pool.engine).lacks):
            return False
        if self.output_bound:  # vectors have none
            self.set_bound(bound)
        return True

    def upstream(
        self, model: str, priority: int | None, cache_salt: str | None = None, name: str = "", digest: str = ""
    ) -> bytes:
        """The JSON for the engine, which serves the model as ``model``; ``priority``: lower is sooner; ``cache_salt``
        (``scheduling.gateway.estimate.cache_salt``) stands where the client's own was; ``digest`` is for a scheduler of
        ours inside the engine (``scheduling.core.inside_engine.digest``)."""
        body = self.body
        body.model = model
        body.priority = priority
        body.cache_salt = cache_salt
        if digest and hasattr(body, "vllm_xargs"):  # what makes vectors has no such field
            body.vllm_xargs = {**(body.vllm_xargs or {}), ARGUMENT: digest}
        if self.named:
            body.request_id = f"resp_{name}"
        return _encode(body)


def renamed(body: bytes, name: str, again: str) -> bytes:
    """A body that names its answer (``Prepared.named``), with another name: an engine takes each once only. Quotes
    within JSON strings are escaped, so nothing that a client said is found."""
    return body.replace(b'"request_id":"resp_%b"' % name.encode(), b'"request_id":"resp_%b"' % again.encode(), 1)


class Form(Generic[T]):
    """A kind of body: how it is decoded, and which names it knows."""

    __slots__ = ("decode", "kind", "names")

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.decode: Callable[[bytes], T] = msgspec.json.Decoder(kind, dec_hook=consume).decode
        self.names = _names(kind)

    def parse(self, data: bytes) -> T:
        """A body of this form; raises :class:`Refusal` (400) for anything else."""
        return parse_as(data, self)


def parse(data: bytes, chat: bool) -> ChatRequest | CompletionRequest:
    """The typed request; raises :class:`Refusal` (400) for anything else, however it is malformed."""
    return parse_as(data, CHAT_FORM) if chat else parse_as(data, COMPLETION_FORM)


def check_parts(data: bytes, what: str, param: str | None = None) -> None:
    """Refuses JSON (400) that is costly to read."""
    if len(data) > 3 * MAX_PARTS:  # a shorter one has no room for more, as in [[],[],
        parts, values = _counted(data)
        if parts > MAX_PARTS:
            raise invalid(f"{what} has more than {MAX_PARTS} strings, objects and arrays. Send a shorter one.", param)
        if values > MAX_VALUES:
            raise invalid(f"{what} has more than {MAX_VALUES} values. Send fewer, or a prompt as text.", param)


def parse_as(data: bytes, form: Form[T]) -> T:
    """A body of this form; raises :class:`Refusal` (400) for anything else."""
    decode = form.decode
    try:
        if not data.isascii():
            data.decode()  # the parser looks into no part that goes to the engine as it is, and the engine would fail
        check_parts(data, "The body")
        try:
            return decode(data)
        except msgspec.ValidationError as exc:
            if not str(exc).startswith(UNKNOWN):
                raise
            return decode(_without_unknown_nulls(data, form.names))
    except msgspec.ValidationError as exc:
        raise invalid(*explained(str(exc), form.kind)) from None
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None
    except (msgspec.DecodeError, ValueError) as exc:
        raise invalid(f"The body is not valid JSON: {_written_as(data) or str(exc)[:MAX_MESSAGE_CHARS]}.") from None


_WRITTEN_AS = (
    (b"\x1f\x8b", "it is compressed (gzip); send it as it is"),
    (b"\x28\xb5\x2f\xfd", "it is compressed (zstd); send it as it is"),
    (b"\xef\xbb\xbf", "it begins with a byte order mark; send UTF-8 without one"),
    (b"\xff\xfe", "it is UTF-16; send UTF-8"),
    (b"\xfe\xff", "it is UTF-16; send UTF-8"),
)


def _written_as(data: bytes) -> str:
    """What a body that cannot be read is, where its first bytes tell."""
    return next((told for begin, told in _WRITTEN_AS if data.startswith(begin)), "")


class _Named(msgspec.Struct):
    model: str = ""


_named = msgspec.json.Decoder(_Named).decode


def model_named(data: bytes) -> str:
    """The model that a body names, whatever else is wrong with it; empty where none can be read."""
    try:
        return _named(data).model
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""


def _counted(data: bytes) -> tuple[int, int]:
    """How many strings, objects and arrays are in this JSON, and how many values with commas between them. Takes
    milliseconds for megabytes."""
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    strings = unescaped.count(b'"') // 2
    if strings > MAX_PARTS:
        return strings, 0
    outside = b"".join(unescaped.split(b'"')[::2])
    return strings + outside.count(b"{") + outside.count(b"["), outside.count(b",")


_Names = dict[str, "_Names | None"]


def _names(struct: type, memo: dict[type, _Names] | None = None) -> _Names:
    """The fields of a struct, and of the structs in them, itself included."""
    memo = {} if memo is None else memo
    if struct in memo:
        return memo[struct]
    fields: _Names = {}
    memo[struct] = fields
    for name, hint in get_type_hints(struct).items():
        inside = [kind for kind in _kinds(hint) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        fields[name] = _names(inside[0], memo) if inside else None
    return fields


def _kinds(hint: Any) -> list[Any]:
    return [hint] + [kind for inner in get_args(hint) for kind in _kinds(inner)]


CHAT_FORM, COMPLETION_FORM = Form(ChatRequest), Form(CompletionRequest)


def _without_unknown_nulls(data: bytes, names: _Names) -> bytes:
    """The body without unknown fields whose value is null: clients write out what they do not use."""
    body = _decode_any(data)
    _drop_nulls(body, names)
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


def choose(model: str, access: Access) -> Access:
    """What the key opens under this name of a model.

    Raises:
        Refusal: nothing; it is the same whether the model exists for others or not at all.
    """
    named = access.at(model)
    if named is not None:
        return named
    if not model:
        raise invalid("model is missing. GET /v1/models lists what this key can use.", "model")
    raise Refusal(Reason.UNKNOWN_MODEL, model=model, param="model")


def check_choices(prepared: Prepared, concurrency: int) -> None:
    """Refuses more answers in one request than its entitlement may run at once: each is a sequence in the engine."""
    if prepared.output_bound and prepared.choices > max(concurrency, 1):
        raise invalid(
            f"{prepared.choices} answers are more than the {concurrency} that may run at once: send several requests.",
            "n" if prepared.copies > 1 else "prompt",
        )


def fit(body: ChatRequest | CompletionRequest, pool: PoolSpec) -> Prepared:
    """Checks the request against what the pool serves, applies the output bound, drops what does not go upstream."""
    chat = isinstance(body, ChatRequest)
    bound = body.max_tokens
    kept = kept_tokens(body.truncate_prompt_tokens, pool)
    teaches = body.truncate_prompt_tokens is None
    prompts, longest, media = 1, 0.0, 0.0
    if isinstance(body, ChatRequest):
        if body.max_completion_tokens is not None:
            bound = body.max_completion_tokens
            body.max_completion_tokens = None
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        check_tools(body.tools or ())
        check_arguments(body.vllm_xargs, body.chat_template_kwargs)
        media = media_tokens(body.messages)
        raw, exact = chat_tokens(body) + media, False
        teaches = teaches and not media
        if body.documents is not None:
            raw += sum(raw_tokens(text) for document in body.documents for text in document.values())
            teaches = False  # a template may know nothing of documents
        raw = min(raw, kept)
    else:
        check_arguments(body.vllm_xargs, None)
        each, exact = prompt_tokens(body.prompt, "prompt")
        if body.suffix:
            suffix = raw_tokens(body.suffix)
            each = [tokens + suffix for tokens in each]
        if body.truncate_prompt_tokens is not None:
            each, exact = [min(tokens, kept) for tokens in each], False
        raw, prompts, longest = sum(each), len(each), max(each)
    copies = body.n or 1
    if prompts * copies > MAX_CHOICES:
        what = f"{copies} answers to each of {prompts} prompts" if prompts > 1 else f"{copies} answers"
        raise invalid(f"{what} are more than {MAX_CHOICES}: send several requests.", "n" if copies > 1 else "prompt")
    body.n = copies if copies > 1 else None
    check_salt(body.cache_salt, pool)
    if body.response_format is not None:
        schema = body.response_format.json_schema
        if schema is not None:
            check_schema(schema.schema, "response_format.json_schema.schema")
    _constrain(body)
    _check_engine(body, pool.engine)
    given = bound is not None
    if bound is None:
        bound = pool.default_output_tokens
    check_bound(bound, pool, "max_tokens")
    if body.min_tokens is not None and body.min_tokens > bound:
        raise invalid("min_tokens is larger than the output bound.", "min_tokens")
    body.max_tokens = bound
    stream = bool(body.stream)
    wants_usage = body.stream_options is not None and body.stream_options.include_usage is True
    if body.stream_options is not None and not stream:
        raise invalid("stream_options is only allowed when stream is true.", "stream_options")
    body.stream = True if stream else None
    body.stream_options = _USAGE if stream else None  # every stream is accounted, asked for or not
    return Prepared(
        body, chat, stream, wants_usage, bound, raw, exact, body.priority or 0, given, teaches, prompts, copies,
        longest, kept, media,
    )  # fmt: skip


def kept_tokens(truncate: int | None, pool: PoolSpec) -> float:
    """How many tokens of a prompt the engine reads at most, where it was asked to cut off the rest."""
    if truncate is None:
        return math.inf
    return float(truncate if truncate > 0 else pool.max_model_len)


_MEDIA = {"image_url": "image", "audio_url": "audio", "video_url": "video", "input_audio": "audio"}


def media_tokens(messages: list[Message]) -> float:
    """What the images, audio and video of a chat are taken for until the engine has counted them [tokens]. Refuses
    (400) what would have to be fetched."""
    total, count = 0.0, 0
    pixels: list[int] = []
    for at, message in enumerate(messages):
        content = message.content
        if content is None or isinstance(content, str):
            continue
        for number, part in enumerate(content):
            for name in _MEDIA:
                linked = getattr(part, name)
                if (linked is None) != (part.type != name):
                    path = f"messages[{at}].content[{number}].{name}"
                    raise invalid(f"{path}: A part has what its type names, and nothing else.", path)
            kind = _MEDIA.get(part.type)
            if kind is None:
                continue
            count += 1
            path = f"messages[{at}].content[{number}].{part.type}"
            if part.input_audio is not None:
                total += inline_tokens(part.input_audio.data, kind, f"{path}.data")
            else:
                total += linked_tokens(getattr(part, part.type).url, kind, f"{path}.url", pixels)
    check_media(count, "messages", "images, audio and video parts", pixels)
    return total


def prompt_tokens(prompt: str | list[Any], name: str) -> tuple[list[float], bool]:
    """Raw tokens of each prompt of the field ``name``, and whether they are exact: of token ids."""
    if not prompt:
        raise invalid(f"{name} is empty.", name)
    if isinstance(prompt, str):
        return [raw_tokens(prompt)], False
    kind = type(prompt[0])
    kinds = list(map(type, prompt))  # as many as a body of token ids has: no Python for each of them
    if kinds.count(kind) != len(kinds):
        at = next(at for at, other in enumerate(kinds) if other is not kind)
        raise invalid(f"{name}[{at}]: Several are all texts, or all lists of token ids.", f"{name}[{at}]")
    if kind is int:
        return [float(len(prompt))], True
    if not all(prompt):
        at = next(at for at, one in enumerate(prompt) if not one)
        raise invalid(f"{name}[{at}] is empty.", f"{name}[{at}]")
    if kind is str:
        return [raw_tokens(one) for one in prompt], False
    return [float(len(one)) for one in prompt], True


def _check_engine(body: ChatRequest | CompletionRequest, engine: str) -> None:
    """Refuses what the pool's kind of engine would ignore: the answer would not be what was asked for."""
    for name in kind_of(engine).lacks:
        if getattr(body, name, None) is not None:
            raise invalid(f"The engines behind this model do not take {name}: leave it out.", name)


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
            raise invalid("Only one of the guided_* fields can be given.", first)
        if body.structured_outputs is not None:
            raise invalid("structured_outputs and the older guided_* fields exclude each other.", first)
        body.structured_outputs = StructuredOutputs(**given)  # type: ignore[arg-type]
    outputs = body.structured_outputs
    if outputs is not None:
        check_schema(outputs.json, "structured_outputs.json")


def chat_tokens(body: ChatRequest) -> float:
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
        total += size_of(function.parameters) / BYTES_PER_TOKEN
    for value in (body.chat_template_kwargs or {}).values():
        if isinstance(value, str):
            total += raw_tokens(value)
    return total


def _rename_reasoning(body: ChatRequest, message: Message) -> None:
    """An engine gets an assistant's reasoning under the one name that it reads."""
    if message.reasoning is not None and message.reasoning != message.reasoning_content:
        at = next(n for n, one in enumerate(body.messages) if one is message)
        path = f"messages[{at}].reasoning_content"
        raise invalid(f"{path}: It differs from reasoning, which is its newer name: send one of them.", path)
    message.reasoning, message.reasoning_content = message.reasoning_content, None
