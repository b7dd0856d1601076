"""Clocks that disagree, or are set while requests wait and run: Redis' decides, durations are nobody's to change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec, OverLimit, Slo
from scheduling.gateway.config import GatewayConfig
from scheduling.state.resp import RespConnection
from scheduling.state.script import Script, load_scripts
from scheduling.state.store import PoolStore
from tests.support.connected import connected
from tests.support.dispatch_world import catalog_of, dispatching, until_await
from tests.support.gateway_world import TIER, gateway_world, until
from tests.support.state_model import variant, variants
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request, tier

PATIENT = replace(TIER, slo=Slo(ttft_s=20.0, tbt_s=1.0), over_limit=OverLimit.WAIT, max_wait_s=30.0)
slow = pytest.mark.slow
OFF_S = 40.0  # longer than a lease, the longest wait and every target


class Wall:
    """The wall clock of this process, to be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off_s = 0.0
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.off_s)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


@pytest.mark.parametrize(("policy", "off_s"), [("edf", -OFF_S), ("fifo", OFF_S)])
async def test_who_waits_is_served_however_far_clocks_are_off(
    redis_url: str, wall: Wall, policy: str, off_s: float, figure: Callable[[str], None]
):
    wall.off_s = off_s
    pool_id = f"clocks-{policy}-{'behind' if off_s < 0 else 'ahead'}"
    async with gateway_world(redis_url, pool_id, lead=False) as world:
        one = BackendSpec(f"{pool_id}-b0", pool_id, world.engines[0].url, 1, 1_000_000)
        world.engines[0].script.first_pause_s = 0.02
        await world.configure(pool={"backends": (one,), "policy": policy}, tier=PATIENT)
        async with dispatching(redis_url, catalog_of(world.pool, world.entitlement)), world.http() as client:
            await until_await(lambda: ready(world.store))
            body = {"model": "demo", "prompt": "Hello", "max_tokens": 2}
            asked = [client.post("/v1/completions", json=body) for _ in range(8)]
            answers = await asyncio.gather(*asked)
        served = sum(a.status_code == 200 for a in answers)
        figure(f"Redis {-off_s:+g} s against the gateway, {policy}: {served} of 8 served")
        assert [a.status_code for a in answers] == [200] * 8, {a.headers["x-quartermaster-reason"] for a in answers}
        assert {record.reason for record in world.metrics.records} == {"length"}


async def ready(store: PoolStore) -> bool:
    return any(b.ready for b in (await store.view()).backends.values())


@pytest.mark.parametrize("off_s", [-OFF_S, OFF_S])
async def test_a_step_of_the_wall_clock_leaves_the_times_of_a_request_as_they_are(
    redis_url: str, wall: Wall, off_s: float
):
    async with gateway_world(redis_url, f"clocks-step-{'back' if off_s < 0 else 'on'}") as world:
        world.engines[0].script.first_pause_s = 0.1
        async with world.http() as client:
            body: dict[str, Any] = {"model": "demo", "prompt": "Hello", "max_tokens": 2, "stream": True}
            began = asyncio.get_running_loop().time()
            asking = asyncio.ensure_future(client.post("/v1/completions", json=body))
            await until(lambda: world.engines[0].open == 1)
            wall.off_s = off_s
            assert (await asking).status_code == 200
            took_s = asyncio.get_running_loop().time() - began
        (record,) = await world.ledger_of(1)
        assert record.granted_s is not None
        assert record.first_token_s is not None
        assert record.received_s <= record.granted_s <= record.first_token_s <= record.done_s
        assert 0 < record.done_s - record.received_s < took_s + 1
        assert record.slo_met


async def test_two_gateways_with_different_clocks_are_served_in_the_order_of_arrival(redis_url: str):
    """Deadlines and places follow from when shared state heard of a request, and how long its gateway had it before."""
    resp = RespConnection(redis_url, name="clocks")
    await connected(resp)
    store = PoolStore(resp, "clocks-two")
    pool = pool_spec("clocks-two", backends=(backend(slots=1, pool="clocks-two"),))
    patient = tier(over_limit=OverLimit.WAIT, queue_limit=100)
    spec = entitlement("acme", "clocks-two", tier=patient, concurrency=1)
    election = await store.elect("test", 0, True)
    await store.set_ready(election.epoch, "b1", pool.backends[0])
    held_s = (0.0, 0.5, 2.0, 0.25)  # how long gateways had them before they asked
    for number, had_s in enumerate(held_s):
        clock_s = time.time() + (OFF_S if number % 2 else -OFF_S)
        asked = request(
            f"r{number}", spec, arrival_s=clock_s - had_s, ttft_deadline_s=clock_s - had_s + 5,
            expires_s=clock_s - had_s + 30, hint_deadline_s=clock_s - had_s + 1,
        )  # fmt: skip
        await store.admit(spec, pool, asked, estimate(), 100, FACTS, sent_s=clock_s)
    await store.finish("r0", 1, Reason.STOP, 10, True, ledger("r0"))
    _, waiting = await store.load_queue()
    now_s = (await store.view()).now_ms / 1000
    for found in waiting:
        had_s = held_s[int(found.id[1:])]
        assert had_s - 0.01 <= now_s - found.arrival_s < had_s + 20  # and what this test took
        deadlines = found.ttft_deadline_s, found.expires_s, found.hint_deadline_s
        assert [None if d is None else round(d - found.arrival_s, 3) for d in deadlines] == [5, 30, 1]
    assert [r.id for r in sorted(waiting, key=lambda r: r.arrival_s)] == ["r2", "r1", "r3"]
    await resp.close()


TIME = "redis.call('TIME')"
STEPPED = """(function()
  local t = redis.call('TIME')
  return {t[1] + (tonumber(redis.call('GET', KEYS[1] .. 'test_step')) or 0), t[2]}
end)()"""


def stepped_scripts() -> dict[str, Script]:
    """The scripts of production with a lease of two seconds, on a TIME that is set by the key ``test_step`` [s]."""
    shorter = variants(load_scripts(), "LEASE_MS = 10000", "LEASE_MS = 2000")
    return {name: variant(script, TIME, STEPPED) for name, script in shorter.items()}


@pytest.mark.parametrize("step_s", [-600, pytest.param(40, marks=slow), pytest.param(3600, marks=slow)])
async def test_when_redis_clock_is_set_nobody_is_ended_and_the_dead_still_are(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, step_s: int, figure: Callable[[str], None]
):
    scripts = stepped_scripts()
    monkeypatch.setattr("scheduling.state.store.load_scripts", lambda: scripts)
    pool_id = f"clocks-set-{'back' if step_s < 0 else step_s}"
    async with gateway_world(redis_url, pool_id, lead=False, config=GatewayConfig(renew_every_s=0.3)) as world:
        two = BackendSpec(f"{pool_id}-b0", pool_id, world.engines[0].url, 2, 1_000_000)
        await world.configure(pool={"backends": (two,)}, tier=PATIENT)
        async with (
            dispatching(redis_url, catalog_of(world.pool, world.entitlement)) as dispatcher,
            world.http() as client,
        ):
            await until_await(lambda: ready(world.store))
            epoch = dispatcher.epoch
            dead = request("of-a-dead-gateway", world.entitlement, gateway="gone")
            await world.store.admit(world.entitlement, world.pool, dead, estimate(), 100, FACTS)
            world.engines[0].script.first_pause_s = 3.0
            body = {"model": "demo", "prompt": "Hello", "max_tokens": 2}
            asked = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for _ in range(3)]
            await until_await(lambda: counts(world.store, (2, 2)))
            await world.resp.call("SET", f"qm:{{{pool_id}}}:test_step", step_s)
            began = asyncio.get_running_loop().time()
            await until_await(lambda: ended(world.resp, pool_id, dead.id), 20)
            swept_s = asyncio.get_running_loop().time() - began
            answers = await asyncio.gather(*asked)
            served = sum(a.status_code == 200 for a in answers)
            figure(f"Redis set by {step_s:+} s: {served} of 3 served, dead leases (2 s) swept after {swept_s:.1f} s")
            assert [a.status_code for a in answers] == [200] * 3, [a.text for a in answers]
            assert dispatcher.epoch == epoch
        assert [record.reason for record in world.metrics.records] == ["length"] * 3


async def counts(store: PoolStore, expected: tuple[int, int]) -> bool:
    view = await store.view()
    return (view.running, view.waiting) == expected


async def ended(resp: RespConnection, pool_id: str, request_id: str) -> bool:
    return await resp.call("GET", f"qm:{{{pool_id}}}:ended:{request_id}") == b"gateway_lost"
