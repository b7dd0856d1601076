"""What a client may say: typed and bounded. A field that is not listed here never reaches an engine.

The upstream body is rebuilt from these structs (:mod:`scheduling.gateway.prepare`), never copied.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from scheduling.core.types import MAX_GRAMMAR_BYTES

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
TokenId = Annotated[int, Meta(ge=0, le=4_294_967_295)]
Stop = Annotated[str, Meta(max_length=1024)]
TemplateName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
TemplateValue = bool | int | float | Annotated[str, Meta(max_length=1024)] | None
ABSENT = Raw()  # omitted when encoded: defaults are compared by identity
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_SCHEMA_BYTES = MAX_GRAMMAR_BYTES
MAX_TEMPLATE_KWARGS = 16


class Part(Struct, omit_defaults=True):
    """One part of a message's content. Only text: media parts are refused."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Struct):
    name: Name
    arguments: str


class ToolCall(Struct):
    id: Annotated[str, Meta(max_length=256)]
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(Struct, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    refusal: str | None = None


class Function(Struct, omit_defaults=True):
    name: Name
    description: str | None = None
    parameters: Raw = ABSENT  # a JSON schema: passed as it is, bounded in size
    strict: bool | None = None


class Tool(Struct):
    type: Literal["function"]
    function: Function


class NamedFunction(Struct):
    name: Name


class NamedTool(Struct):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Struct, omit_defaults=True):
    name: Name
    description: str | None = None
    schema: Raw = ABSENT
    strict: bool | None = None


class ResponseFormat(Struct, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Struct):
    include_usage: bool = False


class StructuredOutputs(Struct, omit_defaults=True):
    """vLLM's constraint on the output's form: one of the first six. The engine checks their contents."""

    json: Raw = ABSENT  # a JSON schema, as an object or as its text; bounded in size
    regex: Annotated[str, Meta(max_length=8192)] | None = None
    choice: Annotated[list[Stop], Meta(min_length=1, max_length=1024)] | None = None
    grammar: Annotated[str, Meta(max_length=65_536)] | None = None
    json_object: bool | None = None
    structural_tag: Annotated[str, Meta(max_length=65_536)] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: Annotated[str, Meta(max_length=256)] | None = None


class Sampling(Struct, omit_defaults=True, kw_only=True):
    """What both kinds of request share. A client's null counts as absent."""

    model: Name
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)] | None = None
    response_format: ResponseFormat | None = None
    # vLLM's own
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: Annotated[list[Stop], Meta(max_length=128)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=1024)] | None = None
    structured_outputs: StructuredOutputs | None = None
    # its names before vLLM 0.12, which later ones ignore without a word: sent as ``structured_outputs``
    guided_json: Raw = ABSENT
    guided_regex: Annotated[str, Meta(max_length=8192)] | None = None
    guided_choice: Annotated[list[Stop], Meta(min_length=1, max_length=1024)] | None = None
    guided_grammar: Annotated[str, Meta(max_length=65_536)] | None = None


class ChatRequest(Sampling, omit_defaults=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    # vLLM's own
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: Annotated[dict[TemplateName, TemplateValue], Meta(max_length=MAX_TEMPLATE_KWARGS)] | None = (
        None
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(Sampling, omit_defaults=True, kw_only=True):
    prompt: str | list[TokenId]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None


class ModelCard(Struct):
    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "quartermaster"


class ModelList(Struct):
    data: list[ModelCard]
    object: str = "list"
