"""Who waits for the replica that has its prompt cached, although another one has room, and for how long."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.admission.rule import AdmissionAnswer, AdmissionView, Ask, decide_admission
from scheduling.core.placement.cache_wait import (
    BEFORE_EXPIRY_S,
    GRANT_S,
    LEAST_AGAIN,
    LONGEST_S,
    PATIENCE,
    CacheWait,
    cache_wait,
)
from scheduling.core.placement.room import Need, choose_backend
from scheduling.core.placement.rule import Warmth, read_points, write_points
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.registry import make_routing
from scheduling.core.scheduler import step
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.stuck import stuck
from scheduling.core.types import PREFILL_PER_S, BackendView, QueuedRequest, ServiceClass
from tests.support.scheduling_world import backend_view, ids, pool_view, waiting
from tests.support.state_world import entitlement, pool_spec, tier

NOW_S = 1010.0
PER_S = 10_000.0
TOKENS = 5_000


def replica(name: str, **changes: Any) -> BackendView:
    given: dict[str, Any] = {"prefill_credit": 1024, "prefill_per_s": PER_S, "cache_trust": 1000, "kv_tokens": 10**6}
    return backend_view(name, **(given | changes))


def busy(name: str, **changes: Any) -> BackendView:
    """It works on a prompt that holds all of its credit."""
    return replica(name, running=1, prefill_used=1024, work_tokens=1500.0, **changes)


def cached_on(**tokens: int) -> Warmth:
    return Warmth(98_304.0, "seed", {k: 40 * n for k, n in tokens.items()}, {}, tokens)


def session(number: int, name: str, tokens: int = TOKENS, **changes: Any) -> QueuedRequest:
    """A turn of a conversation, all of which but 200 tokens was said before."""
    points = write_points(98_304.0, [(f"{hash(name) & 0xFFFFFFFF:012x}", tokens - 200), (f"{number:012x}", tokens)])
    given = {"input_tokens": tokens, "kv_tokens": tokens + 100, "prefixes": points, "ttft_deadline_s": None}
    return waiting(number, f"t{number}", **(given | changes))


def scheduler(**homes: str) -> Scheduler:
    """Of conversations by the replica that has them."""
    made = Scheduler(make_named("fifo", {}), make_routing("prefix_affinity"))
    for name, home in homes.items():
        made.learn({read_points(session(0, name).prefixes)[1][0][0]: home})
    return made


def test_it_waits_for_the_replica_that_has_its_prompt_where_only_another_one_has_room():
    there, free = busy("b1"), replica("b2")
    wait = cache_wait([there, free], [free], TOKENS, cached_on(b1=4_800))
    assert wait == CacheWait(there, 4_800, TOKENS, PER_S)
    assert wait.longest_s(PATIENCE) == PATIENCE * 0.48
    assert wait.longest_s(0.0) == 0.0
    assert cache_wait([there, free], [there, free], TOKENS, cached_on(b1=4_800)) is None, "it has room"
    assert cache_wait([there, free], [], TOKENS, cached_on(b1=4_800)) is None, "nobody has room"
    assert cache_wait([there, free], [free], TOKENS, None) is None
    assert cache_wait([there, free], [free], TOKENS, cached_on()) is None, "nobody has anything of it"


def test_what_both_have_is_not_waited_for_nor_a_little():
    there, free = busy("b1"), replica("b2")
    assert cache_wait([there, free], [free], TOKENS, cached_on(b1=4_800, b2=4_800 - LEAST_AGAIN + 1)) is None
    assert cache_wait([there, free], [free], TOKENS, cached_on(b1=4_800, b2=4_800 - LEAST_AGAIN)) is not None
    assert cache_wait([there, free], [free], 100, cached_on(b1=4_800)) is None, "a short prompt is soon computed"


def test_only_what_engines_bear_out_is_waited_for():
    free = replica("b2")
    wait = cache_wait([busy("b1", cache_trust=500), free], [free], TOKENS, cached_on(b1=4_800))
    assert wait is not None
    assert wait.again == 2_400
    assert cache_wait([busy("b1", cache_trust=0), free], [free], TOKENS, cached_on(b1=4_800)) is None


def test_a_replica_that_has_far_more_to_do_than_others_is_not_waited_for():
    free = replica("b2")
    there = replace(busy("b1"), work_tokens=400_000.0)
    assert cache_wait([there, free], [free], TOKENS, cached_on(b1=4_800)) is None


def test_nobody_waits_longer_than_the_bound():
    assert CacheWait(busy("b1"), 10**6, 10**6, PER_S).longest_s(PATIENCE) == LONGEST_S


@pytest.mark.parametrize(
    ("there_per_s", "free_per_s", "per_s"), [(PER_S, 500.0, 500.0), (PER_S, 0.0, PER_S), (0.0, 0.0, PREFILL_PER_S)]
)
def test_how_long_others_would_compute_is_as_fast_as_they_are_or_its_own_or_as_usual(
    there_per_s: float, free_per_s: float, per_s: float
):
    there, free = busy("b1", prefill_per_s=there_per_s), replica("b2", prefill_per_s=free_per_s)
    wait = cache_wait([there, free], [free], TOKENS, cached_on(b1=4_800))
    assert wait is not None
    assert wait.per_s == per_s


@pytest.mark.parametrize(
    ("due_s", "until_s"),
    [
        (None, 1000.0 + PATIENCE * 0.48),
        (1000.9, 1000.9 - 0.5 - GRANT_S),  # elsewhere it is in time until then
        (1000.4, 1000.0 + PATIENCE * 0.48),  # it is late elsewhere anyway
        (1009.0, 1000.0 + PATIENCE * 0.48),
    ],
)
def test_no_deadline_that_could_be_met_elsewhere_is_lost_by_waiting(due_s: float | None, until_s: float):
    wait = CacheWait(busy("b1"), 4_800, TOKENS, PER_S)
    assert wait.until_s(1000.0, 0.0, due_s, PATIENCE) == pytest.approx(until_s)


def test_patience_is_what_others_have_not_idled_yet():
    wait = CacheWait(busy("b1"), 4_800, TOKENS, PER_S)
    assert wait.until_s(1000.0, 1.5, None, PATIENCE) == pytest.approx(1000.0 + PATIENCE * 0.48 - 1.5)
    assert wait.until_s(1000.0, 2.0, None, PATIENCE) == 1000.0


def test_a_turn_waits_for_its_replica_and_one_whose_replica_has_room_passes():
    made, view = scheduler(one="b1", two="b2"), pool_view(busy("b1"), replica("b2"))
    mine, other = session(1, "one"), session(2, "two")
    for request in (mine, other):
        made.offer(request, NOW_S)
    before = remember(view, made)
    grants = made.step(view, NOW_S)
    assert [(g.request.id, g.backend) for g in grants] == [(other.id, "b2")]
    assert dict(made.waits_for_replica) == {mine.id: pytest.approx(NOW_S + PATIENCE * 0.48, abs=0.05)}
    holds = {"credit_holds": made.credit_holds, "waits_for_replica": made.waits_for_replica}
    assert check_step(before, grants, made, NOW_S, **holds) == []
    assert stuck(made, view) == 0, "nobody who arrives takes its place there"
    assert made.lacks_credit == [], "and no prefill is interrupted for who could run elsewhere"


def test_its_replica_is_kept_for_it_and_it_goes_first_there():
    made, view = scheduler(one="b1"), pool_view(busy("b1"), replica("b2", running=4))
    mine, small = session(1, "one"), waiting(2, input_tokens=50, ttft_deadline_s=None)
    made.offer(mine, NOW_S)
    made.offer(small, NOW_S)
    assert made.step(pool_view(replace(busy("b1"), prefill_used=900), replica("b2")), NOW_S) != []
    assert made.credit_holds == {"b1": mine.id}, "50 tokens would have fitted beside what it works on"
    view.backends["b1"] = replica("b1")
    assert [g.request.id for g in made.step(view, NOW_S + 0.1)] == [mine.id]
    assert not made.waits_for_replica


def test_nobody_waits_for_a_cache_until_it_is_refused():
    made, view = scheduler(one="b1"), pool_view(busy("b1"), replica("b2"))
    mine = session(1, "one", expires_s=NOW_S + 1.0)
    made.offer(mine, NOW_S)
    assert made.step(view, NOW_S) == []
    until_s = made.waits_for_replica[mine.id]
    assert until_s == NOW_S + 1.0 - BEFORE_EXPIRY_S
    assert [(g.request.id, g.backend) for g in made.step(view, until_s)] == [(mine.id, "b2")]


def test_it_runs_elsewhere_when_it_has_waited_long_enough():
    made, view = scheduler(one="b1"), pool_view(busy("b1"), replica("b2"))
    mine = session(1, "one")
    made.offer(mine, NOW_S)
    assert made.step(view, NOW_S) == []
    until_s = made.waits_for_replica[mine.id]
    assert made.step(view, until_s - 0.001) == []
    assert [(g.request.id, g.backend) for g in made.step(view, until_s)] == [(mine.id, "b2")]
    assert not made.waits_for_replica
    assert made._holds.idle_before_s == {}


@pytest.mark.parametrize("due_s", [None, NOW_S + 0.9])
def test_it_goes_nowhere_else_while_all_others_are_at_work(due_s: float | None):
    """At the last moment as little as when it has waited long enough; once one idles its patience goes on."""
    made, taken = scheduler(one="b1"), [busy("b1"), busy("b2")]
    made.offer(session(1, "one", ttft_deadline_s=due_s), NOW_S)
    assert made.step(pool_view(busy("b1"), replica("b2")), NOW_S) == []
    now_s = made.waits_for_replica["req_000001"] - 0.01
    assert made.step(pool_view(*taken), now_s) == []
    for _ in range(100):  # the other one has room at each decision, and at its end somebody else's prompt
        now_s += 0.02
        other = waiting(2, input_tokens=900, ttft_deadline_s=None)
        made.offer(other, now_s)
        grants = made.step(pool_view(busy("b1"), replica("b2")), now_s)
        assert [(g.request.id, g.backend) for g in grants] == [(other.id, "b2")]
    idle, idle_from_s = pool_view(busy("b1"), replica("b2")), now_s + 0.1
    assert made.step(idle, idle_from_s) == []
    while not (grants := made.step(idle, now_s := made.waits_for_replica["req_000001"])):
        assert made.waits_for_replica["req_000001"] > now_s
    assert [g.backend for g in grants] == ["b2"]
    assert idle_from_s < now_s < idle_from_s + PATIENCE * 0.48


@pytest.mark.parametrize(
    ("free", "idles"),
    [
        ({}, True),
        ({"prefill_used": 100}, False),
        ({"prefill_used": 100, "prefill_credit": 0}, True),  # what it prefills says nothing of its room
        ({"kv_used": 100_000}, False),
    ],
)
def test_a_replica_idles_that_has_room_and_nothing_to_prefill(free: dict[str, Any], idles: bool):
    made, view = scheduler(one="b1"), pool_view(busy("b1"), replica("b2"))
    made.offer(session(1, "one"), NOW_S)
    made.step(view, NOW_S)
    view.backends["b2"] = replica("b2", kv_tokens=100_000, **free)
    made.step(view, NOW_S + 0.1)
    made.step(view, NOW_S + 0.3)
    assert made._holds.idle_s == pytest.approx(0.3 if idles else 0.1)


def test_the_rule_is_not_applied_anew_in_every_step_while_its_replica_takes_nothing(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    rule = step.cache_wait
    monkeypatch.setattr(step, "cache_wait", lambda *given: asked.append("") or rule(*given))
    made, view = scheduler(one="b1"), pool_view(busy("b1"), replica("b2"))
    made.offer(session(1, "one"), NOW_S)
    for number in range(3):
        assert made.step(view, NOW_S + 0.01 * number) == []
    assert len(asked) == 1
    assert made.credit_holds == {"b1": "req_000001"}
    gone = pool_view(busy("b1", ready=False), replica("b2"))
    assert [g.backend for g in made.step(gone, NOW_S + 0.1)] == ["b2"], "its replica is no longer there"


def test_it_runs_elsewhere_while_it_is_still_in_time_there():
    made, view = scheduler(one="b1"), pool_view(busy("b1"), replica("b2"))
    made.offer(session(1, "one", ttft_deadline_s=NOW_S + 0.9), NOW_S)
    assert made.step(view, NOW_S) == []
    until_s = made.waits_for_replica["req_000001"]
    assert until_s == pytest.approx(NOW_S + 0.4 - GRANT_S)
    assert [g.backend for g in made.step(view, until_s)] == ["b2"]


def test_a_client_that_wants_another_request_first_has_it_run_only_where_that_has_room():
    """A turn goes beside others as most of it is cached there; one of the same length of which nothing is does not."""
    made, full = scheduler(one="b1"), replica("b2", running=4)
    made.offer(session(1, "one"), NOW_S)
    wanted = waiting(2, "t1", client_priority=-1, input_tokens=TOKENS, kv_tokens=TOKENS, ttft_deadline_s=None)
    made.offer(wanted, NOW_S)
    view = pool_view(replica("b1", running=1, prefill_used=500), full)
    assert [g.request.id for g in made.step(view, NOW_S)] == ["req_000001"]
    assert [g.request.id for g in made.step(pool_view(replica("b1"), full), NOW_S)] == [wanted.id]


def test_a_full_replica_is_waited_for_as_one_without_credit_is():
    made, view = scheduler(one="b1"), pool_view(replica("b1", running=4), replica("b2"))
    made.offer(session(1, "one"), NOW_S)
    assert made.step(view, NOW_S) == []
    assert ids(made) == ["req_000001"]
    assert stuck(made, view) == 0
    made = scheduler(one="b1")
    made.offer(session(1, "one"), NOW_S)
    assert made.step(pool_view(replica("b1", kv_tokens=6_000, kv_used=5_000), replica("b2")), NOW_S) == []
    assert made.credit_holds == {}, "what it lacks there is no credit: smaller ones may go"


@pytest.mark.parametrize(
    ("there", "asks"),
    [
        ({}, {"exclude_backend": "b1"}),
        ({"adapters": frozenset()}, {"adapter": "law"}),
        ({"kv_tokens": 5_000}, {}),
        ({"longest": 5_000}, {}),
        ({"ready": False}, {}),
        ({"cache_trust": 0}, {}),
    ],
)
def test_a_replica_that_could_not_run_it_is_not_waited_for_nor_any_longer(there: dict[str, Any], asks: dict[str, Any]):
    free = replica("b2", adapters=frozenset({"law"}))
    made = scheduler(one="b1")
    made.offer(session(1, "one", **asks), NOW_S)
    view = pool_view(replace(busy("b1"), **there), replace(free))
    assert [g.backend for g in made.step(view, NOW_S)] == ["b2"]
    if not there:
        return
    made = scheduler(one="b1")
    made.offer(session(1, "one", **asks), NOW_S)
    assert made.step(pool_view(busy("b1", adapters=frozenset({"law"})), replace(free)), NOW_S) == []
    view = pool_view(replace(busy("b1"), **there), replace(free))
    assert [g.backend for g in made.step(view, NOW_S + 0.1)] == ["b2"], "it waits no longer"


def test_who_withdraws_is_waited_for_no_more():
    made, view = scheduler(one="b1"), pool_view(busy("b1"), replica("b2"))
    made.offer(session(1, "one"), NOW_S)
    made.step(view, NOW_S)
    made.withdraw("req_000001")
    assert not made.waits_for_replica
    assert made._holds.idle_before_s == {}


def test_a_pool_may_have_nobody_wait_for_a_cache():
    made = scheduler(one="b1")
    made.swap(made.policy, make_routing("prefix_affinity", {"cache_patience": 0.0}), NOW_S)
    made.learn({read_points(session(0, "one").prefixes)[1][0][0]: "b1"})
    made.offer(session(1, "one"), NOW_S)
    assert [g.backend for g in made.step(pool_view(busy("b1"), replica("b2")), NOW_S)] == ["b2"]


def test_engines_without_prefix_caches_are_not_waited_for():
    made = scheduler(one="b1")
    made.offer(session(1, "one"), NOW_S)
    view = pool_view(busy("b1", cache_trust=0), replica("b2", cache_trust=0))
    assert [g.backend for g in made.step(view, NOW_S)] == ["b2"]


# --- on arrival

ASK = Ask(kv=TOKENS, charge=0, body_bytes=200, prefill=TOKENS)
ACME = entitlement(concurrency=3, tier=tier(service_class=ServiceClass.ELASTIC, queue_limit=2))


def arrives(spec: object = ACME, ask: Ask = ASK, **changes: Any) -> AdmissionAnswer:
    given: dict[str, Any] = {
        "rebuilding_ms": 0, "backends": (busy("b1"), replica("b2")), "waiting": 0, "able": 0, "due": 0, "stuck": 0,
        "waiting_bytes": 0, "ent_running": 0, "ent_waiting": 0, "ent_kv": 0, "level": 500.0, "service_ms": 4000.0,
        "ent_service_ms": 6000.0, "ent_stay_ms": 6000.0, "weight": 30.0, "warmth": cached_on(b1=4_800),
    }  # fmt: skip
    pool = pool_spec(queue_limit=10, queue_bytes=10_000, threshold=0.0)
    return decide_admission(spec, pool, ask, AdmissionView(**(given | changes)), 5000).verdict  # type: ignore[arg-type]


def test_who_arrives_waits_for_its_replica_too():
    assert arrives() is AdmissionAnswer.QUEUE
    assert arrives(warmth=None) is AdmissionAnswer.GRANT
    assert arrives(backends=(replica("b1"), replica("b2"))) is AdmissionAnswer.GRANT
    assert arrives(ask=replace(ASK, exclude_backend="b1")) is AdmissionAnswer.GRANT, "it failed there"
    assert arrives(ask=replace(ASK, avoid=frozenset({"b1"}))) is AdmissionAnswer.GRANT, "it leaves that to others"


def test_an_owner_goes_beside_others_prompts_on_its_replica_and_waits_for_those_of_owners():
    owner = dataclasses.replace(ACME, tier=tier(service_class=ServiceClass.GUARANTEED, queue_limit=0))
    assert arrives(owner) is AdmissionAnswer.GRANT
    here = [busy("b1"), replica("b2")]
    assert choose_backend(here, Need(TOKENS, TOKENS, warmth=cached_on(b1=4_800), owner=True)) == "b1"
    assert choose_backend(here, Need(TOKENS, TOKENS, warmth=cached_on(b1=4_800))) == "b2"
    assert choose_backend(here, Need(TOKENS, TOKENS, warmth=cached_on(b1=LEAST_AGAIN - 1), owner=True)) == "b2"
    assert arrives(owner, backends=(busy("b1", prefill_owned=1024), replica("b2"))) is AdmissionAnswer.QUEUE


def test_the_leader_places_an_owner_beside_others_prompts_as_well():
    made = Scheduler(make_named("fifo", {}), make_routing("prefix_affinity"), rights=True)
    mine = session(1, "one", service_class=ServiceClass.GUARANTEED)
    made.learn({read_points(mine.prefixes)[1][0][0]: "b1"})
    made.offer(mine, NOW_S)
    assert [g.backend for g in made.step(pool_view(busy("b1"), replica("b2")), NOW_S)] == ["b1"]


def test_nobody_is_refused_for_a_cache_nor_waits_for_one_while_nobody_leads():
    assert arrives(decides=False) is AdmissionAnswer.GRANT
    assert arrives(ent_waiting=2, ent_running=0, waiting=2, stuck=2, able=2) is AdmissionAnswer.GRANT
    assert arrives(waiting=11, stuck=11, able=11) is AdmissionAnswer.GRANT, "the pool's queue is full"
    assert arrives(waiting_bytes=11_100) is AdmissionAnswer.GRANT
