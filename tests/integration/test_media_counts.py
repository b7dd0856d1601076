"""Media has more tokens than bytes: what an engine counts of it is charged, and what it cannot have is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.fake_engine import raw_answer
from tests.support.gateway_world import World, gateway_world

URL = "data:image/bmp;base64,Qk0AAAAA"  # nothing reads how large it is
SHOWN = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}]
TOLD = [{"role": "user", "content": "what is this?"}]


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id) as made:
        await made.lead()
        yield made


async def charged(world: World, messages: list[Any], tokens: int, **more: Any) -> tuple[int, bool]:
    """Input tokens in the ledger, and whether they are the engine's."""
    world.engines[0].script.usage = {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}
    world.engines[0].script.tokens = 3
    async with world.http() as client:
        answer = await client.post(
            "/v1/chat/completions", json={"model": "demo", "messages": messages, "max_tokens": 3, **more}
        )
    assert answer.status_code == 200, answer.text
    [record] = await world.ledger_of(1)
    return record.input_tokens, not world.metrics.usage_rejections


@pytest.mark.parametrize("stream", [False, True])
async def test_an_image_with_more_tokens_than_bytes_is_charged_by_the_engines_count(world: World, stream: bool) -> None:
    tokens = world.pool.max_model_len - 10
    assert tokens > 4096 + len(URL) + 200, "more than its bytes and a template can be"
    assert await charged(world, SHOWN, tokens, stream=stream) == (tokens, True)


async def test_text_has_no_more_tokens_than_bytes_and_media_no_more_than_fit(world: World) -> None:
    tokens, believed = await charged(world, TOLD, world.pool.max_model_len - 10)
    assert (tokens < 100, believed) == (True, False)


async def test_media_has_no_more_tokens_than_a_model_reads(world: World) -> None:
    tokens, believed = await charged(world, SHOWN, 10**7)
    assert (tokens < 5_000, believed) == (True, False)


async def test_an_image_that_is_embedded_is_charged_by_the_engines_count(world: World) -> None:
    tokens = world.pool.max_model_len - 10
    world.engines[0].script.raw = raw_answer(
        {"data": [{"index": 0, "embedding": [0.1]}], "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    )
    async with world.http() as client:
        answer = await client.post("/v1/embeddings", json={"model": "demo", "messages": SHOWN})
    assert answer.status_code == 200, answer.text
    [record] = await world.ledger_of(1)
    assert (record.input_tokens, world.metrics.usage_rejections) == (tokens, [])
