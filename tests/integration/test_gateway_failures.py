"""When engines, Redis, the database or the client fail: every request ends once, explicitly, and holds nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from controlplane import sse
from scheduling.gateway.config import GatewayConfig
from scheduling.state.types import GrantItem
from tests.support.gateway_world import TIER, World, gateway_world, make_key, until
from tests.support.redis_server import RedisServer
from tests.support.state_world import leads_on

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
IMPATIENT = GatewayConfig(
    first_token_timeout_s=0.6, idle_token_timeout_s=0.6, send_timeout_s=0.6, body_timeout_s=0.6, header_timeout_s=0.6,
    renew_every_s=0.2, drain_s=0.5, max_body_bytes=100_000,
)  # fmt: skip
# Where nothing is about these limits: a busy machine takes longer for a hundred requests at once.
PATIENT = replace(
    IMPATIENT, first_token_timeout_s=30.0, idle_token_timeout_s=30.0, send_timeout_s=30.0, body_timeout_s=30.0,
    header_timeout_s=30.0, drain_s=3.0,
)  # fmt: skip


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=IMPATIENT) as made:
        yield made


@pytest.fixture
async def patient(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=PATIENT) as made:
        yield made


@pytest.fixture
async def two(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, engines=2, config=IMPATIENT) as made:
        yield made


async def ask(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    body = {"model": "demo", "messages": HELLO, "max_tokens": 5} | changes
    return await client.post("/v1/chat/completions", json=body)


# --- engines


async def test_no_browser_takes_what_an_engine_says_for_a_page(patient: World) -> None:
    async with patient.http() as client:
        answers = [await ask(client), await ask(client, stream=True), await ask(client, n=99)]
        answers += [await client.get("/v1/models"), await client.get("/v1/models/none")]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 200, 404]
    assert [answer.headers.get_list("x-content-type-options") for answer in answers] == [["nosniff"]] * 5


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"cut_after": 3}, "backend_lost"),
        ({"error_after": 3}, "backend_error"),
        ({"stall_after": 3}, "backend_stalled"),
    ],
)
async def test_a_broken_stream_ends_with_an_error_event(world: World, script: dict[str, int], reason: str) -> None:
    world.engines[0].script = replace(world.engines[0].script, pause_s=0.02, **script)
    async with world.http() as client:
        answer = await ask(client, stream=True)
    assert answer.status_code == 200
    frames = sse.events_of(answer.text)
    assert frames[-1]["error"]["code"] == reason
    assert "[DONE]" not in frames
    assert "10.0.0.7" not in answer.text
    assert len(frames) == 1 + 3 + 1
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.reason, record.output_tokens, record.status) == ("failed", reason, 3, 200)
    await world.settled()
    async with world.sdk() as client2:
        with pytest.raises(openai.APIError):
            async for _ in await client2.chat.completions.create(model="demo", messages=HELLO, stream=True):
                pass


TOOL: Any = {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(("tools", "ends"), [([TOOL], "completed"), (None, "failed")])
async def test_an_engine_may_be_silent_while_it_writes_what_a_tool_is_called_with(
    redis_url: str, pool_id: str, tools: Any, ends: str
) -> None:
    """Parsers of some models (Qwen3-Coder, Kimi) send an argument when all of it is there: a file that takes a minute
    to write is a minute without a token. Without tools such an engine has stalled."""
    config = replace(PATIENT, idle_token_timeout_s=0.2, renew_every_s=60.0)  # it does not look whether they are ready
    async with gateway_world(redis_url, pool_id, config=config) as world:
        world.engines[0].script = replace(world.engines[0].script, pause_s=1.0, tokens=2)
        async with world.http() as client:
            answer = await ask(client, stream=True, tools=tools)
        [record] = await world.ledger_of(1)
    assert (record.outcome, "[DONE]" in answer.text) == (ends, ends == "completed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [500, 503, 429])
async def test_an_engine_that_will_not_is_left_for_another(two: World, status: int, stream: bool) -> None:
    for engine in two.engines:
        engine.script.statuses = []
    two.engines[0].script.statuses = [status]
    async with two.http() as client:
        answers = [await ask(client, stream=stream) for _ in range(2)]
    assert [a.status_code for a in answers] == [200, 200]
    records = await two.ledger_of(2)
    assert sorted(r.attempts for r in records) == [1, 2]
    retried = max(records, key=lambda r: r.attempts)
    assert retried.backend == two.pool.backends[1].id
    await two.settled()


async def test_a_replica_that_is_gone_is_left_for_another_and_reported(two: World) -> None:
    await two.engines[0].stop()
    async with two.http() as client:
        answers = await asyncio.gather(*(ask(client) for _ in range(3)))
    assert [a.status_code for a in answers] == [200] * 3
    records = await two.ledger_of(3)
    assert {r.backend for r in records if r.attempts == 2} <= {two.pool.backends[1].id}
    assert any(r.attempts == 2 for r in records)
    suspects = two.resp.call(b"XRANGE", f"qm:{{{two.pool.id}}}:events", b"-", b"+")
    assert any(fields[0] == b"s" for _, fields in await suspects)
    await two.settled()


async def test_without_a_first_token_it_moves_on(two: World) -> None:
    two.engines[0].script.stall_after = 0
    async with two.http() as client:
        answers = await asyncio.gather(*(ask(client, stream=True) for _ in range(2)))
    assert all(a.text.endswith("data: [DONE]\n\n") for a in answers)
    records = await two.ledger_of(2)
    assert sorted(r.attempts for r in records) == [1, 2]
    await two.settled()


async def test_retries_have_a_budget(two: World) -> None:
    for engine in two.engines:
        engine.script.status = 500
    async with two.http() as client:
        answers = [await ask(client) for _ in range(40)]
    assert {a.status_code for a in answers} == {502}
    assert answers[0].headers["x-quartermaster-reason"] == "backend_error"
    attempts = sum(len(e.bodies) for e in two.engines)
    assert attempts <= 40 * 1.2 + 3 + 1
    assert len(await two.ledger_of(40)) == 40
    await two.settled()


async def test_a_tenant_whose_requests_fail_wherever_they_run_uses_up_no_neighbours_retries(two: World) -> None:
    neighbour = replace(two.entitlement, id="calm-ent", tenant="calm")
    key, spec = make_key(777, neighbour.id)
    catalog = two._catalog(two.catalog.version + 1)
    two.catalog = replace(
        catalog,
        entitlements={**catalog.entitlements, neighbour.id: neighbour},
        keys={**catalog.keys, spec.id: spec},
    )
    await two.app._catalog.refreshed(10)
    script = two.engines[0].script = two.engines[1].script = replace(two.engines[0].script, status=500)
    async with two.http() as client:
        assert {(await ask(client)).status_code for _ in range(20)} == {502}
        script.status, script.statuses = 200, [500]  # the next attempt fails, wherever it is made
        client.headers["authorization"] = f"Bearer {key}"
        assert (await ask(client)).status_code == 200
    assert [r.attempts for r in await two.ledger_of(21) if r.tenant == "calm"] == [2]
    await two.settled()


async def test_what_the_engine_says_of_an_input_reaches_the_client(world: World) -> None:
    world.engines[0].script.status = 400
    world.engines[0].script.error = "the prompt is too strange"
    async with world.http() as client:
        for stream in (False, True):
            answer = await ask(client, stream=stream)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"] == "the prompt is too strange"
    assert {r.reason for r in await world.ledger_of(2)} == {"invalid_request"}
    assert len(world.engines[0].bodies) == 2, "an input is not retried"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_takes_no_bound_beyond_the_context_is_asked_for_what_is_left(
    world: World, stream: bool
) -> None:
    """As vLLM before 0.32. The client has set no bound, so that of the pool's default is no fault of its request."""
    long: list[Any] = [{"role": "user", "content": "word " * 6400}]
    engine = world.engines[0]
    async with world.http() as client:
        engine.script.statuses = [400]
        assert (await ask(client, messages=long, stream=stream, max_tokens=None)).status_code == 200
        first, last = engine.bodies
        assert first["max_tokens"] == world.pool.default_output_tokens
        assert 0 < last["max_tokens"] < first["max_tokens"]
        assert last == first | {"max_tokens": last["max_tokens"]}
        engine.script.status = 400
        assert (await ask(client, messages=long, stream=stream, max_tokens=500)).status_code == 400
        assert {body["max_tokens"] for body in engine.bodies[2:]} == {500}, "the client's own is the engine's to judge"
    await world.settled()


async def test_connections_are_kept_and_a_closed_one_is_replaced(world: World) -> None:
    async with world.http() as client:
        for _ in range(5):
            assert (await ask(client)).status_code == 200
            assert (await ask(client, stream=True)).text.endswith("[DONE]\n\n")
        assert world.engines[0].connections == 1
        world.engines[0].script.close_idle = True
        for _ in range(5):
            assert (await ask(client)).status_code == 200
    assert {r.attempts for r in await world.ledger_of(15)} == {1}


async def cancel_storm(world: World, number: int) -> None:
    engine = world.engines[0]
    engine.script.pause_s = 0.01
    gate = asyncio.Semaphore(60)
    key = world.key
    # 40 s of generation: none of them ends by itself meanwhile
    body = json.dumps({"model": "demo", "messages": HELLO, "max_tokens": 4000, "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()

    async def leave(i: int) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(head + body)
            if i % 2 and b" 200 " in await reader.readline():  # else before its engine answers, or while it does
                await reader.readuntil(b"data: ")
            await asyncio.sleep((i % 30) / 100)
            writer.transport.abort()

    await asyncio.gather(*(leave(i) for i in range(number)))
    await until(lambda: engine.open == engine.connected == 0)
    assert engine.aborted >= number // 20, "hardly any was left while its engine answered"
    engine.script.pause_s = 0.0
    async with world.http() as client:
        answers = await asyncio.gather(*(ask(client) for _ in range(100)))
    assert [a.status_code for a in answers] == [200] * 100
    await world.settled()
    assert engine.open == 0
    records = await world.ledger()
    assert len({r.request_id for r in records}) == len(records)


async def test_clients_that_leave_do_not_poison_the_pool_of_connections(patient: World) -> None:
    await cancel_storm(patient, 300)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_ten_thousand_clients_that_leave_do_not_poison_the_pool(patient: World) -> None:
    await cancel_storm(patient, 10_000)


# --- shared state


@pytest.fixture
async def alone(private_redis: RedisServer, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(private_redis.url, pool_id, config=PATIENT) as made:
        yield made


async def test_without_redis_new_work_is_refused_fast_and_running_streams_finish(
    alone: World, private_redis: RedisServer
) -> None:
    engine = alone.engines[0]
    engine.script.pause_s = 0.05
    async with alone.http() as client:
        running = [asyncio.create_task(ask(client, stream=True, max_tokens=30)) for _ in range(5)]
        await until(lambda: engine.open == 5)
        private_redis.kill()
        await until(lambda: not alone.app.ready)
        async with asyncio.timeout(30):  # none of them waits for Redis, which stays away
            refused = await asyncio.gather(*(ask(client) for _ in range(50)))
        assert {a.status_code for a in refused} == {503}
        assert {a.headers["x-quartermaster-reason"] for a in refused} == {"state_unavailable"}
        assert all("retry-after-ms" in a.headers for a in refused)
        finished = await asyncio.gather(*running)
        assert all(a.text.endswith("data: [DONE]\n\n") for a in finished)
        private_redis.start()
        await until(lambda: alone.app.ready)
        records = await alone.ledger_of(55)
        assert sum(r.reason == "length" for r in records) == 5
        assert sum(r.reason == "state_unavailable" for r in records) == 50


async def test_a_frozen_redis_is_no_hang(alone: World, private_redis: RedisServer) -> None:
    async with alone.http() as client:
        assert (await ask(client)).status_code == 200
        private_redis.freeze()
        try:
            async with asyncio.timeout(20):  # the limit is a second; without one this would never end
                answers = await asyncio.gather(*(ask(client) for _ in range(10)))
            assert {a.status_code for a in answers} == {503}
        finally:
            private_redis.thaw()
        await until(lambda: alone.app.ready)
        await alone.settled()
        assert (await ask(client)).status_code == 200
    records = await alone.ledger_of(12)
    assert sum(r.reason == "state_unavailable" for r in records) == 10


async def test_a_lost_state_is_announced_again(alone: World, private_redis: RedisServer) -> None:
    alone.granting = False
    engine = alone.engines[0]
    backend = alone.pool.backends[0]
    await alone.store.set_ready(alone.epoch, backend.id, replace(backend, slots=1))
    engine.script.pause_s = 0.05
    async with alone.http() as client:
        running = asyncio.create_task(ask(client, stream=True, max_tokens=40))
        await until(lambda: engine.open == 1)
        waiting = asyncio.create_task(ask(client, stream=True, max_tokens=2))
        async with asyncio.timeout(20):
            while await alone.running() != (1, 1):
                await asyncio.sleep(0.01)
        private_redis.flush()
        async with asyncio.timeout(20):
            while await alone.running() != (1, 1):
                await asyncio.sleep(0.01)
        await alone.lead()
        alone.granting = True
        assert (await running).text.endswith("data: [DONE]\n\n")
        assert (await waiting).text.endswith("data: [DONE]\n\n")
    await alone.settled()
    assert len(await alone.ledger_of(2)) == 2


async def test_a_lease_ended_elsewhere_ends_the_stream(world: World) -> None:
    world.engines[0].script.pause_s = 0.05
    async with world.http() as client:
        running = asyncio.create_task(ask(client, stream=True, max_tokens=400))
        await until(lambda: world.engines[0].open == 1)
        await until(lambda: bool(world.app._in_flight.calls))
        [call] = world.app._in_flight.calls.values()
        await until(lambda: call.admitted)
        await world.resp.call(b"ZADD", f"qm:{{{world.pool.id}}}:leases", b"XX", b"1", call.id)
        await world.store.sweep(world.epoch)
        answer = await running
    assert sse.events_of(answer.text)[-1]["error"]["code"] == "lease_lost"
    lost, record = await world.ledger_of(2)
    assert lost.reason == "gateway_lost"
    assert record.reason == "lease_lost", "its gateway lives, and says what was used"
    await world.settled()


async def test_a_lost_notification_is_healed_by_the_renewal(world: World) -> None:
    world.granting = False
    backend = world.pool.backends[0]
    await world.store.set_ready(world.epoch, backend.id, replace(backend, slots=1))
    world.engines[0].script.first_pause_s = 0.5
    world.app._in_flight.heard = lambda payload: None  # type: ignore[method-assign]
    async with world.http() as client:
        first = asyncio.create_task(ask(client))
        await until(lambda: world.engines[0].open == 1)
        second = asyncio.create_task(ask(client))
        assert (await first).status_code == 200
        [request] = (await world.store.load_queue())[1]
        await world.store.grant(world.epoch, [GrantItem(request.id, 1, backend.id, 256, "fifo@1", "test")])
        assert (await second).status_code == 200
    await world.settled()


async def hung(two: World, client: httpx.AsyncClient) -> asyncio.Task[httpx.Response]:
    """One unanswered request at the first replica, of which the gateway has seen that it was ready."""
    two.engines[0].script.first_pause_s = 600
    await two.store.set_ready(two.epoch, two.pool.backends[1].id, None)
    asked = asyncio.create_task(ask(client))
    await until(lambda: two.engines[0].open == 1)
    seen = two.app._in_flight._seen_ready
    await until(lambda: two.pool.backends[0].id in seen.get(two.pool.id, ()))
    await two.store.set_ready(two.epoch, two.pool.backends[1].id, two.pool.backends[1])
    return asked


@pytest.fixture
async def led(two: World) -> AsyncIterator[World]:
    """``two`` with a leader that stays one."""

    async def lead_on() -> None:
        while True:
            await two.store.elect("test-leader", 0, False)
            await leads_on(two.store)
            await asyncio.sleep(1.0)

    leading = asyncio.create_task(lead_on())
    yield two
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_an_ejection_whose_notification_was_lost_is_noticed_at_the_next_renewal(led: World) -> None:
    async with led.http() as client:
        asked = await hung(led, client)
        await led.store.set_ready(led.epoch, led.pool.backends[0].id, None, ejected=False)  # nobody is told
        async with asyncio.timeout(10):
            assert (await asked).status_code == 200
    assert [(r.backend, r.attempts) for r in await led.ledger_of(1)] == [(led.pool.backends[1].id, 2)]
    await led.settled()


async def test_who_was_moved_and_found_no_other_replica_is_told_how_long_it_waited(led: World) -> None:
    async with led.http() as client:
        await led.configure(tier=replace(TIER, max_wait_s=2.0))
        asked = await hung(led, client)
        for backend in led.pool.backends:
            await led.store.set_ready(led.epoch, backend.id, None, ejected=True)
        answer = await asked
    assert answer.headers["x-quartermaster-reason"] == "queue_timeout"
    assert int(answer.headers["x-quartermaster-queue-ms"]) >= 0
    (record,) = await led.ledger_of(1)
    assert record.granted_s is None  # what the dead replica had granted came to nothing
    await led.settled()


async def test_a_replica_that_drains_keeps_what_it_runs(led: World) -> None:
    async with led.http() as client:
        asked = await hung(led, client)
        first, second = led.pool.backends
        await led.configure(pool={"backends": (replace(first, draining=True), second)})
        await led.store.set_ready(led.epoch, first.id, None)
        await until(lambda: led.app._in_flight._seen_ready[led.pool.id] == {second.id})
        assert not asked.done()
        assert led.engines[0].open == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await led.settled()


async def test_no_replica_at_all_is_a_503(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id, lead=False, config=IMPATIENT) as world, world.http() as client:
        answer = await ask(client)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_backend"


async def test_without_the_database_the_last_catalog_stays_in_force(world: World) -> None:
    world.database_down = True
    await world.app._catalog.refreshed(5)
    async with world.http() as client:
        assert (await ask(client)).status_code == 200


async def test_a_key_that_is_revoked_while_the_database_is_away_stops_when_it_is_back(world: World) -> None:
    world.database_down = True
    await world.app._catalog.refreshed(5)
    world.catalog = replace(world.catalog, version=world.catalog.version + 1, keys={})  # revoked, and nobody is told
    async with world.http() as client:
        assert (await ask(client)).status_code == 200
        world.database_down = False
        async with asyncio.timeout(30):
            while (answer := await ask(client)).status_code == 200:
                await asyncio.sleep(0.1)
    assert answer.status_code == 401


# --- the end


async def test_a_drain_lets_requests_end_and_then_ends_them(patient: World) -> None:
    engine = patient.engines[0]
    engine.script.pause_s = 0.02
    async with patient.http() as client:
        short = asyncio.create_task(ask(client, stream=True, max_tokens=10))
        long = asyncio.create_task(ask(client, stream=True, max_tokens=4000))
        await until(lambda: engine.open == 2)
        draining = asyncio.create_task(patient.app.drain())
        await until(lambda: not patient.app.ready)
        refused = await ask(client)
        assert refused.status_code == 503
        assert refused.headers["x-quartermaster-reason"] == "shutting_down"
        assert refused.headers["connection"] == "close"
        assert (await short).text.endswith("data: [DONE]\n\n")
        assert sse.events_of((await long).text)[-1]["error"]["code"] == "shutting_down"
        await draining
    await patient.settled()
    assert sorted(r.reason for r in await patient.ledger_of(3)) == ["length", "shutting_down", "shutting_down"]
