"""Calls of one script that leave together are answered as if they had come one after the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import hiredis
import pytest
import pytest_asyncio

from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementSpec, OverLimit, ServiceClass
from scheduling.state.resp import RespConnection
from scheduling.state.script import CALLED_TOGETHER, load_scripts
from scheduling.state.store import PoolStore
from scheduling.state.types import AdmissionStatus, FinishStatus, StateError
from scheduling.state.wire import AT_ONCE, Together
from tests.support.connected import connected
from tests.support.redis_server import RedisServer
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, pool_spec, request, tier

POOL = pool_spec()
SPECS = (
    entitlement("acme", concurrency=5, tokens_per_s=0.001, burst_tokens=900.0),
    entitlement("globex", concurrency=3, tier=tier(over_limit=OverLimit.WAIT, queue_limit=4)),
    entitlement("initech", tier=tier(service_class=ServiceClass.SPOT, queue_limit=2)),
)
COUNT = 3 * AT_ONCE + 5


@pytest_asyncio.fixture
async def own(private_redis: RedisServer) -> AsyncIterator[RespConnection]:
    """A connection to a server whose commands can be counted."""
    connection = RespConnection(private_redis.url, name="test")
    yield await connected(connection)
    await connection.close()


async def ready(store: PoolStore) -> PoolStore:
    election = await store.elect("leader", 0, first_start=True)
    await leads_on(store)
    for number in range(3):
        await store.set_ready(election.epoch, f"b{number}", backend(f"b{number}"))
    return store


async def admit(store: PoolStore, name: str, spec: EntitlementSpec) -> tuple[Any, ...]:
    est = estimate()
    said = await store.admit(spec, POOL, request(name, spec, est), est, 10, FACTS)
    return said.status, said.reason, said.backend, said.inflight, said.position


async def commands(own: RespConnection, name: str) -> int:
    """How often the server ran one, by its own count."""
    text = (await own.call("INFO", "commandstats")).decode()
    return next((int(line.split("calls=")[1].split(",")[0]) for line in text.split() if f"_{name}:" in line), 0)


def wanted(seed: int) -> list[tuple[str, EntitlementSpec]]:
    rng = random.Random(seed)
    return [(f"r{number}", rng.choice(SPECS)) for number in range(COUNT)]


async def same(one: PoolStore, other: PoolStore, seed: int) -> None:
    """The same requests, one after the other and together, and their ends."""
    alone = [await admit(one, name, spec) for name, spec in wanted(seed)]
    together = await asyncio.gather(*(admit(other, name, spec) for name, spec in wanted(seed)))
    assert together == alone
    assert len({status for status, *_ in alone}) == 3, "granted, queued and refused"
    ran = [name for (name, _), said in zip(wanted(seed), alone, strict=True) if said[0] is AdmissionStatus.GRANTED]
    for store in (one, other):
        assert (await store.view()).running == len(ran)
    ends = await asyncio.gather(*(other.finish(name, 1, Reason.STOP, 140, True, ledger(name)) for name in ran))
    assert {end.status for end in ends} == {FinishStatus.OK}
    for name in ran:
        await one.finish(name, 1, Reason.STOP, 140, True, ledger(name))
    assert [r.id for r in (await one.load_queue())[1]] == [r.id for r in (await other.load_queue())[1]]
    levels = [(await store.view()).entitlements["acme"].level_tokens for store in (one, other)]
    assert levels[0] == pytest.approx(levels[1], abs=0.1)


async def test_they_answer_as_one_after_the_other_and_are_few_commands(own: RespConnection) -> None:
    for seed in range(3):
        one, other = await ready(PoolStore(own, f"one{seed}")), await ready(PoolStore(own, f"other{seed}"))
        await same(one, other, seed)
    before = await commands(own, "evalsha")
    await asyncio.gather(*(admit(other, f"again{n}", SPECS[1]) for n in range(COUNT)))
    assert await commands(own, "evalsha") - before == 4, f"{COUNT} calls, {AT_ONCE} in a command at most"


async def test_answers_that_go_to_the_wrong_calls_are_noticed(
    own: RespConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_out = Together.set_result

    def shuffled(self: Together, reply: Any) -> None:
        shared_out(self, reply[::-1] if isinstance(reply, list) else reply)

    one, other = await ready(PoolStore(own, "one")), await ready(PoolStore(own, "other"))
    monkeypatch.setattr(Together, "set_result", shuffled)
    with pytest.raises(AssertionError):
        await same(one, other, 0)


async def test_an_error_of_one_is_its_own(own: RespConnection) -> None:
    store = await ready(PoolStore(own, "p"))
    broken: Sequence[Any] = ("r", 1, "acme", "elastic", "no number")
    answers = await asyncio.gather(
        admit(store, "r1", SPECS[1]),
        own.eval(load_scripts()["admit"], b"qm:{p}:", broken),
        admit(store, "r2", SPECS[1]),
        return_exceptions=True,
    )
    assert isinstance(answers[1], StateError)
    assert "admit.lua" in str(answers[1])
    assert [said[0] for said in (answers[0], answers[2])] == [AdmissionStatus.GRANTED] * 2  # type: ignore[index]
    assert (await store.view()).running == 2


async def test_one_that_is_cancelled_shifts_no_answer_of_the_others(own: RespConnection) -> None:
    store = await ready(PoolStore(own, "p"))
    tasks = [asyncio.create_task(admit(store, f"r{n}", SPECS[1])) for n in range(6)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    said = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one[3] for one in said[1::2]] == [2, 4, 6], "in flight when the second, fourth and sixth came"  # type: ignore[index]


async def test_a_server_that_knows_no_script_is_sent_it_once_for_all(own: RespConnection) -> None:
    store = await ready(PoolStore(own, "p"))
    await own.call("SCRIPT", "FLUSH")
    before = await commands(own, "eval")
    said = await asyncio.gather(*(admit(store, f"r{n}", SPECS[1]) for n in range(3)))
    assert [one[3] for one in said] == [1, 2, 3]
    assert await commands(own, "eval") - before == 1


def test_each_of_them_answers_in_a_list() -> None:
    assert all(load_scripts()[name].many for name in CALLED_TOGETHER)
    group = Together(None, load_scripts()["admit"], b"qm:{p}:")  # type: ignore[arg-type]
    loop = asyncio.new_event_loop()
    group.futures = [loop.create_future() for _ in range(2)]
    group.set_result([b"one"])  # what no server of ours says: nobody waits for ever
    assert all(future.exception() is not None for future in group.futures)
    group.futures = [loop.create_future() for _ in range(2)]
    group.set_result(hiredis.ReplyError("BUSY"))
    assert [str(future.result()) for future in group.futures] == ["BUSY", "BUSY"]
    loop.close()
