"""Several answers and several prompts in one request: one admission with the sum of their work, one ledger row."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from scheduling.engines.simulated.server import SimulatedServer
from tests.support.fake_engine import raw_answer
from tests.support.gateway_world import World, gateway_world, until
from tests.support.simulated_world import simulated_world

Both = tuple[World, SimulatedServer]
HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
MANY: Any = {
    "prompt": ["one two three", "four", "five six"],
    "n": 2,
    "max_tokens": 5,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture
async def both(redis_url: str, pool_id: str) -> AsyncIterator[Both]:
    async with simulated_world(redis_url, pool_id) as (world, [server]):
        yield world, server


async def test_a_chat_has_as_many_answers_as_were_asked_for(both: Both) -> None:
    world, server = both
    asked: Any = {"messages": HELLO, "n": 3, "max_tokens": 7}
    async with world.sdk() as client, httpx.AsyncClient() as direct:
        answer = await client.chat.completions.create(model="demo", **asked)
        wanted = (await direct.post(server.url + "/v1/chat/completions", json=asked)).json()
    got = [choice.message.content for choice in answer.choices]
    assert got == [choice["message"]["content"] for choice in wanted["choices"]]
    assert len(set(got)) == 3
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, wanted["usage"]["completion_tokens"])
    [record] = await world.ledger_of(1)
    assert record.output_bound == 21
    assert (record.input_tokens, record.output_tokens) == (6, answer.usage.completion_tokens)
    await world.settled()


@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_of_several_carries_every_index_and_is_counted(both: Both, usage: bool) -> None:
    world, _ = both
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    async with world.sdk() as client:
        stream = await client.completions.create(model="demo", stream=True, **MANY, **options)
        chunks = [chunk async for chunk in stream]
    pieces = Counter(choice.index for chunk in chunks for choice in chunk.choices)
    assert pieces == dict.fromkeys(range(6), 5)
    ends = Counter(c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason)
    assert ends == {"length": 6}
    assert (chunks[-1].usage is not None) is usage
    [record] = await world.ledger_of(1)
    assert (record.input_tokens, record.output_tokens, record.output_bound) == (6, 30, 30)
    assert (record.reason, record.streamed) == ("length", True)


async def test_it_is_admitted_as_one_request_with_the_sum_of_its_work(both: Both) -> None:
    world, server = both
    await world.configure(tokens_per_s=1.0, burst_tokens=100.0, concurrency=6)
    async with world.sdk() as client, httpx.AsyncClient() as direct:
        raw = await client.completions.with_raw_response.create(model="demo", **MANY)
        assert int(raw.headers["x-quartermaster-estimate-tokens"]) == pytest.approx(36, abs=3)
        with pytest.raises(openai.RateLimitError) as refused:  # 6 times 16 and its prompts
            await client.completions.create(model="demo", **(MANY | {"max_tokens": 16}))
        assert refused.value.code == "token_budget"
        await world.configure(tokens_per_s=0.0, burst_tokens=0.0, kv_tokens=60)
        with pytest.raises(openai.RateLimitError) as refused:  # prompts twice, and 6 times 9
            await client.completions.create(model="demo", **(MANY | {"max_tokens": 9}))
        assert refused.value.code == "kv_budget"
        await world.configure(kv_tokens=0)
        await direct.post(server.url + "/sim/fault", json={"stall": True})
        first = asyncio.create_task(client.completions.create(model="demo", **MANY))
        await until(lambda: server.engine.waiting + len(server.engine.running) == 6)
        assert await world.running() == (1, 0)
        await direct.post(server.url + "/sim/fault", json={"stall": 0})
        await first
    await world.settled()


async def test_leaving_ends_all_of_them(both: Both) -> None:
    world, server = both
    async with world.sdk() as client, httpx.AsyncClient() as direct:
        await direct.post(server.url + "/sim/fault", json={"slow": 1000.0})
        stream = await client.completions.create(model="demo", stream=True, **(MANY | {"max_tokens": 400}))
        async for _ in stream:
            break
        await stream.close()
        await direct.post(server.url + "/sim/fault", json={"slow": 1.0})
        await until(lambda: server.engine.totals.aborted == 6)
    await world.settled()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 17}, "n"),
        ({"n": 2, "prompt": ["a"] * 9}, "n"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", [1]]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": []}, "prompt"),
        ({"best_of": 2}, "best_of"),
    ],
)
async def test_what_is_too_many_or_mixed_is_refused(both: Both, more: dict[str, Any], param: str) -> None:
    world, server = both
    async with world.http() as client:
        answer = await client.post("/v1/completions", json={"model": "demo", "prompt": "a", **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert server.engine.steps == 0


async def test_one_request_asks_for_no_more_answers_than_may_run_at_once(both: Both) -> None:
    """Each is a sequence of the engine: one slot must not buy sixteen where the entitlement has two."""
    world, server = both
    await world.configure(concurrency=2)
    async with world.http() as client:
        for more, param in (({"n": 3}, "n"), ({"prompt": ["a"] * 3}, "prompt")):
            answer = await client.post("/v1/completions", json={"model": "demo", "prompt": "a", **more})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
            assert "2 that may run at once" in answer.json()["error"]["message"]
        assert server.engine.steps == 0
        body = {"model": "demo", "prompt": ["a", "b"], "max_tokens": 2}
        assert (await client.post("/v1/completions", json=body)).status_code == 200


async def test_each_prompt_has_the_whole_context(both: Both) -> None:
    """Together they may be longer than it; each alone may not."""
    world, _ = both
    await world.configure(pool={"max_model_len": 100})
    async with world.sdk() as client:
        answer = await client.completions.create(model="demo", prompt=[[1] * 60, [2] * 70], max_tokens=5)
        assert len(answer.choices) == 2
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="demo", prompt=[[1] * 60, [2] * 100], max_tokens=5)
        assert refused.value.code == "too_long"


CHOICE = {"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}


@pytest.mark.parametrize("indexes", [[0], [0, 0], [0, 2], [0, 1, 2]])
async def test_an_answer_with_other_choices_than_were_asked_for_is_not_passed_on(
    redis_url: str, pool_id: str, indexes: list[int]
) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        world.engines[0].script.raw = raw_answer({"choices": [CHOICE | {"index": index} for index in indexes]})
        async with world.http() as client:
            got = await client.post("/v1/chat/completions", json={"model": "demo", "messages": HELLO, "n": 2})
        assert (got.status_code, got.json()["error"]["code"]) == (502, "backend_error")


async def test_a_stream_that_leaves_an_answer_unfinished_is_broken(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        world.engines[0].script.choices = 1
        async with world.http() as client:
            asked = {"model": "demo", "messages": HELLO, "n": 2, "stream": True, "max_tokens": 3}
            got = await client.post("/v1/chat/completions", json=asked)
        assert "[DONE]" not in got.text
        assert '"code":"backend_error"' in got.text
        [record] = await world.ledger_of(1)
        assert (record.outcome, record.output_bound) == ("failed", 6)


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAHAAAAA4CAAAAAA="  # the beginning of a PNG of 112 x 56 pixels


def shown(url: str) -> list[Any]:
    return [
        {
            "role": "user",
            "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}],
        }
    ]


async def test_an_image_goes_inline_and_is_charged_by_the_engines_count(both: Both) -> None:
    world, _ = both
    async with world.sdk() as client:
        answer = await client.chat.completions.create(
            model="demo", messages=shown("data:image/png;base64," + PIXEL), max_tokens=3
        )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 256 + 5, "as this engine counts images"
    [record] = await world.ledger_of(1)
    assert record.input_tokens == 261
    assert 8 <= record.input_tokens_est <= 16, "4 x 2 patches and a few words"


SOUND: list[Any] = [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]
BAD: list[tuple[list[Any], str]] = [
    (shown("http://169.254.169.254/latest/meta-data"), "Nothing is fetched"),
    (shown("file:///etc/passwd"), "Nothing is fetched"),
    (shown("data:audio/wav;base64,AAAA"), "type audio, not image"),
    (shown("data:image/png;base64,!!"), "not base64"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "what its type names"),
    ([{"role": "user", "content": [{"type": "text", "text": "a", "image_url": {"url": "http://x"}}]}], "what its type"),
    ([{"role": "user", "content": SOUND * 65}], "more than 64"),
    ([{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}], "Files are not read"),
]


@pytest.mark.parametrize(("messages", "told"), BAD, ids=[told for _, told in BAD])
async def test_what_an_engine_would_fetch_is_refused(both: Both, messages: list[Any], told: str) -> None:
    world, server = both
    async with world.http() as client:
        answer = await client.post("/v1/chat/completions", json={"model": "demo", "messages": messages})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
    assert server.engine.steps == 0


async def test_tokens_are_told_without_a_slot(both: Both) -> None:
    world, server = both
    await world.configure(concurrency=6)
    async with world.http() as client, httpx.AsyncClient() as direct:
        await direct.post(server.url + "/sim/fault", json={"stall": True})
        first = asyncio.create_task(client.post("/v1/completions", json={"model": "demo", "prompt": "a"}))
        await until(lambda: server.engine.waiting + len(server.engine.running) == 1)
        for path in ("/tokenize", "/v1/tokenize"):
            told = await client.post(path, json={"model": "demo", "prompt": "one two three"})
            assert (told.status_code, told.json()["count"]) == (200, 3), told.text
        back = await client.post("/v1/detokenize", json={"model": "demo", "tokens": [0, 1]})
        assert len(back.json()["prompt"].split()) == 2
        await direct.post(server.url + "/sim/fault", json={"stall": 0, "hang": True})
        asking = [
            asyncio.create_task(client.post("/tokenize", json={"model": "demo", "prompt": "a"})) for _ in range(5)
        ]
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        [refused] = [task.result() for task in done]
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency")
        await direct.post(server.url + "/sim/fault", json={"hang": False})
        assert Counter(answer.status_code for answer in await asyncio.gather(*asking)) == {200: 4, 429: 1}
        for wrong in ({"prompt": "a", "chat_template": "x"}, {}, {"prompt": "a", "wrong": 1}):
            assert (await client.post("/tokenize", json={"model": "demo", **wrong})).status_code == 400
        assert (await client.post("/tokenize", json={"model": "other", "prompt": "a"})).status_code == 404
        assert (await client.get("/tokenize")).status_code == 405
        missing = await client.post("/tokenize", json={}, headers={"authorization": "Bearer x"})
        assert missing.status_code == 401
        assert (await first).status_code == 200
    await world.ledger_of(1)
