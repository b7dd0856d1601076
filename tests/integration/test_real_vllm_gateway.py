"""A real vLLM on the CPU behind the gateway: every API that it offers, and what the product does when the engine is
full, asleep, hung and dead. ``make test-vllm`` installs what it needs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane import sse
from controlplane.embedded.vllm_cpu import serve
from scheduling.core.types import BackendSpec, EntitlementSpec
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.engines.client import control_http
from tests.support.dispatch_world import Telemetry, catalog_of, dispatching, until
from tests.support.gateway_world import World, gateway_world
from tests.support.real_vllm import RealVllm, Watching, real_vllm_process

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
SEATS, QUEUE = 4, 2  # of the engine; the catalog is told more


OPTIONS = ("--max-num-seqs", str(SEATS), "--max-num-queued-reqs", str(QUEUE))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """A server that runs few requests, refuses what its short queue does not hold, and can be put to sleep."""
    with real_vllm_process(
        tmp_path_factory.mktemp("gateway"), *OPTIONS, environ={"VLLM_SERVER_DEV_MODE": "1"}
    ) as server:
        yield server


@pytest.fixture
def doomed_engine(tmp_path: Path) -> Iterator[RealVllm]:
    """A server of a test's own, to kill: tests run in any order."""
    with real_vllm_process(tmp_path, *OPTIONS) as server:
        yield server


@dataclass
class Served:
    world: World
    dispatcher: PoolDispatcher
    telemetry: Telemetry

    def state(self) -> str:
        term = self.dispatcher._term
        return term.monitor.statuses()[0].state if term is not None and term.monitor.statuses() else ""

    async def is_(self, state: str) -> None:
        await until(lambda: self.state() == state, state, PATIENCE_S)


@asynccontextmanager
async def served(redis_url: str, pool_id: str, engine: RealVllm, slots: int = SEATS) -> AsyncIterator[Served]:
    async with gateway_world(redis_url, pool_id, engines=0, lead=False) as world:
        world.granting = False
        pool = replace(
            world.pool,
            backends=(BackendSpec(f"{pool_id}-1", pool_id, engine.url, slots, 100_000),),
            upstream_model=serve.MODEL_NAME,
            max_model_len=serve.MAX_MODEL_LEN,
            headroom_slots=0,
        )
        tier = replace(world.entitlement.tier, max_wait_s=PATIENCE_S)
        entitlement: EntitlementSpec = replace(world.entitlement, tier=tier, concurrency=64)
        world.pool, world.entitlement = pool, entitlement
        await world.configure()
        telemetry = Telemetry()
        catalog = catalog_of(pool, entitlement)
        async with dispatching(redis_url, catalog, telemetry=telemetry, over_http=True) as dispatcher:
            made = Served(world, dispatcher, telemetry)
            await made.is_("ready")
            yield made


def asking(world: World) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {world.key}"}
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=world.base, headers=headers, timeout=PATIENCE_S, limits=limits, trust_env=False)


SAY = [{"role": "user", "content": "say something"}]
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": SAY, "max_tokens": 6}),
    "text": ("/v1/completions", {"prompt": "say something", "max_tokens": 6}),
    "tokens": ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 6}),
    "messages": ("/v1/messages", {"messages": SAY, "max_tokens": 6}),
    "responses": ("/v1/responses", {"input": "say something", "max_output_tokens": 16}),
}


async def test_every_api_that_generates_answers_whole_and_streamed_with_the_engines_usage(
    redis_url: str, pool_id: str, engine: RealVllm
) -> None:
    async with served(redis_url, pool_id, engine) as made, asking(made.world) as client:
        for name, (path, body) in ASKED.items():
            whole = await client.post(path, json={"model": "demo", **body})
            assert whole.status_code == 200, f"{name}: {whole.text}"
            assert serve.MODEL_NAME not in whole.text, "clients are told the pool's name for it"
            streamed = await client.post(path, json={"model": "demo", **body, "stream": True})
            assert streamed.status_code == 200, f"{name}: {streamed.text}"
            assert sse.events_of(streamed.text), name
        asked = 2 * len(ASKED)
        records = await until(
            lambda: made.telemetry.records if len(made.telemetry.records) == asked else None, "ledger", PATIENCE_S
        )
        assert {record.outcome for record in records} == {"completed"}
        assert all(record.output_tokens > 0 and record.input_tokens > 0 for record in records)


async def test_what_this_model_cannot_do_is_the_engines_refusal_and_no_failure(
    redis_url: str, pool_id: str, engine: RealVllm
) -> None:
    async with served(redis_url, pool_id, engine) as made, asking(made.world) as client:
        refused = await client.post("/v1/embeddings", json={"model": "demo", "input": "x"})
        assert refused.status_code in (400, 404, 405, 501, 502)
        too_long = await client.post("/v1/completions", json={"model": "demo", "prompt": [5] * 5000, "max_tokens": 5})
        assert too_long.status_code == 400
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "demo"
        assert made.state() == "ready"


async def test_a_client_that_leaves_frees_the_engine(redis_url: str, pool_id: str, engine: RealVllm) -> None:
    async with served(redis_url, pool_id, engine) as made, control_http() as http:
        control = Watching(engine.url, http=http)
        body = {"model": "demo", "prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        async with asking(made.world) as leaving:
            sent = asyncio.create_task(leaving.post("/v1/completions", json=body))
            async with asyncio.timeout(PATIENCE_S):
                while (await control.scrape()).running == 0:
                    await asyncio.sleep(0.05)
            sent.cancel()
            await asyncio.gather(sent, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            while (await control.scrape()).running:
                await asyncio.sleep(0.05)
        records = await until(lambda: made.telemetry.records or None, "ledger", PATIENCE_S)
        assert [record.outcome for record in records] == ["cancelled"]


async def test_what_a_full_engine_refuses_waits_again_and_is_served(
    redis_url: str, pool_id: str, engine: RealVllm
) -> None:
    """The catalog says 32 slots; the engine runs four, keeps two and answers 503 to the others."""
    async with (
        served(redis_url, pool_id, engine, slots=32) as made,
        asking(made.world) as client,
    ):
        body = {"model": "demo", "prompt": "x", "max_tokens": 40, "ignore_eos": True}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(24)))
        assert {answer.status_code for answer in answers} == {200}
        page = (await httpx.AsyncClient(trust_env=False).get(engine.url + "/metrics")).text
        assert "vllm:admission_rejections_total" in page
        records = await until(
            lambda: made.telemetry.records if len(made.telemetry.records) == 24 else None, "ledger", PATIENCE_S
        )
        assert max(record.attempts for record in records) > 1, "the engine refused none"


async def test_a_sleeping_engine_is_woken_by_the_request_that_waits_for_it(
    redis_url: str, pool_id: str, engine: RealVllm
) -> None:
    async with (
        served(redis_url, pool_id, engine) as made,
        asking(made.world) as client,
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as control,
    ):
        assert (await control.post(engine.url + "/sleep?level=1&mode=wait")).status_code == 200
        await made.is_("asleep")
        assert (await control.get(engine.url + "/is_sleeping")).json() == {"is_sleeping": True}
        answer = await client.post("/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 4})
        assert answer.status_code == 200
        assert (await control.get(engine.url + "/is_sleeping")).json() == {"is_sleeping": False}


async def test_an_engine_that_hangs_is_taken_out_and_comes_back_and_a_dead_one_stays_out(
    redis_url: str, pool_id: str, doomed_engine: RealVllm
) -> None:
    async with served(redis_url, pool_id, doomed_engine) as made, asking(made.world) as client:
        body = {"model": "demo", "prompt": "x", "max_tokens": 4}
        doomed_engine.signal(signal.SIGSTOP)
        try:
            await made.is_("ejected")
        finally:
            doomed_engine.signal(signal.SIGCONT)
        await made.is_("ready")
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        doomed_engine.signal(signal.SIGKILL)
        await made.is_("ejected")
        refused = await client.post("/v1/completions", json=body)
        assert (refused.status_code, refused.headers["x-quartermaster-reason"]) == (503, "no_backend")
