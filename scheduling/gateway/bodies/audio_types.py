"""What a client may say to ``/v1/audio/transcriptions``: a form with one file. Declared as in
:mod:`scheduling.gateway.bodies.openai_types`; the fields are those of vLLM's own form."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field

from scheduling.gateway.bodies.explain import instead
from scheduling.gateway.bodies.openai_types import Consumed, Count, FromClient, ModelName, NamesUser

MAX_PROMPT = 4096  # characters that lead the model


class NotStreamed(Consumed):
    why = "Transcriptions are not streamed here: leave it out"
    only = ("false", "False", "0")


class TranscriptionRequest(FromClient, omit_defaults=True, kw_only=True):
    """An audio file and how it is to be written down."""

    file: bytes
    model: ModelName = ""
    language: Annotated[str, Meta(max_length=32)] | None = None
    prompt: Annotated[str, Meta(max_length=MAX_PROMPT)] | None = None
    hotwords: Annotated[str, Meta(max_length=MAX_PROMPT)] | None = None
    response_format: (
        Annotated[
            Literal["json", "verbose_json"],
            instead(
                {"text": "The text is in the field text of json"}
                | dict.fromkeys(("srt", "vtt"), "Make subtitles from the segments of verbose_json")
            ),
        ]
        | None
    ) = None
    timestamp_granularities: Annotated[list[Literal["word", "segment"]], Meta(max_length=2)] | UnsetType = field(
        default=UNSET, name="timestamp_granularities[]"
    )
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    max_completion_tokens: Count | None = None
    # consumed
    user: NamesUser = NamesUser.absent
    stream: NotStreamed = NotStreamed.absent

    # vLLM's form has neither
    cache_salt: ClassVar[None] = None
    priority: ClassVar[None] = None
