"""The paths that ask an engine: how a body is read, which path the engine is asked at, how its answer is read, and in
which words errors are told. Another endpoint is a line here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scheduling.core.ledger.tracing import CHAT, CLASSIFY, COMPLETION, EMBEDDINGS, RERANK, SCORE, TRANSCRIPTION
from scheduling.core.types import PoolSpec
from scheduling.gateway.answers.answer_types import Asked, WholeAnswer, read_answer
from scheduling.gateway.answers.dialects import MESSAGES, OPENAI, RESPONSES, Dialect
from scheduling.gateway.answers.model_list import MODELS
from scheduling.gateway.answers.named_events import MessageFrames, ResponseFrames, read_message, read_response
from scheduling.gateway.answers.pooled_answers import read_labels, read_ranking, read_scores, read_vectors
from scheduling.gateway.answers.sse import Frames
from scheduling.gateway.bodies.prepare import CHAT_FORM, COMPLETION_FORM, Form, Prepared, fit
from scheduling.gateway.bodies.prepare_audio import (
    CONTENT_TYPE,
    TRANSCRIPTION_FORM,
    fit_recording,
    read_transcription,
)
from scheduling.gateway.bodies.prepare_messages import MESSAGES_FORM, fit_messages
from scheduling.gateway.bodies.prepare_pooling import (
    CLASSIFY_FORM,
    EMBEDDING_FORM,
    RERANK_FORM,
    SCORE_FORM,
    fit_read,
    fit_rerank,
    fit_score,
)
from scheduling.gateway.bodies.prepare_responses import RESPONSES_FORM, fit_response


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path of clients."""

    upstream: str  # the engine's path
    operation: str  # of traces
    form: Form[Any]  # of its body, which names the model and so the pool
    fit: Callable[[Any, PoolSpec], Prepared]
    read: Callable[[bytes, Asked, str | None], WholeAnswer] = read_answer  # a whole answer
    frames: Callable[[bool, Asked], Frames] = Frames  # a stream
    dialect: Dialect = OPENAI
    content_type: str = "application/json"  # of what the engine gets
    keeps: bool = False  # whether its answers may be kept (``stored.py``)
    optional: bool = True  # an engine that answers 404 may be healthy: its model, kind or version has no such path


_EMBEDDING = Endpoint("/v1/embeddings", EMBEDDINGS, EMBEDDING_FORM, fit_read, read_vectors)
_RERANK = Endpoint("/rerank", RERANK, RERANK_FORM, fit_rerank, read_ranking)
_SCORE = Endpoint("/score", SCORE, SCORE_FORM, fit_score, read_scores)
_CLASSIFY = Endpoint("/classify", CLASSIFY, CLASSIFY_FORM, fit_read, read_labels)
ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": Endpoint("/v1/chat/completions", CHAT, CHAT_FORM, fit, optional=False),
    "/v1/completions": Endpoint("/v1/completions", COMPLETION, COMPLETION_FORM, fit, optional=False),
    "/v1/messages": Endpoint("/v1/messages", CHAT, MESSAGES_FORM, fit_messages, read_message, MessageFrames, MESSAGES),
    "/v1/responses": Endpoint(
        "/v1/responses", CHAT, RESPONSES_FORM, fit_response, read_response, ResponseFrames, RESPONSES, keeps=True
    ),
    "/v1/audio/transcriptions": Endpoint(
        "/v1/audio/transcriptions",
        TRANSCRIPTION,
        TRANSCRIPTION_FORM,
        fit_recording,
        read_transcription,
        content_type=CONTENT_TYPE,
    ),
    "/v1/embeddings": _EMBEDDING,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/rerank": _RERANK,
    "/v1/score": _SCORE,
    "/score": _SCORE,
    "/v1/classify": _CLASSIFY,
    "/classify": _CLASSIFY,
}
AT_ROOT = frozenset(path for path in ENDPOINTS if not path.startswith("/v1/"))  # the server hands these on as well
WITHOUT_V1 = frozenset(path[3:] for path in ENDPOINTS if path.startswith("/v1/")) - AT_ROOT  # by a wrong base URL
MESSAGES_PATH = "/v1/messages/"
_OLLAMA = {  # its API, and what there is here for the same
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/api/embed": "/v1/embeddings",
    "/api/embeddings": "/v1/embeddings",
    "/api/tags": MODELS,
    "/api/ps": MODELS,
    "/api/show": MODELS,
    "/api/version": MODELS,
}
_TAILS = sorted(  # of what is served, behind whatever a base URL ends in; the longest first
    {path[3:] if path.startswith("/v1/") else path for path in (*ENDPOINTS, MODELS)}, key=len, reverse=True
)
# Of clients of other APIs, and of those that take ours to be in the management API.
ELSEWHERE = _OLLAMA.keys() | {f"/api/v1{tail}" for tail in _TAILS}
_ASKED_OF_RESPONSES = (  # no engine of today has them, and their names are those of no response
    (("/v1/responses/input_tokens",), "POST /tokenize counts the tokens of messages or of a prompt."),
    (("/v1/responses/compact",), "Nothing is shortened here: leave out of the next request what it need not have."),
)
NO_RESPONSES = frozenset(path for paths, _ in _ASKED_OF_RESPONSES for path in paths)
_UNSERVED = (
    (("/v1/responses/",), "Nothing is stored here: send the whole conversation with each request."),
    (
        ("/v1/conversations", "/v1/chat/completions/"),
        "Conversations are not stored here: send all of one with each request.",
    ),
    (
        (f"{MESSAGES_PATH}batches",),
        "A batch is made with /v1/files and /v1/batches, of lines for /v1/chat/completions.",
    ),
    (("/v1/audio/translations",), "Recordings are written down in their own language, at /v1/audio/transcriptions."),
)
_SLASHES = re.compile("/+")


def not_served(path: str, stores: bool = False) -> str:
    """The error message for a path that is not served. ``stores``: the path belongs to stored objects."""
    if (served := path.rstrip("/")) in ENDPOINTS:
        return f"{path[:100]} is not served here. Leave the slash at its end out: {served}."
    known = _ASKED_OF_RESPONSES if stores else _ASKED_OF_RESPONSES + _UNSERVED
    advice = next((told for paths, told in known if path.startswith(paths)), None)
    meant = _meant(path)
    if advice is None and meant is not None:
        return f"{path[:100]} is not served here; {meant} is. {_base_url(path)}"
    base_url = "" if path.startswith("/v1/") else f"{_base_url(path)} "
    return f"{path[:100]} is not served here. {base_url}{advice or 'docs/reference/v1.md lists what is.'}"


def _meant(path: str) -> str | None:
    """The path that a client would have asked for with the right base URL."""
    tidy = _SLASHES.sub("/", path).rstrip("/")
    if tidy in _OLLAMA:
        return _OLLAMA[tidy]
    tail = next((one for one in _TAILS if tidy.endswith(one)), None)
    if tail is not None:
        return next(one for one in (f"/v1{tail}", tail) if one in ENDPOINTS or one == MODELS)
    return MODELS if tidy.startswith(("/models/", "/openai/models/", "/openai/deployments")) else None


def _base_url(path: str) -> str:
    """Which one is right, to a client that asked at ``path``."""
    if path.startswith("/openai/deployments"):
        return (
            "Take OpenAI's client instead of Azure's: its base URL ends in /v1, and the model's name is that of the "
            "deployment."
        )
    if path in _OLLAMA:
        return "Take an OpenAI client instead of Ollama's: its base URL ends in /v1."
    return "The base URL of OpenAI's clients ends in /v1, that of Anthropic's has no path."
