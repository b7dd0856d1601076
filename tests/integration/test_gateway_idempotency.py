"""``Idempotency-Key`` as the official SDK meets it: a retry is never a second execution."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from scheduling.core.outcomes import Reason
from scheduling.gateway.config import GatewayConfig, new_gateway_id
from scheduling.gateway.entry.idempotency import Idempotency
from tests.support.gateway_world import World, gateway_world, until
from tests.support.redis_server import RedisServer

CANARY = "xylophone-4711"
HELLO: list[Any] = [{"role": "user", "content": f"hello {CANARY}"}]
KEY = {"Idempotency-Key": "order-7"}
ONCE = GatewayConfig(renew_every_s=0.2)
KEEPING = GatewayConfig(renew_every_s=0.2, idempotency_answers=True, idempotency_secret=b"of this deployment")


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with tenants_world(redis_url, pool_id, ONCE) as made:
        yield made


@pytest.fixture
async def keeping(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with tenants_world(redis_url, pool_id, KEEPING) as made:
        yield made


class tenants_world:
    """A gateway whose tenant no other test has: keys are the tenant's."""

    def __init__(self, redis_url: str, pool_id: str, config: GatewayConfig) -> None:
        self._made = gateway_world(redis_url, pool_id, config=replace(config, gateway_id=new_gateway_id()))
        self._tenant = f"{pool_id}-tenant"

    async def __aenter__(self) -> World:
        world = await self._made.__aenter__()
        await world.configure(tenant=self._tenant)
        return world

    async def __aexit__(self, *exc: Any) -> None:
        await self._made.__aexit__(*exc)


def chat(client: openai.AsyncOpenAI, headers: dict[str, str] = KEY, **changes: Any) -> Any:
    body: dict[str, Any] = {"model": "demo", "messages": HELLO, "max_tokens": 5}
    return client.chat.completions.with_raw_response.create(**(body | changes), extra_headers=headers)


async def twice(world: World) -> None:
    """One key, one body, sent again after it completed."""
    async with world.sdk(max_retries=2) as client:
        first = await chat(client)
        with pytest.raises(openai.ConflictError) as refused:
            await chat(client)
    assert refused.value.code == "already_done"
    headers = refused.value.response.headers
    assert headers["x-should-retry"] == "false"
    assert headers["x-quartermaster-original-request"] == first.headers["x-request-id"]
    assert first.headers["x-request-id"] in refused.value.message
    assert len(world.engines[0].bodies) == 1


async def test_a_completed_request_is_not_run_again_and_the_answer_names_it(world: World) -> None:
    await twice(world)
    first, again = await world.ledger_of(2)
    assert (first.reason, again.outcome, again.reason, again.status) == ("length", "refused", "already_done", 409)
    assert again.input_tokens == again.output_tokens == 0
    async with world.sdk() as client:
        await chat(client, {"Idempotency-Key": "order-8"})
        await chat(client, {})
        await chat(client, {})
    await world.settled()
    assert len(world.engines[0].bodies) == 4


async def test_a_gateway_that_does_not_take_the_key_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(_self: Idempotency, _mine: Any) -> None:
        return None

    monkeypatch.setattr(Idempotency, "begin", begin)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await twice(world)


async def test_while_the_first_runs_a_second_is_told_when_to_come_back(world: World) -> None:
    world.engines[0].script.first_pause_s = 1.0
    async with world.sdk() as client:
        first = asyncio.create_task(chat(client))
        await until(lambda: world.engines[0].open == 1)
        with pytest.raises(openai.ConflictError) as refused:
            await chat(client)
        await first
    assert refused.value.code == "duplicate"
    assert 700 <= int(refused.value.response.headers["retry-after-ms"]) <= 37_500
    assert "x-should-retry" not in refused.value.response.headers
    assert len(world.engines[0].bodies) == 1
    await world.settled()


async def test_a_request_that_waits_in_the_queue_has_its_key_too(world: World) -> None:
    world.granting = False
    backend = world.pool.backends[0]
    await world.store.set_ready(world.epoch, backend.id, replace(backend, slots=1))
    world.engines[0].script.first_pause_s = 0.5
    async with world.sdk() as client:
        runs = asyncio.create_task(chat(client, {}))
        await until(lambda: world.engines[0].open == 1)
        waits = asyncio.create_task(chat(client))
        await until(lambda: world.app._in_flight.waiting == 1)
        with pytest.raises(openai.ConflictError, match="still running"):
            await chat(client)
        world.granting = True
        await asyncio.gather(runs, waits)
    assert len(world.engines[0].bodies) == 2
    await world.settled()


async def test_another_body_under_the_same_key_is_refused(world: World) -> None:
    async with world.sdk(max_retries=2) as client:
        await chat(client)
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            await chat(client, max_tokens=6)
        assert refused.value.code == "key_reused"
        assert refused.value.param == "Idempotency-Key"
        with pytest.raises(openai.UnprocessableEntityError):
            await client.completions.create(model="demo", prompt="x", extra_headers=KEY)
    assert len(world.engines[0].bodies) == 1


async def test_a_key_is_its_tenants_own(world: World) -> None:
    async with world.sdk() as client:
        await chat(client)
        await world.configure(tenant=f"{world.pool.id}-other")
        await chat(client)
    assert len(world.engines[0].bodies) == 2


@pytest.mark.parametrize("key", ["", "two words", "x" * 256, "ü"])
async def test_a_key_that_is_none_is_said_to_be_so(world: World, key: str) -> None:
    async with world.http() as client:
        answer = await client.post(
            "/v1/chat/completions", json={"model": "demo", "messages": HELLO}, headers={"Idempotency-Key": key.encode()}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"
    assert not world.engines[0].bodies


async def test_what_never_ran_or_failed_leaves_the_key_free(world: World) -> None:
    async with world.sdk() as client:
        await world.store.set_ready(world.epoch, world.pool.backends[0].id, None)
        with pytest.raises(openai.InternalServerError) as refused:
            await chat(client)
        assert refused.value.code == "no_backend"
        await world.store.set_ready(world.epoch, world.pool.backends[0].id, world.pool.backends[0])
        world.engines[0].script.status = 500
        with pytest.raises(openai.InternalServerError) as failed:
            await chat(client)
        assert failed.value.code == "backend_error"
        world.engines[0].script.status = 200
        assert (await chat(client)).status_code == 200
    assert {r.reason for r in await world.ledger_of(3)} == {"no_backend", "backend_error", "length"}


async def test_the_sdks_own_retries_after_a_timeout_run_once_at_a_time_and_get_an_answer(world: World) -> None:
    engine = world.engines[0]
    engine.script.first_pause_s = 60
    most = 0

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, engine.open)
            await asyncio.sleep(0.002)

    async with world.sdk(max_retries=4, timeout=1.0) as client:
        looking = asyncio.create_task(look())
        asked = asyncio.create_task(chat(client))
        await until(lambda: engine.open == 1)
        engine.script = replace(engine.script, first_pause_s=0.0)
        answer = (await asked).parse()
        looking.cancel()
    assert answer.choices[0].message.content == " word" * 5
    assert most == 1
    assert engine.aborted >= 1  # more where this machine takes longer than the client waits
    assert {r.reason for r in world.metrics.records} >= {"client_left", "length"}
    await world.settled()


async def test_a_completed_stream_is_not_run_again_and_a_broken_one_is(world: World) -> None:
    world.engines[0].script.cut_after = 2
    async with world.sdk() as client:

        async def stream() -> int:
            frames = await client.chat.completions.create(
                model="demo", messages=HELLO, max_tokens=5, stream=True, extra_headers=KEY
            )
            return len([f async for f in frames])

        with pytest.raises(openai.APIError, match="lost"):
            await stream()
        await world.settled()
        world.engines[0].script.cut_after = None
        assert await stream() >= 5
        await world.settled()
        with pytest.raises(openai.ConflictError) as refused:
            await stream()
    assert refused.value.code == "already_done"
    assert len(world.engines[0].bodies) == 2


async def test_a_kept_answer_is_given_again_byte_by_byte_and_nothing_runs_or_is_charged(keeping: World) -> None:
    async with keeping.http() as client:
        body = {"model": "demo", "messages": HELLO, "max_tokens": 5}
        first = await client.post("/v1/chat/completions", json=body, headers=KEY)
        again = await client.post("/v1/chat/completions", json=body, headers=KEY)
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-quartermaster-reason"] == "replayed"
    assert again.headers["x-quartermaster-original-request"] == first.headers["x-request-id"]
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert len(keeping.engines[0].bodies) == 1
    _, record = await keeping.ledger_of(2)
    assert (record.outcome, record.reason, record.status, record.slo_met) == ("completed", "replayed", 200, None)
    assert (record.input_tokens, record.output_tokens, record.backend) == (0, 0, "")


async def test_the_sdk_that_comes_back_while_the_first_runs_gets_the_first_ones_answer(keeping: World) -> None:
    keeping.engines[0].script.first_pause_s = 0.5
    async with keeping.sdk(max_retries=5) as client:
        answers = await asyncio.gather(*(chat(client) for _ in range(4)))
    assert len({a.text for a in answers}) == 1
    assert len(keeping.engines[0].bodies) == 1
    assert sum("idempotent-replayed" in a.headers for a in answers) == 3


async def test_a_stream_is_never_kept(keeping: World) -> None:
    async with keeping.sdk() as client:
        stream = await client.completions.create(model="demo", prompt="x", max_tokens=5, stream=True, extra_headers=KEY)
        assert len([f async for f in stream]) == 5
        await keeping.settled()
        with pytest.raises(openai.ConflictError):
            await client.completions.create(model="demo", prompt="x", max_tokens=5, stream=True, extra_headers=KEY)


async def test_a_stored_answer_is_readable_only_to_a_client_that_sends_the_same_request(
    private_redis: RedisServer, pool_id: str
) -> None:
    async with tenants_world(private_redis.url, pool_id, KEEPING) as world:
        world.engines[0].script.word = f" {CANARY}"
        async with world.sdk() as client:
            await chat(client, {"Idempotency-Key": f"{CANARY}-key"})
            await world.settled()
            kinds = {"hash": ["HGETALL"], "zset": ["ZRANGE", 0, -1], "string": ["GET"], "stream": ["XRANGE", "-", "+"]}
            seen = b""
            for name in await world.resp.call("KEYS", "*"):
                kind = (await world.resp.call("TYPE", name)).decode()
                command, *rest = kinds[kind]
                seen += repr((name, await world.resp.call(command, name, *rest))).encode()
            assert b"qm:idem:" in seen
            assert b"answers" in seen
            assert CANARY.encode() not in seen
            world.app._idempotency._secret = b"of another deployment"
            await chat(client, {"Idempotency-Key": f"{CANARY}-key"})
            assert len(world.engines[0].bodies) == 2


async def test_an_answer_that_is_too_large_is_not_kept(redis_url: str, pool_id: str) -> None:
    config = replace(KEEPING, idempotency_largest=2000)
    async with tenants_world(redis_url, pool_id, config) as world, world.sdk() as client:
        await chat(client, max_tokens=1000)
        with pytest.raises(openai.ConflictError) as refused:
            await chat(client, max_tokens=1000)
    assert refused.value.code == "already_done"


async def test_without_the_header_shared_state_is_not_asked(private_redis: RedisServer, pool_id: str) -> None:
    async with tenants_world(private_redis.url, pool_id, KEEPING) as world:
        async with world.sdk() as client:
            await chat(client, {})
        await world.settled()
        assert await world.resp.call("KEYS", "qm:idem:*") == []


async def test_a_lost_state_is_told_of_running_keys_again(private_redis: RedisServer, pool_id: str) -> None:
    async with tenants_world(private_redis.url, pool_id, ONCE) as world:
        world.engines[0].script.first_pause_s = 2.0
        async with world.sdk() as client:
            first = asyncio.create_task(chat(client))
            await until(lambda: world.engines[0].open == 1)
            await world.resp.call("FLUSHALL")
            async with asyncio.timeout(10):
                while not await world.resp.call("KEYS", "qm:idem:*:running"):
                    await asyncio.sleep(0.02)
            with pytest.raises(openai.ConflictError) as refused:
                await chat(client)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        assert refused.value.code == "duplicate"
        assert len(world.engines[0].bodies) == 1


async def test_what_completes_while_redis_is_away_is_remembered_when_it_is_back(
    private_redis: RedisServer, pool_id: str
) -> None:
    async with tenants_world(private_redis.url, pool_id, ONCE) as world:
        world.engines[0].script.first_pause_s = 1.0
        async with world.sdk() as client:
            first = asyncio.create_task(chat(client))
            await until(lambda: world.engines[0].open == 1)
            private_redis.kill()
            assert (await first).status_code == 200
            private_redis.start()
            async with asyncio.timeout(20):
                while not (world.app.ready and world.resp.available):
                    await asyncio.sleep(0.05)
                while not await world.resp.call("KEYS", "qm:idem:*:done"):
                    await asyncio.sleep(0.05)
            with pytest.raises(openai.ConflictError) as refused:
                await chat(client)
        assert refused.value.code == "already_done"
        assert len(world.engines[0].bodies) == 1


async def test_a_killed_gateways_key_is_free_in_time_for_the_sdks_own_retries(world: World) -> None:
    config = replace(ONCE, gateway_id=new_gateway_id())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.gateway_process", world.redis_url,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps((world.catalog, config)))
        process.stdin.close()
        async with asyncio.timeout(30):
            port = int(await process.stdout.readline())
        world.engines[0].script.first_pause_s = 60
        async with world.sdk(base_url=f"http://127.0.0.1:{port}/v1") as doomed, world.sdk(max_retries=2) as client:
            first = asyncio.create_task(chat(doomed))
            await until(lambda: world.engines[0].open == 1)
            process.kill()
            with pytest.raises(openai.APIConnectionError):
                await first
            world.engines[0].script = replace(world.engines[0].script, first_pause_s=0.0)
            assert (await chat(client)).status_code == 200
        assert len(world.engines[0].bodies) == 2
        *refused, done = world.metrics.records
        assert {r.reason for r in refused} == {Reason.DUPLICATE}
        assert done.reason == Reason.LENGTH
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
