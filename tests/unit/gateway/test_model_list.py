"""``/v1/models`` in the words of both APIs, and paths that are not served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduling.gateway.answers.model_list import MODELS, MOST_FIELDS, list_models, speaks_anthropic
from scheduling.gateway.endpoints import ENDPOINTS, not_served
from scheduling.gateway.entry.auth import Card
from scheduling.gateway.errors import Refusal

CARDS = {"chat": Card(4096, None), "law": Card(4096, "chat"), "embed": Card(512, None)}


def told(path: str = MODELS, query: str = "", anthropic: bool = True) -> Any:
    return json.loads(list_models(path, query.encode(), CARDS, 1_700_000_000, anthropic))


def test_openai_is_told_all_with_context_length_and_base() -> None:
    listed = told(anthropic=False)
    assert listed["object"] == "list"
    assert [(m["id"], m["max_model_len"], m["parent"]) for m in listed["data"]] == [
        ("chat", 4096, None), ("law", 4096, "chat"), ("embed", 512, None),
    ]  # fmt: skip
    assert told(f"{MODELS}/law", anthropic=False) == listed["data"][1]


def test_anthropics_clients_are_told_in_its_form() -> None:
    page = told()
    assert [page[name] for name in ("has_more", "first_id", "last_id")] == [False, "chat", "embed"]
    assert page["data"][2] == {
        "id": "embed", "type": "model", "display_name": "embed", "created_at": "2023-11-14T22:13:20Z",
        "max_input_tokens": 512, "lifecycle": "active",
    }  # fmt: skip
    assert told(f"{MODELS}/embed") == page["data"][2]


@pytest.mark.parametrize(
    ("query", "names", "more"),
    [
        ("limit=2", ["chat", "law"], True),
        ("limit=2&after_id=law", ["embed"], False),
        ("limit=1&after_id=chat", ["law"], True),
        ("limit=1&before_id=embed", ["law"], True),
        ("before_id=law", ["chat"], False),
        ("after_id=embed", [], False),
        ("beta=true", ["chat", "law", "embed"], False),
    ],
)
def test_its_pages_are_those_that_are_asked_for(query: str, names: list[str], more: bool) -> None:
    page = told(query=query)
    assert ([m["id"] for m in page["data"]], page["has_more"]) == (names, more)
    assert (page["first_id"], page["last_id"]) == ((names[0], names[-1]) if names else (None, None))


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=99999999999", "limit"), ("limit=x", "limit"),
        ("limit=00001999", "limit"), ("limit=00001" + "0" * 5000, "limit"),
        ("limit=%C2%B2", "limit"), ("after_id=other", "after_id"), ("before_id=", None),
        ("&".join("a=1" for _ in range(MOST_FIELDS + 1)), None),
    ],
)  # fmt: skip
def test_a_query_that_means_nothing_is_refused(query: str, param: str | None) -> None:
    if query == "before_id=":  # as if it were not there
        assert len(told(query=query)["data"]) == len(CARDS)
        return
    with pytest.raises(Refusal) as refused:
        told(query=query)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize("anthropic", [False, True])
def test_a_model_that_the_key_does_not_open_is_as_none(anthropic: bool) -> None:
    with pytest.raises(Refusal) as refused:
        told(f"{MODELS}/other", anthropic=anthropic)
    assert refused.value.status == 404


def test_who_speaks_anthropics_api_is_known_by_its_version() -> None:
    assert speaks_anthropic([(b"x-api-key", b"k"), (b"anthropic-version", b"2023-06-01")])
    assert not speaks_anthropic([(b"x-api-key", b"k")])


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/v1/responses/resp_1", "Nothing is stored here"),
        ("/v1/responses/input_tokens", "/tokenize"),
        ("/v1/responses/compact", "Nothing is shortened here"),
        ("/v1/conversations", "Conversations are not stored here"),
        ("/v1/chat/completions/c/messages", "Conversations are not stored here"),
        ("/v1/chat/completions/", "slash at its end out: /v1/chat/completions."),
        ("/v1/responses//", "slash at its end out: /v1/responses."),
        ("/v1/messages/batches", "/v1/batches"),
        ("/v1/audio/translations", "/v1/audio/transcriptions"),
        ("/chat/completions", "/v1/chat/completions is. The base URL of OpenAI's clients ends in /v1"),
        ("//v1/embeddings", "/v1/embeddings is."),
        ("/v1/v1/messages", "/v1/messages is. The base URL of OpenAI's clients ends in /v1, that of Anthropic's has"),
        ("/v1//models", "/v1/models is."),
        ("/v1/moderations", "not served here. docs/reference/v1.md"),
        (
            "/openai/deployments/llama/chat/completions",
            "; /v1/chat/completions is. Take OpenAI's client instead of Azure's",
        ),
        ("/openai/deployments/llama/audio/transcriptions", "/v1/audio/transcriptions is."),
        ("/openai/deployments", "/v1/models is."),
        ("/openai/v1/responses", "/v1/responses is. The base URL of OpenAI's clients ends in /v1"),
        ("/v1/openai/deployments/llama/embeddings", "/v1/embeddings is."),
        ("/engines/llama/completions", "/v1/completions is."),
        (
            "/anthropic/v1/messages",
            "/v1/messages is. The base URL of OpenAI's clients ends in /v1, that of Anthropic's",
        ),
        ("/proxy/v2/rerank", "; /v2/rerank is."),
        ("/models", "/v1/models is."),
        ("/models/llama", "/v1/models is."),
        ("/api/chat", "/v1/chat/completions is. Take an OpenAI client instead of Ollama's: its base URL ends in /v1."),
        ("/api/tags", "/v1/models is."),
        ("/api/v1/chat/completions", "/v1/chat/completions is."),
        ("/complete", "The base URL of OpenAI's clients ends in /v1"),
        ("/v1beta/models/llama:generateContent", "The base URL of OpenAI's clients ends in /v1"),
        ("/v1/" + "x" * 10_000, "docs/reference/v1.md"),
    ],
)
def test_at_a_path_that_is_not_served_it_is_said_what_to_do(path: str, advice: str) -> None:
    assert path not in ENDPOINTS
    message = not_served(path)
    assert message.startswith(path[:100])
    assert advice in message
    assert len(message) < 350
