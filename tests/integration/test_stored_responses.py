"""``/v1/responses`` that are kept: what the engine is sent, what the client is told, and what happens while the store
is away. The paths of what is kept, with a database: ``test_stored_responses_live.py``."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import openai
import pytest

from controlplane.env import Env
from controlplane.responses import http
from scheduling.gateway.answers.stored import Kept, Owner, input_items
from scheduling.gateway.bodies.prepare import MAX_PARTS
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.stages import Call
from tests.support.fake_engine import raw_answer
from tests.support.gateway_world import gateway_world
from tests.support.kept_responses import Memory
from tests.support.simulated_world import simulated_world

ASK: dict[str, Any] = {"model": "demo", "max_output_tokens": 9, "input": "hello there"}


def texts(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Role and text of messages."""
    return [
        (item["role"], item["content"] if isinstance(item["content"], str) else item["content"][0]["text"])
        for item in items
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_on_from_its_last_response(redis_url: str, pool_id: str, stream: bool) -> None:
    store = Memory()
    async with simulated_world(redis_url, pool_id, responses=store) as (world, _), world.sdk() as client:

        async def respond(**more: Any) -> Any:
            answer = await client.responses.create(**(ASK | more), stream=stream)
            if not stream:
                return answer
            seen = [event async for event in answer]
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
            assert seen[0].response.to_dict()["store"] is (more.get("store") is not False)
            return seen[-1].response

        first = await respond()
        second = await respond(input=[{"role": "user", "content": "and now?"}], previous_response_id=first.id)
        third = await respond(input="more", previous_response_id=second.id, store=False)
        assert (first.previous_response_id, second.previous_response_id) == (None, first.id)
        assert (second.to_dict()["store"], third.to_dict()["store"], third.previous_response_id) == (
            True, False, second.id,
        )  # fmt: skip
        with pytest.raises(openai.BadRequestError) as refused:
            await respond(previous_response_id=third.id)
        assert refused.value.param == "previous_response_id"
        owner = Owner("acme", "")
        assert set(store.kept) == {(owner, first.id), (owner, second.id)}
        kept = store.kept[owner, second.id]
        assert texts(json.loads(kept.context)) == [
            ("user", "hello there"), ("assistant", first.output_text), ("user", "and now?"),
        ]  # fmt: skip
        assert json.loads(kept.answer) == second.to_dict()
        assert first.usage.input_tokens < second.usage.input_tokens < third.usage.input_tokens
        records = await world.ledger_of(4)
        assert [record.input_tokens for record in records[:3]] == [
            one.usage.input_tokens for one in (first, second, third)
        ]


async def test_an_engine_gets_the_conversation_and_stores_nothing(redis_url: str, pool_id: str) -> None:
    store = Memory()
    async with gateway_world(redis_url, pool_id, responses=store) as world, world.http() as client:
        engine = world.engines[0]
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc", "status": None}
        thought = {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        }
        answer = {"id": "x", "object": "response", "status": "completed", "output": [thought, call]}
        engine.script.raw = raw_answer(answer)
        first = (await client.post("/v1/responses", json=ASK | {"instructions": "be brief"})).json()
        told = {"type": "function_call_output", "call_id": "c", "output": "5"}
        await client.post("/v1/responses", json=ASK | {"input": [told], "previous_response_id": first["id"]})
        sent = engine.bodies[-1]
        assert (sent["store"], "previous_response_id" in sent, "instructions" in sent) == (False, False, False)
        assert [item["type"] for item in sent["input"]] == [
            "message", "reasoning", "function_call", "function_call_output",
        ]  # fmt: skip
        assert (sent["input"][1]["content"], sent["input"][2]["arguments"]) == (thought["content"], "{}")
        assert engine.bodies[0]["input"] == "hello there", "as its client said it"


async def test_what_is_only_named_is_refused_without_saying_that_nothing_is_kept(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id, responses=Memory()) as world, world.http() as client:
        named: list[dict[str, Any]] = [
            {"input": [{"type": "item_reference", "id": "msg_1"}]}, {"conversation": "conv_1"}, {"prompt": {"id": "p"}},
        ]  # fmt: skip
        for more in named:
            answer = await client.post("/v1/responses", json=ASK | more)
            assert answer.status_code == 400
            assert "send what it stands for as input" in answer.json()["error"]["message"]
            assert "stored" not in answer.json()["error"]["message"]


async def test_a_store_that_is_away_loses_no_answer_and_says_so(redis_url: str, pool_id: str) -> None:
    store = Memory()
    async with simulated_world(redis_url, pool_id, responses=store) as (world, _), world.sdk() as client:
        first = await client.responses.create(**ASK)
        store.away = True
        whole = await client.responses.create(**ASK)
        stream = [event async for event in await client.responses.create(**ASK, stream=True)]
        for answer in (whole, stream[-1].response):  # type: ignore[union-attr]
            assert (answer.to_dict()["store"], len(answer.output_text.split())) == (False, 9)
        with pytest.raises(openai.InternalServerError) as refused:
            await client.responses.create(**ASK, previous_response_id=first.id)
        assert (refused.value.status_code, refused.value.code) == (503, "state_unavailable")


@pytest.mark.parametrize(
    ("more", "param"), [({"store": True}, "store"), ({"previous_response_id": "resp_1"}, "previous_response_id")]
)
async def test_where_nothing_is_kept_it_is_refused(
    redis_url: str, pool_id: str, more: dict[str, Any], param: str
) -> None:
    async with simulated_world(redis_url, pool_id) as (world, [server]), world.http() as client:
        answer = await client.post("/v1/responses", json=ASK | more)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert server.engine.steps == 0
        assert (await client.get("/v1/responses/resp_1")).status_code == 404


async def test_a_conversation_has_the_bounds_of_a_body(redis_url: str, pool_id: str) -> None:
    store = Memory()
    config = GatewayConfig(max_body_bytes=4096)
    async with (
        simulated_world(redis_url, pool_id, responses=store, config=config) as (world, _),
        world.http() as client,
    ):
        asked, answers = ASK | {"input": "a " * 1000}, []
        for _ in range(3):
            answers.append(await client.post("/v1/responses", json=asked))
            asked["previous_response_id"] = answers[-1].json().get("id")
        assert [answer.status_code for answer in answers] == [200, 200, 413]
        assert answers[-1].json()["error"]["param"] == "previous_response_id"


async def test_what_a_body_may_not_have_does_not_come_from_its_conversation_either(
    redis_url: str, pool_id: str
) -> None:
    """A hundred bytes had four megabytes of small objects read, while every stream of the process waits."""
    store = Memory()
    many = [{"type": "input_text", "text": ""}] * (MAX_PARTS // 8)  # five strings and objects each
    async with simulated_world(redis_url, pool_id, responses=store) as (world, _), world.http() as client:
        asked, answers = ASK | {"input": [{"role": "user", "content": many}]}, []
        for _turn in range(3):
            answers.append(await client.post("/v1/responses", json=asked))
            asked["previous_response_id"] = answers[-1].json().get("id")
        assert [answer.status_code for answer in answers] == [200, 200, 400]
        assert answers[-1].json()["error"]["param"] == "previous_response_id"
        assert "stored conversation" in answers[-1].json()["error"]["message"]


def test_items_are_listed_as_openai_lists_them() -> None:
    context = [
        {"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": "b", "id": "mine"},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ]  # fmt: skip
    assert input_items(Kept(json.dumps(context).encode(), b"{}"), "resp_1") == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}], "id": "msg_0_resp_1",
         "status": "completed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}], "id": "mine",
         "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": "5", "id": "item_2_resp_1"},
    ]  # fmt: skip


async def test_a_long_conversation_is_listed_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """30,000 items are 0.06 s of work, in which no stream would be passed on."""
    threads: list[str] = []
    kept = Kept(json.dumps([{"role": "user", "content": "hi"}] * 3).encode(), b"{}")

    def listed(of: Kept, response_id: str) -> list[dict[str, Any]]:
        threads.append(threading.current_thread().name)
        return input_items(of, response_id)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    sent: list[Any] = []
    monkeypatch.setattr(http.services, "load", lambda *asked: kept)
    monkeypatch.setattr(http, "input_items", listed)
    routes = http.ResponseRoutes(Env(), [b"s" * 32])
    scope = {"type": "http", "path": "", "query_string": b"limit=2"}
    call = Call.of("req_1", scope, receive, send, asyncio.get_running_loop(), 0.0)
    call.body_read = True
    await routes._items(call, Owner("acme", ""), "resp_1")
    assert [name.rpartition("_")[0] for name in threads] == ["responses"]
    assert json.loads(b"".join(m.get("body", b"") for m in sent))["has_more"]
