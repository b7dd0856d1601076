"""How large a constraint on the output a tier may send: the engine compiles it before the first token, and everything
else that runs there waits for a part of that. Counted repetitions (``{1,1000}``) are compiled as if they were written
out, so they count as that: thirty bytes of nested ones are a billion.

Two things cost an engine more than their bytes (xgrammar 0.2.9, ``from_json_schema``, two busy cores): levels, by their
cube (100 take 0.1 s, 300 take 3.8 s, 900 more than 20 s), and properties of an object whose number is bounded, by more
than their square (100 take 0.03 s, 300 take 0.5 s, 1,000 take 9 s and 540 MB). A ``minProperties`` of 0 bounds nothing
and costs nothing (300: 0.001 s).

Tools that a model may call (``auto``) constrain nothing by themselves. One that is ``strict`` does: vLLM compiles the
parameters of all tools then but those that say ``strict: false`` (its ``structural_tag_registry``, since 0.24; newer
ones where there is a tool with a text as input, too)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from scheduling.core.outcomes import Reason
from scheduling.gateway.bodies.messages_types import MessagesRequest
from scheduling.gateway.bodies.openai_types import ABSENT, ChatRequest, CompletionRequest, StructuredOutputs
from scheduling.gateway.bodies.prepare_responses import offered
from scheduling.gateway.bodies.responses_types import ResponsesRequest, ToolOffer
from scheduling.gateway.errors import Refusal


class _Format(msgspec.Struct):
    """Of a tool whose input is a text."""

    type: str


_format = msgspec.json.Decoder(_Format).decode
_COUNTED = re.compile(rb"\{\d")
_PIECE = re.compile(rb"\\.|\[(?:\\.|[^\]\\])*+\]?|[()]|\{(\d{1,18})(?:,(\d{0,18}))?\}", re.DOTALL)
_TEXT = re.compile(rb'"(?:\\.|[^"\\])*+"', re.DOTALL)
_text = msgspec.json.Decoder(str).decode
MOST_PIECES: Final = 16_384  # of a text with counted repetitions; more is no pattern that anybody wrote
ENDLESS: Final = 10**12  # bytes; what is larger is not told apart
MOST_LEVELS: Final = 100  # of objects and arrays in a schema, one within another
PAIR_BYTES: Final = 8  # that each two properties of an object count as, if their number is bounded
_decode = msgspec.json.Decoder().decode


def check_grammar(body: object, limit: int) -> None:
    """Refuses (400) what constrains the output by more than ``limit`` bytes: the schema of ``response_format``, what
    ``structured_outputs`` says, the parameters of tools of which one has to be called or is strict, and grammars of
    tools. 0 refuses all of them."""
    if isinstance(body, ChatRequest):
        _check_completion(body, limit)
        if body.tools:
            functions = [tool.function for tool in body.tools]
            choice = body.tool_choice
            chosen = choice if isinstance(choice, str) else "auto" if choice is None else ""
            _check_tools([(f.parameters, f.strict) for f in functions], chosen, limit)
        return
    if isinstance(body, MessagesRequest):
        config = body.output_config
        if config is not None and config.format is not None:
            _check(_bytes(config.format.schema, "output_config"), limit, "output_config")
        picked = body.tool_choice.type if body.tool_choice is not None else "auto"
        _check_tools([(t.input_schema, t.strict) for t in body.tools or ()], picked, limit)
        return
    if isinstance(body, ResponsesRequest):
        if body.structured_outputs is not None:
            _check(_size(body.structured_outputs), limit, "structured_outputs")
        if body.text is not None and body.text.format is not None and body.text.format.type != "text":
            _check(_bytes(body.text.format.schema, "text"), limit, "text")
        if body.tools:
            offers = offered(body.tools, "tools")
            must = body.tool_choice not in (None, "none", "auto")
            strict = body.tool_choice != "none" and any(o.strict or o.type == "custom" for o in offers)
            sizes = [_offer_bytes(tool, must or (strict and tool.strict is not False)) for tool in offers]
            if must or any(sizes):
                _check(sum(sizes), limit, "tools")
        return
    if isinstance(body, CompletionRequest):
        _check_completion(body, limit)


def _check_completion(body: ChatRequest | CompletionRequest, limit: int) -> None:
    outputs = body.structured_outputs
    if outputs is not None:
        _check(_size(outputs), limit, "structured_outputs")
    form = body.response_format
    if form is not None and form.type != "text":
        size = 0 if form.json_schema is None else _bytes(form.json_schema.schema, "response_format")
        _check(size, limit, "response_format")


def _check_tools(tools: list[tuple[msgspec.Raw, bool | None]], choice: str, limit: int) -> None:
    """Schemas of functions, and whether each is strict."""
    if not tools or choice == "none":
        return
    if choice == "auto":
        if not any(strict for _, strict in tools):
            return
        tools = [tool for tool in tools if tool[1] is not False]
    _check(sum(_bytes(schema, "tools") for schema, _ in tools), limit, "tools")


def _check(size: int, limit: int, param: str) -> None:
    if limit == 0:
        raise Refusal(Reason.INVALID_REQUEST, param=param, detail="This key's tier allows no structured output.")
    if size > limit:
        raise Refusal(
            Reason.INVALID_REQUEST,
            param=param,
            detail=f"{param} constrains the output by {size} bytes, with counted repetitions written out; "
            f"this key's tier allows {limit}.",
        )


def _size(outputs: StructuredOutputs) -> int:
    where = "structured_outputs"
    texts = [outputs.regex, outputs.grammar, outputs.structural_tag, outputs.whitespace_pattern]
    texts += outputs.choice or ()
    pairs = _pairs((outputs.structural_tag or "").encode(), where)  # which holds schemas
    return _bytes(outputs.json, where) + pairs + sum(written_out(text.encode()) for text in texts if text)


def _offer_bytes(tool: ToolOffer, must: bool) -> int:
    """What a tool constrains an answer by: a grammar of its own wherever it is called, its schema where one ``must``
    be, or where a strict one may be."""
    try:
        grammar = _format(tool.format).type == "grammar" if tool.format is not ABSENT else False
    except msgspec.DecodeError:
        grammar = True
    return (_bytes(tool.format, "tools") if grammar else 0) + (_bytes(tool.parameters, "tools") if must else 0)


def _bytes(raw: msgspec.Raw, param: str) -> int:
    """Of a schema. Raises :class:`Refusal` for one of too many levels."""
    text = bytes(raw)
    return json_written_out(text) + _pairs(text, param)


def _pairs(text: bytes, param: str, nested: bool = True) -> int:
    """What a schema counts as beyond its text, for objects that bound the number of their properties [bytes].
    ``nested``: it may stand in a text. Raises :class:`Refusal` for one of too many levels."""
    if text.count(b"{") + text.count(b"[") <= MOST_LEVELS and not any(word in text for word in (b"Properties", b"\\")):
        return 0  # neither is possible; a name may be escaped
    try:
        outer = _decode(text)
    except RecursionError:
        raise _too_deep(param) from None
    except (msgspec.DecodeError, ValueError):
        return 0  # no JSON, so no schema that an engine compiles
    if isinstance(outer, str):
        return _pairs(outer.encode(errors="surrogatepass"), param, nested=False) if nested else 0
    size, level, within = 0, 0, [outer]
    while within:
        level += 1
        if level > MOST_LEVELS:
            raise _too_deep(param)
        inner: list[object] = []
        for value in within:
            if isinstance(value, dict):
                properties = value.get("properties")
                if isinstance(properties, dict) and (value.get("minProperties", 0) != 0 or "maxProperties" in value):
                    size += PAIR_BYTES * len(properties) ** 2
                inner += [one for one in value.values() if isinstance(one, dict | list)]
            elif isinstance(value, list):
                inner += [one for one in value if isinstance(one, dict | list)]
        within = inner
    return size


def _too_deep(param: str) -> Refusal:
    detail = f"{param} has a schema of more than {MOST_LEVELS} objects and arrays within each other."
    return Refusal(Reason.INVALID_REQUEST, param=param, detail=detail)


def json_written_out(text: bytes, nested: bool = True) -> int:
    """The same of JSON, whose texts may be patterns, or (``nested``) JSON that has some."""
    size = len(text)
    if _COUNTED.search(text) is None:
        return size
    for quoted in _TEXT.findall(text):
        if _COUNTED.search(quoted) is None:
            continue
        try:
            inner = _text(quoted).encode(errors="surrogatepass")
        except msgspec.DecodeError:  # no text, so no pattern that an engine compiles
            continue
        written = max(written_out(inner), json_written_out(inner, nested=False) if nested else 0)
        size = min(ENDLESS, size + written - len(inner))
    return size


def written_out(text: bytes) -> int:
    """The size of a pattern, or of what has patterns in it, if its counted repetitions were written out [bytes]; at
    most :data:`ENDLESS`."""
    if _COUNTED.search(text) is None:
        return len(text)
    sizes, last, at = [0], 0, 0  # of the groups that are open; of what a repetition would repeat
    for number, piece in enumerate(_PIECE.finditer(text)):
        if number == MOST_PIECES:
            return ENDLESS
        if piece.start() > at:
            sizes[-1] += piece.start() - at
            last = 1
        at = piece.end()
        if piece[1] is not None:
            times = max(int(piece[1]), int(piece[2] or 0))
            sizes[-1] = min(ENDLESS, sizes[-1] + last * max(0, times - 1))
            last = min(ENDLESS, last * times)
        elif piece[0] == b"(":
            sizes.append(0)
        elif piece[0] == b")":
            last = sizes.pop() if len(sizes) > 1 else 0
            sizes[-1] += last
        else:
            last = len(piece[0])
            sizes[-1] += last
    return min(ENDLESS, max(len(text), sum(sizes) + len(text) - at))
