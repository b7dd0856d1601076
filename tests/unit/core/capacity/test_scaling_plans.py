"""From a leader's samples to stored proposals; and promises that cannot be kept are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command

from controlplane.scaling.planner_loop import Scaler, Turn
from scheduling.core.capacity.planner import Demand, Memory, changed, plan, provisionable
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
from telemetry.models import ScalingDecision, ScalingState
from tenants import demo, services
from tenants.audit import SYSTEM
from tenants.epochs import BookedEpochs
from tenants.models import Backend, Entitlement, Pool
from tests.support import worlds
from tests.support.telemetry_world import record, refused

NOW = 1_795_000_000.0
SPEC = ScalingSpec(ScalingMode.AUTOMATIC, 1, 8, "local", up_cooldown_s=30, down_cooldown_s=120)
REPLICA = Amounts(16, 100_000)


def entitlement(name: str, service_class: ServiceClass, concurrency: int) -> EntitlementSpec:
    tier = TierSpec(name, service_class, 0, 1.0, Slo(1.0, 0.1), over_limit=OverLimit.REFUSE)
    return EntitlementSpec(name, "acme", "llama", tier, EntitlementState.BOUND, 0, 0, 0, concurrency)


ENTITLEMENTS = {
    "reserved": entitlement("reserved", ServiceClass.GUARANTEED, 8),
    "elastic": entitlement("elastic", ServiceClass.ELASTIC, 20),
    "spot": entitlement("spot", ServiceClass.SPOT, 100),
}


def sample(
    at_s: float, running: dict[str, int], waiting: dict[str, int] | None = None, backends: int = 2,
    spec: ScalingSpec = SPEC, epoch: int = 1,
) -> Sample:  # fmt: skip
    specs = tuple(BackendSpec(f"b{n}", "llama", f"http://10.0.0.{n}:8000", 16, 100_000) for n in range(backends))
    views = {b.id: BackendView(b.id, 16, 100_000, sum(running.values()) // backends, kv_used=1600) for b in specs}
    pool = PoolSpec("llama", "meta/llama", "meta/llama", specs, scaling=spec)
    return Sample(at_s, pool, "me", epoch, "fifo@1", PoolView(views, dict(running)), waiting or {}, 0.0, {}, [])


def drive(scaler: Scaler, seconds: int, start_s: float = NOW, **kwargs: Any) -> None:
    for second in range(seconds):
        scaler.sample(sample(start_s + second, **kwargs), ENTITLEMENTS)


def demand(replicas: int, **amounts: float) -> Demand:
    values = {name: Amounts(slots) for name, slots in amounts.items()}
    return Demand(NOW, 60.0, replicas, REPLICA, values.pop("entitled", Amounts()), **values)


# --- the plan itself


@pytest.mark.parametrize(
    ("current", "amounts", "wanted", "said"),
    [
        (1, {"entitled": 40}, 3, "up from 1 to 3"),
        (1, {"used": 14}, 2, "up from 1 to 2"),  # 20 % headroom
        (1, {"used": 13}, 1, "stay at 1"),
        (1, {"used": 10, "waiting": 20, "refused": 30}, 5, "waiting 20, refused 30"),
        (8, {"used": 1000}, 8, "the maximum"),
        (0, {}, 1, "the minimum of 1"),
        (9, {"used": 1000}, 8, "the maximum of 8"),
    ],
)
def test_the_planner_says_what_it_wants_and_why(
    current: int, amounts: dict[str, float], wanted: int, said: str
) -> None:
    proposal, _ = plan(SPEC, demand(current, **amounts), Memory())
    assert proposal.wanted == wanted
    assert said in proposal.reason


def test_shrinking_needs_a_whole_cooldown_in_which_fewer_would_have_done() -> None:
    memory = Memory()
    for second in range(0, 120, 5):
        proposal, memory = plan(SPEC, replace(demand(4, used=10), at_s=NOW + second), memory)
        assert proposal.wanted == 4
    proposal, memory = plan(SPEC, replace(demand(4, used=10), at_s=NOW + 120), memory)
    assert proposal.wanted == 1
    _, memory = plan(SPEC, replace(demand(4, used=40), at_s=NOW + 125), memory)  # one peak, and all begins again
    proposal, _ = plan(SPEC, replace(demand(4, used=10), at_s=NOW + 130), memory)
    assert proposal.wanted == 4


def test_growing_again_waits_for_its_own_cooldown_only() -> None:
    memory = changed(Memory(), NOW, 1, 2)
    assert plan(SPEC, replace(demand(2, used=100), at_s=NOW + 29), memory)[0].wanted == 2
    assert plan(SPEC, replace(demand(2, used=100), at_s=NOW + 30), memory)[0].wanted == 8
    shrunk = changed(Memory(), NOW, 3, 2)
    assert plan(SPEC, replace(demand(2, used=40), at_s=NOW + 1), shrunk)[0].wanted == 3


def test_missed_targets_under_load_ask_for_one_more_and_an_idle_pools_do_not() -> None:
    late = {"slo_met": 50, "slo_total": 100}
    busy, _ = plan(SPEC, replace(demand(2, used=20), **late), Memory())
    idle, _ = plan(SPEC, replace(demand(2, used=3), **late), Memory())
    assert busy.wanted == 3
    assert "SLO met by 50%" in busy.reason
    assert idle.wanted == 2


# --- what the leader makes of it


@pytest.mark.django_db
def test_spot_neither_calls_replicas_nor_is_it_refused_into_calling_them() -> None:
    scaler = Scaler()
    drive(scaler, 5, running={"spot": 32}, waiting={"spot": 50})
    scaler.count(
        "llama", [replace(refused(n, reason="low_priority"), entitlement="spot", done_s=NOW + 5) for n in range(9)]
    )
    drive(scaler, 40, NOW + 5, running={"spot": 32}, waiting={"spot": 50})
    assert ScalingState.objects.get().wanted == 2
    assert not ScalingDecision.objects.exists()


@pytest.mark.django_db
def test_a_leader_grows_a_pool_once_and_tells_the_driver() -> None:
    turns: list[Turn] = []
    scaler = Scaler(turns.append)
    drive(scaler, 25, running={"reserved": 8, "elastic": 20}, waiting={"elastic": 12})
    (decision,) = ScalingDecision.objects.all()
    assert (decision.from_replicas, decision.to_replicas, decision.outcome, decision.applied) == (2, 3, "running", True)
    assert [(t.target, t.decision) for t in turns if t.target is not None] == [(3, decision.pk)]
    assert len(turns) == 25, "each second the driver may look after what leaves"
    drive(scaler, 10, NOW + 25, running={"reserved": 8, "elastic": 20}, waiting={"elastic": 12}, backends=3)
    decision.refresh_from_db()
    assert decision.outcome == "done"


@pytest.mark.django_db
def test_advice_is_stored_once_and_nothing_is_done() -> None:
    turns: list[Turn] = []
    scaler = Scaler(turns.append)
    advise = replace(SPEC, mode=ScalingMode.ADVISE)
    drive(scaler, 60, running={"elastic": 20}, waiting={"elastic": 30}, spec=advise)
    (decision,) = ScalingDecision.objects.all()
    assert (decision.outcome, decision.applied) == ("advised", False)
    assert turns == []


@pytest.mark.django_db
def test_refusals_for_want_of_capacity_count_as_the_room_they_missed_up_to_the_baseline() -> None:
    scaler = Scaler()
    drive(scaler, 1, running={})
    ended = [
        replace(
            record(n),
            entitlement="elastic",
            granted_s=NOW + n / 10,
            done_s=NOW + n / 10 + 4,
            slo_met=None,
            received_s=NOW,
        )
        for n in range(20)
    ]
    crowd = [
        replace(refused(100 + n, reason="low_priority"), entitlement="elastic", done_s=NOW + 6) for n in range(9999)
    ]
    scaler.count("llama", [*ended, *crowd])
    drive(scaler, 12, NOW + 1, running={"elastic": 20})
    state = ScalingState.objects.get()
    assert state.refused == 20  # its own concurrency, however often it asked
    assert state.used == pytest.approx(20, abs=2)


@pytest.mark.django_db
def test_cooldowns_hold_over_a_change_of_leader_and_a_superseded_leader_decides_nothing() -> None:
    drive(Scaler(), 12, running={"elastic": 40})
    assert ScalingDecision.objects.count() == 1
    again = Scaler()
    drive(again, 10, NOW + 13, running={"elastic": 80}, epoch=2)
    assert ScalingDecision.objects.count() == 1, "the growth was 13 s ago"
    BookedEpochs().raise_to("llama", 5)
    drive(again, 60, NOW + 40, running={"elastic": 80}, epoch=2)
    assert ScalingDecision.objects.count() == 1


# --- promises


@pytest.fixture
def pool() -> Pool:
    worlds.build()  # two entitlements of 8 slots each; a backend of 32
    row = Pool.objects.get(slug="llama")
    row.scaling_mode, row.max_replicas = "advise", 2
    return services.save(actor=SYSTEM, instance=row)


@pytest.mark.django_db
def test_more_than_can_be_provisioned_is_not_promised(pool: Pool) -> None:
    row = Entitlement.objects.get(slug="globex-llama")
    row.concurrency = 56
    services.save(actor=SYSTEM, instance=row)  # 8 + 56 = 2 x 32
    row.concurrency = 57
    with pytest.raises(ValidationError, match="65 slots would be promised, 64 can be provisioned"):
        services.save(actor=SYSTEM, instance=row)
    assert Entitlement.objects.get(pk=row.pk).concurrency == 56
    pool.max_replicas = 1
    with pytest.raises(ValidationError, match="raise max replicas"):
        services.save(actor=SYSTEM, instance=pool)


@pytest.mark.django_db
def test_the_room_of_what_is_promised_is_not_taken_away(pool: Pool) -> None:
    """Two replicas at most, one of 32 slots there, 8 + 56 slots promised: the catalog's hardware may not shrink."""
    row = Entitlement.objects.get(slug="globex-llama")
    row.concurrency = 56
    services.save(actor=SYSTEM, instance=row)
    engine = pool.backends.get()
    engine.slots = 31
    with pytest.raises(ValidationError, match="64 slots would be promised, 62 can be provisioned"):
        services.save(actor=SYSTEM, instance=engine)
    engine.refresh_from_db()
    assert engine.slots == 32
    engine.slots, pool.scaling_mode = 31, "off"
    services.save(actor=SYSTEM, instance=pool)
    services.save(actor=SYSTEM, instance=engine)  # nothing is provisioned: binding says what does not fit
    pool.scaling_mode = "advise"
    with pytest.raises(ValidationError, match="62 can be provisioned"):
        services.save(actor=SYSTEM, instance=pool)


@pytest.mark.django_db
def test_a_small_replica_beside_large_ones_takes_nothing_from_them(pool: Pool) -> None:
    """What people added stays: 32 + 32 + 1 slots, not three times the smallest."""
    row = Entitlement.objects.get(slug="globex-llama")
    row.concurrency = 56
    services.save(actor=SYSTEM, instance=row)
    for name, slots in (("second", 32), ("tiny", 1)):
        services.save(
            actor=SYSTEM, instance=Backend(slug=name, pool=pool, url=f"http://{name}:8000", slots=slots, kv_tokens=99)
        )
    second = Backend.objects.get(slug="second")
    services.drain_backend(actor=SYSTEM, backend=second, draining=True)  # who repairs it must not be held up
    with pytest.raises(ValidationError, match="33 can be provisioned"):
        services.delete(actor=SYSTEM, instance=second)
    assert Backend.objects.filter(slug="second").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("options", [["--dry-run"], ["--yes"]])
def test_a_file_that_promises_too_much_is_refused_whole_and_before_anybody_is_asked(
    pool: Pool, tmp_path: Path, options: list[str]
) -> None:
    paper = tmp_path / "catalog.yaml"
    paper.write_text(
        "apiVersion: quartermaster/v1\nkind: List\nitems:\n"
        "- {kind: TokenEntitlement, metadata: {name: globex-llama}, spec: {tenantRef: {name: globex}, "
        "poolRef: {name: llama}, qos: {tier: standard}, resources: {concurrency: 57}}}\n"
    )
    with pytest.raises(CommandError, match="65 slots would be promised, 64 can be provisioned"):
        call_command("apply", "-f", str(paper), *options)
    assert Entitlement.objects.get(slug="globex-llama").concurrency == 8


@pytest.mark.django_db
def test_the_demo_starts_with_fewer_engines_whatever_was_promised_on_more() -> None:
    engines = [(f"sim-{i}", f"http://127.0.0.1:900{i}", 50, 100_000) for i in (1, 2)]
    passwords = {"admin": "a", "operator": "o", "member": "m"}
    demo.ensure_demo("demo", "llama", engines, passwords=passwords)
    made = Pool.objects.get(slug="demo")
    made.scaling_mode, made.max_replicas = "advise", 2
    services.save(actor=SYSTEM, instance=made)
    globex = Entitlement.objects.get(tenant__slug="globex")
    globex.concurrency = 60
    services.save(actor=SYSTEM, instance=globex)
    demo.ensure_demo("demo", "llama", [(*engines[0][:2], 20, 100_000)], passwords=passwords)
    assert [b.slots for b in made.backends.all()] == [20]
    assert Entitlement.objects.get(tenant__slug="globex").concurrency == 60


@pytest.mark.parametrize(
    ("managed", "expected"),
    [
        ((False, False), 16 + 4 + 4),  # people's replicas count as they are, the third as the smallest
        ((True, False), 4 + 4 + 4),  # a driver's may go and come back as small as a new one
        ((True, True), 4 + 4 + 4),
    ],
)
def test_what_may_be_provisioned_never_counts_on_more_than_a_new_replica_has(
    managed: tuple[bool, bool], expected: int
) -> None:
    backends = [
        BackendSpec(f"b{i}", "p", "http://x", slots, 100, managed=m)
        for i, (slots, m) in enumerate(zip((16, 4), managed, strict=True))
    ]
    assert provisionable(ScalingSpec(ScalingMode.ADVISE, 1, 3), backends).slots == expected
    leaving = [*backends, BackendSpec("gone", "p", "http://y", 50, 100, managed=True, leaving_since_s=1.0)]
    assert provisionable(ScalingSpec(ScalingMode.ADVISE, 1, 3), leaving).slots == expected
    assert provisionable(ScalingSpec(ScalingMode.ADVISE, 1, 3), []).slots == 0, "nothing is known of a replica"


@pytest.mark.django_db
def test_spot_is_no_promise_and_without_scaling_binding_decides(pool: Pool) -> None:
    row = Entitlement.objects.get(slug="globex-llama")
    row.tier, row.concurrency = worlds.tier("batch"), 500
    services.save(actor=SYSTEM, instance=row)
    pool.scaling_mode = "off"
    services.save(actor=SYSTEM, instance=pool)
    row.tier, row.concurrency = worlds.tier("premium"), 50
    services.save(actor=SYSTEM, instance=row)
    row.refresh_from_db()
    assert row.state == "degraded"


def _named(**names: str) -> dict[str, Any]:
    return {"scaling_driver": "kubernetes", "scaling_params": names}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scaling_mode": "automatic"}, "needs a driver"),
        ({"scaling_driver": "kubernetes"}, "'deployment' or 'leader_worker_set'"),
        (_named(deployment="../pods/x"), "'deployment' cannot be"),
        (_named(deployment="vllm", namespace="a/pods/b?x="), "'namespace' cannot be"),
        (_named(leader_worker_set="VLLM\n"), "'leader_worker_set' cannot be"),
        (_named(leader_worker_set="a" * 254), "'leader_worker_set' cannot be"),
        ({"scaling_driver": "local", "scaling_params": {"command": "rm"}}, "there is no 'command'"),
        ({"scaling_driver": "webhook", "scaling_params": {"url": "ftp://x"}}, "must begin with http"),
        ({"scaling_driver": "local", "scaling_params": {"slots": 0}}, "1 or more"),
        ({"min_replicas": 3, "max_replicas": 2}, "not less than min replicas"),
        ({"min_replicas": 0}, "needs both times"),
        ({"min_replicas": 0, "sleep_after_s": 60.0}, "needs both times"),
        (
            {"min_replicas": 0, "sleep_after_s": 60.0, "wakes_in_s": 30.0, "scaling_driver": "local"},
            "'kv_tokens' is missing",
        ),
        ({"sleep_after_s": 1.0}, "10"),
    ],
)
def test_scaling_settings_that_make_no_sense_are_refused(pool: Pool, values: dict[str, Any], said: str) -> None:
    for name, value in values.items():
        setattr(pool, name, value)
    with pytest.raises(ValidationError, match=said):
        services.save(actor=SYSTEM, instance=pool)
