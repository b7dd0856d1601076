"""A generation ends because its client has left (docs/reference/promises.md, 3).

Clients leave at random points: while they wait, before the engine has begun, and in the middle of the answer. No
generation ends by itself, and slots are fewer than clients: who comes later is served only because others have left.
How soon is printed: from the closing of the client's socket to the end at the engine, which ends a generation when its
connection closes.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from scheduling.gateway.config import GatewayConfig
from tests.support.gateway_world import World, gateway_world
from tests.support.percentiles import summary

AT_ONCE = 24
SLOTS = 16  # the rest waits
TOKEN_S = 0.05
TOKENS = 4_000  # minutes: no generation ends by itself


async def left(world: World, number: int, seed: int) -> tuple[list[float], int]:
    """From leaving to the end at the engine [s] of those whose generation had begun; how many had not."""
    rng = random.Random(seed)
    engine, loop = world.engines[0], asyncio.get_running_loop()
    engine.script = replace(
        engine.script, first_pause_s=0.1, pause_s=TOKEN_S, stall_after=TOKENS
    )  # a whole answer never comes
    began: dict[str, asyncio.Event] = {}
    ended: dict[str, float] = {}
    gone: dict[str, float] = {}

    def watch(body: dict[str, Any], begins: bool) -> None:
        if begins:
            began[body["prompt"]].set()
        else:
            ended[body["prompt"]] = loop.time()

    engine.watch = watch
    gate = asyncio.Semaphore(AT_ONCE)

    async def leave(name: str, stream: bool, anywhere: bool) -> None:
        body = json.dumps({"model": "demo", "prompt": name, "max_tokens": TOKENS, "stream": stream}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.key}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        began[name] = asyncio.Event()
        async with gate:
            _, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(head.encode() + body)
            if not anywhere:
                await began[name].wait()
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            gone[name] = loop.time()
            writer.transport.abort()

    await asyncio.gather(*(leave(f"p{n}", n % 2 == 0, n % 4 < 2) for n in range(number)))
    await world.settled()
    assert {name for name, event in began.items() if event.is_set()} == set(ended)
    assert all(gone[name] < ended[name] for name in ended), "a generation ended before its client left"
    return [ended[name] - gone[name] for name in ended], number - len(ended)


async def measure(redis_url: str, pool_id: str, number: int, seed: int) -> None:
    async with gateway_world(redis_url, pool_id, config=GatewayConfig()) as world:
        backend: Any = replace(world.pool.backends[0], slots=SLOTS)
        await world.configure(pool={"backends": (backend,)})
        await world.store.set_ready(world.epoch, backend.id, backend)
        times, waited = await left(world, number, seed)
    print(f"\nseed {seed}: the generation ended after {summary(times)}; {waited} left before it began")
    assert len(times) >= number / 2


async def test_a_generation_ends_soon_after_its_client_has_left(redis_url: str, pool_id: str) -> None:
    await measure(redis_url, pool_id, 100, random.randrange(10**6))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thousand_generations_end_soon_after_their_clients_have_left(redis_url: str, pool_id: str) -> None:
    await measure(redis_url, pool_id, 1_000, random.randrange(10**6))


async def leave_whole(world: World, tokens: int, after_s: float) -> None:
    """Asks for a whole answer of so many tokens, and leaves while the engine is at it."""
    engine, begun = world.engines[0], asyncio.Event()
    engine.script = replace(engine.script, stall_after=0)
    engine.watch = lambda _, begins: begun.set() if begins else None
    body = json.dumps({"model": "demo", "prompt": "hello", "max_tokens": tokens}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.key}\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    await begun.wait()
    await asyncio.sleep(after_s)
    writer.transport.abort()
    await world.settled()
    engine.script, engine.watch = replace(engine.script, stall_after=None), None


async def test_who_leaves_before_a_whole_answer_is_charged_what_was_generated_of_it(
    redis_url: str, pool_id: str
) -> None:
    async with gateway_world(redis_url, pool_id) as world, world.http() as client:
        world.engines[0].script.pause_s = 0.2  # before a whole answer
        answer = await client.post("/v1/completions", json={"model": "demo", "prompt": "hello", "max_tokens": 100})
        assert answer.status_code == 200
        await leave_whole(world, 4_000, 0.5)
        await leave_whole(world, 50, 0.5)
        served, gone, short = await world.ledger_of(3)
    assert [r.reason for r in (served, gone, short)] == ["length", "client_left", "client_left"]
    assert served.granted_s is not None
    assert gone.granted_s is not None
    pace = 100 / (served.done_s - served.granted_s)
    assert gone.output_tokens == pytest.approx((gone.done_s - gone.granted_s) * pace, rel=0.2)
    assert (short.output_tokens, short.input_tokens) == (50, short.input_tokens_est), "no more than it asked for"


async def test_leaving_before_whole_answers_gives_no_tenant_its_token_budget_back(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world, world.http() as client:
        await world.configure(tokens_per_s=1.0, burst_tokens=1_000.0)
        await leave_whole(world, 400, 0.5)
        await leave_whole(world, 900, 0.5)
        body = {"model": "demo", "prompt": "hello", "max_tokens": 980}
        answer = await client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "token_budget")


async def test_a_whole_answer_that_its_engine_breaks_off_costs_its_prompt_alone(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world, world.http() as client:
        world.engines[0].script = replace(world.engines[0].script, pause_s=0.2, cut_after=3)
        answer = await client.post("/v1/completions", json={"model": "demo", "prompt": "hello", "max_tokens": 100})
        assert answer.status_code >= 500
        [record] = await world.ledger_of(1)
    assert (record.outcome, record.output_tokens) == ("failed", 0)
