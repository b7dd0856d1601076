"""Answers of engines that generate nothing: vectors, scores and labels. Checked for their form, passed as they are."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from scheduling.gateway.answers.answer_types import (
    ABSENT,
    FAILED,
    WRONG,
    Asked,
    Broken,
    Moment,
    Short,
    Usage,
    WholeAnswer,
    broken,
    decode_top,
    encode,
)

Place = Annotated[int, Meta(ge=0)]


class _Vector(Struct):
    index: Place
    embedding: list[float] | str


class _Score(Struct):
    index: Place
    score: float


class _Label(Struct):
    index: Place
    probs: list[float]
    label: str | None = None


class _Result(Struct):
    index: Place
    relevance_score: float


class _Top(Struct, kw_only=True):
    id: Short = ""
    created: Moment = 0
    model: Short = ""
    usage: Raw = ABSENT
    error: Raw = ABSENT


class _Vectors(_Top):
    data: list[_Vector]


class _Scores(_Top):
    data: list[_Score]


class _Labels(_Top):
    data: list[_Label]


class _Results(_Top):
    results: list[_Result]


class _EngineUsage(Struct):
    prompt_tokens: int
    total_tokens: int | None = None
    completion_tokens: int | None = None


_decode_usage = msgspec.json.Decoder(_EngineUsage).decode


def read_vectors(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    return _read(data, asked, model, _VECTORS)


def read_scores(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    return _read(data, asked, model, _SCORES)


def read_labels(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    return _read(data, asked, model, _LABELS)


def read_ranking(data: bytes, asked: Asked, model: str | None) -> WholeAnswer:
    return _read(data, asked, model, _RESULTS)


_VECTORS, _SCORES, _LABELS, _RESULTS = (msgspec.json.Decoder(k).decode for k in (_Vectors, _Scores, _Labels, _Results))


def _read(data: bytes, asked: Asked, model: str | None, decode: Any) -> WholeAnswer:
    """A whole answer: one row for each input, of a ranking at most one. Raises :class:`Broken`."""
    try:
        if not data.isascii():
            data.decode()
        answer = decode(data)
        top = decode_top(data)
    except WRONG:
        raise broken(data, "the answer has not the rows that were asked for") from None
    if answer.error is not ABSENT and bytes(answer.error) != b"null":
        raise Broken(FAILED, by_engine=True)
    ranking = decode is _RESULTS
    rows = {row.index for row in (answer.results if ranking else answer.data)}
    inputs = set(range(asked.choices))
    if not rows <= inputs or (not ranking and rows != inputs):
        raise Broken(f"{asked.choices} rows were asked for, and it has others")
    usage, believed = _usage(answer.usage, asked)
    if not believed:
        top["usage"] = Raw(encode(usage))
    if model is not None:
        top["model"] = Raw(encode(model))
    return WholeAnswer(answer.id, "stop", usage, believed, encode(top))


def _usage(raw: Raw, asked: Asked) -> tuple[Usage, bool]:
    """The input tokens to go by, and whether they are the engine's."""
    try:
        figures = _decode_usage(raw)
    except WRONG:
        figures = None
    if (
        figures is None
        or figures.completion_tokens
        or not asked.least_input <= figures.prompt_tokens <= asked.most_input
    ):
        return Usage(asked.input_tokens, asked.input_tokens, 0), False
    tokens = figures.prompt_tokens
    return Usage(tokens, tokens, 0), figures.total_tokens in (None, tokens)
