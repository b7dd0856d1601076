"""Neighbours on one pool: what one tenant asks is not to be read, timed or learned from by another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import Catalog, EntitlementSpec, KeySpec, PredictorMode, PrefixCache
from scheduling.engines.simulated.server import EngineOptions, serving
from scheduling.estimation.embedding import Embedder, pack
from scheduling.gateway.config import GatewayConfig
from scheduling.state.history import HistoryStream, Observation, history_key
from tests.support.gateway_world import World, gateway_world, make_key, until

CONFIG = GatewayConfig(history_secret=b"of this deployment", tenant_secret=b"of this deployment")
BLUEFIN = "Write a short letter to the partners of the project codenamed Bluefin"
REDFIN = "Write a short letter to the partners of the project codenamed Redfin"
SYSTEM = "You answer questions about the harbour of a small town, its ships and its people. " * 20
_numbers = itertools.count(700)


class Tenants:
    """A world with several tenants on its pool."""

    def __init__(self, world: World, *names: str) -> None:
        self.world = world
        self.keys: dict[str, str] = {}
        self.entitlements: dict[str, EntitlementSpec] = {}
        self.specs: dict[str, KeySpec] = {}
        for name in names:
            entitlement = replace(world.entitlement, id=f"{world.pool.id}-{name}", tenant=name)
            key, spec = make_key(next(_numbers), entitlement.id)
            self.keys[name] = key
            self.entitlements[entitlement.id] = entitlement
            self.specs[spec.id] = spec

    async def configure(self, **pool: Any) -> None:
        world = self.world
        world.pool = replace(world.pool, **pool)
        world.catalog = Catalog(world.catalog.version + 1, {world.pool.id: world.pool}, self.entitlements, self.specs)
        await world.app._catalog.refreshed(10)

    async def ask(self, tenant: str, prompt: str, **body: Any) -> tuple[LedgerRecord, dict[str, str]]:
        """One answer: what the ledger says of it, and its headers."""
        async with self.world.sdk(api_key=self.keys[tenant]) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="demo", messages=[{"role": "user", "content": prompt}], **body
            )
        async with asyncio.timeout(20):
            while True:
                for record in await self.world.ledger():
                    if record.request_id == raw.headers["x-request-id"]:
                        return record, dict(raw.headers)
                await asyncio.sleep(0.01)

    async def learned(self, count: int) -> None:
        held = self.world.app._forecasts.of(self.world.pool)
        assert held is not None
        await until(lambda: held.learned == count)

    def last_body(self) -> dict[str, Any]:
        return self.world.engines[0].bodies[-1]


@asynccontextmanager
async def neighbours(
    redis_url: str, pool_id: str, *, lead: bool = True, config: GatewayConfig = CONFIG, **pool: Any
) -> AsyncIterator[Tenants]:
    async with gateway_world(redis_url, pool_id, lead=lead, config=config) as world:
        made = Tenants(world, "acme", "globex")
        await made.configure(**pool)
        yield made


# --- length predictions


async def test_a_prompt_like_a_neighbours_is_predicted_as_without_the_neighbour(redis_url: str, pool_id: str) -> None:
    async with neighbours(redis_url, pool_id, predictor=PredictorMode.SIMILAR) as both:
        both.world.engines[0].script.tokens = 160
        alone, _ = await both.ask("globex", REDFIN)
        for _ in range(8):
            await both.ask("acme", BLUEFIN)
        await both.learned(9)
        own, _ = await both.ask("acme", REDFIN)
        assert own.estimate_source == "similar", "among its own prompts it is found"
    async with neighbours(redis_url, f"{pool_id}-2", predictor=PredictorMode.SIMILAR) as both:
        both.world.engines[0].script.tokens = 160
        for _ in range(8):
            await both.ask("acme", BLUEFIN)
        await both.learned(8)
        spied, _ = await both.ask("globex", REDFIN)
    assert spied.estimate_source == alone.estimate_source == "prior"
    assert spied.output_tokens_est == alone.output_tokens_est
    assert spied.output_tokens_p90 == alone.output_tokens_p90


async def test_what_a_tenant_is_told_of_its_requests_is_the_same_with_and_without_a_busy_neighbour(
    redis_url: str, pool_id: str
) -> None:
    seen = []
    for busy in (False, True):
        async with neighbours(redis_url, f"{pool_id}-{busy}", predictor=PredictorMode.SIMILAR) as both:
            script = both.world.engines[0].script
            told, learned = [], 0
            for number in range(12):
                if busy:
                    script.tokens = 900
                    for _ in range(4):
                        # the engine counts 12 tokens in this: it teaches that prompts have few
                        await both.ask("acme", f"Describe ship {number} of the fleet. " + "very " * 400)
                        learned += 1
                script.tokens = 20 + number
                record, headers = await both.ask("globex", f"Describe ship {number} of the fleet")
                learned += 1
                await both.learned(learned)
                told.append(
                    (
                        record.category, record.estimate_source, record.output_tokens_est, record.output_tokens_p90,
                        record.output_rank, record.input_tokens_est, record.output_bound,
                        headers["x-quartermaster-estimate-tokens"],
                    )
                )  # fmt: skip
            seen.append(told)
    assert seen[0] == seen[1]
    assert {row[1] for row in seen[0]} > {"similar"}, "it did learn from its own"


# --- what rests in Redis


async def everything(world: World) -> bytes:
    raw = await world.resp.call("XRANGE", history_key(world.pool.id), "-", "+")
    return b"".join(value for _, fields in raw for value in fields)


async def test_who_reads_redis_can_test_no_guess_of_a_prompt(redis_url: str, pool_id: str) -> None:
    async with neighbours(redis_url, pool_id, predictor=PredictorMode.SIMILAR) as both:
        both.world.engines[0].script.tokens = 5
        for tenant in ("acme", "globex", "acme"):
            await both.ask(tenant, BLUEFIN)
        await both.learned(3)
        held = await everything(both.world)
        guess = Embedder().embed(BLUEFIN)
        assert guess is not None
        assert pack(guess) not in held
        assert b"acme" not in held
        entries = await both.world.resp.call("XRANGE", history_key(pool_id), "-", "+")
        sealed = {bytes(fields[1]) for _, fields in entries}
        assert len(sealed) == 3, "equal prompts are not to be seen as equal, within a tenant or between"
        readable = HistoryStream(both.world.resp, pool_id, CONFIG.history_secret)
        guessed = HistoryStream(both.world.resp, pool_id, b"a guess")
        assert all(isinstance(seen, Observation) for _, seen in await readable.read("0", 10))
        assert [seen for _, seen in await guessed.read("0", 10)] == [None, None, None]


async def test_what_an_earlier_version_left_readable_is_deleted(redis_url: str, pool_id: str) -> None:
    async with neighbours(redis_url, pool_id, predictor=PredictorMode.SIMILAR) as both:
        old = f"qm:{{{pool_id}}}:history"
        await both.world.resp.call("XADD", old, "*", "o", b"\x9aan unkeyed embedding")
        both.world.engines[0].script.tokens = 5
        await both.ask("acme", BLUEFIN)
        await both.learned(1)
        assert await both.world.resp.call("EXISTS", old) == 0


async def test_a_storm_pushes_no_history_of_a_quieter_tenant_out_of_the_stream(redis_url: str, pool_id: str) -> None:
    def seen(tenant: str, number: int) -> Observation:
        return Observation("key", tenant, "m", "report", 5, number, False, "prior", 400.0)

    async with gateway_world(redis_url, pool_id, lead=False) as world:
        stream = HistoryStream(world.resp, pool_id, b"secret", kept=60)
        await stream.append([seen("small", number) for number in range(1, 11)])
        await stream.reset("report")
        for start in range(0, 500, 50):
            await stream.append([seen("storm", start + number) for number in range(50)])
        await stream.append([seen("later", number) for number in range(40)])
        entries = [entry for _, entry in await stream.read("0", 10_000)]
        held: dict[str, list[int]] = {}
        for entry in entries:
            if isinstance(entry, Observation):
                held.setdefault(entry.tenant, []).append(entry.actual)
        assert held["small"] == list(range(1, 11)), "less than an equal share: nothing is lost, and in order"
        assert (len(held["storm"]), len(held["later"])) == (25, 25)
        assert held["storm"] == list(range(475, 500)), "the oldest leave"
        assert len(entries) == 61
        assert await world.resp.call("ZCARD", history_key(pool_id) + ":order") == 60


async def test_a_gateway_that_starts_after_a_storm_knows_the_quieter_tenant(redis_url: str, pool_id: str) -> None:
    async with neighbours(redis_url, pool_id, predictor=PredictorMode.SIMILAR) as both:
        both.world.engines[0].script.tokens = 11
        for _ in range(3):
            await both.ask("globex", REDFIN)
        await both.learned(3)
        stream = HistoryStream(both.world.resp, pool_id, CONFIG.history_secret, kept=30)
        for _ in range(4):
            await stream.append([Observation("k", "acme", "demo", "report", 5, 900, False, "prior", 400.0)] * 25)
    async with neighbours(redis_url, pool_id, lead=False, predictor=PredictorMode.SIMILAR) as both:
        await both.learned(30)
        both.world.engines[0].script.tokens = 11
        await both.world.lead()
        record, _ = await both.ask("globex", REDFIN)
    assert record.estimate_source == "similar"
    assert record.output_tokens_est < 30, "of a table of 512"


# --- the engines' prefix caches


async def test_each_tenant_has_a_salt_of_its_own_in_every_gateway_and_after_a_restart(
    redis_url: str, pool_id: str
) -> None:
    found: list[dict[str, str]] = []
    for lead in (True, False):
        async with neighbours(redis_url, pool_id, lead=lead) as both:
            if not lead:
                await both.world.lead()
            salts = {}
            for tenant in ("acme", "globex"):
                await both.ask(tenant, BLUEFIN, max_tokens=3)
                salts[tenant] = both.last_body()["cache_salt"]
            found.append(salts)
    assert found[0] == found[1]
    assert found[0]["acme"] != found[0]["globex"]
    assert all(len(salt) == 43 and salt.isascii() for salt in found[0].values())
    async with neighbours(redis_url, pool_id, config=replace(CONFIG, tenant_secret=b"another")) as other:
        await other.ask("acme", BLUEFIN, max_tokens=3)
        assert other.last_body()["cache_salt"] not in found[0].values()


async def test_a_clients_salt_divides_its_tenants_cache_and_opens_no_others(redis_url: str, pool_id: str) -> None:
    async with neighbours(redis_url, pool_id) as both:
        await both.ask("acme", BLUEFIN, max_tokens=3)
        target = both.last_body()["cache_salt"]
        sent = {target}
        for tenant, salt in (("acme", "mine"), ("globex", "mine"), ("globex", target)):
            await both.ask(tenant, BLUEFIN, max_tokens=3, extra_body={"cache_salt": salt})
            sent.add(both.last_body()["cache_salt"])
        assert len(sent) == 4, "not even who knows another's salt gets into its cache"
        assert "mine" not in sent


@pytest.mark.parametrize("mode", [PrefixCache.SHARED, PrefixCache.UNSALTED])
async def test_a_pool_may_say_that_its_tenants_share_or_that_its_engines_take_no_salt(
    mode: PrefixCache, redis_url: str, pool_id: str
) -> None:
    async with neighbours(redis_url, pool_id, prefix_cache=mode) as both:
        await both.ask("acme", BLUEFIN, max_tokens=3)
        assert "cache_salt" not in both.last_body()
        async with both.world.http() as client:
            client.headers["authorization"] = f"Bearer {both.keys['acme']}"
            body = {"model": "demo", "prompt": "hi", "max_tokens": 2, "cache_salt": "mine"}
            answer = await client.post("/v1/completions", json=body)
        if mode is PrefixCache.UNSALTED:
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "cache_salt"
        else:
            assert answer.status_code == 200
            assert len(both.last_body()["cache_salt"]) == 43


async def test_a_tenants_prompt_is_not_found_in_the_cache_that_anothers_filled(redis_url: str, pool_id: str) -> None:
    async with serving(EngineOptions(model="fake-upstream", prefix_cache=True, speed=50)) as engine:

        async def cached(both: Tenants, tenant: str) -> int:
            async with both.world.sdk(api_key=both.keys[tenant]) as client:
                answer = await client.chat.completions.create(
                    model="demo",
                    max_tokens=2,
                    messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": "When does it open?"}],
                )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            found = answer.usage.prompt_tokens_details.cached_tokens
            assert found is not None
            return found

        async with neighbours(redis_url, pool_id) as both:
            await both.configure(backends=(replace(both.world.pool.backends[0], url=engine.url),))
            assert await cached(both, "acme") == 0
            assert await cached(both, "acme") > 200, "its own it finds"
            assert await cached(both, "globex") == 0, "what acme asked is not to be found"
            await both.configure(prefix_cache=PrefixCache.SHARED)
            assert await cached(both, "acme") == 0
            assert await cached(both, "globex") > 200, "where the pool says so, tenants share"
