"""A key whose clients come back at once, whatever Retry-After says, has a door of its own that costs others less."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import KeySpec, RateLimits
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.entry import storms
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.storms import MAX_DRAINED, MEMO_S, STORM_AFTER, STORM_MOST, STORM_PER_S, Storms
from scheduling.gateway.errors import Refusal
from scheduling.state.store import PoolStore
from scheduling.state.types import AdmissionStatus
from tests.support.fake_engine import Script
from tests.support.gateway_world import World, gateway_world, make_key, until
from tests.support.overload_world import Overload, team

BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
PATH = "/v1/chat/completions"


@pytest.fixture
async def world(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """``acme`` may have one request at a time; ``calm`` as many as it likes. A storm begins after a few refusals,
    and one of them speaks for a time that a slow machine keeps to."""
    monkeypatch.setattr(storms, "STORM_AFTER", 10)
    monkeypatch.setattr(storms, "STORM_PER_S", 0.1)
    monkeypatch.setattr(storms, "MEMO_S", 2.0)
    monkeypatch.setattr("scheduling.gateway.request_handler.HOLD_S", 0.01)
    async with gateway_world(redis_url, "storm") as world:
        calm = replace(world.entitlement, id="calm-ent", tenant="calm")
        world.calm_key, spec = make_key(777, calm.id)  # type: ignore[attr-defined]
        plain = world._catalog

        def both(version: int) -> Any:
            c = plain(version)
            return replace(c, entitlements={**c.entitlements, calm.id: calm}, keys={**c.keys, spec.id: spec})

        monkeypatch.setattr(world, "_catalog", both)
        await world.configure(concurrency=1)
        yield world


class Asked:
    """How often shared state was asked, and for whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: Counter[str] = Counter()
        admit = PoolStore.admit

        async def counted(store: PoolStore, spec: Any, *rest: Any, **named: Any) -> Any:
            self.of[spec.tenant] += 1
            return await admit(store, spec, *rest, **named)

        monkeypatch.setattr(PoolStore, "admit", counted)


@asynccontextmanager
async def full(world: World, http: httpx.AsyncClient) -> AsyncIterator[None]:
    """``acme`` runs the one request it may have, until this is left."""
    engine = world.engines[0]
    engine.script = Script(first_pause_s=3600)
    running = asyncio.create_task(http.post(PATH, json=BODY))
    await until(lambda: engine.open == 1)
    engine.script = Script()
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.settled()


async def storm(http: httpx.AsyncClient, count: int, at_once: int = 20) -> list[httpx.Response]:
    """``count`` requests, each sent as soon as one before it was answered."""
    left = iter(range(count))
    answers: list[httpx.Response] = []

    async def client() -> None:
        for _ in left:
            answers.append(await http.post(PATH, json=BODY))

    await asyncio.gather(*(client() for _ in range(at_once)))
    return answers


async def test_a_key_that_storms_is_refused_without_parsing_asking_and_a_row_for_each(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    asked = Asked(monkeypatch)
    async with world.http() as http, full(world, http):
        answers = await storm(http, 300)
        assert {a.status_code for a in answers} == {429}
        assert {a.headers["x-quartermaster-reason"] for a in answers} == {"concurrency"}
        assert all(int(a.headers["retry-after-ms"]) >= 750 for a in answers)
        assert len({a.headers["x-request-id"] for a in answers}) == 300
        cheap = len(world.metrics.storm_refusals)
        assert set(world.metrics.storm_refusals) == {"concurrency"}
        assert cheap >= 200
        assert asked.of["acme"] == 1 + 300 - cheap
        assert len([r for r in world.metrics.records if r.tenant == "acme"]) == 300 - cheap
        headers = {"authorization": f"Bearer {world.calm_key}"}  # type: ignore[attr-defined]
        assert (await http.post(PATH, json=BODY, headers=headers)).status_code == 200, "another key is served as ever"
        assert len(world.metrics.storm_refusals) == cheap


async def test_the_door_opens_as_soon_as_the_key_has_room(world: World):
    async with world.http() as http:
        async with full(world, http):
            await storm(http, 60)
            assert world.metrics.storm_refusals
        await asyncio.sleep(2.0)
        assert (await http.post(PATH, json=BODY)).status_code == 200, "the first one after the memo asks"
        assert (await http.post(PATH, json=BODY)).status_code == 200, "and one that is admitted opens the door"


async def test_a_body_that_is_long_costs_the_key_its_connection_and_us_no_memory(world: World):
    long = {**BODY, "messages": [{"role": "user", "content": "x" * (2 * MAX_DRAINED)}]}
    async with world.http() as http, full(world, http):
        await storm(http, 60)
        world.metrics.storm_refusals.clear()
        answers = [await http.post(PATH, json=long) for _ in range(10)]
        assert {a.status_code for a in answers} == {429}
        closed = [a for a in answers if a.headers.get("connection") == "close"]
        assert len(closed) == len(world.metrics.storm_refusals) >= 1


async def test_the_body_of_a_key_that_storms_is_not_parsed(world: World):
    async with world.http() as http, full(world, http):
        await storm(http, 60)
        answers = await asyncio.gather(*(http.post(PATH, content=b"{") for _ in range(20)))
        assert 429 in {a.status_code for a in answers}


# --- which keys storm, on a clock of ours


class Clock:
    """A gateway's storms on the simulated pool: it hears of every admission and refusal."""

    def __init__(self, world: Overload) -> None:
        self.world, self.storms, self.cheap = world, Storms(), 0
        self.stormed = False
        key = KeySpec("k" * 12, b"", "acme")
        self.access = Access(key, team(), world.pool, None, None)  # type: ignore[arg-type]
        ask = world.reference.admit

        def admit(*args: Any) -> Any:
            answer = ask(*args)
            if answer.status is AdmissionStatus.REFUSED:
                refusal = Refusal(answer.reason, retry_s=answer.retry_s)
                self.storms.refused(self.access, refusal, world.now_s)
            else:
                self.storms.admitted(self.access)
            self.stormed |= self.storms.answer(self.access, world.now_s) is not None
            return answer

        world.reference.admit = admit  # type: ignore[method-assign]


@pytest.mark.parametrize("clients", [20, 100, 190])
def test_a_key_whose_clients_wait_as_told_does_not_storm_however_many_they_are(clients: int):
    world = Overload()
    clock = Clock(world)
    world.crowd(team(), clients, 60)
    world.run(1000)
    assert len(world.told_s) > 50 or clients == 20
    assert not clock.stormed


def test_a_key_whose_clients_come_back_at_once_storms_within_a_second_and_is_calm_again_two_seconds_after():
    world = Overload()
    clock = Clock(world)
    world.arrivals(team(), 10 * world.capacity, 0, 5, retries=0)
    world.run(2)
    assert clock.stormed
    world.run(5)
    clock.storms.forget(world.now_s + (STORM_MOST - STORM_AFTER) / STORM_PER_S + 0.1)
    assert clock.storms.answer(clock.access, world.now_s + 3) is None
    clock.storms.forget(world.now_s + STORM_MOST / STORM_PER_S + 1)
    assert not clock.storms, "what was refused long ago is forgotten"


def test_a_request_too_large_for_its_bucket_speaks_for_no_other():
    access = Clock(Overload()).access
    storms_ = Storms()
    for _ in range(1000):
        storms_.refused(access, Refusal(Reason.TOKEN_BUDGET, retry_s=None, need=1), 0.0)
        storms_.refused(access, Refusal(Reason.INVALID_REQUEST, detail="no"), 0.0)
    assert not storms_


def test_one_refusal_speaks_for_a_moment_and_is_followed_by_one_question():
    access = Clock(Overload()).access
    storms_ = Storms()
    for _ in range(STORM_AFTER + 1):
        storms_.refused(access, Refusal(Reason.QUEUE_FULL, retry_s=30.0), 100.0)
    assert storms_.answer(access, 100.0 + MEMO_S - 0.001).retry_s >= 29  # type: ignore[union-attr, operator]
    assert storms_.answer(access, 100.0 + MEMO_S) is None
    assert storms_.answer(access, 100.0 + MEMO_S + 0.001) is not None, "one question at a time"
    storms_.admitted(access)
    assert storms_.answer(access, 100.0 + MEMO_S + 0.002) is None


def another_key(access: Access, number: int) -> Access:
    return replace(access, key=replace(access.key, id=f"{number:012}"))


def test_all_keys_of_an_entitlement_storm_together_and_who_asks_then_is_whichever_comes_first():
    access = Clock(Overload()).access
    others = [another_key(access, number) for number in range(400)]
    storms_, refusal, asked = Storms(), Refusal(Reason.CONCURRENCY, retry_s=30.0), 0
    for number in range(10_000):  # one a millisecond, each key every 0.4 s
        now = 100.0 + number / 1000
        if storms_.answer(others[number % 400], now) is None:
            asked += 1
            storms_.refused(others[number % 400], refusal, now)
    most = storms.OF_A_TENANT * (STORM_AFTER + 10 * STORM_PER_S) + 10 / MEMO_S
    assert asked < most < 5000
    ends_s = 110.0 + MEMO_S
    assert storms_.answer(others[0], 110.0) is not None
    assert storms_.answer(others[1], ends_s) is None, "another key asks when the refusal has spoken long enough"
    storms_.admitted(others[1])
    assert storms_.answer(others[2], ends_s) is None, "an admission of one of them opens the door for all"
    assert storms_.answer(replace(access, entitlement=replace(access.entitlement, id="other")), ends_s) is None


def test_one_key_in_a_storm_closes_the_door_of_no_other_and_its_limit_is_its_own():
    access = Clock(Overload()).access
    other, storms_ = another_key(access, 1), Storms()
    for number in range(20_000):
        now = 100.0 + number / 1000
        if storms_.answer(access, now) is None:
            storms_.refused(access, Refusal(Reason.CONCURRENCY, retry_s=30.0), now)
        assert number % 100 or storms_.answer(other, now) is None
    for number in range(50_000):
        storms_.refused(another_key(access, number), Refusal(Reason.KEY_LIMIT, retry_s=30.0), 200.0)
    assert storms_.answer(other, 200.0) is None


async def test_refusals_of_a_tenant_that_takes_its_keys_by_turns_are_not_all_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storms, "OF_A_TENANT", 2.0)
    made = [make_key(number, world.entitlement.id) for number in range(100)]
    plain = world._catalog
    more = {spec.id: spec for _, spec in made}
    monkeypatch.setattr(world, "_catalog", lambda version: replace(c := plain(version), keys={**c.keys, **more}))
    await world.configure(concurrency=1)
    asked = Asked(monkeypatch)
    async with world.http() as http, full(world, http):
        answers = [
            await http.post(PATH, json=BODY, headers={"authorization": f"Bearer {key}"})
            for key, _ in made
            for _ in "ab"
        ]
        assert {a.headers["x-quartermaster-reason"] for a in answers} == {"concurrency"}
        assert all(int(a.headers["retry-after-ms"]) >= 750 for a in answers)
        assert asked.of["acme"] == 1 + 200 - len(world.metrics.storm_refusals)
        assert asked.of["acme"] <= 4 * storms.STORM_AFTER, "more on a slow machine"
        calms = {"authorization": f"Bearer {world.calm_key}"}  # type: ignore[attr-defined]
        assert (await http.post(PATH, json=BODY, headers=calms)).status_code == 200, "another tenant is served"


async def test_wrong_requests_without_end_leave_few_ledger_rows_and_each_is_told_what_is_wrong(world: World) -> None:
    earlier = len(await world.ledger())  # of other tests
    async with world.http() as http:
        answers = [await http.post(PATH, json={"model": "demo", "max_tokens": number}) for number in range(1, 41)]
        assert {(a.status_code, a.json()["error"]["param"]) for a in answers} == {(400, "messages")}
        answers = [await http.post(PATH, json=BODY | {"model": "nothing"}) for _ in range(10)]
        assert {a.json()["error"]["code"] for a in answers} == {"unknown_model"}
        served = await http.post(PATH, json=BODY)
        assert served.status_code == 200, "what is right is served at once"
        calms = {"authorization": f"Bearer {world.calm_key}"}  # type: ignore[attr-defined]
        calm = await http.post(PATH, json={"model": "demo"}, headers=calms)
        assert calm.status_code == 400
    await world.settled()
    left_out = len(world.metrics.storm_refusals)
    assert set(world.metrics.storm_refusals) == {"invalid_request", "unknown_model"}
    records = (await world.ledger_of(earlier + 52 - left_out))[earlier:]
    mistakes = [r for r in records if r.reason == "invalid_request" and r.tenant == "acme"]
    assert storms.STORM_AFTER - 1 <= len(mistakes) <= 2 * storms.STORM_AFTER, "more on a slow machine"
    assert [r.tenant for r in records if r.outcome == "completed" or r.tenant == "calm"] == ["acme", "calm"]
    assert left_out + len(world.metrics.records) == 52, "each is counted, once"


async def test_a_tenant_that_takes_its_keys_by_turns_leaves_few_ledger_rows_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storms, "OF_A_TENANT", 2.0)
    made = [make_key(number, world.entitlement.id) for number in range(20)]
    plain = world._catalog
    more = {spec.id: spec for _, spec in made}
    monkeypatch.setattr(world, "_catalog", lambda version: replace(c := plain(version), keys={**c.keys, **more}))
    await world.configure(concurrency=1)
    earlier = len(await world.ledger())  # of other tests
    async with world.http() as http:
        for _ in range(3):
            for key, _ in made:  # three of each: no key is conspicuous
                answer = await http.post(PATH, json={"model": "demo"}, headers={"authorization": f"Bearer {key}"})
                assert answer.json()["error"]["param"] == "messages", "each is told what is wrong"
        calms = {"authorization": f"Bearer {world.calm_key}"}  # type: ignore[attr-defined]
        assert (await http.post(PATH, json={"model": "demo"}, headers=calms)).status_code == 400
        assert (await http.post(PATH, json=BODY)).status_code == 200, "what is right is served at once"
    await world.settled()
    left_out = len(world.metrics.storm_refusals)
    records = (await world.ledger_of(earlier + 62 - left_out))[earlier:]
    mistakes = [r for r in records if r.reason == "invalid_request" and r.tenant == "acme"]
    assert 2 * storms.STORM_AFTER - 1 <= len(mistakes) <= 4 * storms.STORM_AFTER, "more on a slow machine"
    assert sorted(r.tenant for r in records if r.outcome == "completed" or r.tenant == "calm") == ["acme", "calm"]


def test_what_leaves_no_row_for_its_key_does_not_count_for_the_tenant() -> None:
    """A single key in a storm takes no rows from the mistakes of the others."""
    access, storms_ = Clock(Overload()).access, Storms()
    other = replace(access, key=replace(access.key, id="o" * 12))
    wrong = Refusal(Reason.INVALID_REQUEST, detail="no")
    assert sum(not storms_.mistaken(access, wrong, 0.0) for _ in range(50_000)) == STORM_AFTER - 1
    assert not storms_.mistaken(other, wrong, 0.0)


async def test_users_beyond_their_limit_leave_few_ledger_rows_and_others_of_the_key_are_served(world: World) -> None:
    world.key_spec = replace(world.key_spec, user_limits=RateLimits(requests_per_minute=1))
    await world.configure(concurrency=1)
    earlier = len(await world.ledger())  # of other tests
    async with world.http() as http:
        users = [f"user-{number % 4}" for number in range(60)]  # names are the client's to make up
        answers = [await http.post(PATH, json=BODY | {"user": user}) for user in users]
        assert [a.status_code for a in answers] == [200] * 4 + [429] * 56
        assert {a.headers["x-quartermaster-reason"] for a in answers[4:]} == {"user_limit"}
        assert (await http.post(PATH, json=BODY | {"user": "another"})).status_code == 200
    await world.settled()
    left_out = len(world.metrics.storm_refusals)
    records = (await world.ledger_of(earlier + 61 - left_out))[earlier:]
    assert len([r for r in records if r.reason == "user_limit"]) <= 2 * storms.STORM_AFTER, "more on a slow machine"
    assert left_out + len(world.metrics.records) == 61, "each is counted, once"


async def test_a_key_whose_requests_are_right_again_has_a_row_for_each_mistake(world: World) -> None:
    earlier, keys = len(await world.ledger()), world.app._storms
    async with world.http() as http:
        for _ in range(20):
            await http.post(PATH, json={"model": "demo"})
        assert world.metrics.storm_refusals
        keys.forget(asyncio.get_running_loop().time() + 1e6)
        assert not keys._mistaken
        await world.settled()
        before = earlier + len(world.metrics.records)
        await world.ledger_of(before)
        await http.post(PATH, json={"model": "demo"})
        await world.ledger_of(before + 1)


async def test_lines_of_a_batch_that_are_wrong_have_a_row_each(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storms, "STORM_AFTER", 10)
    async with gateway_world(redis_url, "lines", config=GatewayConfig(records_mistakes=True)) as world:
        async with world.http() as http:
            for _ in range(30):
                await http.post(PATH, json={"model": "demo"})
        await world.ledger_of(30)
