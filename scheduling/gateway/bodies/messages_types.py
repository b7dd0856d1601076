"""What a client of Anthropic's ``/v1/messages`` may say. vLLM serves the path itself: what is here goes to it as it is.

Declared as in :mod:`scheduling.gateway.bodies.openai_types`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw

from scheduling.gateway.bodies.explain import instead
from scheduling.gateway.bodies.openai_types import (
    ABSENT,
    IGNORED,
    MAX_MESSAGES,
    MAX_TEMPLATE_KWARGS,
    MAX_TOOLS,
    MAX_XARGS,
    REFUSED,
    ArgumentName,
    ArgumentValue,
    Consumed,
    Count,
    EngineArguments,
    FromClient,
    Ignored,
    ModelName,
    Name,
    Refused,
    Stop,
    TierOfKey,
    UserMetadata,
)


class OnlyCustom(Refused):
    why = "Tools that run at a provider are not offered here: describe one of your own"


class Inline(Refused):
    why = "Nothing is fetched here: send its bytes as base64"


class Source(FromClient, omit_defaults=True):
    """Of an image: its bytes."""

    type: Literal["base64", "url", "file"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"] | None = None
    data: str | None = None
    url: Inline = Inline.absent
    file_id: Inline = Inline.absent


class Block(FromClient, omit_defaults=True):
    """One block of a turn's content, of whichever type."""

    type: Annotated[
        Literal["text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"],
        instead(
            {
                "document": "Documents are not read here: send their text as text, or their pages as images",
                "container_upload": "Files are not read here: send their text as text, or their pages as images",
                "search_result": "Send its text as text",
                "": "What tools of a provider say is read as text only: leave it out, or send it as text",
            }
        ),
    ]
    text: str | None = None
    source: Source | None = None
    id: Annotated[str, Meta(max_length=256)] | None = None
    tool_use_id: Annotated[str, Meta(max_length=256)] | None = None
    name: Name | None = None
    tool_name: Name | None = None
    input: Raw = ABSENT  # the arguments of a tool's use
    content: str | list[Block] | None = None  # a tool's result
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None  # of a thought that is not shown
    # consumed
    cache_control: Ignored = IGNORED
    citations: Ignored = IGNORED
    caller: Ignored = IGNORED


class Turn(FromClient, omit_defaults=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolOffer(FromClient, omit_defaults=True):
    name: Name
    input_schema: Raw = ABSENT  # a JSON schema: passed as it is, bounded in size
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    # consumed
    cache_control: Ignored = IGNORED
    eager_input_streaming: Ignored = IGNORED
    type: Annotated[Literal["custom"], instead(OnlyCustom.why)] | None = None
    # refused
    allowed_callers: OnlyCustom = OnlyCustom.absent
    input_examples: Refused = REFUSED
    max_uses: OnlyCustom = OnlyCustom.absent
    allowed_domains: OnlyCustom = OnlyCustom.absent
    blocked_domains: OnlyCustom = OnlyCustom.absent
    user_location: OnlyCustom = OnlyCustom.absent


class ToolPick(FromClient, omit_defaults=True):
    type: Annotated[
        Literal["auto", "any", "tool", "none"], instead({"required": "Say any", "function": "Say tool, with its name"})
    ]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(FromClient, omit_defaults=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1024, le=1_000_000)] | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class OutputFormat(FromClient, omit_defaults=True):
    type: Literal["json_schema"]
    schema: Raw = ABSENT


class OutputConfig(FromClient, omit_defaults=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class StandardSpeed(Consumed):
    only = ("standard",)
    why = "There is one speed here: leave it out or say standard"


class Conversation(FromClient, omit_defaults=True, kw_only=True):
    """What is said, and what the answer may be made with."""

    model: ModelName = ""
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    tools: Annotated[list[ToolOffer], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolPick | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # vLLM's own
    chat_template_kwargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_TEMPLATE_KWARGS)] | None = (
        None
    )
    # consumed
    cache_control: Ignored = IGNORED
    speed: StandardSpeed = StandardSpeed.absent
    context_management: Ignored = IGNORED  # what a service would leave out of a long conversation; all of it is read
    # refused
    mcp_servers: OnlyCustom = OnlyCustom.absent
    container: OnlyCustom = OnlyCustom.absent


class CountTokensRequest(Conversation, omit_defaults=True, kw_only=True):
    """The question of ``/v1/messages/count_tokens``."""


class MessagesRequest(Conversation, omit_defaults=True, kw_only=True):
    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    # vLLM's own
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    watermarking: bool | None = None
    vllm_xargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_XARGS)] | None = None
    # consumed
    metadata: UserMetadata = UserMetadata.absent  # its user_id; the tenant's identity comes from the key alone
    service_tier: TierOfKey = TierOfKey.absent
    # refused
    inference_geo: Refused = REFUSED
    kv_transfer_params: EngineArguments = EngineArguments.absent
    ec_transfer_params: EngineArguments = EngineArguments.absent
