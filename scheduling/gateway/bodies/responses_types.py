"""What a client of ``/v1/responses`` may say. vLLM serves the path itself and stores nothing; what is kept is kept here
(:mod:`scheduling.gateway.answers.stored`).

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
    NamesUser,
    NoAllowedTools,
    NoProviderTools,
    NotCounted,
    NotText,
    OwnId,
    Refused,
    Stop,
    StructuredOutputs,
    TierOfKey,
    TokenId,
)

Id = Annotated[str, Meta(max_length=256)]


class NotLookedUp(Refused):
    why = "It is not looked up here: send what it stands for as input"


class AtOnce(Consumed):
    only = (False,)
    why = "A response is awaited here: leave it out or say false, or send a batch"


class Inline(Refused):
    why = "Files are not read here: send their text as input_text, or their pages as input_image parts with data: URLs"


class ItemPart(FromClient, omit_defaults=True):
    """A part of a message's content, of a reasoning's, or of a tool's output."""

    type: Annotated[
        Literal["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text", "input_image"],
        instead(
            {
                "input_file": Inline.why,
                "file": Inline.why,
                "input_audio": NotText.why,
                "image_url": "Send an input_image part with a data: URL as its image_url",
            }
        ),
    ]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None  # a data: URL
    detail: Literal["low", "high", "auto", "original"] | None = None
    annotations: list[Raw] | None = None
    logprobs: list[Raw] | None = None
    # consumed
    cache_control: Ignored = IGNORED
    prompt_cache_breakpoint: Ignored = IGNORED
    # refused
    file_id: Inline = Inline.absent
    file_url: Inline = Inline.absent
    file_data: Inline = Inline.absent
    filename: Inline = Inline.absent
    input_audio: NotText = NotText.absent


class Item(FromClient, omit_defaults=True):
    """One item of the input, of whichever type."""

    type: (
        Annotated[
            Literal[
                "message", "function_call", "function_call_output", "reasoning", "custom_tool_call",
                "custom_tool_call_output",
            ],
            instead({
                "item_reference": NotLookedUp.why,
                "": "It belongs to a tool of a provider: leave it out, or say what it told as a message",
            }),
        ]
        | None
    ) = None  # fmt: skip
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[ItemPart] | None = None
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    call_id: Id | None = None
    name: Name | None = None
    namespace: Name | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    encrypted_content: str | None = None
    # consumed
    created_by: Ignored = IGNORED


class ToolOffer(FromClient, omit_defaults=True):
    type: Annotated[Literal["function", "custom", "namespace"], instead(NoProviderTools.why)]
    name: Name
    description: str | None = None
    parameters: Raw = ABSENT  # a JSON schema: passed as it is, bounded in size
    strict: bool | None = None
    format: Raw = ABSENT
    defer_loading: bool | None = None
    tools: list[ToolOffer] | None = None  # of a namespace


class ToolPick(FromClient, omit_defaults=True):
    type: Annotated[
        Literal["function", "custom"], instead({"allowed_tools": NoAllowedTools.why, "": NoProviderTools.why})
    ]
    name: Name
    # refused
    mode: NoAllowedTools = NoAllowedTools.absent
    tools: NoAllowedTools = NoAllowedTools.absent


class Reasoning(FromClient, omit_defaults=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    # consumed
    context: Ignored = IGNORED
    mode: Ignored = IGNORED


class TextFormat(FromClient, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema: Raw = ABSENT
    description: str | None = None
    strict: bool | None = None


class TextConfig(FromClient, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamPadding(FromClient, omit_defaults=True):
    include_obfuscation: Ignored = IGNORED  # none is added


class ResponsesRequest(FromClient, omit_defaults=True, kw_only=True):
    model: ModelName = ""
    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=1000)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: (
        Annotated[list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Meta(max_length=8)]
        | None
    ) = None
    tools: Annotated[list[ToolOffer], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[Literal["none", "auto", "required"], instead({"any": "Say required"})] | ToolPick | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: (
        Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
        | None
    ) = None  # the answer repeats it
    # of what is kept here (stored.py)
    store: bool | None = None
    previous_response_id: Id | None = None
    # vLLM's own
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)] | None = None
    include_reasoning: bool | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    watermarking: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    vllm_xargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_XARGS)] | None = None
    chat_template_kwargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_TEMPLATE_KWARGS)] | None = (
        None
    )
    # consumed
    background: AtOnce = AtOnce.absent
    service_tier: TierOfKey = TierOfKey.absent
    user: NamesUser = NamesUser.absent
    safety_identifier: NamesUser = NamesUser.absent
    prompt_cache_key: Ignored = IGNORED
    prompt_cache_retention: Ignored = IGNORED
    prompt_cache_options: Ignored = IGNORED
    session_id: Ignored = IGNORED
    client_metadata: Ignored = IGNORED
    stream_options: StreamPadding | None = None
    # refused
    conversation: NotLookedUp = NotLookedUp.absent
    prompt: NotLookedUp = NotLookedUp.absent
    context_management: Refused = REFUSED
    moderation: Refused = REFUSED
    previous_input_messages: Refused = REFUSED
    enable_response_messages: NotCounted = NotCounted.absent
    request_id: OwnId = OwnId.absent
    kv_transfer_params: EngineArguments = EngineArguments.absent
    ec_transfer_params: EngineArguments = EngineArguments.absent
    media_io_kwargs: EngineArguments = EngineArguments.absent
    mm_processor_kwargs: EngineArguments = EngineArguments.absent
