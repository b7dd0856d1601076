"""Prompts, answers and secrets rest nowhere: not in the log at its loudest, not in Redis, not in a refusal's words
(docs/reference/promises.md, 31 and 33)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world, until
from tests.support.redis_server import RedisServer

ASKED, ANSWERED = "canary-in-the-prompt", "canary-in-the-answer"
CONFIG = GatewayConfig(
    first_token_timeout_s=0.5, idle_token_timeout_s=0.5, request_timeout_s=3.0, renew_every_s=0.2, max_body_bytes=50_000
)


@pytest.fixture
async def world(private_redis: RedisServer, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(private_redis.url, pool_id, config=CONFIG) as made:
        made.engines[0].script.word = f" {ANSWERED}"
        yield made


async def everything_in(url: str) -> bytes:
    """Names and contents of all keys."""
    found = []
    async with redis.asyncio.Redis.from_url(url) as client:
        async for key in client.scan_iter():
            found += [key, await client.dump(key)]
            match await client.type(key):
                case b"hash":
                    found += [word for pair in (await client.hgetall(key)).items() for word in pair]
                case b"stream":
                    found += [word for _, entry in await client.xrange(key) for pair in entry.items() for word in pair]
                case b"string":
                    found.append(await client.get(key))
    return b"\n".join(found)


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": ASKED}], "max_tokens": 5} | changes


async def test_neither_prompt_nor_answer_nor_secret_is_left_anywhere(
    world: World, private_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    script, path = world.engines[0].script, "/v1/chat/completions"
    secret = world.key.partition(".")[2]
    said = []
    async with world.http() as client:
        assert ANSWERED in (await client.post(path, json=body())).text
        assert ANSWERED in (await client.post(path, json=body(stream=True))).text

        script.first_pause_s = 0.4
        running = asyncio.create_task(
            client.post(path, json=body(user="somebody"))
        )  # that name is kept: docs/guide/keys.md)
        await until(lambda: world.engines[0].open == 1)
        meanwhile = await everything_in(private_redis.url)
        await running
        script.first_pause_s = 0.0

        for change in ({"status": 500, "error": ANSWERED}, {"cut_after": 2}, {"error_after": 2}, {"stall_after": 2}):
            before = dict(vars(script))
            vars(script).update(change)
            for stream in (False, True):
                answer = await client.post(path, json=body(stream=stream))
                if change.get("status") == 500:
                    said.append(answer.text)
            vars(script).update(before)
        said += [
            (await client.post(path, content=data)).text
            for data in (
                json.dumps(body())[:-1].encode(),
                json.dumps(body(temperature=ASKED)).encode(),
                json.dumps(body(messages=ASKED)).encode(),
                json.dumps(body(messages=[{"role": ASKED, "content": ""}])).encode(),
                (ASKED * 5000).encode(),
            )
        ]
        wrong = {"authorization": f"Bearer {world.key}x"}
        said.append((await client.post(path, json=body(), headers=wrong)).text)
    await world.settled()
    at_rest = await everything_in(private_redis.url)
    assert b"ended:" in at_rest  # it did look
    for canary in (ASKED, ANSWERED, secret):
        assert canary.encode() not in meanwhile
        assert canary.encode() not in at_rest
        assert canary not in caplog.text
        if canary != ASKED:  # a 400 may quote to a client what it wrote itself
            assert not [text for text in said if canary in text]
    assert all(canary not in repr(world.metrics.records) for canary in (ASKED, ANSWERED, secret))
