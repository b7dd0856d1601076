"""Embeddings, ranks, scores and labels of the simulated engine, in vLLM's form.

A text's vector is the sum of one vector for each of its words, and a score the cosine of two: equal texts have equal
vectors, and texts that share words score higher. It means nothing else.
"""

from __future__ import annotations

import base64
import math
import random
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from scheduling.engines.simulated import requests, text
from scheduling.engines.simulated.engine import Sequence
from scheduling.engines.simulated.http import Connection
from scheduling.engines.simulated.requests import ApiError

DIMENSIONS = 64
LABELS = ("LABEL_0", "LABEL_1")


class PoolingBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    priority: int | None = None
    truncate_prompt_tokens: int | None = None


class ReadBody(PoolingBody, kw_only=True):
    input: str | list[Any] | None = None
    messages: list[requests.Message] | None = None
    dimensions: int | None = None
    encoding_format: str = "float"


class RerankBody(PoolingBody, kw_only=True):
    query: str
    documents: str | list[str]
    top_n: int = 0


class ScoreBody(PoolingBody, kw_only=True):
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None


READ, RERANK, SCORE = msgspec.json.Decoder(ReadBody), msgspec.json.Decoder(RerankBody), msgspec.json.Decoder(ScoreBody)


class Pooling:
    """One request's sequences, each of a prompt and nothing after it; the answer when all were read."""

    def __init__(
        self, connection: Connection, tokens: list[int], priority: int, finish: Callable[[], dict[str, Any]],
        abort: Callable[[Sequence], None],
    ) -> None:  # fmt: skip
        self._connection = connection
        self._finish = finish
        self._abort = abort
        self._open = len(tokens)
        self.sequences = [Sequence(max(1, count), 0, True, priority, on_end=self._ended) for count in tokens]

    def lost(self) -> None:
        for sequence in self.sequences:
            self._abort(sequence)

    def _ended(self, sequence: Sequence) -> None:
        self._open -= 1
        if not self._open:
            self._connection.respond(200, msgspec.json.encode(self._finish()))


def usage(tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }  # fmt: skip


def prompts_of(body: ReadBody) -> list[tuple[int, str]]:
    """Tokens and text of each input."""
    if body.messages is not None:
        count, _ = requests.chat_prompt(body.messages)
        return [(count, " ".join(str(message.content) for message in body.messages))]
    if body.input is None:
        raise ApiError(400, "1 validation error:\n  input: Field required", "Bad Request", "body.input")
    counts = [count for count, _ in requests.completion_prompts(body.input)]
    several = isinstance(body.input, list) and not all(type(item) is int for item in body.input)
    texts = body.input if several else [body.input]
    return [(count, str(one)) for count, one in zip(counts, texts, strict=True)]


def vector(prompt: str, dimensions: int) -> list[float]:
    """Of unit length."""
    total = [0.0] * dimensions
    for word in prompt.lower().split() or [""]:
        for at, value in enumerate(_word(word, dimensions)):
            total[at] += value
    length = math.sqrt(sum(value * value for value in total)) or 1.0
    return [value / length for value in total]


@lru_cache(maxsize=4096)
def _word(word: str, dimensions: int) -> tuple[float, ...]:
    draw = random.Random(text.fingerprint(word))
    return tuple(draw.gauss(0.0, 1.0) for _ in range(dimensions))


def score(first: str, second: str) -> float:
    """From 0 to 1."""
    pairs = zip(vector(first, DIMENSIONS), vector(second, DIMENSIONS), strict=True)
    return 0.5 + 0.5 * sum(a * b for a, b in pairs)


def embeddings(name: str, model: str, body: ReadBody, prompts: list[tuple[int, str]]) -> dict[str, Any]:
    rows = []
    for index, (_, prompt) in enumerate(prompts):
        values: list[float] | str = vector(prompt, body.dimensions or DIMENSIONS)
        if body.encoding_format == "base64":
            values = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
        rows.append({"index": index, "object": "embedding", "embedding": values})
    return _list("embd", name, model, rows, sum(count for count, _ in prompts))


def labels(name: str, model: str, prompts: list[tuple[int, str]]) -> dict[str, Any]:
    rows = []
    for index, (_, prompt) in enumerate(prompts):
        share = score(prompt, LABELS[0])
        best = LABELS[0] if share >= 0.5 else LABELS[1]
        rows.append({"index": index, "label": best, "probs": [share, 1 - share], "num_classes": len(LABELS)})
    return _list("classify", name, model, rows, sum(count for count, _ in prompts))


def scores(name: str, model: str, pairs: list[tuple[str, str]], tokens: int) -> dict[str, Any]:
    rows = [{"index": index, "object": "score", "score": score(a, b)} for index, (a, b) in enumerate(pairs)]
    return _list("score", name, model, rows, tokens)


def ranking(name: str, model: str, body: RerankBody, documents: list[str], tokens: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "index": at,
            "document": {"text": document, "multi_modal": None},
            "relevance_score": score(body.query, document),
        }
        for at, document in enumerate(documents)
    ]
    rows.sort(key=lambda row: -row["relevance_score"])
    return {
        "id": f"score-{name}",
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": rows[: body.top_n or None],
    }


def sides(body: ScoreBody) -> list[tuple[str, str]]:
    """The pairs to be scored."""
    first, second = (
        next((value for name in names if (value := getattr(body, name)) is not None), None)
        for names in (("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2"))
    )
    if first is None or second is None:
        raise ApiError(400, "1 validation error:\n  text_1 and text_2: Field required", "Bad Request")
    left, right = ([side] if isinstance(side, str) else side for side in (first, second))
    if len(left) == 1:
        left = left * len(right)
    if len(left) != len(right) or not left:
        raise ApiError(400, "Input lengths must be either 1:1, 1:N or N:N")
    return list(zip(left, right, strict=True))


def _list(kind: str, name: str, model: str, rows: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    return {
        "id": f"{kind}-{name}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": rows,
        "usage": usage(tokens),
    }
