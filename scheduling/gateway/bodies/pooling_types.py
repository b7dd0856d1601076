"""What a client may say where no text is generated: embeddings, rerank, score and classify, as vLLM has them.

Declared as in :mod:`scheduling.gateway.bodies.openai_types`: a field is passed, consumed or refused, and none vanishes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from scheduling.gateway.bodies.openai_types import (
    IGNORED,
    MAX_MESSAGES,
    MAX_TEMPLATE_KWARGS,
    ArgumentName,
    ArgumentValue,
    Count,
    EngineArguments,
    FromClient,
    Ignored,
    Message,
    ModelName,
    NamesUser,
    NotText,
    OwnId,
    OwnTemplate,
    TokenId,
)

MAX_INPUTS = 2048  # as OpenAI bounds them
Input = str | Annotated[list[TokenId | str | list[TokenId]], Meta(min_length=1)]
Texts = str | Annotated[list[str], Meta(min_length=1, max_length=MAX_INPUTS)]


class Pooled(FromClient, omit_defaults=True, kw_only=True):
    """What all of them share. A client's null counts as absent."""

    model: ModelName = ""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    use_activation: bool | None = None
    chat_template_kwargs: Annotated[dict[ArgumentName, ArgumentValue], Meta(max_length=MAX_TEMPLATE_KWARGS)] | None = (
        None
    )
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    # consumed
    user: NamesUser = NamesUser.absent
    # refused
    request_id: OwnId = OwnId.absent
    mm_processor_kwargs: NotText = NotText.absent


class Read(Pooled, omit_defaults=True, kw_only=True):
    """Of texts, token ids or one conversation: exactly one of ``input`` and ``messages``."""

    input: Input | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # refused
    chat_template: OwnTemplate = OwnTemplate.absent
    media_io_kwargs: EngineArguments = EngineArguments.absent


class EmbeddingRequest(Read, omit_defaults=True, kw_only=True):
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    endianness: Literal["native", "big", "little"] | None = None


class ClassifyRequest(Read, omit_defaults=True, kw_only=True):
    pass


class Compared(Pooled, omit_defaults=True, kw_only=True):
    """Of pairs of texts."""

    max_tokens_per_query: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    instruction: str | None = None


class RerankRequest(Compared, omit_defaults=True, kw_only=True):
    query: str
    documents: Texts
    top_n: Annotated[int, Meta(ge=0, le=MAX_INPUTS)] | None = None
    # consumed
    return_documents: Ignored = IGNORED  # an engine returns them in any case


class ScoreRequest(Compared, omit_defaults=True, kw_only=True):
    """Under any of the names that vLLM takes for the two sides."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
