"""How large a constraint on the output a tier may send: the engine compiles it before the first token, and everything
else that runs there waits for a part of that."""

from __future__ import annotations

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
            detail=f"{param} constrains the output by {size} bytes; this key's tier allows {limit}.",
        )


def _size(outputs: StructuredOutputs) -> int:
    texts = [outputs.regex, outputs.grammar, outputs.structural_tag, outputs.whitespace_pattern]
    texts += outputs.choice or ()
    return _bytes(outputs.json) + sum(len(text.encode()) for text in texts if text)


def _offer_bytes(tool: ToolOffer, must: bool) -> int:
    """What a tool constrains an answer by: a grammar of its own wherever it is called, its schema where one must be."""
    try:
        grammar = _format(tool.format).type == "grammar" if tool.format is not ABSENT else False
    except msgspec.DecodeError:
        grammar = True
    return (_bytes(tool.format) if grammar else 0) + (_bytes(tool.parameters) if must else 0)


def _bytes(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes
