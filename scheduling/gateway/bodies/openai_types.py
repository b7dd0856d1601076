"""What a client may say: typed and bounded. Nothing vanishes: a field is passed, or consumed here, or refused by name.

The upstream body is rebuilt from these structs (:mod:`scheduling.gateway.bodies.prepare`), never copied. A plain field
is passed to the engine. One of type :class:`Consumed` is taken and goes no further; one of type :class:`Refused` is
taken as null only; any other name is refused, except where its value is null (``prepare``). ``docs/reference/v1.md``
has these lists.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Raw, Struct, field

from scheduling.core.types import MAX_GRAMMAR_BYTES, MAX_SEQUENCES
from scheduling.gateway.bodies.explain import instead

Name = Annotated[str, Meta(min_length=1, max_length=256)]
ModelName = Annotated[str, Meta(max_length=256)]  # empty: the default of the key's project
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
TokenId = Annotated[int, Meta(ge=0, le=4_294_967_295)]
Stop = Annotated[str, Meta(max_length=1024)]
ArgumentName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
ArgumentValue = bool | int | float | Annotated[str, Meta(max_length=1024)] | None
ABSENT = Raw()  # omitted when encoded: defaults are compared by identity
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_SCHEMA_BYTES = MAX_GRAMMAR_BYTES
MAX_TEMPLATE_KWARGS = 16
MAX_XARGS = 16
MAX_DOCUMENTS = 64
MAX_CHOICES = MAX_SEQUENCES  # answers of one request: n times its prompts. Each is a sequence of its engine


class Consumed:
    """A field that is read here and goes no further. Decoded, it is the one instance that is also its default, so that
    an encoder omits it; a request without the field pays nothing."""

    only: ClassVar[tuple[object, ...] | None] = None  # the values that may be consumed; None: all
    why: ClassVar[str] = ""  # what is said of another value
    absent: ClassVar[Any]  # of the class it stands in: the types of fields say which

    def __init_subclass__(cls) -> None:
        cls.absent = cls()

    @classmethod
    def take(cls, value: object) -> Any:
        if cls.only is None or value is None:
            return cls.absent
        if any(type(value) is type(taken) and value == taken for taken in cls.only):  # true is not 1
            return cls.absent
        raise ValueError(cls.why)


class Ignored(Consumed):
    """A field that means nothing to an engine, so it is dropped."""


class Refused(Consumed):
    """Taken as null only, as clients send it that write out every field of their own types."""

    only = ()
    why = "This is not offered here"


class NamesUser(Consumed):
    """Names the user of the client's application. ``users.take_user`` reads it and puts ``absent`` in its place."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    @classmethod
    def take(cls, value: object) -> Any:
        if value is None or value == "":
            return cls.absent
        if not isinstance(value, str):
            raise ValueError("A user is named by a text")
        return cls(value)


class UserMetadata(NamesUser):
    """Anthropic's ``metadata``, of which ``user_id`` counts."""

    @classmethod
    def take(cls, value: object) -> Any:
        return super().take(value.get("user_id")) if isinstance(value, dict) else cls.absent


class NotText(Refused):
    why = "Answers and embeddings are of text; media is taken as image_url, input_audio, audio_url and video_url parts"


class OldFunctions(Refused):
    why = "Use tools, tool_calls and tool_choice instead of functions and function_call"


class NoChoosing(Consumed):
    only = (1,)
    why = "Engines choose no best answers: leave it out, or ask for n of them"


class NotStored(Consumed):
    only = (False,)
    why = "Answers are not stored here: leave it out or say false"


class TextOnly(Consumed):
    only = (["text"],)
    why = 'Answers are text: leave it out or say ["text"]'


class TierOfKey(Consumed):
    only = ("auto", "default", "standard_only")
    why = "The service tier comes with the key: leave it out or say auto"


class NoBeams(Consumed):
    only = (False,)
    why = "Beam search is not offered: it runs several sequences where one was admitted"


class NoEcho(Consumed):
    only = (False,)
    why = "A chat is not echoed: leave it out or say false"


class EngineArguments(Refused):
    why = "Arguments of the engine itself are set by its operators, not by requests"


class OwnTemplate(Refused):
    why = "A chat uses the model's own template; chat_template_kwargs may set what it asks for"


class OtherReasoning(Refused):
    why = "Use reasoning_effort, thinking_token_budget or chat_template_kwargs, as the model's template has it"


class NotCounted(Refused):
    why = "It would change what is counted and accounted by chunk or prompt"


class OwnId(Refused):
    why = "The gateway names requests: x-request-id of the answer tells the name"


class NoSearch(Refused):
    why = "Nothing is searched here: offer a tool instead"


IGNORED = Ignored.absent
REFUSED = Refused.absent


def consume(kind: type, value: Any) -> Any:
    """A decoder's ``dec_hook``: called only where a field of these types is present."""
    return kind.take(value)  # type: ignore[attr-defined]


class FromClient(Struct, forbid_unknown_fields=True):
    """Anything a client says."""


class Linked(FromClient, omit_defaults=True):
    """An image, audio or video as a ``data:`` URL."""

    url: str
    detail: Literal["low", "high", "auto", "original"] | None = None
    uuid: Ignored = IGNORED


class InputAudio(FromClient):
    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "aac", "m4a", "webm"]


class NoFiles(Refused):
    why = "Files are not read here: send their text, or their pages as image_url parts with data: URLs"


class NoAllowedTools(Refused):
    why = "Offer only these tools in tools, and let tool_choice be auto or required"


class NoProviderTools(Refused):
    why = "Tools that run at a provider are not offered here: describe a function of your own"


SAY_TEXT = "Say it in a part of type text"
SAY_IMAGE = "Send an image_url part with a data: URL"


class Part(FromClient, omit_defaults=True):
    """One part of a message's content."""

    type: Annotated[
        Literal["text", "refusal", "thinking", "image_url", "input_audio", "audio_url", "video_url"],
        instead(
            dict.fromkeys(("file", "input_file", "document"), NoFiles.why)
            | dict.fromkeys(("input_text", "output_text"), SAY_TEXT)
            | dict.fromkeys(("image", "input_image"), SAY_IMAGE)
        ),
    ]
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    closed: bool | None = None  # of a thinking part: whether the thought is complete
    cache_control: Ignored = IGNORED
    prompt_cache_breakpoint: Ignored = IGNORED
    annotations: Ignored = IGNORED
    image_url: Linked | None = None
    input_audio: InputAudio | None = None
    audio_url: Linked | None = None
    video_url: Linked | None = None
    file: NoFiles = NoFiles.absent


class FunctionCall(FromClient, omit_defaults=True):
    name: Name
    arguments: str
    provider_specific_fields: Ignored = IGNORED


class ToolCall(FromClient, omit_defaults=True):
    id: Annotated[str, Meta(max_length=256)]
    function: FunctionCall
    type: Literal["function"] = field(default_factory=lambda: "function")  # unlike a default, never omitted
    index: Ignored = IGNORED  # of a stream's pieces, as clients that add them up keep it
    provider_specific_fields: Ignored = IGNORED
    extra_content: Ignored = IGNORED
    custom: Refused = REFUSED


class Message(FromClient, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    refusal: str | None = None
    reasoning: str | None = None  # an assistant's, which templates for interleaved thinking show to the model again
    reasoning_content: str | None = None  # its name before vLLM 0.12; later ones read ``reasoning`` only
    # of answers, which clients send back as they came
    id: Ignored = IGNORED
    annotations: Ignored = IGNORED
    cache_control: Ignored = IGNORED
    provider_specific_fields: Ignored = IGNORED
    audio: NotText = NotText.absent
    function_call: OldFunctions = OldFunctions.absent


class Function(FromClient, omit_defaults=True):
    name: Name
    description: str | None = None
    parameters: Raw = ABSENT  # a JSON schema: passed as it is, bounded in size
    strict: bool | None = None
    cache_control: Ignored = IGNORED


class Tool(FromClient, omit_defaults=True):
    type: Annotated[Literal["function"], instead(NoProviderTools.why)]
    function: Function
    cache_control: Ignored = IGNORED
    custom: NoProviderTools = NoProviderTools.absent


class NamedFunction(FromClient):
    name: Name


class NamedTool(FromClient, omit_defaults=True):
    type: Annotated[Literal["function"], instead({"allowed_tools": NoAllowedTools.why, "custom": NoProviderTools.why})]
    function: NamedFunction
    allowed_tools: NoAllowedTools = NoAllowedTools.absent
    custom: NoProviderTools = NoProviderTools.absent


class JsonSchema(FromClient, omit_defaults=True):
    name: Name
    description: str | None = None
    schema: Raw = ABSENT
    strict: bool | None = None


class ResponseFormat(FromClient, omit_defaults=True):
    type: Annotated[
        Literal["text", "json_object", "json_schema"], instead({"grammar": "Send structured_outputs with a grammar"})
    ]
    json_schema: JsonSchema | None = None


class StreamOptions(FromClient, omit_defaults=True):
    include_usage: bool | None = None
    include_obfuscation: Ignored = IGNORED  # padding against those who see chunk sizes: none is added
    continuous_usage_stats: Ignored = IGNORED  # usage comes once, at the end


class StructuredOutputs(FromClient, omit_defaults=True):
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


class Sampling(FromClient, omit_defaults=True, kw_only=True):
    """What both kinds of request share. A client's null counts as absent."""

    model: ModelName = ""
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)] | None = None
    response_format: ResponseFormat | None = None
    # vLLM's own
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None  # sent within the tenant's own
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    bad_words: Annotated[list[Stop], Meta(max_length=128)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1, max_length=1024)] | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    watermarking: bool | None = None
    vllm_xargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_XARGS)] | None = None
    structured_outputs: StructuredOutputs | None = None
    # its names before vLLM 0.12, which later ones ignore without a word: sent as ``structured_outputs``
    guided_json: Raw = ABSENT
    guided_regex: Annotated[str, Meta(max_length=8192)] | None = None
    guided_choice: Annotated[list[Stop], Meta(min_length=1, max_length=1024)] | None = None
    guided_grammar: Annotated[str, Meta(max_length=65_536)] | None = None
    # consumed
    user: NamesUser = NamesUser.absent  # the tenant's identity comes from the key alone
    session_id: Ignored = IGNORED  # routing goes by the prompt's beginning
    use_beam_search: NoBeams = NoBeams.absent
    # refused
    prompt_logprobs: NotCounted = NotCounted.absent
    stream_interval: NotCounted = NotCounted.absent
    request_id: OwnId = OwnId.absent
    logits_processors: EngineArguments = EngineArguments.absent
    kv_transfer_params: EngineArguments = EngineArguments.absent
    ec_transfer_params: EngineArguments = EngineArguments.absent
    repetition_detection: Refused = REFUSED
    return_token_offsets: Refused = REFUSED
    routed_experts_prompt_start: Refused = REFUSED


class ChatRequest(Sampling, omit_defaults=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[Literal["none", "auto", "required"], instead({"any": "Say required"})] | NamedTool | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    # vLLM's own
    include_reasoning: bool | None = None
    documents: (
        Annotated[
            list[Annotated[dict[Annotated[str, Meta(max_length=64)], str], Meta(max_length=16)]],
            Meta(max_length=MAX_DOCUMENTS),
        ]
        | None
    ) = None
    chat_template_kwargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_TEMPLATE_KWARGS)] | None = (
        None
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # consumed
    metadata: Ignored = IGNORED
    safety_identifier: NamesUser = NamesUser.absent
    prompt_cache_key: Ignored = IGNORED
    prompt_cache_options: Ignored = IGNORED
    prompt_cache_retention: Ignored = IGNORED
    prediction: Ignored = IGNORED  # a hint that makes some services faster and changes no answer
    store: NotStored = NotStored.absent
    service_tier: TierOfKey = TierOfKey.absent
    modalities: TextOnly = TextOnly.absent
    echo: NoEcho = NoEcho.absent
    # refused
    audio: NotText = NotText.absent
    media_io_kwargs: NotText = NotText.absent
    mm_processor_kwargs: NotText = NotText.absent
    functions: OldFunctions = OldFunctions.absent
    function_call: OldFunctions = OldFunctions.absent
    web_search_options: NoSearch = NoSearch.absent
    moderation: Refused = REFUSED
    chat_template: OwnTemplate = OwnTemplate.absent
    reasoning: OtherReasoning = OtherReasoning.absent
    thinking: OtherReasoning = OtherReasoning.absent
    enable_thinking: OtherReasoning = OtherReasoning.absent
    return_prompt_text: Refused = REFUSED


class CompletionRequest(Sampling, omit_defaults=True, kw_only=True):
    prompt: str | list[TokenId | str | list[TokenId]]  # several: all texts, or all token ids
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: NoChoosing = NoChoosing.absent
    prompt_embeds: NotText = NotText.absent


class TokenizeRequest(FromClient, omit_defaults=True, kw_only=True):
    model: ModelName = ""
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_TEMPLATE_KWARGS)] | None = (
        None
    )
    chat_template: OwnTemplate = OwnTemplate.absent
    media_io_kwargs: EngineArguments = EngineArguments.absent
    mm_processor_kwargs: EngineArguments = EngineArguments.absent


class DetokenizeRequest(FromClient, omit_defaults=True, kw_only=True):
    model: ModelName = ""
    tokens: Annotated[list[TokenId], Meta(max_length=1_000_000)]
