"""Embeddings, rerank, score and classify: from a body to what an engine gets. They cost their input, no output."""

from __future__ import annotations

from typing import Any

from scheduling.core.estimate.tokens import raw_tokens
from scheduling.core.types import PoolSpec
from scheduling.gateway.bodies.checks import check_salt, check_template, invalid
from scheduling.gateway.bodies.openai_types import ChatRequest
from scheduling.gateway.bodies.pooling_types import (
    MAX_INPUTS,
    ClassifyRequest,
    EmbeddingRequest,
    Read,
    RerankRequest,
    ScoreRequest,
)
from scheduling.gateway.bodies.prepare import (
    MESSAGE_TOKENS,
    Form,
    Prepared,
    chat_tokens,
    kept_tokens,
    media_tokens,
    prompt_tokens,
)

_SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
_NAMES = ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")

EMBEDDING_FORM, CLASSIFY_FORM = Form(EmbeddingRequest), Form(ClassifyRequest)
RERANK_FORM, SCORE_FORM = Form(RerankRequest), Form(ScoreRequest)


def fit_rerank(body: RerankRequest, pool: PoolSpec) -> Prepared:
    return _compared(body, pool, [body.query], _list(body.documents), "documents")


def fit_score(body: ScoreRequest, pool: PoolSpec) -> Prepared:
    given = tuple(name for name in _NAMES if getattr(body, name) is not None)
    if given not in _SIDES:
        names = ", or ".join(" and ".join(pair) for pair in _SIDES)
        raise invalid(f"Two sides are scored against each other: {names}.", given[-1] if given else "text_1")
    first, second = (_list(getattr(body, name)) for name in given)
    if len(first) not in (1, len(second)):
        raise invalid(f"{given[0]} has {len(first)} texts, {given[1]} has {len(second)}: they do not pair.", given[0])
    return _compared(body, pool, first, second, given[1])


def fit_read(body: Read, pool: PoolSpec) -> Prepared:
    """Of texts that are read one by one: embeddings and classify."""
    if (body.input is None) == (body.messages is None):
        raise invalid("Exactly one of input and messages is needed.", "input")
    media = 0.0
    if body.messages is not None:
        chat = ChatRequest(model=body.model, messages=body.messages)
        media = media_tokens(body.messages)
        each, exact = [chat_tokens(chat) + media], False
    else:
        assert body.input is not None
        each, exact = prompt_tokens(body.input, "input")
        if len(each) > MAX_INPUTS:
            raise invalid(f"input has {len(each)} texts; {MAX_INPUTS} can be sent at once.", "input")
    exact = exact and body.truncate_prompt_tokens is None and body.padding is None
    return _prepared(body, pool, each, exact, media)


def _compared(body: Any, pool: PoolSpec, first: list[str], second: list[str], param: str) -> Prepared:
    if len(second) > MAX_INPUTS:
        raise invalid(f"{param} has {len(second)} texts; {MAX_INPUTS} can be sent at once.", param)
    more = MESSAGE_TOKENS + raw_tokens(body.instruction or "")
    left = [raw_tokens(text) + more for text in first]
    if len(left) == 1:
        left = left * len(second)
    return _prepared(body, pool, [a + raw_tokens(text) for a, text in zip(left, second, strict=True)], False)


def _prepared(body: Any, pool: PoolSpec, each: list[float], exact: bool, media: float = 0.0) -> Prepared:
    check_salt(body.cache_salt, pool)
    if body.chat_template_kwargs is not None:
        check_template(body.chat_template_kwargs)
    kept = kept_tokens(body.truncate_prompt_tokens, pool)
    each = [min(tokens, kept) for tokens in each]
    return Prepared(
        body, False, False, False, 0, sum(each), exact, body.priority or 0, True, False, len(each), 1, max(each),
        media=media,
    )  # fmt: skip


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
