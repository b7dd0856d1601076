"""Pools that may have no replica: when they sleep, what wakes them, what keeps them awake, what they still promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.kubernetes import catalog
from controlplane.scaling.planner_loop import Scaler, Turn
from scheduling.core.capacity.planner import Demand, Memory, Proposal, changed, keeps_awake, plan
from scheduling.core.capacity.pool import Amounts
from scheduling.core.types import (
    BackendSpec,
    BackendView,
    EntitlementSpec,
    EntitlementState,
    OverLimit,
    PoolSpec,
    PoolView,
    ScalingMode,
    ScalingSpec,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.dispatch.ports import Sample
from telemetry.models import ScalingDecision
from tenants import rows, services
from tenants.audit import SYSTEM
from tenants.models import Backend, Entitlement, Pool
from tests.support import worlds
from tests.support.telemetry_world import record

NOW = 1_795_000_000.0
WAKE_S, IDLE_S = 30.0, 60.0
SPEC = ScalingSpec(
    ScalingMode.AUTOMATIC, 0, 4, "local", {"slots": 16, "kv_tokens": 100_000}, down_cooldown_s=300, idle_s=IDLE_S
)
REPLICA = Amounts(16, 100_000)


def looked(replicas: int, **said: Any) -> Proposal:
    return plan(SPEC, replace(Demand(NOW, 60.0, replicas, REPLICA, Amounts()), **said), Memory())[0]


def test_an_idle_pool_gives_all_its_replicas_back_without_waiting_for_the_cooldown() -> None:
    assert looked(3, idle_s=IDLE_S - 1).wanted == 3
    gone = looked(3, idle_s=IDLE_S)
    assert gone.wanted == 0
    assert "nothing ran or waited for 60 s" in gone.reason


def test_a_pool_that_has_just_changed_does_not_sleep_yet() -> None:
    demand = Demand(NOW, 60.0, 1, REPLICA, Amounts(), idle_s=500.0)
    assert plan(SPEC, demand, changed(Memory(), NOW - IDLE_S + 1, 0, 1))[0].wanted == 1
    assert plan(SPEC, demand, changed(Memory(), NOW - IDLE_S, 0, 1))[0].wanted == 0


def test_the_first_request_brings_what_was_promised_at_once() -> None:
    entitled = Amounts(24, 0)
    assert looked(0, idle_s=0.0, entitled=entitled).wanted == 0
    slept = changed(changed(Memory(), NOW - 20, 0, 1), NOW - 5, 1, 0)
    woken, _ = plan(SPEC, Demand(NOW, 60.0, 0, REPLICA, entitled, wanted=True), slept)
    assert woken.wanted == 2
    assert "a request came" in woken.reason
    failed = changed(Memory(), NOW - 5, 0, 2)
    again, _ = plan(SPEC, Demand(NOW, 60.0, 0, REPLICA, entitled, wanted=True), failed)
    assert again.wanted == 0, "an order that came to nothing is not repeated every second"


def test_a_pool_whose_minimum_is_one_never_sleeps() -> None:
    assert plan(replace(SPEC, min_replicas=1), Demand(NOW, 60.0, 2, REPLICA, Amounts(), idle_s=9e9), Memory())[0].wanted


def test_replicas_that_people_made_stay() -> None:
    assert looked(2, idle_s=9e9, fixed=1).wanted == 2


def share(name: str, service_class: ServiceClass, max_wait_s: float, **more: Any) -> EntitlementSpec:
    tier = TierSpec(name, service_class, 0, 1.0, Slo(1.0, 0.1), over_limit=OverLimit.REFUSE, max_wait_s=max_wait_s)
    spec = EntitlementSpec(name, "acme", "llama", tier, EntitlementState.BOUND, 0, 0, 0, 8)
    return replace(spec, **more)


@pytest.mark.parametrize(
    ("held", "by"),
    [
        (share("hurry", ServiceClass.GUARANTEED, WAKE_S - 1), "hurry"),
        (share("own", ServiceClass.DEDICATED, WAKE_S - 1), "own"),
        (share("patient", ServiceClass.GUARANTEED, WAKE_S), ""),
        (share("elastic", ServiceClass.ELASTIC, 1.0), ""),
        (share("over", ServiceClass.GUARANTEED, 1.0, state=EntitlementState.EXPIRED), ""),
        (share("paused", ServiceClass.GUARANTEED, 1.0, paused=True), ""),
    ],
)
def test_a_reserved_share_that_cannot_wait_for_a_replica_keeps_the_pool_awake(held: EntitlementSpec, by: str) -> None:
    assert keeps_awake([share("spot", ServiceClass.SPOT, 1.0), held], WAKE_S) == by
    proposal = looked(1, idle_s=9e9, awake_for=by)
    assert proposal.wanted == (1 if by else 0)
    assert not by or by in proposal.reason
    assert looked(0, awake_for=by).wanted == (1 if by else 0)


# --- what the leader makes of it


class Pond:
    """A pool's samples, as its leader would take them."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.scaler = Scaler(self.turns.append)
        self.at_s = NOW
        self.replicas = 1
        self.entitlements = {"spot": share("spot", ServiceClass.SPOT, 60.0)}

    def live(self, seconds: int, running: int = 0, waiting: int = 0, wanted: bool = False) -> list[int]:
        """The targets that were handed over."""
        before = len(self.turns)
        for _ in range(seconds):
            specs = tuple(
                BackendSpec(f"b{n}", "llama", f"http://10.0.0.{n}:8000", 16, 100_000, managed=True)
                for n in range(self.replicas)
            )
            views = {b.id: BackendView(b.id, 16, 100_000, running, kv_used=0) for b in specs}
            pool = PoolSpec("llama", "m", "m", specs, scaling=SPEC, wakes_in_s=WAKE_S)
            view = PoolView(views, {"spot": running} if running else {})
            sample = Sample(self.at_s, pool, "me", 1, "fifo@1", view, {"spot": waiting}, 0.0, {}, [], wanted=wanted)
            self.scaler.sample(sample, self.entitlements)
            self.at_s += 1
        return [turn.target for turn in self.turns[before:] if turn.target is not None]


@pytest.mark.django_db
def test_any_class_keeps_a_pool_awake_and_wakes_it() -> None:
    """Spot requests call no replicas beside others, but with none at all nobody else would."""
    pond = Pond()
    assert pond.live(90, running=1) == []
    assert pond.live(int(IDLE_S) - 5) == []
    assert pond.live(10) == [0]
    pond.replicas = 0
    assert pond.live(30) == []
    assert pond.live(1, waiting=1, wanted=True) == [1], "who waits is not kept waiting for the next plan"
    assert pond.live(5, waiting=1, wanted=True) == [], "and it is ordered once"
    assert pond.live(20, waiting=1, wanted=True) == []
    pond.replicas = 1
    assert pond.live(20, running=1) == []
    moves = ScalingDecision.objects.order_by("id").values_list("from_replicas", "to_replicas", "outcome")
    assert list(moves) == [(1, 0, "superseded"), (0, 1, "done")]


@pytest.mark.django_db
def test_a_request_that_ended_between_two_looks_counts_as_use() -> None:
    pond = Pond()
    pond.live(50)
    pond.scaler.count("llama", [replace(record(1), granted_s=pond.at_s - 1, done_s=pond.at_s)])
    assert pond.live(int(IDLE_S) - 10) == []
    assert pond.live(15) == [0]


@pytest.mark.django_db
def test_a_new_leader_lets_a_sleeping_pool_sleep_and_may_wake_it_at_once() -> None:
    pond = Pond()
    pond.live(70)
    pond.replicas = 0
    again = Pond()
    again.at_s, again.replicas = pond.at_s, 0
    assert again.live(20) == []
    assert again.live(6, wanted=True) == [1]


# --- what is still promised


@pytest.fixture
def pool() -> Pool:
    worlds.build()  # two guaranteed entitlements of 8 slots each; a backend of 32
    row = Pool.objects.get(slug="llama")
    row.scaling_mode, row.scaling_driver, row.max_replicas = "automatic", "local", 2
    row.scaling_params = {"slots": 32, "kv_tokens": 100_000}
    row.min_replicas, row.sleep_after_s, row.wakes_in_s = 0, 60.0, 30.0
    return services.save(actor=SYSTEM, instance=row)


@pytest.mark.django_db
def test_shares_stay_bound_while_a_pool_has_no_replica_on_purpose(pool: Pool) -> None:
    Entitlement.objects.filter(pool=pool).update(tokens_per_s=100.0, burst_tokens=1000)
    services.delete(actor=SYSTEM, instance=pool.backends.get())
    assert set(Entitlement.objects.filter(pool=pool).values_list("state", flat=True)) == {"bound"}
    seen = catalog.snapshot()
    assert seen.pools["llama"]["backends"] == "asleep"
    assert seen.node_amounts["llama"].slots == 64, "what a request may bring back is offered to the scheduler"
    pool.refresh_from_db()
    pool.min_replicas = 1
    services.save(actor=SYSTEM, instance=pool)
    assert "bound" not in set(
        Entitlement.objects.filter(pool=pool, tier__slug="premium").values_list("state", flat=True)
    )
    assert catalog.snapshot().pools["llama"]["backends"] == "0/0"


@pytest.mark.django_db
def test_a_replica_that_is_silent_is_missing_also_where_a_pool_may_sleep(pool: Pool) -> None:
    services.set_silent(pool_slug="llama", answering={"gpu-1": False})
    assert "degraded" in set(Entitlement.objects.filter(pool=pool).values_list("state", flat=True))
    services.set_silent(pool_slug="llama", answering={"gpu-1": True})
    assert set(Entitlement.objects.filter(pool=pool).values_list("state", flat=True)) == {"bound"}


@pytest.mark.django_db
def test_idle_replicas_either_go_or_sleep_never_both(pool: Pool) -> None:
    spec = rows.pool_spec(pool)
    assert (spec.scaling.to_zero, spec.scaling.idle_s, spec.sleep_after_s) == (True, 60.0, 0.0)
    pool.min_replicas = 1
    spec = rows.pool_spec(services.save(actor=SYSTEM, instance=pool))
    assert (spec.scaling.to_zero, spec.scaling.idle_s, spec.sleep_after_s, spec.wakes_in_s) == (False, 0.0, 60.0, 30.0)
    assert Backend.objects.filter(pool=pool).exists()
