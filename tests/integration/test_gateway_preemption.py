"""A leader takes a request back from its engine: it waits again where its client has nothing yet, and goes on else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import QueuedRequest
from scheduling.gateway.stages import NEVER, Submitted
from scheduling.state.notices import PreemptionNotice
from scheduling.state.types import StateUnavailable
from tests.support.gateway_world import TIER, World, gateway_world, until

PROMPT: list[Any] = [{"role": "user", "content": "hello there " * 2000}]


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    """An engine that says nothing for a while, behind a prefill credit; nobody grants what waits."""
    async with gateway_world(redis_url, pool_id) as made:
        made.granting = False
        made.engines[0].script = replace(made.engines[0].script, first_pause_s=60.0)
        one = replace(made.pool.backends[0], prefill_tokens=1000)
        await made.configure(pool={"backends": (one,)})
        await made.store.set_ready(made.epoch, one.id, one)
        yield made


async def ask(client: httpx.AsyncClient, *, stream: bool, answer: int = 5) -> httpx.Response:
    body = {"model": "demo", "messages": PROMPT, "max_tokens": answer, "stream": stream}
    return await client.post("/v1/chat/completions", json=body)


def held_by(world: World) -> Submitted | None:
    return next(iter(world.app._in_flight.calls.values()), None)


async def runs(world: World) -> Submitted:
    await until(lambda: world.engines[0].open == 1)
    submitted = held_by(world)
    assert submitted is not None
    return submitted


async def interrupt(world: World, computed: int = 900, **changes: Any) -> None:
    (prompt,) = await world.store.long_prompts()
    request = replace(prompt.request, **changes)
    await world.store.preempt(replace(prompt, request=request), computed)


async def waiting(world: World) -> QueuedRequest:
    async with asyncio.timeout(10):
        while not (queue := (await world.store.load_queue())[1]):
            await asyncio.sleep(0.01)
    (request,) = queue
    return request


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_request_without_an_answer_leaves_its_engine_and_waits_for_the_same_replica(
    world: World, stream: bool
) -> None:
    engine = world.engines[0]
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=stream))
        await runs(world)
        await interrupt(world)
        request = await waiting(world)
        await until(lambda: engine.open == 0)
        assert (request.resumes_at, request.prefilled, request.preempted) == (world.pool.backends[0].id, 900, 1)
        assert (request.attempt, request.exclude_backend) == (2, "")
        assert await world.running() == (0, 1)
        view = await world.store.view()
        assert [replica.prefill_used for replica in view.backends.values()] == [0]
        assert not await world.store.long_prompts()

        engine.script = replace(engine.script, first_pause_s=0.0)
        world.granting = True
        answer = await asking
        assert answer.status_code == 200
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.attempts, record.interruptions, record.output_tokens) == ("completed", 1, 1, 5)
    assert world.metrics.preemptions == [world.pool.backends[0].id]
    await world.settled()


async def test_the_time_in_which_an_interrupted_attempt_ran_is_no_part_of_the_wait(world: World) -> None:
    engine = world.engines[0]
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        await runs(world)
        await interrupt(world)  # granted on arrival: what ran until here was no wait either
        await waiting(world)
        world.granting = True
        await until(lambda: engine.open == 1)
        world.granting = False
        await asyncio.sleep(0.4)
        await interrupt(world)
        await waiting(world)
        await asyncio.sleep(0.1)
        engine.script = replace(engine.script, first_pause_s=0.0)
        world.granting = True
        answer = await asking
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.interruptions) == ("completed", 2)
    assert record.queued_s is not None
    assert record.granted_s is not None
    assert record.ran_before_s >= 0.4
    assert record.waited_s is not None
    assert 0.1 <= record.waited_s == pytest.approx(record.granted_s - record.queued_s - record.ran_before_s)
    assert int(answer.headers["x-quartermaster-queue-ms"]) == int(record.waited_s * 1000)
    await world.settled()


async def test_a_stream_that_has_begun_goes_on(world: World) -> None:
    engine = world.engines[0]
    engine.script = replace(engine.script, first_pause_s=0.5, pause_s=0.02)
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True, answer=40))
        submitted = await runs(world)
        (prompt,) = await world.store.long_prompts()
        await until(lambda: submitted.call.responding)
        await world.store.preempt(prompt, 900)
        answer = await asking
    assert answer.status_code == 200
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.attempts, record.output_tokens) == ("completed", 1, 40)


@pytest.mark.parametrize("changes", [{"attempt": 7}, {"id": "req_another"}], ids=["another attempt", "nobody here"])
async def test_what_was_meant_for_another_attempt_interrupts_nothing(world: World, changes: dict[str, Any]) -> None:
    engine = world.engines[0]
    engine.script = replace(engine.script, first_pause_s=1.0)
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        await runs(world)
        await interrupt(world, **changes)
        assert (await asking).status_code == 200
    [record] = await world.ledger_of(1)
    assert record.attempts == 1


async def test_it_may_wait_again_for_as_long_as_its_tier_lets_it(world: World) -> None:
    await world.configure(tier=replace(TIER, max_wait_s=1.5))
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        submitted = await runs(world)
        await asyncio.sleep(1.5)
        await interrupt(world)
        request = await waiting(world)
        now_s = submitted.call.now_s()
        assert submitted.resuming is not None
        assert request.expires_s is not None
        assert submitted.resuming.expires_s == pytest.approx(now_s + 1.5, abs=1.0)
        answer = await asking
        assert (answer.status_code, answer.headers["x-quartermaster-reason"]) == (429, "queue_timeout")
    await world.settled()


async def test_a_client_that_leaves_while_it_waits_again_leaves_nothing(world: World) -> None:
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        await runs(world)
        await interrupt(world)
        await waiting(world)
        asking.cancel()
    await world.settled()
    [record] = await world.ledger_of(1)
    assert (record.reason, record.input_tokens, record.output_tokens) == ("client_left", 900, 0)


async def test_a_client_that_leaves_pays_for_what_was_computed_and_one_that_waits_in_vain_does_not(
    world: World,
) -> None:
    """Else a tenant whose own requests interrupt each other would have engines compute beyond its budget."""
    await world.configure(tokens_per_s=0.001, burst_tokens=100_000.0)
    paid = []
    for leaves in (True, False):
        await world.configure(tier=replace(TIER, max_wait_s=30.0 if leaves else 0.5))
        async with world.http() as client:
            asking = asyncio.create_task(ask(client, stream=True))
            await runs(world)
            await interrupt(world, 900)
            await waiting(world)
            if leaves:
                asking.cancel()
            else:
                assert (await asking).status_code == 429
        await world.settled()
        audit = await world.store.audit(100)
        assert audit is not None
        paid.append(audit.buckets[world.entitlement.id].level)
    assert [round(100_000 - paid[0]), round(paid[0] - paid[1])] == [900, 0]


def loses_redis(world: World, times: float, *, after: bool = False) -> list[int]:
    """Shared state is away for so many questions of a gateway that takes a request back; ``after``: once it has done
    what it was asked. The attempts that it was asked for."""
    asked: list[int] = []
    store = world.app._store(world.pool.id)
    requeue = store.requeue

    async def away(request: QueuedRequest, *given: Any, **named: Any) -> Any:
        asked.append(request.attempt)
        if len(asked) > times:
            return await requeue(request, *given, **named)
        if after:
            await requeue(request, *given, **named)
        raise StateUnavailable

    store.requeue = away  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("after", [False, True], ids=["the question", "the answer"])
async def test_a_short_outage_of_shared_state_at_that_moment_costs_nothing_but_time(world: World, after: bool) -> None:
    engine = world.engines[0]
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        await runs(world)
        asked = loses_redis(world, 2, after=after)
        await interrupt(world)
        await until(lambda: len(asked) == 3)
        engine.script = replace(engine.script, first_pause_s=0.0)
        world.granting = True
        assert (await asking).status_code == 200
    assert asked == [1, 1, 1]
    [record] = await world.ledger_of(1)
    assert (record.outcome, record.attempts, record.interruptions) == ("completed", 1, 1)
    await world.settled()


async def test_where_it_was_granted_during_an_outage_it_runs_without_the_limit_of_its_wait(world: World) -> None:
    engine = world.engines[0]
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=False))
        submitted = await runs(world)
        world.granting = True
        loses_redis(world, 2, after=True)
        await interrupt(world)
        await until(lambda: submitted.attempt == 2 and engine.open == 1)
        assert submitted.call.deadline == NEVER
        asking.cancel()
    await world.settled()


async def test_without_shared_state_it_ends_with_a_503_after_its_longest_wait(world: World) -> None:
    await world.configure(tier=replace(TIER, max_wait_s=0.5))
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        submitted = await runs(world)
        loses_redis(world, float("inf"))
        await interrupt(world)
        answer = await asking
        assert (answer.status_code, answer.headers["x-quartermaster-reason"]) == (503, "state_unavailable")
        assert submitted.call.closed
    await world.settled()


@pytest.mark.parametrize(
    "reason", [Reason.CLIENT_LEFT, Reason.OPERATOR, Reason.KEY_REVOKED, Reason.SHUTTING_DOWN, Reason.EVICTED], ids=str
)
async def test_what_ends_a_request_at_the_moment_of_its_interruption_ends_it(world: World, reason: Reason) -> None:
    """Nobody says it again: it would wait, and compute all of its prompt, for nobody."""
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        submitted = await runs(world)
        submitted.preempted(PreemptionNotice(submitted.id, 1, submitted.backend, 900))
        submitted.call.interrupt(reason)
        [record] = await world.ledger_of(1)
        assert (record.reason, record.attempts) == (reason.value, 1)
        asking.cancel()
    await world.settled()


async def test_a_server_that_gives_up_at_that_moment_is_heard(world: World) -> None:
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        submitted = await runs(world)
        submitted.preempted(PreemptionNotice(submitted.id, 1, submitted.backend, 900))
        submitted.call.task.cancel()
        [record] = await world.ledger_of(1)
        assert (record.reason, record.attempts) == ("shutting_down", 1)
        asking.cancel()
    await world.settled()


async def test_where_it_fails_after_it_has_resumed_its_longest_wait_does_not_start_again(world: World) -> None:
    """No leader grants it after that."""
    engine = world.engines[0]
    async with world.http() as client:
        asking = asyncio.create_task(ask(client, stream=True))
        submitted = await runs(world)
        await interrupt(world)
        await waiting(world)
        until_loop = submitted.call.deadline
        world.granting = True
        await until(lambda: engine.open == 1)
        world.granting = False
        await world.store.set_ready(world.epoch, submitted.backend, None)
        world.app._in_flight.ejected(submitted.backend)
        request = await waiting(world)
        await until(lambda: submitted.waiter is not None)
        assert (request.attempt, submitted.call.deadline) == (3, until_loop)
        asking.cancel()
    await world.settled()
