"""What a scheduler inside the engine is told of each request, from the client to the engine's body: a real gateway."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.inside_engine.digest import ARGUMENT, decode
from scheduling.core.types import PrefixCache, ServiceClass, Slo
from scheduling.engines.kinds import kind_of, kinds
from tests.support.gateway_world import TIER, World, gateway_world

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
PROMISED = replace(TIER, rank=2, weight=5.0, service_class=ServiceClass.ELASTIC, slo=Slo(ttft_s=3.0, tbt_s=0.2))


async def sent(world: World, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with world.http() as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return world.engines[0].bodies[-1]


@pytest.mark.parametrize("kind", sorted(kinds()))
async def test_engines_that_decide_by_it_are_told_and_no_others(redis_url: str, pool_id: str, kind: str) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        await world.configure(pool={"engine": kind, "prefix_cache": PrefixCache.UNSALTED}, tier=PROMISED)
        body = await sent(world, "/v1/chat/completions", CHAT)
    if not kind_of(kind).takes_digest:
        assert "vllm_xargs" not in body
        return
    got, pace = decode(body["vllm_xargs"][ARGUMENT], "x", 1, 0.0, 10, 8)
    assert (got.rank, got.weight, got.service_class, pace) == (2, 5.0, ServiceClass.ELASTIC, 0.2)
    assert got.ttft_deadline_s is not None
    assert 0 < got.ttft_deadline_s <= 3.0, "what is left of the promise when it is sent"


async def test_it_stands_beside_a_clients_own_arguments(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        await world.configure(pool={"engine": "vllm_plugin"}, tier=PROMISED)
        body = await sent(world, "/v1/completions", {"model": "demo", "prompt": "x", "vllm_xargs": {"mine": 3}})
        assert body["vllm_xargs"]["mine"] == 3
        decode(body["vllm_xargs"][ARGUMENT], "x", 1, 0.0, 10, 8)


async def test_of_several_answers_each_is_told_its_part(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        await world.configure(pool={"engine": "vllm_plugin"}, tier=PROMISED)
        one = await sent(world, "/v1/chat/completions", CHAT)
        four = await sent(world, "/v1/chat/completions", CHAT | {"n": 4})
    expected = [decode(body["vllm_xargs"][ARGUMENT], "x", 1, 0.0, 10, 8)[0].output_tokens for body in (one, four)]
    assert expected[0] == expected[1]
