"""With what a replica is offered (slots, KV cache, credit, lengths, speed), and what its status says of that."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest.mock import AsyncMock

import pytest

from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.capacity.kv_overcommit import TARGET, KvUse
from scheduling.core.types import FULL_SPEED, BackendSpec, BackendView, PoolView
from scheduling.dispatch.replicas.watched import limits_of, offer_of
from tests.support.state_world import backend, pool_spec
from tests.unit.dispatch.test_dispatch_health import Ward, ward


def typed(name: str) -> BackendSpec:
    return BackendSpec(name, "p", f"http://{name}", 1000, 10**9)


@ward
async def test_a_figure_typed_too_large_is_bounded_by_what_the_engine_says(w: Ward):
    w.engines["b3"].says, w.engines["b3"].kv_tokens = EngineFacts(slots=16, step_tokens=512), 50_000
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3")), max_model_len=8192))
    await w.live(5)
    assert (w.store.ready["b3"].slots, w.store.ready["b3"].kv_tokens) == (16, 50_000)
    assert w.store.ready["b1"].slots == w.pool.backends[0].slots, "what says nothing keeps what was typed"


@ward
async def test_replicas_of_unlike_speed_are_offered_with_how_fast_each_was_measured(w: Ward):
    fast, slow = (replace(typed(name), tokens_per_s=rate) for name, rate in (("b3", 9000.0), ("b4", 3000.0)))
    pool = pool_spec(backends=(fast, slow))
    w.monitor.update(pool)
    await w.live(3)
    assert (w.store.ready["b3"].speed, w.store.ready["b4"].speed) == (FULL_SPEED, 333)
    w.engines["b3"].reachable = False
    await w.live(60)
    assert w.store.ready["b4"].speed == 333, "it is no faster while the other is away"
    w.engines["b3"].reachable = True
    await w.live(60)
    w.monitor.update(replace(pool, backends=(fast, slow, typed("b5"))))
    await w.live(3)
    assert {w.store.ready[name].speed for name in ("b3", "b4", "b5")} == {FULL_SPEED}, "of one nothing is known"


@ward
async def test_how_fast_replicas_are_is_found_while_they_serve_whatever_was_typed_in(w: Ward):
    for name, token_s in (("b3", 0.02), ("b4", 0.05)):
        engine = w.engines[name]
        engine.running, engine.tokens_per_scrape, engine.token_s, w.leases[name] = 8, 240.0, token_s, 8
    w.monitor.update(pool_spec(backends=tuple(replace(typed(name), tokens_per_s=9000.0) for name in ("b3", "b4"))))
    await w.live(10)
    assert (w.store.ready["b3"].speed, w.store.ready["b3"].token_us) == (FULL_SPEED, 0)
    assert (w.store.ready["b4"].speed, w.store.ready["b4"].token_us) == (400, 50_000)
    w.engines["b3"].reachable = False
    await w.live(60)
    assert w.store.ready["b4"].speed == 400, "it is no faster while the other is away"
    w.engines["b3"].reachable = True
    await w.live(60)
    rings = w.rings
    await w.live(20)
    assert w.rings == rings, "nothing is written while nothing moves"
    for name in ("b3", "b4"):
        w.engines[name].token_s = None
        w.engines[name].tokens = 0.0  # other processes, which do not say
    await w.live(5)
    assert (w.store.ready["b4"].speed, w.store.ready["b4"].token_us) == (FULL_SPEED, 0)


@ward
async def test_a_replica_with_a_shorter_context_than_anothers_is_offered_for_shorter_requests(w: Ward):
    w.engines["b3"].says, w.engines["b4"].says = EngineFacts(max_model_len=8192), EngineFacts(max_model_len=2048)
    pool = pool_spec(backends=(typed("b3"), typed("b4")), max_model_len=8192)
    w.monitor.update(pool)
    await w.live(3)
    assert (w.store.ready["b3"].longest, w.store.ready["b4"].longest) == (0, 1638), "estimates may be too low"
    shorter = next(s for s in w.monitor.statuses() if s.id == "b4")
    assert "requests of up to 1,638 tokens: its context is 2,048" in shorter.limits_why
    w.engines["b3"].reachable = False
    await w.live(60)
    assert w.state("b3") == "ejected"
    assert w.store.ready["b4"].longest == 1638, "what only the other takes waits for it"
    w.monitor.update(replace(pool, backends=pool.backends[1:]))
    await w.live(3)
    assert w.store.ready["b4"].longest == 0, "nobody takes more: the engine has the last word"


@ward
async def test_a_replica_resumes_prompts_where_its_only_engine_says_that_it_keeps_them(w: Ward):
    def told() -> list[bool]:
        return [w.store.ready[name].resumes for name in ("b3", "b4", "b5")]

    w.engines["b3"].keeps_prefixes = w.engines["b4"].keeps_prefixes = True
    w.engines["b4"].engines = 2
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"), typed("b4"), typed("b5"))))
    await w.live(5)
    assert told() == [True, False, False]
    view = PoolView({name: BackendView(name, 1, 1) for name in ("b3", "b4", "b5")})
    w.monitor.mask(view)
    assert [backend.resumes for backend in view.backends.values()] == [True, False, False]
    w.engines["b3"].keeps_prefixes, w.engines["b5"].keeps_prefixes = False, True
    await w.live(5)
    assert told() == [False, False, True], "it was started again with other options"


@ward
async def test_a_replica_that_the_leader_before_overcommitted_stays_so_until_it_is_looked_at(w: Ward):
    use = KvUse()
    use.inherit(4.0)
    w.engines["b3"].kv_usage = None
    backends = (*w.pool.backends, typed("b3"), typed("b4"))
    w.monitor.update(pool_spec(backends=backends), {"b3", "b4"}, parts={"b4": 0.5})
    w.monitor.overcommit(use, {}, 16.0)
    assert offer_of(w.monitor._backends["b3"]).kv_tokens == 4 * 10**9
    assert offer_of(w.monitor._backends["b4"]).kv_tokens == 2.5 * 10**9, "its cache was full"
    await w.live(2)
    assert w.store.ready["b3"].kv_tokens == 10**9, "it does not say how full its cache is"


@ward
async def test_a_replica_that_restarts_with_other_limits_is_asked_again(w: Ward):
    w.engines["b3"].says = EngineFacts(slots=16)
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"))))
    await w.live(5)
    w.engines["b3"].says, w.engines["b3"].tokens = EngineFacts(slots=8), 0.0
    await w.live(5)
    assert w.store.ready["b3"].slots == 8


@ward
async def test_a_replica_that_was_away_while_it_restarted_is_asked_again(w: Ward):
    engine = w.engines["b3"]
    engine.says, engine.tokens_per_scrape = EngineFacts(slots=16), 50.0
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"))))
    await w.live(5)
    engine.scrapable = False
    w.monitor.suspect("b3", "the answer was cut")
    await w.live(1)
    assert w.state("b3") == "ready", "it had generated again when it was asked to"
    engine.says, engine.tokens, engine.scrapable = EngineFacts(slots=8), 0.0, True
    await w.live(3)
    assert w.store.ready["b3"].slots == 8
    engine.reachable = False
    w.monitor.suspect("b3", "the answer was cut")
    await w.live(1)
    assert w.state("b3") == "ejected"
    engine.says, engine.tokens, engine.reachable = EngineFacts(slots=4), 0.0, True
    await w.live(3)
    assert w.store.ready["b3"].slots == 4


@ward
async def test_an_engine_that_does_not_say_its_limit_gets_no_more_than_it_was_seen_to_run(w: Ward):
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"))))
    await w.live(2)
    engine = w.engines["b3"]
    engine.running, engine.waiting, engine.tokens_per_scrape, w.leases["b3"] = 32, 60, 10.0, 92
    await w.live(10)
    assert w.store.ready["b3"].slots == 32


@ward
async def test_what_waits_for_room_in_a_kv_cache_says_nothing_of_slots(w: Ward):
    """More may be reserved of a cache than it holds; where that was too much, it is taken back, and slots stay."""
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"))))
    await w.live(2)
    engine = w.engines["b3"]
    engine.running, engine.waiting, engine.tokens_per_scrape, w.leases["b3"] = 32, 60, 10.0, 92
    engine.kv_usage = 0.98
    await w.live(10)
    assert w.store.ready["b3"].slots == 1000
    engine.kv_usage = 0.4
    await w.live(10)
    assert w.store.ready["b3"].slots == 32


@ward
async def test_requests_that_others_send_to_an_engine_do_not_take_our_slots(w: Ward):
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"))))
    await w.live(2)
    engine = w.engines["b3"]
    engine.running, engine.waiting, engine.tokens_per_scrape, w.leases["b3"] = 32, 60, 10.0, 5
    await w.live(10)
    assert w.store.ready["b3"].slots == 1000


@ward
async def test_a_replica_has_the_credit_that_its_pool_says_or_half_a_step_of_its_engine(w: Ward):
    w.engines["b3"].says = EngineFacts(step_tokens=512)
    for wanted, offered in ((None, 256), (0, 0), (3000, 3000)):
        w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3")), prefill_credit=wanted))
        await w.live(3)
        assert offer_of(w.monitor._backends["b3"]).prefill_tokens == offered


@ward
async def test_steps_of_several_engines_behind_one_address_are_as_full_as_each_of_them_says(w: Ward):
    """Each of two takes ten full steps of 512 tokens a second; their step budget is that of both."""
    engine = w.engines["b3"]
    engine.says, engine.engines, engine.running = EngineFacts(step_tokens=1024), 2, 8
    engine.tokens_per_scrape, engine.prompts_per_scrape, engine.steps_per_scrape = 240.0, 10_000.0, 20.0
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"))))
    await w.live(8)
    status = next(s for s in w.monitor.statuses() if s.id == "b3")
    assert status.credit_why.endswith("steps of 1024 tokens were 100% full")


@ward
async def test_prompts_that_leave_an_engine_before_their_end_may_have_filled_its_steps(w: Ward):
    """It counts none of what it computed of them."""
    for name in ("b3", "b4"):
        engine = w.engines[name]
        engine.says, engine.running, engine.waiting, w.leases[name] = EngineFacts(step_tokens=1024), 8, 1, 9
        engine.tokens_per_scrape, engine.prompts_per_scrape, engine.steps_per_scrape = 80.0, 5_000.0, 10.0
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"), typed("b4"))))
    await w.live(2)
    for _ in range(20):
        w.monitor.lost("b4", 6_000, taken_back=True)
        w.monitor.lost("gone", 6_000)
        for name in ("b3", "b4"):
            w.monitor._backends[name].limited = True
        await w.live(1)
    assert w.store.ready["b3"].prefill_tokens > w.store.ready["b4"].prefill_tokens
    rates = [w.monitor._backends[name].speed.tokens_per_s for name in ("b3", "b4")]
    assert 5_000 <= rates[0] < 5_100 < 10_000 < rates[1] < 10_300


@ward
async def test_an_engine_with_our_scheduler_inside_has_no_credit_but_one_that_somebody_set(w: Ward):
    inside = partial(pool_spec, engine="vllm_plugin")
    for wanted, offered, why in ((None, 0, "off: the scheduler inside"), (3000, 3000, "as the pool says")):
        w.monitor.update(inside(backends=(*w.pool.backends, typed("b3")), prefill_credit=wanted))
        await w.live(4)
        status = next(s for s in w.monitor.statuses() if s.id == "b3")
        assert (status.prefill_credit, offer_of(w.monitor._backends["b3"]).prefill_tokens) == (offered, offered)
        assert status.credit_why.startswith(why)
    w.monitor.update(inside(backends=(replace(typed("b3"), prefill_tokens=700),)))
    await w.live(4)
    assert offer_of(w.monitor._backends["b3"]).prefill_tokens == 700, "its own figure stands"


@ward
async def test_what_prompts_have_in_common_may_be_reserved_besides_as_far_as_promises_hold(w: Ward):
    """Prompts are 0.9 of what is reserved; the engine holds a third of them."""
    use = KvUse()
    for _ in range(2000):
        use.ended("acme", 10_000, 9_000, 1_000, 10.0)
    engine = w.engines["b1"]
    engine.kv_usage = 0.3
    await w.live(1)
    cache = limits_of(w.monitor._backends["b1"])[0].kv_tokens

    async def offered(tbt_s: float | None) -> float:
        for _ in range(120):
            w.monitor.overcommit(use, {"acme": (10, cache)}, 16.0, {"b1": cache}, tbt_s)
            await w.live(1)
        return offer_of(w.monitor._backends["b1"]).kv_tokens / cache

    assert await offered(None) == pytest.approx(TARGET / (0.95 - 0.9 * 2 / 3), abs=0.1)
    assert await offered(0.1) == pytest.approx(TARGET / 0.95, abs=0.06), "this engine does not count its steps"


@ward
async def test_more_than_a_cache_may_be_reserved_until_it_is_full_or_the_engine_preempts(w: Ward):
    use = KvUse()
    for _ in range(2000):
        use.ended("acme", 8_000, 200, 1_000, 10.0)
    cache, engine = w.store.ready["b1"].kv_tokens, w.engines["b1"]

    async def look() -> int:
        w.monitor.overcommit(use, {}, 4.0)
        await w.live(2)
        offered = next(s.kv_offered for s in w.monitor.statuses() if s.id == "b1")
        assert offered == w.store.ready["b1"].kv_tokens
        return offered

    engine.kv_usage = None
    assert await look() == cache, "it does not say how full its cache is"
    engine.kv_usage = 0.3
    assert await look() == 4 * cache
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "scrape", AsyncMock(return_value=None))
        assert await look() == cache, "it has no figures any more"
    assert await look() == 4 * cache
    engine.preemptions = 2.0
    assert await look() == 2.5 * cache
    engine.kv_usage = 0.98
    for _ in range(80):
        last = await look()
    assert last == cache


@ward
async def test_what_others_send_to_an_engine_is_told_once_it_lasts(w: Ward):
    def foreign() -> int | None:
        return next(s.foreign for s in w.monitor.statuses() if s.id == "b1")

    engine = w.engines["b1"]
    engine.running, engine.tokens_per_scrape, w.leases["b1"] = 12, 10.0, 4
    await w.live(2)
    assert foreign() in (None, 0), "one look says nothing: leases lag behind"
    await w.live(8)
    assert foreign() == 8
    engine.running = 4
    await w.live(3)
    assert foreign() == 0


@ward
async def test_a_status_says_what_the_engine_said_what_is_in_force_and_why(w: Ward):
    w.engines["b3"].says = EngineFacts(slots=16, step_tokens=512, max_model_len=4096)
    w.monitor.update(pool_spec(backends=(*w.pool.backends, typed("b3"))))
    await w.live(4)
    found = {s.id: s for s in w.monitor.statuses()}
    assert (found["b3"].engine_facts.slots, found["b3"].slots, found["b3"].kv_tokens) == (16, 16, 10**9)
    assert found["b3"].limits_why.startswith("16 slots instead of 1000")
    assert (found["b1"].engine_facts, found["b1"].limits_why) == (EngineFacts(), ""), "what is not said is not known"


@ward
async def test_a_status_says_how_the_engine_should_have_been_started(w: Ward):
    w.engines["b3"].says = EngineFacts(max_model_len=4096, priority=False)
    w.engines["b4"].says = EngineFacts(max_model_len=8192, priority=True)
    w.monitor.update(pool_spec(backends=(typed("b3"),), max_model_len=8192))
    await w.live(3)
    (said,) = [s.limits_why for s in w.monitor.statuses()]
    assert "refuses requests of more than 4,096 tokens, and the pool takes up to 8,192" in said
    assert "start it with --scheduling-policy priority" in said
    w.monitor.update(pool_spec(backends=(typed("b4"),), max_model_len=8192))
    await w.live(3)
    assert [s.limits_why for s in w.monitor.statuses()] == [""]


@ward
async def test_credit_grows_while_every_decision_leaves_requests_that_lack_only_credit(w: Ward):
    w.engines["b1"].says = EngineFacts(step_tokens=512)
    engine, full = w.engines["b1"], BackendView("b1", 8, 10**6, running=1, prefill_used=512)
    w.leases["b1"], engine.running, engine.tokens_per_scrape = 1, 1, 10.0
    w.monitor.update(pool_spec(backends=(backend("b1"), backend("b2"), backend("b3"))))
    await w.live(3)
    before = w.monitor._backends["b1"].credit.credit
    w.monitor.decided(PoolView({"b1": full}), True, [3000] * 64)
    await w.live(30)
    assert w.monitor._backends["b1"].credit.credit > before, "what was decided stands until the next decision"
    w.monitor.idle()
    await w.live(200)
    assert w.monitor._backends["b1"].credit.credit == w.monitor._backends["b1"].credit.least


@ward
async def test_shared_state_is_told_what_waits_in_engines_that_have_a_credit(w: Ward):
    w.engines["b1"].waiting, w.leases["b1"] = 3, 9
    w.monitor.update(pool_spec(backends=w.pool.backends))
    await w.live(3)
    assert ("b1", 3) in w.store.looks
    w.monitor.update(pool_spec(backends=w.pool.backends, prefill_credit=0))
    w.store.looks.clear()
    await w.live(3)
    assert w.store.looks == [], "nobody holds credit there"
