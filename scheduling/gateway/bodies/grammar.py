"""How large a constraint on the output a tier may send: the engine compiles it before the first token, and everything
else that runs there waits for a part of that. Counted repetitions (``{1,1000}``) are compiled as if they were written
out, so they count as that: thirty bytes of nested ones are a billion."""

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


def check_grammar(body: object, limit: int) -> None:
    """Refuses (400) what constrains the output by more than ``limit`` bytes: the schema of ``response_format``, what
    ``structured_outputs`` says, the parameters of tools of which one has to be called, and grammars of tools. 0 refuses
    all of them."""
    if isinstance(body, MessagesRequest):
        config = body.output_config
        if config is not None and config.format is not None:
            _check(_bytes(config.format.schema), limit, "output_config")
        if body.tools and body.tool_choice is not None and body.tool_choice.type in ("any", "tool"):
            _check(sum(_bytes(tool.input_schema) for tool in body.tools), limit, "tools")
        return
    if isinstance(body, ResponsesRequest):
        if body.structured_outputs is not None:
            _check(_size(body.structured_outputs), limit, "structured_outputs")
        if body.text is not None and body.text.format is not None and body.text.format.type != "text":
            _check(_bytes(body.text.format.schema), limit, "text")
        if body.tools:
            must = body.tool_choice not in (None, "none", "auto")
            sizes = [_offer_bytes(tool, must) for tool in offered(body.tools, "tools")]
            if must or any(sizes):
                _check(sum(sizes), limit, "tools")
        return
    if not isinstance(body, (ChatRequest, CompletionRequest)):
        return  # it generates nothing
    outputs = body.structured_outputs
    if outputs is not None:
        _check(_size(outputs), limit, "structured_outputs")
    form = body.response_format
    if form is not None and form.type != "text":
        _check(0 if form.json_schema is None else _bytes(form.json_schema.schema), limit, "response_format")
    if isinstance(body, ChatRequest) and body.tools and body.tool_choice not in (None, "none", "auto"):
        _check(sum(_bytes(tool.function.parameters) for tool in body.tools), limit, "tools")


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
    texts = [outputs.regex, outputs.grammar, outputs.structural_tag, outputs.whitespace_pattern]
    texts += outputs.choice or ()
    return _bytes(outputs.json) + sum(written_out(text.encode()) for text in texts if text)


def _offer_bytes(tool: ToolOffer, must: bool) -> int:
    """What a tool constrains an answer by: a grammar of its own wherever it is called, its schema where one must be."""
    try:
        grammar = _format(tool.format).type == "grammar" if tool.format is not ABSENT else False
    except msgspec.DecodeError:
        grammar = True
    return (_bytes(tool.format) if grammar else 0) + (_bytes(tool.parameters) if must else 0)


def _bytes(raw: msgspec.Raw) -> int:
    return json_written_out(bytes(raw))


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
