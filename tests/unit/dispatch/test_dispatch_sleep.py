"""Sleeping replicas: noticed, woken when requests wait, put to sleep when nobody does."""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.types import ScalingMode, ScalingSpec
from scheduling.dispatch.replicas.sleeping import SLEEP_AGAIN_S, WAKE_AGAIN_S
from scheduling.dispatch.replicas.watched import WAKE_S
from tests.unit.dispatch.test_dispatch_health import Ward, ward

TO_ZERO = ScalingSpec(ScalingMode.AUTOMATIC, 0, 2, "local", idle_s=30.0)


def failing(w: Ward) -> set[str]:
    """Replicas that are asleep and could not be woken."""
    return {status.id for status in w.monitor.statuses() if status.wake_fails}


@ward
async def test_a_replica_that_is_put_to_sleep_gets_nothing_and_is_not_asked_for_a_token(w: Ward):
    engine = w.engines["b1"]
    engine.asleep = True
    before = engine.probes
    await w.live(30)
    assert w.state("b1") == "asleep"
    assert "b1" not in w.store.ready
    assert "b1" not in w.store.told_ill
    assert engine.probes == before, "a generation would wait until it is woken"
    assert engine.wakes == 0, "nobody waits"
    assert w.store.waking_ms == 0, "the other one serves"


@ward
async def test_requests_wait_for_a_pool_whose_replicas_all_sleep_and_wake_one(w: Ward):
    for name in ("b1", "b2"):
        w.engines[name].asleep, w.engines[name].wake_takes_s = True, 6.0
    await w.live(3)
    assert w.store.ready == {}
    assert w.store.waking_ms == 1000 * WAKE_S
    w.monitor.sleep.wake(1)
    w.monitor.sleep.wake(1)
    await w.live(3)
    assert [w.engines[name].wakes for name in ("b1", "b2")] == [1, 0], "one is enough for one request"
    assert w.monitor.sleep.wakes_in_s < WAKE_S
    await w.live(10)
    assert (w.state("b1"), w.state("b2")) == ("ready", "asleep")
    assert w.store.waking_ms == 0
    w.monitor.sleep.wake(1)
    await w.live(10)
    assert w.engines["b2"].wakes == 0
    w.monitor.sleep.wake(w.pool.backends[0].slots + 1)
    await w.live(10)
    assert w.state("b2") == "ready", "more wait than the first has slots"


@ward
async def test_how_long_a_wake_takes_is_learned(w: Ward):
    for name in ("b1", "b2"):
        w.engines[name].asleep, w.engines[name].wake_takes_s = True, 6.0
    await w.live(3)
    w.monitor.sleep.wake(1)
    await w.live(15)
    w.engines["b1"].asleep = True
    await w.live(3)
    assert 6.0 <= w.monitor.sleep.wakes_in_s <= 9.0


@ward
async def test_an_engine_that_cannot_be_woken_is_asked_again_after_a_while_and_says_why(w: Ward):
    for name in ("b1", "b2"):
        w.engines[name].asleep, w.engines[name].can_sleep = True, False
    await w.live(3)
    w.monitor.sleep.wake(1)
    await w.live(2)
    assert "could not be woken" in w.why("b1")
    assert failing(w) == {"b1"}
    w.monitor.sleep.wake(1)
    await w.live(2)
    assert w.engines["b1"].wakes == 1
    assert w.engines["b2"].wakes == 1, "another one may be able to"
    await w.live(WAKE_AGAIN_S)
    w.monitor.sleep.wake(1)
    await w.live(2)
    assert w.engines["b1"].wakes == 2
    w.engines["b1"].asleep = False
    await w.live(10)
    assert w.state("b1") == "ready"
    assert "b1" not in failing(w), "somebody else has woken it"


@ward
async def test_a_wake_that_takes_three_times_as_long_as_expected_has_failed(w: Ward):
    for name in ("b1", "b2"):
        w.engines[name].asleep, w.engines[name].wake_takes_s = True, 10 * WAKE_S
    await w.live(30)
    assert failing(w) == set(), "nobody waits for it"
    w.monitor.sleep.wake(1)
    await w.live(2 * WAKE_S)
    assert failing(w) == set()
    await w.live(2 * WAKE_S)
    assert failing(w) == {"b1"}


@ward
async def test_idle_replicas_sleep_after_the_pools_time_and_not_before(w: Ward):
    w.pool = replace(w.pool, sleep_after_s=30.0)
    w.monitor.update(w.pool)
    for _ in range(25):
        w.monitor.sleep.rest(True)
        await w.live(1)
    w.monitor.sleep.rest(False)
    for _ in range(25):
        w.monitor.sleep.rest(True)
        await w.live(1)
    assert w.engines["b1"].sleeps == 0
    for _ in range(10):
        w.monitor.sleep.rest(True)
        await w.live(1)
    assert (w.state("b1"), w.state("b2")) == ("asleep", "asleep")
    assert (w.engines["b1"].sleeps, w.engines["b2"].sleeps) == (1, 1)
    assert w.store.waking_ms > 0


@ward
async def test_an_engine_that_cannot_sleep_serves_on_and_is_left_alone(w: Ward):
    w.pool = replace(w.pool, sleep_after_s=10.0)
    w.monitor.update(w.pool)
    w.engines["b1"].can_sleep = w.engines["b2"].can_sleep = False
    for _ in range(60):
        w.monitor.sleep.rest(True)
        await w.live(1)
    assert (w.state("b1"), w.state("b2")) == ("ready", "ready")
    assert w.engines["b1"].sleeps == 1
    assert SLEEP_AGAIN_S > 60
    assert "b1" in w.store.ready


@ward
async def test_a_pool_without_any_replica_that_somebody_adds_to_lets_requests_wait(w: Ward):
    full = replace(w.pool, scaling=TO_ZERO, wakes_in_s=60.0)
    w.monitor.update(replace(full, backends=()))
    await w.live(2)
    assert w.store.waking_ms == 60_000
    w.monitor.update(replace(full, backends=(), scaling=ScalingSpec()))
    await w.live(2)
    assert w.store.waking_ms == 0, "nobody adds one"


@ward
async def test_the_time_until_an_added_replica_serves_runs_down_and_is_known_the_next_time(w: Ward):
    full = replace(w.pool, scaling=TO_ZERO, wakes_in_s=60.0)
    w.monitor.update(replace(full, backends=()))
    await w.live(2)
    w.monitor.sleep.wake(1)
    await w.live(20)
    assert 38_000 <= w.store.waking_ms <= 42_000
    w.engines["b1"].reachable = False
    w.monitor.update(replace(full, backends=full.backends[:1]))
    await w.live(10)
    assert 28_000 <= w.store.waking_ms <= 32_000, "it starts: nothing else has to be said"
    w.engines["b1"].reachable = True
    await w.live(5)
    assert w.state("b1") == "ready"
    assert w.store.waking_ms == 0
    w.monitor.update(replace(full, backends=()))
    await w.live(2)
    assert 28_000 <= w.store.waking_ms <= 40_000, "as long as it took"


@ward
async def test_a_replica_that_does_not_come_or_has_failed_is_not_called_asleep(w: Ward):
    full = replace(w.pool, scaling=TO_ZERO, wakes_in_s=10.0)
    w.monitor.update(replace(full, backends=()))
    w.monitor.sleep.wake(1)
    await w.live(29)
    assert w.store.waking_ms > 0
    await w.live(3)
    assert w.store.waking_ms == 0, "three times as long as it should take"
    w.monitor.sleep.not_wanted()
    await w.live(2)
    assert w.store.waking_ms == 10_000, "who comes next may try again"
    w.monitor.update(replace(full, backends=full.backends[:1]))
    await w.live(5)
    assert w.state("b1") == "ready"
    w.engines["b1"].reachable = False
    await w.live(60)
    assert w.state("b1") == "ejected"
    assert w.store.waking_ms == 0
