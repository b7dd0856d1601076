"""``/v1/responses``: from a body to what an engine gets. What was kept is part of the input by then (``stored.py``)."""

from __future__ import annotations

from msgspec import Raw

from scheduling.core.estimate.tokens import raw_tokens
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
from scheduling.gateway.bodies.media import linked_tokens
from scheduling.gateway.bodies.openai_types import (
    ABSENT,
    MAX_TOOLS,
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
    kept_tokens,
)
from scheduling.gateway.bodies.responses_types import Item, ItemPart, ResponsesRequest, ToolOffer

RESPONSES_FORM = Form(ResponsesRequest)


class Sent(ResponsesRequest, omit_defaults=True, kw_only=True):
    """The body as an engine gets it: it names its answer by ``request_id``, and stores nothing."""

    request_id: str = ""  # type: ignore[assignment]


def fit_response(sent: ResponsesRequest, pool: PoolSpec) -> Prepared:
    """Checks the request against what the pool serves, and applies the output bound."""
    check_salt(sent.cache_salt, pool)
    bound = sent.max_output_tokens
    check_bound(bound, pool, "max_output_tokens")
    check_arguments(sent.vllm_xargs, sent.chat_template_kwargs)
    if sent.stream_options is not None and not sent.stream:
        raise invalid("stream_options is only allowed when stream is true.", "stream_options")
    schema = sent.text.format.schema if sent.text is not None and sent.text.format is not None else ABSENT
    check_schema(schema, "text.format.schema")
    check_schema(_json(sent), "structured_outputs.json")
    plain, media = _plain(sent)
    stream = bool(sent.stream)
    given = bound is not None
    values = {name: getattr(sent, name) for name in sent.__struct_fields__ if name != "request_id"}
    body = Sent(**values | {"store": False})
    body.stream = True if stream else None
    body.stream_options = None
    body.max_output_tokens = bound or pool.default_output_tokens
    cut = sent.truncation == "auto"
    kept = kept_tokens(-1 if cut else None, pool)
    return Prepared(
        body, False, stream, True, body.max_output_tokens, min(chat_tokens(plain) + media, kept), False,
        sent.priority or 0, given, not media and not cut, kept=kept, plain=plain, media=media,
        bound_field="max_output_tokens", named=True,
    )  # fmt: skip


def _json(body: ResponsesRequest) -> Raw:
    return ABSENT if body.structured_outputs is None else body.structured_outputs.json


def _plain(body: ResponsesRequest) -> tuple[ChatRequest, float]:
    """The same conversation as a chat, by which it is judged (it is not sent), and what its media is taken for in
    tokens. Refuses what no engine may be given."""
    offers = offered(body.tools, "tools")
    tools = [Tool("function", Function(o.name, o.description, o.parameters)) for o in offers]
    tools += [Tool("function", Function(o.name, None, o.format)) for o in offers if o.format is not ABSENT]
    check_tools(tools)
    messages = [] if body.instructions is None else [Message("system", body.instructions)]
    media = 0.0
    pixels: list[int] = []
    if isinstance(body.input, str):
        messages.append(Message("user", body.input))
    else:
        for at, item in enumerate(body.input):
            message, tokens = _item(item, f"input[{at}]", pixels)
            messages.append(message)
            media += tokens
    check_media(len(pixels), "input", pixels=pixels)
    return ChatRequest(model=body.model, messages=messages, tools=tools or None), media


def offered(offers: list[ToolOffer] | None, path: str) -> list[ToolOffer]:
    """Tools, those of namespaces too. Refuses more than a request may offer."""
    tools: list[ToolOffer] = []
    for at, offer in enumerate(offers or ()):
        tools.append(offer)
        for inner in offer.tools or ():
            if inner.tools is not None:
                raise invalid(f"{path}[{at}]: A namespace has no namespaces.", f"{path}[{at}].tools")
            tools.append(inner)
    if len(tools) > MAX_TOOLS:
        raise invalid(f"{len(tools)} tools, those of namespaces included, are more than {MAX_TOOLS}.", path)
    return tools


def _item(item: Item, path: str, pixels: list[int]) -> tuple[Message, float]:
    """As a message, with the tokens of its images. ``pixels``: gets those of each."""
    kind = item.type or "message"
    texts: list[str] = []
    media = 0.0
    for name, content in (("content", item.content), ("output", item.output), ("summary", item.summary)):
        if isinstance(content, str):
            texts.append(content)
            continue
        for at, part in enumerate(content or ()):
            texts.append(part.text or part.refusal or "")
            if part.type == "input_image" or part.image_url is not None:
                media += _image(part, f"{path}.{name}[{at}]", pixels)
    if item.encrypted_content:
        media += raw_tokens(item.encrypted_content)
    text = "\n".join(texts)
    if kind == "message":
        if item.role is None or item.content is None:
            raise invalid(f"{path}: A message has a role and content.", path)
        return Message(item.role, text), media
    if kind in ("function_call", "custom_tool_call"):
        call = FunctionCall(item.name or "_", item.arguments or item.input or "")
        return Message("assistant", text, tool_calls=[ToolCall(item.call_id or "", call)]), media
    if kind == "reasoning":
        return Message("assistant", None, reasoning=text), media
    return Message("tool", text, tool_call_id=item.call_id), media


def _image(part: ItemPart, path: str, pixels: list[int]) -> float:
    if part.image_url is None:
        raise invalid(f"{path}.image_url is missing.", f"{path}.image_url")
    return linked_tokens(part.image_url, "image", f"{path}.image_url", pixels)
