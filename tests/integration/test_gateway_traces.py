"""From a client's ``traceparent`` to a collector: the real gateway, its ledger, and what is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scheduling.gateway.config import GatewayConfig
from scheduling.state.codec import decode_entry, swept_record
from telemetry.traces import make_traces
from tests.support.gateway_world import gateway_world
from tests.support.otlp_receiver import plain, receiving

CANARY = "xylophone-4711"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HELLO: list[Any] = [{"role": "user", "content": f"hello {CANARY}"}]
SENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": f"x={CANARY}"}


async def test_a_clients_trace_goes_through_to_the_engine_and_the_collector_without_a_word_of_the_prompt(
    redis_url: str, pool_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atexit.register", lambda _: None)
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
        traces = make_traces(lambda _: "vllm")
        async with gateway_world(redis_url, pool_id, config=GatewayConfig(traces=True)) as world:
            engine = world.engines[0]
            engine.script.word = f" {CANARY}"
            async with world.sdk() as client:
                stream = await client.chat.completions.create(
                    model="demo", messages=HELLO, max_tokens=5, stream=True, extra_headers=SENT
                )
                assert len([c async for c in stream]) >= 5
                whole = await client.completions.with_raw_response.create(model="demo", prompt=CANARY, max_tokens=3)
            await world.settled()
            records = await world.ledger_of(2)
        traces.take(records)
        traces.flush()
        traces.close()
    chat = receiver.of(records[0].request_id)
    assert set(chat) == {"request", "admit", "dispatch", "first_token", "end"}
    assert chat["request"].trace_id.hex() == TRACE
    assert chat["request"].parent_span_id.hex() == PARENT
    assert chat["dispatch"].parent_span_id == chat["request"].span_id
    assert engine.heads[0]["traceparent"] == f"00-{TRACE}-{chat['dispatch'].span_id.hex()}-01"
    assert "tracestate" not in engine.heads[0]
    found = plain(chat["request"].attributes)
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (12, 5)
    assert (found["gen_ai.request.model"], found["quartermaster.tenant"], found["quartermaster.pool"]) == (
        "demo",
        "acme",
        pool_id,
    )
    assert found["quartermaster.reason"] == "length"

    own = receiver.of(whole.headers["x-request-id"])
    assert own["request"].name == "text_completion demo"
    assert own["request"].parent_span_id == b""
    assert engine.heads[1]["traceparent"].split("-")[1] == own["request"].trace_id.hex()
    assert receiver.raw
    assert CANARY.encode() not in receiver.raw


async def test_where_traces_are_off_nothing_is_taken_kept_or_told(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as world:
        async with world.sdk() as client:
            await client.chat.completions.create(model="demo", messages=HELLO, extra_headers=SENT)
        [record] = await world.ledger_of(1)
    assert record.trace == ""
    assert "traceparent" not in world.engines[0].heads[0]


async def test_a_trace_survives_its_gateway(redis_url: str, pool_id: str) -> None:
    """The swept record of a request whose gateway died carries the client's trace."""
    async with gateway_world(redis_url, pool_id, config=GatewayConfig(traces=True, renew_every_s=3600)) as world:
        world.engines[0].script.first_pause_s = 60
        async with world.http() as client:
            asked = asyncio.create_task(
                client.post("/v1/chat/completions", json={"model": "demo", "messages": HELLO}, headers=SENT)
            )
            while not world.engines[0].open:
                await asyncio.sleep(0.01)
            [held] = await world.resp.call("HVALS", f"qm:{{{pool_id}}}:held")
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
    assert swept_record(pool_id, decode_entry(held), 0).trace == f"chat 00-{TRACE}-{PARENT}-01"
