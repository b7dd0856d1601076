"""How many questions to a tokenizer are open at once: of one key, and of all keys of a tenant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, KeySpec, PoolSpec
from scheduling.gateway.bodies.openai_types import TokenizeRequest
from scheduling.gateway.engine.upstream import Upstream
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.errors import Refusal
from scheduling.gateway.estimate.questions import AT_ONCE, OF_TENANT, QUESTIONS, Questions
from scheduling.gateway.headers import Limits
from tests.support.gateway_world import TIER

POOL = PoolSpec("p", "demo", "up", (BackendSpec("b", "p", "http://127.0.0.1:1", 8, 4000),))
ENTITLEMENT = EntitlementSpec("e", "acme", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)


class Unanswered(Questions):
    """The engine answers when it is told to."""

    def __init__(self) -> None:
        super().__init__(None, lambda pool, backend: True)  # type: ignore[arg-type]
        self.asked = 0
        self.go = asyncio.Event()

    async def _answer(self, question: Any, pool: PoolSpec, body: Any) -> bytes:
        self.asked += 1
        await self.go.wait()
        return b"{}"


def access(key: int, tenant: str = "acme") -> Access:
    entitlement = replace(ENTITLEMENT, id=f"{tenant}-e", tenant=tenant)
    return Access(KeySpec(f"key{key:09d}", b"", entitlement.id), entitlement, POOL, Limits(entitlement), None)


async def ask(questions: Questions, key: int, tenant: str = "acme") -> bytes:
    async with questions.ask(QUESTIONS["/tokenize"], access(key, tenant), TokenizeRequest(prompt="a")) as answer:
        return answer


async def test_a_tenant_opens_no_more_questions_by_making_keys() -> None:
    questions = Unanswered()
    asking = [asyncio.create_task(ask(questions, n // AT_ONCE)) for n in range(OF_TENANT)]
    await asyncio.sleep(0)
    assert questions.asked == OF_TENANT
    for key in (0, 99):  # a key that has as many as it may, and a new one
        with pytest.raises(Refusal) as refused:
            await ask(questions, key)
        assert refused.value.reason is Reason.CONCURRENCY
    other = asyncio.create_task(ask(questions, 50, "globex"))
    await asyncio.sleep(0)
    assert questions.asked == OF_TENANT + 1  # another tenant's are its own
    questions.go.set()
    await asyncio.gather(other, *asking)
    assert await ask(questions, 99) == b"{}"
    assert questions._open == {}


class Silent:
    """An engine that takes questions and says nothing, as one that hangs."""

    async def __aenter__(self) -> Silent:
        self.asked, self._ends = 0, list[asyncio.StreamWriter]()
        self._server = await asyncio.start_server(self._taken, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for end in self._ends:
            end.close()

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        self._ends.append(writer)
        await reader.read()


class Answers(Silent):
    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"count":1}')
        writer.close()


async def test_a_replica_that_hangs_keeps_no_question_waiting_while_another_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scheduling.gateway.estimate.questions.ANSWER_S", 0.2)
    async with Silent() as silent, Answers() as answers:
        backends = tuple(BackendSpec(n, "p", at.url, 8, 4000) for n, at in (("hangs", silent), ("well", answers)))
        pool = replace(POOL, backends=backends)
        upstream = Upstream(2.0, named=False)

        async def count(known: set[str]) -> bytes:
            questions = Questions(upstream, lambda _, backend: backend in known)
            asked = replace(access(1), pool=pool)
            answered = b""
            for _ in range(4):  # by turns
                async with questions.ask(QUESTIONS["/tokenize"], asked, TokenizeRequest(prompt="a")) as answer:
                    answered = answer
            return answered

        assert await count({"hangs", "well"}) == b'{"count":1}'
        assert silent.asked == 2
        assert await count({"well"}) == b'{"count":1}'
        assert silent.asked == 2, "what does not work is asked only where nobody else answers"
        pool = replace(POOL, backends=backends[:1])
        with pytest.raises(Refusal) as refused:
            await count(set())
        assert refused.value.reason is Reason.BACKEND_LOST
        async with asyncio.timeout(5):
            while upstream.connections:
                await asyncio.sleep(0.01)
        upstream.close()
