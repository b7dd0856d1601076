"""Anthropic's ``/v1/messages``: from a body to what an engine gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduling.core.types import PoolSpec
from scheduling.gateway.bodies.checks import (
    check_arguments,
    check_bound,
    check_media,
    check_salt,
    check_schema,
    check_tools,
    invalid,
)
from scheduling.gateway.bodies.media import inline_tokens
from scheduling.gateway.bodies.messages_types import Block, Conversation, CountTokensRequest, MessagesRequest
from scheduling.gateway.bodies.openai_types import (
    ChatRequest,
    Function,
    FunctionCall,
    Message,
    Tool,
    ToolCall,
)
from scheduling.gateway.bodies.prepare import (
    Form,
    Prepared,
    chat_tokens,
)

MESSAGES_FORM, COUNT_FORM = Form(MessagesRequest), Form(CountTokensRequest)
MAX_DEPTH = 4  # of results within blocks


def fit_messages(body: MessagesRequest, pool: PoolSpec) -> Prepared:
    """Checks the request against what the pool serves."""
    check_salt(body.cache_salt, pool)
    check_bound(body.max_tokens, pool, "max_tokens")
    check_arguments(body.vllm_xargs, None)
    plain, media = _plain(body)
    stream = bool(body.stream)
    body.stream = True if stream else None
    return Prepared(
        body, False, stream, True, body.max_tokens, chat_tokens(plain) + media, False, body.priority or 0, True,
        not media, plain=plain, media=media,
    )  # fmt: skip


def check_count(body: CountTokensRequest) -> None:
    """Of the question how many tokens a conversation has."""
    _plain(body)


def _plain(body: Conversation) -> tuple[ChatRequest, float]:
    """The same conversation as a chat, by which it is judged (it is not sent), and what its media is taken for in
    tokens. Refuses what no engine may be given."""
    check_arguments(None, body.chat_template_kwargs)
    tools: list[Tool] = []
    for offer in body.tools or ():
        offer.type = None  # an engine knows no other
        function = Function(offer.name, offer.description, offer.input_schema)
        tools.append(Tool("function", function))
    check_tools(tools)
    form = body.output_config.format if body.output_config is not None else None
    if form is not None:
        check_schema(form.schema, "output_config.format.schema")
    messages: list[Message] = []
    if body.system is not None:
        messages.append(Message("system", _text(body.system, "system")))
    media = 0.0
    pixels: list[int] = []
    for at, turn in enumerate(body.messages):
        if isinstance(turn.content, str):
            messages.append(Message(turn.role, turn.content))
            continue
        path = f"messages[{at}].content"
        calls: list[ToolCall] = []
        thoughts: list[str] = []
        for where, block in _blocks(turn.content, path):
            if block.type == "image":
                media += _image(block, where, pixels)
            elif block.type == "tool_use":
                check_schema(block.input, f"{where}.input", f"{where}.input")
                calls.append(ToolCall(block.id or "", FunctionCall(block.name or "_", bytes(block.input).decode())))
            elif block.thinking is not None:
                thoughts.append(block.thinking)
        text = _text(turn.content, path)
        messages.append(Message(turn.role, text, tool_calls=calls or None, reasoning="\n".join(thoughts) or None))
    check_media(len(pixels), "messages", pixels=pixels)
    return ChatRequest(model=body.model, messages=messages, tools=tools or None), media


def _blocks(content: Iterable[Block], path: str, depth: int = 0) -> Iterator[tuple[str, Block]]:
    """All blocks, those within results too, with their paths."""
    for at, block in enumerate(content):
        where = f"{path}[{at}]"
        yield where, block
        if isinstance(block.content, list):
            if depth >= MAX_DEPTH:
                raise invalid(f"{where}.content is nested too deeply.", f"{where}.content")
            yield from _blocks(block.content, f"{where}.content", depth + 1)


def _text(content: str | list[Block], path: str) -> str:
    if isinstance(content, str):
        return content
    parts = []
    for _, block in _blocks(content, path):
        parts.append(block.text or "")
        if isinstance(block.content, str):
            parts.append(block.content)
    return "\n".join(part for part in parts if part)


def _image(block: Block, path: str, pixels: list[int]) -> float:
    source = block.source
    if source is None:
        raise invalid(f"{path}.source is missing.", f"{path}.source")
    if source.type != "base64" or source.data is None or source.media_type is None:
        raise invalid(f"{path}.source: Nothing is fetched here: send media_type and base64 data.", f"{path}.source")
    return inline_tokens(source.data, "image", f"{path}.source.data", pixels)
