"""How many questions to a tokenizer are open at once: of one key, and of all keys of a tenant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, KeySpec, PoolSpec
from scheduling.gateway.bodies.openai_types import TokenizeRequest
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
        super().__init__(None)  # type: ignore[arg-type]
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
