"""Prompt tokens granted to a replica whose first token has not come: bounded, and given back once, by real gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec, OverLimit
from scheduling.gateway.config import GatewayConfig
from scheduling.state import codec
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.types import AdmissionStatus, GrantItem, GrantStatus, StoredRequest
from tests.support.dispatch_world import catalog_of, dispatching, until_await
from tests.support.gateway_world import TIER, World, gateway_world
from tests.support.pool_gateway import make_gateway, ready
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, pool_spec, request, tier

PROMPT: list[Any] = [{"role": "user", "content": "hello there"}]
ACME = entitlement("acme", tier=tier(over_limit=OverLimit.WAIT), concurrency=8)


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    """One replica with a credit of one token: every prompt is above it, so they are prefilled one after the other."""
    async with gateway_world(redis_url, pool_id, config=GatewayConfig(renew_every_s=0.2)) as made:
        await bound(made, 1)
        yield made


async def bound(world: World, credit: int) -> BackendSpec:
    one = replace(world.pool.backends[0], prefill_tokens=credit)
    await world.configure(pool={"backends": (one,)}, tier=replace(TIER, over_limit=OverLimit.WAIT, queue_limit=100))
    await world.store.set_ready(world.epoch, one.id, one)
    return one


async def ask(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    body = {"model": "demo", "messages": PROMPT, "max_tokens": 30, "stream": True} | changes
    return await client.post("/v1/chat/completions", json=body)


async def used(world: World) -> int:
    (replica,) = (await world.store.view()).backends.values()
    return replica.prefill_used


async def test_prompts_are_prefilled_one_after_the_other_and_their_answers_stream_beside_each_other(world: World):
    engine = world.engines[0]
    engine.script = replace(engine.script, first_pause_s=0.05, pause_s=0.02)
    async with world.http() as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(8)]
        most_run, seen = 0, set()
        while not all(task.done() for task in asking):
            view = await world.store.view()
            (replica,) = view.backends.values()
            most_run = max(most_run, replica.running)
            seen.add(replica.prefill_used)
            await asyncio.sleep(0.002)
        answers = [task.result() for task in asking]
    assert [a.status_code for a in answers] == [200] * 8
    await world.settled()
    prompt = (await world.ledger_of(8))[0].input_tokens_est
    assert prompt in seen <= {0, prompt, 2 * prompt}, "more was granted than one prompt and, as predicted, its next"
    assert most_run > 1, "an answer kept the credit of its prompt to its end"
    assert await used(world) == 0


async def test_a_client_that_leaves_before_the_first_token_gives_its_credit_back(world: World):
    engine = world.engines[0]
    engine.script = replace(engine.script, first_pause_s=600.0, pause_s=600.0)
    async with world.http() as client:
        leaving = asyncio.create_task(ask(client))

        async def held() -> bool:
            return await used(world) > 0 and engine.open == 1

        await until_await(held, 60)
        waiting = asyncio.create_task(ask(client))
        await until_await(lambda: _waits(world), 60)
        engine.script = replace(engine.script, first_pause_s=0.0, pause_s=0.0)
        leaving.cancel()
        assert (await waiting).status_code == 200
    await world.settled()
    assert await used(world) == 0


async def _waits(world: World) -> bool:
    return (await world.store.view()).waiting == 1


async def test_an_attempt_that_fails_before_its_first_token_takes_credit_once(world: World):
    engine = world.engines[0]
    engine.script = replace(engine.script, statuses=[500])
    async with world.http() as client:
        assert (await ask(client)).status_code == 200
    await world.settled()
    assert await used(world) == 0


async def test_a_pool_without_credit_sends_nothing_for_first_tokens(world: World, monkeypatch: pytest.MonkeyPatch):
    told: list[object] = []
    monkeypatch.setattr(PoolStore, "tell_first_tokens", lambda self, words: told.append(words))
    async with world.http() as client:
        assert (await ask(client)).status_code == 200
        await until_await(lambda: _is(told), 60)
        await world.settled()
        assert await used(world) == 0, "the end gives back what no first token did"
        told.clear()
        await bound(world, 0)
        assert (await ask(client)).status_code == 200
    await world.settled()
    assert told == []


async def _is(found: list[object]) -> bool:
    return bool(found)


async def test_first_tokens_that_are_told_while_redis_forgot_its_scripts_arrive(world: World):
    engine = world.engines[0]
    engine.script = replace(engine.script, pause_s=0.05, tokens=200)
    async with world.http() as client:
        await world.resp.call("SCRIPT", "FLUSH")
        asking = asyncio.create_task(ask(client, max_tokens=200))

        async def given_back() -> bool:
            view = await world.store.view()
            return view.running == 1 and not await used(world) and engine.generated > 1

        await until_await(given_back, 60)
        engine.script = replace(engine.script, pause_s=0.0)
        asking.cancel()
    await world.settled()


# --- in shared state


class Pool:
    def __init__(self, store: PoolStore, resp: RespConnection, pool_id: str) -> None:
        self.store, self.resp, self.pool_id = store, resp, pool_id
        self.spec = pool_spec(queue_limit=100)
        self.epoch = 0

    async def begin(self, credit: int) -> None:
        self.epoch = (await self.store.elect("leader", 0, first_start=True)).epoch
        await self.store.set_ready(self.epoch, "b1", replace(backend(slots=8, kv_tokens=10**7), prefill_tokens=credit))
        await leads_on(self.store)

    async def admit(
        self, name: str, tokens: int, *, streamed: bool = True, output: int = 50, sequences: int = 1
    ) -> AdmissionStatus:
        est = estimate(tokens, output)
        facts = replace(FACTS, streamed=streamed)
        asked = request(name, ACME, est, gateway="nobody", sequences=sequences)
        return (await self.store.admit(ACME, self.spec, asked, est, 300, facts)).status

    async def counts(self) -> int:
        """Of the credit: what is not predicted to be prefilled."""
        return (await self.store.look([])).backends["b1"].prefill_used

    async def used(self) -> int:
        """What is held of the credit."""
        return (await self.store.view()).backends["b1"].prefill_used

    async def pace(self) -> tuple[int, int]:
        """Tokens that were seen to be prefilled, lately, and those that may be predicted to be."""
        told = await self.resp.call("HGET", f"qm:{{{self.pool_id}}}:credits", "b1 pace")
        _, _, sure, _, tokens, _ = told.decode().split()  # type: ignore[union-attr]
        return round(float(tokens)), int(sure)


@pytest.fixture
def pool(pool_store: PoolStore, resp: RespConnection, pool_id: str) -> Pool:
    return Pool(pool_store, resp, pool_id)


async def test_credit_comes_back_at_the_first_token_or_the_end_once(pool: Pool):
    await pool.begin(1000)
    assert await pool.admit("a", 600) is AdmissionStatus.GRANTED
    assert await pool.admit("b", 400) is AdmissionStatus.GRANTED
    assert await pool.admit("c", 1) is AdmissionStatus.QUEUED
    assert await pool.store.first_tokens([("a", 2), ("b", 1), ("b", 1), ("c", 1), ("nobody", 1)]) == 1
    assert await pool.used() == 600
    for name in ("a", "b"):
        await pool.store.finish(name, 1, Reason.STOP, 10, True, ledger(name))
        assert await pool.store.first_tokens([(name, 1)]) == 0
    assert await pool.used() == 0


async def test_a_whole_answer_gives_its_credit_back_when_its_engine_no_longer_lets_it_wait(pool: Pool):
    await pool.begin(3000)
    for n in range(3):
        assert await pool.admit(f"w{n}", 900, streamed=False) is AdmissionStatus.GRANTED
    assert await pool.store.prefilled(pool.epoch, "b1", 0, 60.0) == 0, "a look of before the grants says nothing"
    assert await pool.store.prefilled(pool.epoch, "b1", 1, 0.0) == 2, "the last of them waits in the engine"
    assert await pool.used() == 900
    assert await pool.admit("w3", 900, streamed=False) is AdmissionStatus.GRANTED
    async with asyncio.timeout(30):
        while not await pool.store.prefilled(pool.epoch, "b1", 0, 0.0):  # granted within a step of the engine: not seen
            await asyncio.sleep(0.05)
    assert await pool.used() == 900, "the last one may be in the middle of its prompt"
    assert await pool.store.prefilled(pool.epoch, "b1", 0, 0.0) == 0
    await pool.store.finish("w3", 1, Reason.STOP, 10, True, ledger("w3"))
    assert await pool.used() == 0
    assert (await pool.store.view()).running == 3


async def test_a_request_of_several_prompts_holds_its_credit_while_one_of_them_waits_in_its_engine(pool: Pool):
    await pool.begin(9000)
    for n in range(2):
        assert await pool.admit(f"w{n}", 4 * 900, streamed=False, sequences=4) is AdmissionStatus.GRANTED
    assert await pool.store.prefilled(pool.epoch, "b1", 5, 0.0) == 0, "one prompt of the first, all of the second"
    assert await pool.store.prefilled(pool.epoch, "b1", 4, 0.0) == 1
    assert await pool.store.prefilled(pool.epoch, "b1", 1, 0.0) == 0
    assert await pool.used() == 4 * 900


async def test_the_end_of_a_prompt_that_is_only_read_shows_how_fast_prompts_are_prefilled(pool: Pool):
    """Nothing else shows it of an embedding of several texts: its engine counts what waits by the text."""
    await pool.begin(3000)
    for n in range(3):
        assert await pool.admit(f"e{n}", 900, streamed=False, output=0) is AdmissionStatus.GRANTED
    assert await pool.pace() == (0, 2700)
    await pool.store.finish("e0", 1, Reason.STOP, 900, True, ledger("e0"))
    assert await pool.pace() == (900, 1800), "what has ended cannot be predicted to end"
    await pool.store.finish("e1", 1, Reason.CLIENT_LEFT, 900, True, ledger("e1"))
    assert (await pool.pace())[0] == 900, "its engine stopped in the middle of it"
    assert await pool.admit("chat", 900, streamed=False) is AdmissionStatus.GRANTED
    await pool.store.finish("chat", 1, Reason.STOP, 950, True, ledger("chat"))
    assert (await pool.pace())[0] == 900, "its answer took a part of the time"


async def test_the_first_token_of_a_stream_shows_that_whole_answers_before_it_are_prefilled(pool: Pool):
    await pool.begin(3000)
    assert await pool.admit("whole", 900, streamed=False) is AdmissionStatus.GRANTED
    assert await pool.admit("stream", 900) is AdmissionStatus.GRANTED
    await asyncio.sleep(0.01)
    assert await pool.admit("later", 900, streamed=False) is AdmissionStatus.GRANTED
    assert await pool.store.first_tokens([("stream", 1)]) == 1
    assert await pool.used() == 900, "the later one holds its credit"


async def test_what_is_predicted_to_be_prefilled_makes_room_before_its_first_token(pool: Pool):
    """And no more than was there at the last first token: an engine that stands still gets no third prompt."""
    await pool.begin(1000)
    pace = b"0.000 0 0 100.000 1000.000 0"  # 10 tokens/ms
    await pool.resp.call("HSET", pool.store._key("credits"), "b1 pace", pace)
    assert await pool.admit("a", 1000) is AdmissionStatus.GRANTED
    await asyncio.sleep(0.2)
    assert await pool.counts() == 0
    assert await pool.used() == 1000, "it holds its credit until its first token"
    assert await pool.admit("b", 1000) is AdmissionStatus.GRANTED
    await asyncio.sleep(0.2)
    assert await pool.admit("c", 1) is AdmissionStatus.QUEUED
    assert await pool.store.first_tokens([("a", 1)]) == 1
    assert await pool.used() == 1000


async def test_entries_and_offers_of_before_there_was_credit_are_read(pool: Pool, pool_id: str):
    """An upgrade with requests in flight: a lease took none, what waits takes what its prompt has."""
    await pool.begin(1000)
    key = pool.store._key
    old = msgspec.json.encode(StoredRequest(request("old", ACME, estimate(700), gateway="gw"), FACTS))
    record = b'{"v":2,' + old[1:]
    words = b"1 acme elastic %b 750 0 750 300 %b %b gw 1 0 - "
    await pool.resp.call("HSET", key("held"), "runs", words % (b"b1", b"0", b"1") + record)
    await pool.resp.call("ZADD", key("leases"), 10**14, "runs")
    await pool.resp.call("HSET", key("queue"), "waits", words % (b"-", b"1", b"0") + record)
    await pool.resp.call("ZADD", key("waiting"), 10**14, "waits")
    await pool.store.rebuild(pool.epoch)
    assert (await pool.store.view()).differences() == []
    assert await pool.used() == 0
    (_, [waits]) = await pool.store.load_queue()
    assert waits.prefill_tokens == 700
    assert await pool.admit("a", 400) is AdmissionStatus.QUEUED  # after who waits
    assert await pool.resp.call("HGET", key("ready"), "b1") == b"8 10000000", "as trees without credit read it"
    await pool.resp.call("HDEL", key("credits"), "b1")
    assert (await pool.store.look([])).backends["b1"].prefill_credit == 0  # no bound
    await pool.resp.call("HSET", key("credits"), "b1", "1000")
    entry = codec.decode_entry(await pool.resp.call("HGET", key("queue"), "waits"))
    assert entry.prefill == 700
    assert await pool.store.grant(pool.epoch, [GrantItem("waits", 1, "b1", 8)]) == [GrantStatus.AWAY]
    await pool.store.finish("runs", 1, Reason.STOP, 10, True, ledger("runs"))
    await pool.store.finish("waits", 1, Reason.CLIENT_LEFT, 0, False, ledger("waits"))
    assert (await pool.store.view()).differences() == []


async def test_a_leader_grants_the_next_prompt_at_the_first_token(redis_url: str, resp: RespConnection, pool_id: str):
    """Everything real but the engine: dispatcher, scripts, notifications."""
    spec = entitlement("acme", pool_id, tier=tier(over_limit=OverLimit.WAIT, queue_limit=50), concurrency=50)
    async with make_gateway(redis_url, resp, pool_id) as gateway:
        one = replace(gateway.pool.backends[0], slots=50, prefill_tokens=150)
        gateway.pool = replace(gateway.pool, backends=(one,))
        async with dispatching(redis_url, catalog_of(gateway.pool, spec)) as dispatcher:
            await ready(dispatcher, gateway.store)
            first = await gateway.admit("r0", spec)
            assert (first.status, first.prefill) == (AdmissionStatus.GRANTED, 100)
            for n in range(1, 10):
                assert (await gateway.admit(f"r{n}", spec)).status is AdmissionStatus.QUEUED
            for n in range(9):
                # once a first token has shown a rate, the next prompt may come a predicted step before its own
                assert n <= len(gateway.notices) <= n + min(n, 1), "more than the next prompt was granted"
                assert await gateway.store.first_tokens([(f"r{n}", 1)]) == 1
                await until_await(lambda n=n: _heard(gateway.notices, n + 1), 60)
                assert (gateway.notices[n].request_id, gateway.notices[n].prefill) == (f"r{n + 1}", 100)
            assert (await gateway.store.view()).running == 10
            for n in range(10):
                await gateway.finish(f"r{n}")
            assert (await gateway.store.view()).backends[one.id].prefill_used == 0


async def _heard(notices: list[Any], count: int) -> bool:
    return len(notices) >= count
