"""Predictions on the data plane: shared by gateways, kept over a restart, and never a limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import PredictorMode
from scheduling.gateway.estimate.forecasts import ROUND_S, PoolForecasts
from scheduling.state.history import HistoryStream, history_key
from tests.support.gateway_world import World, gateway_world, until

PROMPT = "Summarise the minutes of the harbour committee in two sentences, please."
ALIKE = "Summarise the minutes of the harbour committee in three sentences, please."
LEARNING_S = 2.0  # what one gateway saw, another is to know after this long


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id) as made:
        await made.configure(pool={"predictor": PredictorMode.SIMILAR})
        yield made


async def ask(world: World, prompt: str, **body: Any) -> LedgerRecord:
    """One answer, and what the ledger says of it."""
    async with world.sdk() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="demo", messages=[{"role": "user", "content": prompt}], **body
        )
    async with asyncio.timeout(20):
        while True:
            for record in await world.ledger():
                if record.request_id == raw.headers["x-request-id"]:
                    return record
            await asyncio.sleep(0.01)


def forecasts(world: World) -> PoolForecasts:
    held = world.app._forecasts.of(world.pool)
    assert held is not None
    return held


def learned(world: World) -> int:
    return forecasts(world).learned


async def test_a_prompt_seen_by_one_gateway_improves_the_next_estimate_of_another(world: World, redis_url: str) -> None:
    async with gateway_world(redis_url, world.pool.id, lead=False) as other:
        await other.configure(pool={"predictor": PredictorMode.SIMILAR})
        for each in (world, other):
            each.engines[0].script.tokens = 9
        before = await ask(other, ALIKE)
        assert before.estimate_source == "prior"
        await until(lambda: learned(other) == 1)
        for _ in range(3):
            await ask(world, PROMPT)
        await until(lambda: learned(other) == 4)
        after = await ask(other, ALIKE)
    assert after.estimate_source == "similar"
    assert abs(after.output_tokens_est - 9) < abs(before.output_tokens_est - 9) / 4
    assert 2 * ROUND_S < LEARNING_S  # the promise, without this machine's speed
    assert after.category == "summary"
    assert 0.0 <= (after.output_rank or 0.0) <= 1.0
    assert after.output_tokens_p90 <= after.output_bound


def unlike(number: int, long: bool) -> str:
    """A prompt that resembles no other: random words, and one that tells whether much is asked for."""
    rng = random.Random(f"{number} {long}")
    words = ["".join(rng.choices("bcdfghklmnprstvw", k=rng.randrange(4, 9))) for _ in range(12)]
    words.insert(rng.randrange(len(words)), rng.choice(("essay", "story", "article") if long else ("only", "just")))
    return " ".join(words)


async def test_an_application_is_learned_to_ask_for_long_and_short_answers(world: World, redis_url: str) -> None:
    """Every prompt is asked once: what tells them apart is what they ask for, and another gateway knows it as well."""
    for number in range(100):
        much = number % 2 == 0
        world.engines[0].script.tokens = (120 if much else 6) + number % 5
        await ask(world, unlike(number, much), max_tokens=300)
        if number % 8 == 0:  # what is asked while nothing is learned is one guess for all
            await until(partial(lambda asked: learned(world) == asked, number + 1))
    await until(lambda: learned(world) == 100 and not forecasts(world).chain.due)
    async with gateway_world(redis_url, world.pool.id, lead=False) as other:
        await other.configure(pool={"predictor": PredictorMode.SIMILAR})
        await until(lambda: learned(other) == 100 and not forecasts(other).chain.due)
        seen = [msgspec.json.decode(forecasts(each).drift())["tenants"] for each in (world, other)]
    [shown] = seen[0][world.entitlement.tenant]["regressions"]
    [elsewhere] = seen[1][world.entitlement.tenant]["regressions"]
    assert (shown["answers"], shown["used"]) == (elsewhere["answers"], elsewhere["used"]) == (100, True)
    long, short = [await ask(world, unlike(1_000, wanted), max_tokens=300) for wanted in (True, False)]
    assert (long.estimate_source, short.estimate_source) == ("regression", "regression")
    assert long.output_tokens_est > 3 * short.output_tokens_est


async def test_a_restarted_gateway_knows_what_it_knew(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as first:
        await first.configure(pool={"predictor": PredictorMode.SIMILAR})
        first.engines[0].script.tokens = 11
        for _ in range(4):
            await ask(first, PROMPT)  # the last is told when the gateway stops
    async with gateway_world(redis_url, pool_id, lead=False) as second:
        await second.configure(pool={"predictor": PredictorMode.SIMILAR})
        await until(lambda: learned(second) == 4)
        second.engines[0].script.tokens = 11
        await second.lead()
        record = await ask(second, PROMPT)
    assert record.estimate_source == "similar"
    assert record.output_tokens_est == pytest.approx(11, abs=2)


async def test_no_prompt_rests_in_shared_state(world: World) -> None:
    world.engines[0].script.tokens = 5
    await ask(world, "The cormorant is a secret that nobody may read")
    await until(lambda: learned(world) == 1)
    raw = await world.resp.call("XRANGE", history_key(world.pool.id), "-", "+")
    assert len(raw) == 1
    assert b"cormorant" not in repr(raw).lower().encode()


async def test_a_prediction_orders_but_bound_and_charge_stay(world: World) -> None:
    world.engines[0].script.tokens = 6
    for _ in range(3):
        await ask(world, PROMPT, max_tokens=300)
    await until(lambda: learned(world) == 3)
    await world.configure(concurrency=4)
    world.engines[0].script.pause_s = 0.3
    async with world.sdk() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="demo", messages=[{"role": "user", "content": PROMPT}], max_tokens=300
        )
    record = next(r for r in await world.ledger_of(4) if r.request_id == raw.headers["x-request-id"])
    assert record.output_tokens_est < 30
    assert record.output_bound == 300
    assert int(raw.headers["x-quartermaster-estimate-tokens"]) == record.input_tokens_est + 300
    assert world.engines[0].bodies[-1]["max_tokens"] == 300


async def test_a_waiting_request_carries_its_distribution(world: World) -> None:
    world.engines[0].script.tokens = 6
    for _ in range(3):
        await ask(world, PROMPT)
    await until(lambda: learned(world) == 3)
    await world.store.set_ready(world.epoch, world.pool.backends[0].id, world.pool.backends[0])
    world.granting = False
    holder = world.pool.backends[0]
    await world.store.set_ready(world.epoch, holder.id, replace(holder, slots=1))
    world.engines[0].script.pause_s = 2.0
    first = asyncio.create_task(ask(world, PROMPT))
    await until(lambda: world.engines[0].open == 1)
    second = asyncio.create_task(ask(world, PROMPT, max_tokens=40))
    async with asyncio.timeout(20):
        while not (queue := (await world.store.load_queue())[1]):
            await asyncio.sleep(0.01)
    [waiting] = queue
    assert sum(waiting.output_probabilities) == pytest.approx(1.0)
    assert max(waiting.output_lengths) <= 40
    assert waiting.output_tokens == pytest.approx(
        sum(v * p for v, p in zip(waiting.output_lengths, waiting.output_probabilities, strict=True)), rel=1e-6
    )
    world.granting = True
    await asyncio.gather(first, second)


async def test_a_pool_that_predicts_nothing_expects_the_bound_and_teaches_nobody(redis_url: str, pool_id: str) -> None:
    async with gateway_world(redis_url, pool_id) as plain:
        record = await ask(plain, PROMPT, max_tokens=21)
        assert (record.estimate_source, record.output_tokens_est, record.category) == ("bound", 21.0, "")
        assert record.output_rank is None
        assert await plain.resp.call("EXISTS", history_key(pool_id)) == 0


async def test_a_reset_reaches_every_gateway(world: World) -> None:
    world.engines[0].script.tokens = 4000
    for number in range(5):
        await ask(world, f"{number}: what is the boiling point of metal {number * 31}?", max_tokens=4000)
    await until(lambda: learned(world) == 5)
    held = world.app._forecasts.of(world.pool)
    assert held is not None
    known = held.chain.of(world.entitlement.tenant)
    assert known is not None
    assert known.baseline.drift.factors()
    await HistoryStream(world.resp, world.pool.id).reset()
    await until(lambda: not known.baseline.drift.factors())


async def test_input_tokens_are_counted_by_the_tokenizer_a_pool_names(world: World, tmp_path: Path) -> None:
    library = Tokenizer(models.WordLevel({"hello": 0, "there": 1, "?": 2, "[UNK]": 3}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    await world.configure(pool={"tokenizer": str(path)})
    record = await ask(world, "hello there unknown ?")
    assert record.input_tokens_est == 4 + 4, "four tokens and the frame of one message"
    await world.configure(pool={"tokenizer": str(tmp_path / "missing.json")})
    assert (await ask(world, "hello there")).input_tokens_est > 0


async def test_input_tokens_are_asked_of_a_replica_and_estimated_where_it_does_not_say(world: World) -> None:
    world.engines[0].script.counts = 77
    await world.configure(pool={"tokenizer": "backend"})
    assert (await ask(world, "hello there", extra_body={"truncate_prompt_tokens": 5})).input_tokens_est == 5
    assert (await ask(world, "hello there")).input_tokens_est == 77
    world.engines[0].script.counts = None
    assert (await ask(world, "hello there")).input_tokens_est < 77
