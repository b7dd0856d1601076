"""In an outage the log has a line for each change of state, not one for each request."""

from __future__ import annotations

import asyncio
import logging

import pytest

from scheduling.gateway.config import GatewayConfig
from tests.support.fake_engine import Script
from tests.support.gateway_world import World, gateway_world
from tests.support.redis_server import RedisServer

CONFIG = GatewayConfig(first_token_timeout_s=1.0, idle_token_timeout_s=1.0, renew_every_s=0.2, drain_s=0.5)
REQUESTS = 60
LINES = 8  # of an outage and its end: each connection to Redis says both
OWN = ("quartermaster", "scheduling", "controlplane", "telemetry", "tenants", "asyncio")


async def ask_all(world: World) -> set[int]:
    async with world.http() as client:
        body = {"model": "demo", "prompt": "x", "max_tokens": 3}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(REQUESTS)))
    return {answer.status_code for answer in answers}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{r.name}: {r.getMessage()}" for r in caplog.records if r.name.startswith(OWN) and r.levelno >= 20]


async def test_requests_without_redis_write_no_line_each(
    private_redis: RedisServer, pool_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_world(private_redis.url, pool_id, config=CONFIG) as world:
        assert await ask_all(world) == {200}
        with caplog.at_level(logging.INFO):
            private_redis.kill()
            assert await ask_all(world) == {503}
            assert await ask_all(world) == {503}
            private_redis.start()
            async with asyncio.timeout(60):
                while not world.app.ready:
                    await asyncio.sleep(0.05)
        found = lines(caplog)
        assert any("unavailable" in line for line in found)
        assert len(found) <= LINES, "\n".join(found)


@pytest.mark.parametrize(
    "script",
    [Script(refuse=True), Script(status=500), Script(raw=lambda _: b"\x00\x01 no HTTP\r\n", then_close=True)],
    ids=["refuses", "fails", "garbage"],
)
async def test_requests_to_a_broken_engine_write_no_line_each(
    redis_url: str, pool_id: str, caplog: pytest.LogCaptureFixture, script: Script
) -> None:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as world:
        world.engines[0].script = script
        with caplog.at_level(logging.INFO):
            assert 200 not in await ask_all(world)
        assert len(lines(caplog)) <= LINES, "\n".join(lines(caplog))


async def test_requests_without_the_database_write_no_line_each(
    redis_url: str, pool_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as world:
        with caplog.at_level(logging.INFO):
            world.database_down = True
            async with asyncio.timeout(60):
                while not world.app._catalog.failing:
                    await asyncio.sleep(0.05)
            assert await ask_all(world) == {200}
            world.database_down = False
            async with asyncio.timeout(60):
                while world.app._catalog.failing:
                    await asyncio.sleep(0.05)
        assert len(lines(caplog)) <= LINES, "\n".join(lines(caplog))
