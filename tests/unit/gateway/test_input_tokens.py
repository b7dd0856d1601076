"""Prompts are counted by a replica's tokenizer, and what one tenant sends switches that off for no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduling.core.types import BackendSpec, PoolSpec
from scheduling.estimation import tokenizer
from scheduling.gateway.bodies.openai_types import ChatRequest
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.bodies.prepare_pooling import EMBEDDING_FORM, RERANK_FORM, fit_read, fit_rerank
from scheduling.gateway.estimate.input_tokens import BACKEND, LONG_BYTES, InputCounter
from scheduling.gateway.estimate.questions import _decode_object
from tests.support.preparing import prepare

POOL = PoolSpec("p", "demo", "up", (BackendSpec("b", "p", "http://127.0.0.1:1", 8, 4000),), tokenizer=BACKEND)


class Replica:
    """Answers each question with a status and a count, or not in time (None)."""

    def __init__(self) -> None:
        self.status: int | None = 200
        self.asked = 0
        self.who: list[str] = []

    def backend(self, spec: BackendSpec) -> Replica:
        self.who.append(spec.id)
        return self

    async def exchange(self, path: str, question: bytes, *args: Any, **options: Any) -> Replica:
        self.asked += 1
        self.question = msgspec.json.decode(question)
        if self.status is None:
            raise TimeoutError
        return self

    def whole_body(self) -> bytes:
        return b'{"count": 7}'

    def release(self) -> None: ...


def ready(pool: str, backend: str) -> bool:
    return True


def chat(text: str = "hello") -> Prepared:
    body = msgspec.json.encode({"model": "demo", "messages": [{"role": "user", "content": text}]})
    prepared = prepare(body, True, replace(POOL, max_model_len=0))
    assert isinstance(prepared.judged, ChatRequest)
    return prepared


@pytest.mark.parametrize(
    ("status", "text"),
    [
        pytest.param(400, "hello", id="the template takes no such messages"),
        pytest.param(None, "hello " * (LONG_BYTES // 6), id="a prompt that takes long"),
    ],
)
async def test_a_prompt_that_a_replica_does_not_count_switches_counting_off_for_its_tenant_alone(
    status: int | None, text: str
) -> None:
    replica = Replica()
    counter = InputCounter(replica, ready)  # type: ignore[arg-type]
    replica.status = status
    assert await counter.count(POOL, chat(text), "acme") is None
    replica.status = 200
    assert await counter.count(POOL, chat(), "globex") == 7
    assert await counter.count(POOL, chat(), "acme") is None
    assert replica.asked == 2


@pytest.mark.parametrize("status", [None, 500, 404])
async def test_a_replica_that_counts_nothing_is_asked_by_nobody_for_a_while(status: int | None) -> None:
    replica = Replica()
    counter = InputCounter(replica, ready)  # type: ignore[arg-type]
    replica.status = status
    assert await counter.count(POOL, chat(), "acme") is None
    replica.status = 200
    assert await counter.count(POOL, chat(), "globex") is None
    assert replica.asked == 1


async def test_only_replicas_that_are_ready_are_asked_to_count() -> None:
    replica = Replica()
    others = [replace(POOL.backends[0], id=name, draining=name == "leaving") for name in ("gone", "leaving")]
    pool = replace(POOL, backends=(*others, POOL.backends[0]))
    counter = InputCounter(replica, lambda pool, backend: backend != "gone")  # type: ignore[arg-type]
    assert [await counter.count(pool, chat(), "acme") for _ in range(4)] == [7] * 4
    assert set(replica.who) == {"b"}


async def test_where_none_is_known_to_be_ready_one_that_does_not_count_switches_counting_off_for_no_other() -> None:
    replica = Replica()
    pool = replace(POOL, backends=tuple(replace(POOL.backends[0], id=name) for name in "abcd"))
    counter = InputCounter(replica, lambda pool, backend: False)  # type: ignore[arg-type]
    replica.status = None
    assert await counter.count(pool, chat(), "acme") is None
    [lost] = replica.who
    replica.status = 200
    assert [await counter.count(pool, chat(), "acme") for _ in range(6)] == [7] * 6
    assert set(replica.who[1:]) == set("abcd") - {lost}
    replica.status = None
    assert await counter.count(pool, chat(), "acme") is None
    assert await counter.count(pool, chat(), "acme") is None
    assert replica.asked == 8, "two are enough"


class Words:
    """A tokenizer, as it were."""

    def count(self, text: str) -> int:
        return len(text.split())


def prompt(kind: str, **fields: Any) -> Prepared:
    body = msgspec.json.encode({"model": "demo", **fields})
    if kind == "embeddings":
        return fit_read(EMBEDDING_FORM.parse(body), POOL)
    return fit_rerank(RERANK_FORM.parse(body), POOL) if kind == "rerank" else prepare(body, False, POOL)


@pytest.mark.parametrize(
    ("prepared", "text"),
    [
        (prompt("completions", prompt="one two"), "one two"),
        (prompt("completions", prompt=["one two"]), "one two"),
        (prompt("completions", prompt=["one two"], suffix=" three"), "one two three"),
        (prompt("completions", prompt=[7] * 500, truncate_prompt_tokens=1000), None),
        (prompt("completions", prompt=[[7] * 500], truncate_prompt_tokens=1000), None),
        (prompt("embeddings", input="one two"), "one two"),
        (prompt("embeddings", input=["one two"]), "one two"),
        (prompt("embeddings", messages=[{"role": "user", "content": "one"}]), None),
        (prompt("rerank", query="one", documents=["two"]), None),
    ],
)
async def test_one_text_is_counted_however_it_was_sent_and_what_is_no_text_is_estimated(
    prepared: Prepared, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "load", lambda path: Words())
    replica = Replica()
    counter = InputCounter(replica, ready)  # type: ignore[arg-type]
    by_file = await counter.count(replace(POOL, tokenizer="words.json"), prepared, "acme")
    assert by_file == (None if text is None else len(text.split()))
    assert await counter.count(POOL, prepared, "acme") == (None if text is None else 7)
    assert replica.asked == (text is not None)
    assert text is None or replica.question["prompt"] == text


def test_answers_to_questions_are_objects() -> None:
    _decode_object(b'{"tokens": [1], "any": {"other": null}}')
    for wrong in (b"[]", b"1", b"{", b'{"a":}', b""):
        with pytest.raises(msgspec.DecodeError):
            _decode_object(wrong)
