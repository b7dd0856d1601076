"""Prefill and decode replicas as the pool's leader offers them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scheduling.core.placement.legs import PrefillReplica, choose_leg, share
from scheduling.core.types import BackendView, Phase, PoolView
from scheduling.state.types import BackendTotals, PoolSnapshot
from tests.support.dispatch_world import on_virtual_time
from tests.support.state_world import backend, pool_spec
from tests.unit.dispatch.test_dispatch_health import Store, Ward


class PhasedStore(Store):
    """As shared state keeps it: prefill replicas that are ready, and what they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.prefill: dict[str, int] = {}
        self.legs: dict[str, int] = {}

    async def set_prefill(self, epoch: int, slots: Mapping[str, int]) -> dict[str, int]:
        self.prefill = dict(slots)
        return self.legs


def phased(**phases: Phase) -> Any:
    """Runs a test with a ward of these replicas, all well, in a pool with a prefill credit of 1,000."""

    def decorate(test: Any) -> Any:
        def run() -> None:
            async def body() -> None:
                async with asyncio.TaskGroup() as group:
                    w = Ward(group, store=PhasedStore())
                    specs = tuple(replace(backend(name), phase=phase) for name, phase in phases.items())
                    w.pool = pool_spec(backends=specs, prefill_credit=1000)
                    w.monitor.update(w.pool, set())
                    await w.live(3)
                    await test(w)
                    w.monitor.update(pool_spec(backends=()))

            on_virtual_time(body)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


@phased(p1=Phase.PREFILL, p2=Phase.PREFILL, p3=Phase.PREFILL, d1=Phase.DECODE, d2=Phase.DECODE)
async def test_requests_are_granted_to_decode_replicas_each_with_its_share_of_the_prefill_credit(w: Ward):
    assert set(w.store.ready) == {"d1", "d2"}
    assert [w.store.ready[name].prefill_tokens for name in ("d1", "d2")] == [1500, 1500]
    assert set(w.store.prefill) == {"p1", "p2", "p3"}  # type: ignore[attr-defined]
    assert {s.state for s in w.monitor.statuses()} == {"ready"}
    assert {s.id: s.prefill_credit for s in w.monitor.statuses()} == {
        "p1": 1000, "p2": 1000, "p3": 1000, "d1": 1500, "d2": 1500,
    }  # fmt: skip


@phased(p1=Phase.PREFILL, p2=Phase.PREFILL, d1=Phase.DECODE)
async def test_a_prefill_replica_that_fails_takes_its_credit_with_it(w: Ward):
    w.engines["p2"].reachable = False
    await w.live(20)
    assert w.state("p2") == "ejected"
    assert set(w.store.prefill) == {"p1"}  # type: ignore[attr-defined]
    assert w.store.ready["d1"].prefill_tokens == 1000


async def cached(w: Ward, routing: str) -> list[tuple[object, ...]]:
    """What shared state is told of the caches of d1, if it goes by half of what it expects there."""
    told: list[tuple[object, ...]] = []

    async def set_cached(epoch: int, *words: object) -> None:
        told.append(words)

    w.store.set_cached = set_cached  # type: ignore[method-assign, assignment]
    w.monitor.update(replace(w.pool, routing=routing))
    there = BackendTotals(True, 4, 1000, 0, 0, 0, cache_trust=500, uncounted_most=256)
    await w.monitor.offers.cached(PoolSnapshot(0, 1, "l", 0, None, 0, 0, 0, 0, backends={"d1": there}))
    return told


@phased(p1=Phase.PREFILL, d1=Phase.DECODE)
async def test_nothing_is_expected_to_be_cached_where_another_replica_computes_the_prompt(w: Ward):
    assert await cached(w, "prefix_affinity") == [("d1", -1, 0)]


@phased(d1=Phase.BOTH)
async def test_what_is_expected_to_be_cached_is_told_where_the_routing_goes_by_it(w: Ward):
    ((name, trust, _),) = await cached(w, "prefix_affinity")
    assert (name, trust) == ("d1", 0), "nothing is known of it yet"
    assert await cached(w, "least_work") == [("d1", -1, 0)]


@phased(p1=Phase.PREFILL, d1=Phase.DECODE)
async def test_a_prefill_replica_that_comes_or_goes_changes_what_decode_replicas_are_offered_at_once(w: Ward):
    await w.monitor.change(w.monitor._backends["p1"], "ejected", "test")
    assert not w.store.ready, "before the leader's next look"
    await w.monitor.change(w.monitor._backends["p1"], "ready", "test")
    assert set(w.store.ready) == {"d1"}
    assert set(w.store.prefill) == {"p1"}  # type: ignore[attr-defined]


@phased(p1=Phase.PREFILL, d1=Phase.DECODE)
async def test_without_the_other_phase_nothing_is_granted_and_the_state_says_so(w: Ward):
    w.monitor.update(replace(w.pool, backends=w.pool.backends[1:]))
    await w.live(2)
    assert not w.store.ready
    assert not w.store.prefill  # type: ignore[attr-defined]
    assert not w.monitor.sleep.serves
    assert w.state("d1") == "unpaired"
    assert "no prefill replica" in w.why("d1")


@phased(p1=Phase.PREFILL, b1=Phase.BOTH)
async def test_a_prefill_replica_alone_is_told_beside_those_that_do_both(w: Ward):
    assert set(w.store.ready) == {"b1"}
    assert w.store.ready["b1"].prefill_tokens == 1000
    assert (w.state("p1"), w.state("b1")) == ("unpaired", "ready")


@phased(p1=Phase.PREFILL, d1=Phase.DECODE)
async def test_prompts_on_their_way_are_not_taken_for_other_peoples_requests(w: Ward):
    w.engines["p1"].running = 3
    w.store.legs = {"p1": 3}  # type: ignore[attr-defined]
    await w.live(10)
    assert next(s.foreign for s in w.monitor.statuses() if s.id == "p1") == 0


@phased(p1=Phase.PREFILL, d1=Phase.DECODE)
async def test_requests_that_lack_credit_at_a_decode_replica_lack_it_at_the_prefill_replicas(w: Ward):
    view = BackendView("d1", 8, 10_000, prefill_credit=1000, prefill_used=1000)
    limited = w.monitor._backends
    w.monitor.decided(PoolView({"d1": view}), True, [512])
    assert (limited["p1"].limited, limited["d1"].limited) == (True, False)
    w.monitor.decided(PoolView({"d1": replace(view, prefill_used=0)}), True, [512])
    assert not limited["p1"].limited


def test_a_leg_goes_where_the_fewest_prompt_tokens_are_open_and_not_where_it_failed():
    one, two = PrefillReplica("p1", 2, 1, 500), PrefillReplica("p2", 2, 1, 400)
    assert choose_leg([one, two]) == "p2"
    assert choose_leg([one, replace(two, running=2)]) == "p1", "a full one last"
    assert choose_leg([one, two], exclude="p2") == "p1"
    assert choose_leg([two], exclude="p2") == "p2", "the only one"
    assert choose_leg([]) is None


def test_what_one_prefill_replica_has_without_a_bound_has_none_for_all():
    assert share([1000, 0], 2) == 0
    assert share([1000, 500], 2) == 750
    assert share([1], 4) == 1, "never less than a token: 0 would be no bound"
