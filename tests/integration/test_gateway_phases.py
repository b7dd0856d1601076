"""Prefill and decode apart, as clients, engines and shared state see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import openai
import pytest

from scheduling.core.types import Phase
from scheduling.engines.simulated.engine import Sequence
from scheduling.gateway.config import GatewayConfig
from tests.support.fake_engine import FakeEngine, raw_answer
from tests.support.gateway_world import World, gateway_world
from tests.support.simulated_world import simulated_world

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "how are you today"}], "max_tokens": 5}
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_engine_id": "e1", "of the connector": None}
CREDIT = 1000


def prefilled(params: object) -> object:
    """What a prefill replica answers, by the request's name."""

    def raw(name: str) -> bytes:
        answer = {"id": f"chatcmpl-{name}", "object": "chat.completion", "choices": [], "kv_transfer_params": params}
        body = json.dumps(answer).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    return raw


async def apart(world: World, prefill: int) -> None:
    """The first replicas compute prompts, the others write answers."""
    phases = [Phase.PREFILL] * prefill + [Phase.DECODE] * (len(world.pool.backends) - prefill)
    backends = tuple(replace(b, phase=phase) for b, phase in zip(world.pool.backends, phases, strict=True))
    await world.configure(pool={"backends": backends})
    for backend in backends[:prefill]:
        await world.store.set_ready(world.epoch, backend.id, None)
    for backend in backends[prefill:]:
        await world.store.set_ready(world.epoch, backend.id, replace(backend, prefill_tokens=CREDIT))
    await world.store.set_prefill(world.epoch, {b.id: 8 for b in backends[:prefill]})


@asynccontextmanager
async def phased_world(redis_url: str, pool_id: str, **limits: float) -> AsyncIterator[World]:
    """Two prefill replicas and a decode replica."""
    config = GatewayConfig(renew_every_s=0.3, **limits)  # type: ignore[arg-type]
    async with gateway_world(redis_url, pool_id, engines=3, config=config) as world:
        await apart(world, 2)
        for engine in world.engines[:2]:
            engine.script.raw = prefilled(PARAMS)  # type: ignore[assignment]
        yield world


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with phased_world(redis_url, pool_id) as world:
        yield world


async def holds_nothing(world: World) -> None:
    """Polls until shared state has neither leases nor credit nor legs."""
    async with asyncio.timeout(30):
        while True:
            view = await world.store.view()
            held = sum(b.running + b.prefill_used for b in view.backends.values())
            slots = {b.id: 8 for b in world.pool.backends if b.phase is Phase.PREFILL}
            if not held and not await world.store.set_prefill(world.epoch, slots):
                return
            await asyncio.sleep(0.01)


def asked(engines: list[FakeEngine]) -> int:
    return sum(len(engine.bodies) for engine in engines)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_computed_for_one_token_and_its_kv_cache_goes_to_the_decode_replica(
    world: World, stream: bool
):
    async with world.sdk() as client:
        answer = await client.chat.completions.create(**CHAT, stream=stream)
        words = "".join([c.choices[0].delta.content or "" async for c in answer]) if stream else None
        assert (words if stream else answer.choices[0].message.content) == " word" * 5
    first = next(e for e in world.engines[:2] if e.bodies)
    assert asked(world.engines[:2]) == 1
    leg, body = first.bodies[0], world.engines[2].bodies[0]
    assert (leg["stream"], leg["max_tokens"], leg["messages"]) == (False, 1, CHAT["messages"])
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert "stream_options" not in leg
    assert body["kv_transfer_params"] == PARAMS
    assert (body.get("stream", False), body["max_tokens"]) == (stream, 5)
    await holds_nothing(world)


async def test_completions_have_both_legs_too(world: World):
    async with world.sdk() as client:
        answer = await client.completions.create(model="demo", prompt="how are you", max_tokens=3)
    assert answer.choices[0].text == " word" * 3
    assert world.engines[2].bodies[0]["kv_transfer_params"] == PARAMS


MESSAGE = {"max_tokens": 3, "messages": [{"role": "user", "content": "word " * 400}]}
RESPONSE = {"max_output_tokens": 3, "input": "word " * 400}
NAMED = [("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), NAMED)
async def test_messages_and_responses_have_both_legs_and_only_the_first_computes_the_prompt(
    redis_url: str, pool_id: str, path: str, body: dict, stream: bool
):
    async with simulated_world(redis_url, pool_id, engines=2, prefix_cache=False) as (world, servers):
        await apart(world, 1)
        computed: list[int] = []  # of the prompt, where the answer is written
        engine = servers[1].engine
        add = engine.add

        def seen(seq: Sequence, now_s: float) -> None:
            computed.append(seq.prompt_tokens - seq.cached)
            add(seq, now_s)

        engine.add = seen  # type: ignore[method-assign]
        async with world.http() as client:
            answer = await client.post(path, json={"model": "demo", **body, "stream": stream})
        assert answer.status_code == 200, answer.text
        first, second = (server.engine.totals for server in servers)
        assert (first.generation_tokens, second.generation_tokens) == (1, 3)
        assert first.prompt_tokens > 400
        assert computed == [1], "the other one's KV cache was used"
        assert answer.headers["x-request-id"] in answer.text
        [record] = await world.ledger_of(1)
        assert (record.reason, record.output_tokens, record.attempts) == ("length", 3, 1)
        await holds_nothing(world)


@pytest.mark.parametrize(("path", "body"), NAMED)
async def test_their_leg_is_asked_for_one_token_under_a_name_of_its_own(world: World, path: str, body: dict):
    body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2} if "input" in body else {}
    for engine in world.engines[:2]:
        engine.script.raw = raw_answer({"kv_transfer_params": PARAMS})
    world.engines[2].script.status = 400  # what it writes is not of this test
    async with world.http() as client:
        answer = await client.post(path, json={"model": "demo", **body, "stream": True})
    name = answer.headers["x-request-id"]
    leg, last = next(e for e in world.engines[:2] if e.bodies).bodies[0], world.engines[2].bodies[0]
    bound = next(iter(body))
    assert (leg["stream"], leg[bound], last[bound]) == (False, 1, 3)
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert last["kv_transfer_params"] == PARAMS
    assert {"include", "top_logprobs"}.isdisjoint(leg)
    named = [None, None] if "messages" in body else [f"resp_{name}-p1", f"resp_{name}"]
    assert [leg.get("request_id"), last.get("request_id")] == named


TOOL = {"name": "f", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", MESSAGE | {"tools": [TOOL], "tool_choice": {"type": "any"}}),
        ("/v1/messages", MESSAGE | {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}),
        ("/v1/responses", RESPONSE | {"tools": [FUNCTION], "tool_choice": "required"}),
        ("/v1/responses", RESPONSE | {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}}),
    ],
)
async def test_a_tool_that_must_be_called_has_no_leg_whatever_the_path(world: World, path: str, body: dict):
    world.engines[2].script.status = 400
    async with world.http() as client:
        await client.post(path, json={"model": "demo", **body})
    assert asked(world.engines[:2]) == 0
    assert len(world.engines[2].bodies) == 1


async def test_a_tool_that_may_be_called_has_a_leg(world: World):
    for engine in world.engines[:2]:
        engine.script.raw = raw_answer({"kv_transfer_params": PARAMS})
    world.engines[2].script.status = 400
    async with world.http() as client:
        await client.post(
            "/v1/messages", json={"model": "demo", **MESSAGE, "tools": [TOOL], "tool_choice": {"type": "auto"}}
        )
    assert asked(world.engines[:2]) == 1


async def test_a_connector_that_says_nothing_gets_the_request_as_it_is(world: World):
    for engine in world.engines[:2]:
        engine.script.raw = prefilled(None)  # type: ignore[assignment]
    async with world.sdk() as client:
        await client.chat.completions.create(**CHAT)
    assert asked(world.engines[:2]) == 1
    assert "kv_transfer_params" not in world.engines[2].bodies[0]


@pytest.mark.parametrize("more", [{"n": 2}, {"tools": [], "tool_choice": "required"}], ids=str)
async def test_what_cannot_be_handed_over_is_computed_where_it_is_written(world: World, more: dict):
    if "tools" in more:
        more = more | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    async with world.sdk() as client:
        await client.chat.completions.create(**CHAT, **more)
    assert asked(world.engines[:2]) == 0
    assert "kv_transfer_params" not in world.engines[2].bodies[0]


async def test_prompts_go_where_least_is_open_and_their_credit_is_given_back_before_the_answer_ends(world: World):
    for engine in world.engines[:2]:
        engine.script.raw, engine.script.first_pause_s = None, 0.0
    world.engines[2].script.stall_after = 1
    async with world.sdk() as client:
        streams = [  # their answers do not end
            await client.chat.completions.create(**CHAT, stream=True) for _ in range(4)
        ]
        view = await world.store.view()
        assert view.running == 4
        async with asyncio.timeout(30):
            while (await world.store.view()).backends[world.pool.backends[2].id].prefill_used:
                await asyncio.sleep(0.01)
        for stream in streams:
            await stream.close()
    assert asked(world.engines[:2]) == 4
    await holds_nothing(world)


@pytest.mark.parametrize("fault", ["500", "503", "refuses", "nonsense"])
async def test_a_prefill_replica_that_fails_is_left_for_another_and_the_decode_replica_is_not_blamed(
    world: World, fault: str
):
    bad = world.engines[0]
    if fault == "refuses":
        bad.script.refuse = True
    elif fault == "nonsense":
        bad.script.raw = prefilled([1])  # type: ignore[assignment]
    else:
        bad.script.raw, bad.script.status = None, int(fault)
    async with world.sdk() as client:
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == " word" * 5
    assert len(world.engines[1].bodies) == 1
    assert len(world.engines[2].bodies) == 1, "the decode replica was asked once"
    assert (await world.store.view()).backends[world.pool.backends[2].id].slots == 64, "and not paused"
    await holds_nothing(world)
    async with asyncio.timeout(30):
        while not (ended := await world.ledger()):
            await asyncio.sleep(0.01)
    assert (ended[0].attempts, ended[0].backend) == (2, world.pool.backends[2].id)


async def test_a_prefill_replica_that_hangs_ends_the_leg_in_time_and_another_takes_it(redis_url: str, pool_id: str):
    async with phased_world(redis_url, pool_id, first_token_timeout_s=4.0) as world:
        bad = world.engines[0]
        bad.script.raw, bad.script.first_pause_s = None, 3600.0
        async with world.sdk() as client:
            await client.chat.completions.create(**CHAT)
        assert len(world.engines[1].bodies) == 1
        await holds_nothing(world)


async def test_an_error_about_the_input_is_the_clients_and_nothing_is_tried_again(world: World):
    for engine in world.engines[:2]:
        engine.script.raw, engine.script.status, engine.script.error = None, 400, "the prompt is too long"
    async with world.sdk() as client:
        with pytest.raises(openai.BadRequestError, match="too long"):
            await client.chat.completions.create(**CHAT)
    assert asked(world.engines) == 1
    await holds_nothing(world)


async def test_a_client_that_leaves_closes_the_leg(world: World):
    for engine in world.engines[:2]:
        engine.script.raw, engine.script.first_pause_s = None, 3600.0
    async with world.sdk() as client:
        task = asyncio.create_task(client.chat.completions.create(**CHAT))
        async with asyncio.timeout(30):
            while not any(engine.open for engine in world.engines[:2]):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(30):
        while any(engine.open for engine in world.engines):
            await asyncio.sleep(0.01)
    assert not world.engines[2].bodies
    await holds_nothing(world)


async def test_without_a_prefill_replica_the_request_is_refused_as_no_backend(world: World):
    await world.store.set_prefill(world.epoch, {})
    async with world.sdk() as client:
        with pytest.raises(openai.InternalServerError) as error:
            await client.chat.completions.create(**CHAT)
    assert error.value.status_code == 503
    assert not asked(world.engines)
    await holds_nothing(world)


async def test_simulated_engines_answer_both_legs_and_only_the_first_computes_the_prompt(redis_url: str, pool_id: str):
    async with simulated_world(redis_url, pool_id, engines=2, prefix_cache=False) as (world, servers):
        await apart(world, 1)
        prompt = "word " * 400
        async with world.sdk() as client:
            answer = await client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": prompt}], max_tokens=20, stream=True
            )
            words = [c.choices[0].delta.content async for c in answer if c.choices]
        assert len(words) > 1
        first, second = (server.engine.totals for server in servers)
        assert first.prompt_tokens > 400
        assert first.generation_tokens == 1
        assert second.generation_tokens >= len(words) - 1
        await holds_nothing(world)
