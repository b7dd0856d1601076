"""Two projects of one tenant at one gateway: what one does changes nothing that the other can read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.types import ProjectSpec, RateLimits
from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world, make_key

CHAT = "/v1/chat/completions"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
CONFIG = GatewayConfig(idempotency_answers=True, idempotency_secret=b"of this deployment")
KEYS = {project: make_key(950_000_000 + n, "") for n, project in enumerate(("chat", "code"))}


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as made:
        await made.configure(tenant=f"{pool_id}-tenant")
        limits = RateLimits(requests_per_minute=3, tokens_per_minute=1000)
        projects = {
            name: ProjectSpec(name, made.entitlement.tenant, (made.entitlement.id,), user_limits=limits)
            for name in KEYS
        }
        keys = {spec.id: replace(spec, project=name) for name, (_, spec) in KEYS.items()}
        catalog = replace(made.catalog, version=made.catalog.version + 1, keys=keys, projects=projects)
        made.catalog = catalog
        await made.app._catalog.refreshed(10)
        yield made


async def ask(world: World, project: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    given = {"authorization": f"Bearer {KEYS[project][0]}"} | (headers or {})
    async with httpx.AsyncClient(base_url=world.base, headers=given, timeout=30) as client:
        return await client.post(CHAT, json=BODY | body)


def read(answer: httpx.Response) -> tuple[int, dict[str, str]]:
    """What a client can read of limits."""
    return answer.status_code, {k: v for k, v in answer.headers.items() if k.startswith(("x-ratelimit", "retry"))}


async def test_a_user_of_the_same_name_is_another_in_another_project(world: World) -> None:
    alone = [read(await ask(world, "code", user="ada")) for _ in range(3)]
    other = await gateway_without_neighbour(world)
    assert [status for status, _ in alone] == [200, 200, 200]
    assert [told["x-ratelimit-remaining-requests"] for _, told in alone] == ["2", "1", "0"]
    assert [told["x-ratelimit-remaining-requests"] for _, told in other] == ["2", "1", "0"]


async def gateway_without_neighbour(world: World) -> list[tuple[int, dict[str, str]]]:
    """The same requests of the other project, after the first has used all that its user may."""
    assert read(await ask(world, "code", user="ada"))[0] == 429
    return [read(await ask(world, "chat", user="ada")) for _ in range(3)]


async def test_the_same_idempotency_key_in_two_projects_is_two_requests(world: World) -> None:
    once = {"idempotency-key": "order-7"}
    first, again = [await ask(world, "chat", once) for _ in range(2)]
    assert again.headers["x-quartermaster-reason"] == "replayed"
    assert again.content == first.content
    other = await ask(world, "code", once)
    assert (other.status_code, other.headers["x-quartermaster-reason"]) == (200, "length")
    assert "x-quartermaster-original-request" not in other.headers
    assert len(world.engines[0].bodies) == 2
