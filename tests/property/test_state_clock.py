"""State time, against random steps of Redis' clock and pauses of everybody: it goes on as time does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from scheduling.state.resp import RespConnection
from scheduling.state.script import CLOCK_TICK_MS, Script, load_scripts
from scheduling.state.store import PoolStore
from scheduling.state.types import CLOCK_GAP_MS, leader_channel
from tests.support.connected import connected
from tests.support.dispatch_world import until_await
from tests.support.redis_server import RedisServer
from tests.support.state_model import variant

TIME = "redis.call('TIME')"
SET_TIME = "redis.call('LRANGE', KEYS[1] .. 'test_time', 0, -1)"
CALL_MS = 250  # the longest between two calls while all is well


def set_scripts() -> dict[str, Script]:
    """The scripts of production, on a TIME that a test sets."""
    return {name: variant(script, TIME, SET_TIME) for name, script in load_scripts().items()}


class World:
    """A leader that sweeps each second, others who look more often, and a clock that is set."""

    def __init__(self, run: Any, resp: RespConnection, name: str, scripts: dict[str, Script]) -> None:
        self.run, self.resp, self.prefix = run, resp, f"qm:{{{name}}}:"
        self.store = PoolStore(resp, name, scripts=scripts)
        self.true_ms, self.off_ms = 0, 1_700_000_000_000
        self.wait(1)
        self.epoch = run(self.store.elect("leader", 0, True)).epoch
        self.swept_at: int | None = None
        self.seen = self.first = self.look()
        self.lost_ms = 0  # since the call before, at each step back: not known to anybody
        self.gained_ms = 0  # steps forward that pass for time
        self.sweep()

    def wait(self, ms: int) -> None:
        self.true_ms += ms
        now = self.true_ms + self.off_ms
        key = self.prefix + "test_time"
        self.run(self.resp.call("DEL", key))
        self.run(self.resp.call("RPUSH", key, now // 1000, now % 1000 * 1000))

    def look(self) -> int:
        now = self.run(self.store.view()).now_ms
        return int(now)

    def sweep(self) -> None:
        passed_s = None if self.swept_at is None else (self.true_ms - self.swept_at) / 1000
        self.run(self.store.sweep(self.epoch, passed_s))
        self.swept_at = self.true_ms

    def check(self) -> None:
        now = self.look()
        assert now > self.seen - CLOCK_TICK_MS, "state time went back"
        self.seen = max(now, self.seen)

    def error_ms(self) -> int:
        """By how much state time is ahead of what has passed."""
        return self.look() - self.first - (self.true_ms - 1)


@pytest.fixture(scope="module")
def make(redis_server: RedisServer) -> Iterator[Any]:
    with asyncio.Runner() as runner:

        async def connect() -> RespConnection:
            return await connected(RespConnection(redis_server.url, name="clock-model", call_timeout=10.0))

        resp = runner.run(connect())
        number = iter(range(10_000))
        yield lambda scripts: World(runner.run, resp, f"clock-{next(number)}", scripts)
        runner.run(resp.close())


async def nobody_listens(world: World, holder: str) -> bool:
    return not (await world.resp.call("PUBSUB", "NUMSUB", leader_channel(holder)))[1]


@contextlib.contextmanager
def subscribed(server: RedisServer, holder: str) -> Iterator[None]:
    """A process that lives: it listens on its channel."""
    with redis.Redis.from_url(server.url) as client, client.pubsub() as ears:
        ears.subscribe(leader_channel(holder))
        ears.get_message(timeout=5)
        yield


def walk(world: World, rng: random.Random, steps: int) -> None:
    """Each step: time passes, or the clock is set, or everybody is away; then a call, and each second a sweep."""
    for _ in range(steps):
        what = rng.random()
        if what < 0.05:  # set back, or forward by more than a pause between calls
            by = rng.choice((-1, 1)) * rng.randrange(CLOCK_GAP_MS + CALL_MS, 4_000_000)
            world.off_ms += by
            if by < 0:
                world.lost_ms += CALL_MS
        elif what < 0.08:  # set forward by less: it cannot be told from a slow second
            by = rng.randrange(CLOCK_GAP_MS - CALL_MS)
            world.off_ms += by
            world.gained_ms += by
        elif what < 0.10:  # set back by less
            world.off_ms -= rng.randrange(CLOCK_GAP_MS)
            world.lost_ms += CALL_MS
        elif what < 0.12:  # Redis is frozen, or all processes are
            world.wait(rng.randrange(100_000))
        world.wait(rng.randrange(1, CALL_MS))
        world.check()
        assert world.swept_at is not None
        if world.true_ms - world.swept_at >= 1000:
            world.sweep()
            world.check()
            assert -world.lost_ms - 200 <= world.error_ms() <= world.gained_ms + 200


def walk_all(make: Any, scripts: dict[str, Script]) -> None:
    for seed in range(6):
        walk(make(scripts), random.Random(seed), 300)


def test_state_time_goes_on_as_time_does(make: Any):
    walk_all(make, set_scripts())


STEPS = "step < -CLOCK_TICK_MS or step > CLOCK_GAP_MS"
BAD_CLOCKS = {
    "a clock that believes each step": (STEPS, "false"),
    "a clock that stands still after a step back": (STEPS, "step > CLOCK_GAP_MS"),
    "a clock that believes steps forward": (STEPS, "step < -CLOCK_TICK_MS"),
    "a clock that takes pauses for steps": ("if doubt == 0 then return end", "if true then return end"),
    "a leader whose word is not asked": ("doubt = math.max(0, math.min(doubt, passed - (now - since)))", ""),
}


@pytest.mark.parametrize("name", BAD_CLOCKS)
def test_the_walk_notices(make: Any, name: str):
    old, new = BAD_CLOCKS[name]
    whole = set_scripts()
    broken = {n: variant(s, old, new) for n, s in whole.items() if old in s.text}  # few ask who doubts
    assert broken
    scripts = whole | broken
    with pytest.raises(AssertionError):
        walk_all(make, scripts)


def test_without_a_leader_before_the_clock_is_believed_and_a_new_one_gives_back_what_was_in_doubt(make: Any):
    world = make(set_scripts())
    world.wait(60_000)  # nobody was there: a night, or a step
    assert world.error_ms() < -50_000
    world.swept_at = None
    world.sweep()
    assert abs(world.error_ms()) < 300


def test_a_leader_that_died_before_everybody_was_away_is_followed_at_once(make: Any):
    world = make(set_scripts())
    assert not world.run(world.store.elect("other", 0, False)).leader
    world.wait(60_000)
    assert world.run(world.store.elect("other", 0, False)).leader


@pytest.mark.parametrize("listens", [False, True])
def test_who_has_just_been_elected_after_an_outage_leads(make: Any, redis_server: RedisServer, listens: bool):
    """Time is in doubt until its first sweep: others that stand meanwhile do not take turns with it."""
    world = make(set_scripts())
    world.wait(60_000)
    with subscribed(redis_server, "second") if listens else contextlib.nullcontext():
        won = world.run(world.store.elect("second", 0, False))
        assert won.leader
        for holder in ("third", "leader"):
            world.wait(CALL_MS)
            assert not world.run(world.store.elect(holder, 0, False)).leader
        assert world.run(world.store.elect("second", 0, False)).epoch == won.epoch
        world.wait(60_000)  # it was away, too, and others were not told that it lives
        assert world.run(world.store.elect("third", 0, False)).leader is not listens


def test_a_leader_that_lives_is_not_followed_because_the_clock_was_set(make: Any, redis_server: RedisServer):
    """Its next sweep tells what has passed. A new leader's first would take an hour for true, and fill all buckets."""
    world = make(set_scripts())
    with subscribed(redis_server, "second"):
        world.wait(10_000)
        epoch = world.run(world.store.elect("second", 0, False)).epoch
        world.epoch, world.swept_at = epoch, None
        world.sweep()
        world.off_ms += 3_600_000
        before = world.error_ms()
        world.wait(CALL_MS)
        assert not world.run(world.store.elect("third", 0, False)).leader
        world.sweep()
        assert abs(world.error_ms() - before) < 300
    world.run(until_await(lambda: nobody_listens(world, "second")))
    assert world.run(world.store.elect("third", 0, False)).leader  # it has died: at once


def test_a_bucket_refills_by_time_that_passed(make: Any):
    """Not by a step forward, and on as before after a step back."""
    from tests.support.state_world import FACTS, backend, entitlement, estimate, pool_spec, request

    world = make(set_scripts())
    name = world.store.pool_id
    pool = pool_spec(name, backends=(backend("b1", 100, pool=name),))
    spec = entitlement("acme", name, tokens_per_s=10.0, burst_tokens=10_000.0, concurrency=100)
    world.run(world.store.set_ready(world.epoch, "b1", pool.backends[0]))
    number = iter(range(100))

    def level() -> float:
        asked = request(f"r{next(number)}", spec, estimate(50, 50))
        answer = world.run(world.store.admit(spec, pool, asked, estimate(50, 50), 100, FACTS))
        assert answer.level_tokens is not None
        return float(answer.level_tokens)

    assert level() == 9900
    for by_ms in (-600_000, 600_000, 3_600_000):
        world.off_ms += by_ms
        before = level()
        for _ in range(10):  # a second
            world.wait(100)
            world.check()
        world.sweep()
        assert 0 <= level() - (before - 100) <= 20
