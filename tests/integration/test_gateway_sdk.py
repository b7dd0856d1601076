"""The official SDK, unchanged, against the gateway: what a client developer meets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import openai
import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementState, KeySpec
from tests.support.gateway_world import TIER, World, gateway_world, until

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id) as made:
        yield made


async def test_who_speaks_anthropics_api_is_answered_in_its_words_at_every_path(world: World) -> None:
    version = {"anthropic-version": "2023-06-01"}
    async with world.http() as client:
        listed = (await client.get("/v1/models", params={"limit": "1"}, headers=version)).json()
        assert ([m["id"] for m in listed["data"]], listed["has_more"]) == (["demo"], True)
        assert "has_more" not in (await client.get("/v1/models", params={"limit": "1"})).json()
        missing = [
            await client.get("/v1/models/other", headers=version),
            await client.get("/v1/messages/batches"),
            await client.post("/v1/complete", headers=version, json={}),
        ]
        wrong = [await client.get("/v1/messages/count_tokens"), await client.post("/v1/models", headers=version)]
        for status, answers in ((404, missing), (405, wrong)):
            for answer in answers:
                assert (answer.status_code, answer.json()["type"]) == (status, "error"), answer.text
        assert (await client.get("/v1/moderations")).json()["error"]["code"] == "invalid_request"


async def test_models_are_those_of_the_key(world: World) -> None:
    async with world.sdk() as client:
        models = [m async for m in client.models.list()]
        assert [m.id for m in models] == ["demo", "default"]
        one = await client.models.retrieve("demo")
        assert one.model_extra is not None
        assert one.model_extra["max_model_len"] == world.pool.max_model_len
        with pytest.raises(openai.NotFoundError) as refused:
            await client.models.retrieve("other")
        assert refused.value.code == "unknown_model"


async def test_a_chat_completes_and_is_booked(world: World) -> None:
    async with world.sdk() as client:
        raw = await client.chat.completions.with_raw_response.create(model="demo", messages=HELLO, max_tokens=7)
    answer = raw.parse()
    assert answer.model == "demo", "the engine's own name of the model does not show"
    assert answer.choices[0].message.content == " word" * 7
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 7)
    headers = raw.headers
    assert headers["x-quartermaster-reason"] == "length"
    assert headers["x-quartermaster-queue-ms"] == "0"
    assert int(headers["x-quartermaster-estimate-tokens"]) > 7
    assert headers["x-ratelimit-limit-requests"] == "256"
    assert headers["x-ratelimit-remaining-requests"] == "255"
    [record] = await world.ledger_of(1)
    assert record.request_id == headers["x-request-id"]
    assert (record.outcome, record.reason, record.status) == ("completed", "length", 200)
    assert (record.input_tokens, record.output_tokens, record.streamed) == (12, 7, False)
    assert (record.backend, record.policy, record.attempts) == (world.pool.backends[0].id, "direct", 1)
    assert record.slo_met is True
    await world.settled()
    assert world.metrics.records == [record]


async def test_a_request_that_the_sdk_sends_again_says_so_in_the_ledger(world: World) -> None:
    await world.configure(concurrency=1)
    world.engines[0].script.pause_s = 0.05
    async with world.sdk() as busy, world.sdk(max_retries=5) as client:
        stream = await busy.chat.completions.create(model="demo", messages=HELLO, max_tokens=10, stream=True)
        await client.chat.completions.create(model="demo", messages=HELLO, max_tokens=2)
        async for _ in stream:
            pass
    records = await world.ledger()
    async with asyncio.timeout(20):
        while not any(r.client_retry and r.outcome == "completed" for r in records):
            await asyncio.sleep(0.05)
            records = await world.ledger()
    refused = [r.client_retry for r in sorted(records, key=lambda r: r.received_s) if r.reason == "concurrency"]
    assert refused == list(range(len(refused))), "each is one attempt, and says which"
    [served] = [r for r in records if r.client_retry and r.outcome == "completed"]
    assert served.client_retry == len(refused)


async def test_only_what_is_known_and_bounded_reaches_the_engine(world: World) -> None:
    async with world.sdk() as client:
        await client.chat.completions.create(
            model="default",
            messages=[*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}, HELLO[0]],
            max_completion_tokens=5,
            temperature=0.0,
            stop=["x"],
            user="someone",
            metadata={"run": "7"},
            store=False,
            extra_body={"priority": 3, "ignore_eos": True},
        )
        for more in ({"mm_processor_kwargs": {"a": 1}}, {"prompt_logprobs": 5}, {"spelled_wrong": 1}):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="default", messages=HELLO, extra_body=more)
            assert refused.value.param == next(iter(more))
    [body] = world.engines[0].bodies
    assert body.pop("cache_salt"), "the tenant's own"
    assert body.pop("priority") >= 0, "the policy's: the client's own orders before the engine"
    assert body == {
        "model": "fake-upstream",
        "messages": [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}, *HELLO],
        "max_tokens": 5,
        "temperature": 0.0,
        "stop": ["x"],
        "ignore_eos": True,
    }
    head = world.engines[0].heads[0]
    assert head["x-request-id"].startswith("req_")
    assert "authorization" not in head, "the client's key stays here"


async def test_a_bound_is_always_sent(world: World) -> None:
    await world.configure(pool={"default_output_tokens": 33})
    async with world.sdk() as client:
        await client.completions.create(model="demo", prompt="a b c")
        await client.completions.create(model="demo", prompt=[1, 2, 3], max_tokens=4)
    assert [b["max_tokens"] for b in world.engines[0].bodies] == [33, 4]
    assert world.engines[0].bodies[1]["prompt"] == [1, 2, 3]
    records = await world.ledger_of(2)
    assert records[1].input_tokens_est == 3, "token ids are counted, not estimated"


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
WEATHER: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_what_a_model_thought_before_a_tool_call_goes_back_to_it(world: World, name: str) -> None:
    """Interleaved thinking: the assistant's message returns as the SDK writes it out, with every field it has."""
    engine = world.engines[0]
    engine.script.message = {name: "Oslo is in Norway.", "content": None, "tool_calls": [CALL]}
    async with world.sdk() as client:
        first = await client.chat.completions.create(model="demo", messages=HELLO, tools=WEATHER)
        message = first.choices[0].message
        assert getattr(message, name) == "Oslo is in Norway."
        history: list[Any] = [
            *HELLO,
            message.model_dump(),
            {"role": "tool", "tool_call_id": "call_1", "content": "5 C"},
        ]
        await client.chat.completions.create(model="demo", messages=history, tools=WEATHER)
    sent = {"role": "assistant", "tool_calls": [CALL], "reasoning": "Oslo is in Norway."}
    assert engine.bodies[1]["messages"] == [*HELLO, sent, history[2]]


async def test_a_streamed_thought_reaches_the_client_and_goes_back(world: World) -> None:
    engine = world.engines[0]
    engine.script.message = {"reasoning": "Oslo is in Norway.", "tool_calls": [CALL]}
    async with world.sdk() as client:
        stream = await client.chat.completions.create(model="demo", messages=HELLO, tools=WEATHER, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
        thought = "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
        calls = [call.model_dump() for delta in deltas for call in delta.tool_calls or ()]  # with their index
        assert thought == "Oslo is in Norway."
        history: list[Any] = [*HELLO, {"role": "assistant", "content": "", "reasoning": thought, "tool_calls": calls}]
        await client.chat.completions.create(model="demo", messages=history, tools=WEATHER)
    assert engine.bodies[1]["messages"][1] == {
        "role": "assistant",
        "content": "",
        "reasoning": thought,
        "tool_calls": [CALL],
    }


async def test_a_stream_with_usage(world: World) -> None:
    async with world.sdk() as client:
        stream = await client.chat.completions.create(
            model="demo", messages=HELLO, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == " word" * 5
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert {c.model for c in chunks} == {"demo"}
    [record] = await world.ledger_of(1)
    assert (record.reason, record.input_tokens, record.output_tokens) == ("length", 12, 5)
    assert record.first_token_s is not None


async def test_a_stream_is_accounted_even_if_nobody_asked_for_usage(world: World) -> None:
    async with world.sdk() as client:
        stream = await client.completions.create(model="demo", prompt="hello", max_tokens=5, stream=True)
        chunks = [chunk async for chunk in stream]
    assert len(chunks) == 5
    assert all(c.usage is None and c.choices for c in chunks), "the frame we added does not show"
    [record] = await world.ledger_of(1)
    assert (record.input_tokens, record.output_tokens) == (12, 5)
    assert world.engines[0].bodies[0]["stream_options"] == {"include_usage": True}


async def test_cancelling_a_stream_reaches_the_engine(world: World) -> None:
    world.engines[0].script.pause_s = 0.02
    async with world.sdk() as client:
        stream = await client.chat.completions.create(model="demo", messages=HELLO, max_tokens=4000, stream=True)
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 5:
                break
        await stream.close()
        await until(lambda: world.engines[0].open == 0)
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason, record.status) == ("cancelled", "client_left", 200)
    assert record.output_tokens >= 4
    assert record.input_tokens == record.input_tokens_est
    await world.settled()
    assert world.engines[0].aborted == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_answer_reaches_the_engine_too(world: World, stream: bool) -> None:
    world.engines[0].script.first_pause_s = 60
    async with world.sdk(timeout=0.5) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="demo", messages=HELLO, stream=stream)
    await until(lambda: world.engines[0].aborted == 1)
    await world.settled()
    assert world.engines[0].open == 0
    [record] = await world.ledger_of(1)
    assert (record.reason, record.status) == ("client_left", 499)


@pytest.mark.parametrize(
    "key",
    ["x", "nonsense", "qm-key000000001", "qm-key000000001.wrong", "qm-aaaaaaaaaaaa.secret", "sk-" + "x" * 300],
)
async def test_a_wrong_key_always_gets_the_same_answer(world: World, key: str) -> None:
    async with world.http() as client:
        answer = await client.post("/v1/chat/completions", headers={"authorization": f"Bearer {key}"}, json={})
        missing = await client.get("/v1/models", headers={"authorization": ""})
    assert answer.status_code == missing.status_code == 401
    assert answer.content == missing.content
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "no_key"
    assert world.metrics.rejections == [("no_key", 401)] * 2
    assert world.metrics.records == []


async def test_a_key_expires_and_is_revoked_and_a_new_one_works_at_once(world: World) -> None:
    async with world.sdk() as client:
        await client.models.list()
        spec = world.key_spec
        world.key_spec = KeySpec(spec.id, spec.digest, spec.entitlement, expires_s=1.0)
        await world.configure()
        with pytest.raises(openai.AuthenticationError) as expired:
            await client.models.list()
        world.key_spec = spec
        world.catalog = world._catalog(world.catalog.version + 1)  # nobody rings: the unknown key itself makes it look
        await client.models.list()
        world.catalog = replace(world.catalog, version=world.catalog.version + 1, keys={})
        await world.app._catalog.refreshed(world.catalog.version)
        with pytest.raises(openai.AuthenticationError) as revoked:
            await client.models.list()
    async with world.http() as client:
        missing = await client.get("/v1/models", headers={"authorization": ""})
    assert expired.value.response.content == revoked.value.response.content == missing.content


async def test_an_unknown_model(world: World) -> None:
    async with world.sdk() as client:
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert refused.value.code == "unknown_model"
    assert refused.value.param == "model"
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason, record.status) == ("refused", "unknown_model", 404)


@pytest.mark.parametrize("state", [EntitlementState.PENDING, EntitlementState.EXPIRED])
async def test_an_entitlement_that_is_not_bound(world: World, state: EntitlementState) -> None:
    await world.configure(state=state)
    async with world.sdk() as client:
        with pytest.raises(openai.PermissionDeniedError, match=state.value):
            await client.chat.completions.create(model="demo", messages=HELLO)
    await world.ledger_of(1)


async def test_over_its_concurrency_a_client_is_told_when_and_the_sdk_comes_back(world: World) -> None:
    await world.configure(concurrency=1)
    world.engines[0].script.first_pause_s = 0.5
    async with world.sdk() as client, world.sdk(max_retries=8) as patient:
        first = asyncio.create_task(client.chat.completions.create(model="demo", messages=HELLO))
        await until(lambda: world.engines[0].open == 1)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="demo", messages=HELLO)
        headers = refused.value.response.headers
        assert refused.value.code == headers["x-quartermaster-reason"] == "concurrency"
        assert 0 < int(headers["retry-after-ms"]) <= 120_000
        assert int(headers["retry-after"]) >= 1
        assert headers["x-ratelimit-remaining-requests"] == "0"
        again = await patient.chat.completions.create(model="demo", messages=HELLO)
        assert again.choices[0].finish_reason == "length"
        await first
    records = await world.ledger_of(len(world.metrics.records))
    assert sorted({r.reason for r in records}) == ["concurrency", "length"]
    assert sum(r.reason == "length" for r in records) == 2


async def test_sdk_clients_beyond_what_they_may_have_send_a_request_one_and_a_half_times_at_most(world: World) -> None:
    """Six clients, one request at a time each, where two may run: the SDK waits as it is told, by itself."""
    await world.configure(concurrency=2)
    world.engines[0].script.first_pause_s = 0.3
    async with world.sdk(max_retries=2) as client:

        async def one_after_the_other() -> None:
            for _ in range(4):
                with suppress(openai.RateLimitError):  # after three attempts
                    await client.chat.completions.create(model="demo", messages=HELLO)

        await client.chat.completions.create(model="demo", messages=HELLO)  # how long one takes is known
        await asyncio.gather(*(one_after_the_other() for _ in range(6)))
    reasons = Counter(r.reason for r in world.metrics.records)
    print(dict(reasons))
    assert reasons["concurrency"] > 0, "the SDK never had to wait"
    assert reasons.total() <= 1.5 * 25


async def test_a_token_budget_says_when_and_not_to_retry_what_never_fits(world: World) -> None:
    await world.configure(tokens_per_s=100.0, burst_tokens=400.0)
    async with world.sdk() as client:
        raw = await client.chat.completions.with_raw_response.create(model="demo", messages=HELLO, max_tokens=300)
        assert raw.headers["x-ratelimit-limit-tokens"] == "400"
        assert int(raw.headers["x-ratelimit-remaining-tokens"]) < 120
        assert raw.headers["x-ratelimit-reset-tokens"] in ("3s", "4s")
        world.engines[0].script.tokens = 300
        await world.settled()
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="demo", messages=HELLO, max_tokens=380)
        assert refused.value.code == "token_budget"
        assert int(refused.value.response.headers["retry-after-ms"]) > 500
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="demo", messages=HELLO, max_tokens=1000)
        assert refused.value.response.headers["x-should-retry"] == "false"


async def test_what_does_not_fit_the_model_is_refused(world: World) -> None:
    await world.configure(pool={"max_model_len": 1000, "max_output_tokens": 4096})
    async with world.sdk() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="demo", prompt=[1] * 1000, max_tokens=200)
        assert (refused.value.code, refused.value.param) == ("too_long", "prompt")
        await client.completions.create(model="demo", prompt=[1] * 900)
        await client.completions.create(model="demo", prompt=[1] * 900, max_tokens=200)
    sent = [body["max_tokens"] for body in world.engines[0].bodies]
    assert sent == [100, 200], "a default bound gives way to the prompt; what the client asks for, the engine cuts"


async def test_requests_wait_in_turn_where_the_tier_lets_them(world: World) -> None:
    backend = world.pool.backends[0]
    await world.configure(pool={"backends": (replace(backend, slots=1),)})
    await world.store.set_ready(world.epoch, backend.id, world.pool.backends[0])
    world.engines[0].script.first_pause_s = 0.15
    async with world.sdk() as client:
        raws = await asyncio.gather(
            *(client.chat.completions.with_raw_response.create(model="demo", messages=HELLO) for _ in range(5))
        )
    waits = sorted(int(raw.headers["x-quartermaster-queue-ms"]) for raw in raws)
    assert waits[0] == 0
    assert waits[-1] > 300
    records = await world.ledger_of(5)
    queued = [r for r in records if r.queued_s is not None]
    assert len(queued) == 4
    assert all(r.policy == "fifo@1" and r.why == "test" for r in queued)
    await world.settled()


async def test_nobody_waits_longer_than_the_tier_allows(world: World) -> None:
    world.granting = False
    await world.configure(tier=replace(TIER, max_wait_s=0.4))
    await world.store.set_ready(world.epoch, world.pool.backends[0].id, replace(world.pool.backends[0], slots=1))
    world.engines[0].script.first_pause_s = 2
    async with world.sdk() as client:
        first = asyncio.create_task(client.chat.completions.create(model="demo", messages=HELLO))
        await until(lambda: world.engines[0].open == 1)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="demo", messages=HELLO)
        assert refused.value.code == "queue_timeout"
        await first
    assert {r.reason for r in await world.ledger_of(2)} == {Reason.QUEUE_TIMEOUT, Reason.LENGTH}
    await world.settled()
