"""What every kind of engine has to do: its client against a server that speaks as it does, and a pool served by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from scheduling.core.types import BackendSpec, PrefixCache
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.engines.client import EngineClient, EngineError, EngineUnreachable, control_http
from scheduling.engines.kinds import VLLM, kind_of, kinds, make_client
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer
from tests.support.dispatch_world import dispatching, until
from tests.support.engines import server_of
from tests.support.gateway_world import World, gateway_world

KINDS = sorted(kinds())
every_kind = pytest.mark.parametrize("kind", KINDS)
OPTIONS = EngineOptions(model="demo", slots=8, kv_tokens=8192, api_key="k")


@asynccontextmanager
async def standing_in(kind: str, options: EngineOptions = OPTIONS) -> AsyncIterator[SimulatedServer]:
    server = server_of(kind)(options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def client_of(kind: str, url: str, api_key: str = "k", model: str = "demo") -> AsyncIterator[EngineClient]:
    async with control_http() as http:
        yield make_client(url, http=http, model=model, api_key=api_key, kind=kind)


def test_the_default_comes_first_and_names_are_what_a_pool_can_say() -> None:
    assert next(iter(kinds())) == VLLM
    assert len(KINDS) >= 2
    for name, kind in kinds().items():
        assert kind.name == name
        assert name == name.lower()
        assert 0 < len(name) <= 32
        assert kind.label
        assert server_of(name), "a kind needs a stand-in in tests/support/engines"


def test_an_unknown_kind_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(LookupError, match=r"unknown kind of engine 'vlm'; did you mean 'vllm'\? There are: vllm, "):
        kind_of("vlm")


@every_kind
async def test_it_lists_its_models_and_generates_a_token(kind: str) -> None:
    async with standing_in(kind) as server, client_of(kind, server.url) as client:
        assert [model.id for model in await client.models()] == ["demo"]
        assert await client.health()
        probe = await client.probe()
        assert probe, probe.why
        assert server.engine.totals.generation_tokens == 1
        facts = await client.facts()
        assert facts.max_model_len in (None, server.limits.max_model_len)
        assert await client.kv_tokens() in (None, server.engine.total_blocks * 16)
    async with standing_in(kind) as server, client_of(kind, server.url, model="") as client:
        assert await client.probe(), "without a model's name the first that it lists is asked for"


@every_kind
async def test_what_it_reports_is_its_load_and_moves_with_its_work(kind: str) -> None:
    async with standing_in(kind) as server, client_of(kind, server.url) as client, httpx.AsyncClient() as http:
        before = await client.scrape()
        assert (before is not None) == kind_of(kind).reports
        ask = {"model": "demo", "prompt": "x " * 50, "max_tokens": 4000, "ignore_eos": True}
        key = {"authorization": "Bearer k"}
        running = [
            asyncio.create_task(http.post(server.url + "/v1/completions", json=ask, headers=key, timeout=60))
            for _ in range(3)
        ]
        await until(lambda: len(server.engine.running) == 3 and server.engine.totals.generation_tokens > 3)
        after = await client.scrape()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if before is None:
            assert after is None
            return
        assert after is not None
        assert (before.running, before.waiting, after.running, after.waiting) == (0, 0, 3, 0)
        assert after.generation_tokens >= 4
        assert after.prompt_tokens > before.prompt_tokens
        assert after.kv_usage is not None
        assert 0 < after.kv_usage <= 1


@every_kind
async def test_a_wrong_key_is_named_and_never_shown(kind: str) -> None:
    async with standing_in(kind) as server, client_of(kind, server.url, api_key="wrong-secret") as client:
        probe = await client.probe()
        assert not probe
        assert "401" in probe.why
        assert "key" in probe.why
        assert "wrong-secret" not in probe.why + repr(client)


@every_kind
async def test_one_that_is_not_there_or_hangs_is_an_error_in_time(kind: str) -> None:
    async with standing_in(kind) as server:
        url = server.url
        async with httpx.AsyncClient() as http, client_of(kind, url) as client:
            await http.post(url + "/sim/fault", json={"hang": True})
            probe = await client.probe(0.3)
            assert not probe
            assert "0.3 s" in probe.why
    async with client_of(kind, url) as client:
        with pytest.raises(EngineUnreachable):
            await client.scrape()
        with pytest.raises(EngineUnreachable):
            await client.facts()
        assert not await client.health()
        assert not await client.probe()


@every_kind
@pytest.mark.parametrize(
    "page",
    [b"", b"<html>sign in</html>", b"\xff\xfe", b"[" * 5000, b"null", b'{"data": null}', b"NaN " * 10],
    ids=["empty", "html", "bytes", "nested", "null", "no-list", "words"],
)
async def test_what_is_no_answer_of_its_kind_is_an_engine_error(kind: str, page: bytes) -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _request: httpx.Response(200, content=page)))
    async with http:
        client = make_client("http://replica:1", http=http, model="demo", kind=kind)
        with pytest.raises(EngineError):
            await client.scrape()
        with pytest.raises(EngineError):
            await client.models()
        assert (await client.facts()).max_model_len is None
        assert not await client.probe()


@asynccontextmanager
async def served(
    redis_url: str, pool_id: str, kind: str, server: SimulatedServer
) -> AsyncIterator[tuple[World, PoolDispatcher]]:
    """A gateway and a leader of a pool whose one replica is this server."""
    spec = BackendSpec(f"{pool_id}-b", pool_id, server.url, 8, 8192, api_key="k")
    salts = PrefixCache.ISOLATED if kind_of(kind).takes_cache_salt else PrefixCache.UNSALTED
    async with gateway_world(redis_url, pool_id, engines=0, lead=False) as world:
        pool = {"backends": (spec,), "upstream_model": "demo", "engine": kind, "prefix_cache": salts}
        await world.configure(pool=pool)
        async with dispatching(redis_url, world.load(), over_http=True) as dispatcher:
            await until(lambda: dispatcher.term is not None and state(dispatcher) == "ready")
            yield world, dispatcher


def state(dispatcher: PoolDispatcher) -> str:
    return dispatcher.term.monitor.statuses()[0].state if dispatcher.term is not None else ""


@every_kind
async def test_a_pool_of_it_serves_whole_answers_and_streams(redis_url: str, pool_id: str, kind: str) -> None:
    async with standing_in(kind) as server, served(redis_url, pool_id, kind, server) as (world, dispatcher):
        async with world.http() as http:
            body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "priority": 3}
            whole = await http.post("/v1/chat/completions", json=body)
            assert whole.status_code == 200, whole.text
            usage = whole.json()["usage"]
            assert 0 < usage["completion_tokens"] <= 8
            streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
            assert streamed.status_code == 200
            frames = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
            assert frames[-1] == "data: [DONE]"
            assert sum("content" in json.loads(frame[6:])["choices"][0]["delta"] for frame in frames[:-1]) >= 1
        await until(lambda: len(world.metrics.records) == 2)
        assert all(record.output_tokens > 0 for record in world.metrics.records)
        status = dispatcher.term.monitor.statuses()[0]  # type: ignore[union-attr]
        if not kind_of(kind).reports:
            assert (status.prefill_credit, status.engine_running) == (0, None)
            assert "do not report" in status.credit_why


@every_kind
async def test_fields_that_it_would_ignore_are_refused_before_it_is_asked(
    redis_url: str, pool_id: str, kind: str
) -> None:
    async with standing_in(kind) as server, served(redis_url, pool_id, kind, server) as (world, _):
        asked = server.engine.totals.prompt_tokens
        async with world.http() as http:
            body = {"model": "demo", "prompt": "x", "max_tokens": 2}
            for extra, field in (
                ({"guided_choice": ["a", "b"]}, "structured_outputs"),
                ({"bad_words": ["a"]}, "bad_words"),
            ):
                answer = await http.post("/v1/completions", json=body | extra)
                if field in kind_of(kind).lacks:
                    assert answer.status_code == 400
                    assert answer.json()["error"]["param"] == field
                    assert server.engine.totals.prompt_tokens == asked
                else:
                    assert answer.status_code == 200, answer.text


@every_kind
async def test_one_that_stops_generating_is_ejected_and_returns_after_a_token(
    redis_url: str, pool_id: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (
        ("progress.STALLED_S", 1.5), ("progress.DOUBTFUL_S", 1.5), ("watched.PROBE_TIMEOUT_S", 1.0),
        ("watched.FIRST_PROBE_TIMEOUT_S", 1.0), ("watcher.MOVED_S", 0.5), ("outliers.BACK_FIRST_S", 0.5),
    ):  # fmt: skip
        monkeypatch.setattr(f"scheduling.dispatch.replicas.{name}", seconds)
    async with (
        standing_in(kind) as server,
        served(redis_url, pool_id, kind, server) as (world, dispatcher),
        world.http() as http,
        httpx.AsyncClient() as direct,
    ):
        body = {"model": "demo", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        asked = asyncio.create_task(http.post("/v1/completions", json=body))
        await until(lambda: server.engine.totals.generation_tokens > 5)
        await direct.post(server.url + "/sim/fault", json={"stall": True})
        await until(lambda: state(dispatcher) == "ejected")
        assert (await direct.get(server.url + "/v1/models", headers={"authorization": "Bearer k"})).is_success
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await direct.post(server.url + "/sim/fault", json={"stall": 0})
        await until(lambda: state(dispatcher) == "ready")
