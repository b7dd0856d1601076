"""Prompts are counted by a replica's tokenizer, and what one tenant sends switches that off for no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduling.core.types import BackendSpec, PoolSpec
from scheduling.gateway.bodies.openai_types import ChatRequest
from scheduling.gateway.bodies.prepare import Prepared
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

    async def exchange(self, *args: Any, **options: Any) -> Replica:
        self.asked += 1
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


def test_answers_to_questions_are_objects() -> None:
    _decode_object(b'{"tokens": [1], "any": {"other": null}}')
    for wrong in (b"[]", b"1", b"{", b'{"a":}', b""):
        with pytest.raises(msgspec.DecodeError):
            _decode_object(wrong)
