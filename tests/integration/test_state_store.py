"""The life of a request over the real scripts, as gateway and leader see it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from scheduling.core.admission.key_limits import Limited, Scope, write_limits
from scheduling.core.outcomes import Outcome, Reason
from scheduling.core.types import OverLimit, RateLimits, ServiceClass, Slo
from scheduling.state import codec
from scheduling.state.resp import RespConnection
from scheduling.state.store import PoolStore
from scheduling.state.subscriber import Subscriber
from scheduling.state.types import (
    MAX_USED,
    AdmissionStatus,
    AnnounceStatus,
    EventKind,
    Fenced,
    FinishStatus,
    GrantItem,
    GrantStatus,
    RenewStatus,
    gateway_channel,
)
from tests.support.state_world import FACTS, backend, entitlement, estimate, leads_on, ledger, pool_spec, request, tier

POOL = pool_spec()
ACME = entitlement("acme", tokens_per_s=100.0, burst_tokens=1000.0)


async def led(store: PoolStore, slots: int = 1) -> int:
    """A pool with a leader and one ready replica; the leader's epoch."""
    election = await store.elect("leader-1", 0, first_start=True)
    await leads_on(store)
    await store.set_ready(election.epoch, "b1", backend(slots=slots))
    return election.epoch


async def admit(store: PoolStore, request_id: str, spec=ACME, est=None, **changes):
    est = est or estimate()
    return await store.admit(spec, POOL, request(request_id, spec, est, **changes), est, 300, FACTS)


async def test_without_a_ready_replica_everything_is_refused_as_no_backend(pool_store: PoolStore):
    answer = await admit(pool_store, "r1")
    assert (answer.status, answer.reason) == (AdmissionStatus.REFUSED, Reason.NO_BACKEND)
    assert answer.retry_s is not None


async def test_a_free_slot_is_granted_and_the_same_call_again_answers_the_same(pool_store: PoolStore):
    await led(pool_store)
    first = await admit(pool_store, "r1")
    again = await admit(pool_store, "r1")
    assert first.status is AdmissionStatus.GRANTED
    assert (first.backend, first.inflight, first.seq, first.attempt) == ("b1", 1, 1, 1)
    assert (again.status, again.backend, again.inflight, again.seq) == (first.status, "b1", 1, 1)
    view = await pool_store.view()
    assert (view.running, view.backends["b1"].running, view.entitlements["acme"].running) == (1, 1, 1)


async def test_what_leaves_replicas_to_others_begins_on_none_of_them(pool_store: PoolStore):
    epoch = await led(pool_store, slots=4)
    for name in ("b2", "b3"):
        await pool_store.set_ready(epoch, name, backend(name, slots=1))
    line = replace(entitlement("line", tier=tier(service_class=ServiceClass.PREEMPTIBLE, queue_limit=0)))
    est = estimate()

    async def admitted(name: str, avoid: tuple[str, ...], **changes: str) -> tuple[AdmissionStatus, str]:
        answer = await pool_store.admit(line, POOL, request(name, line, est, **changes), est, 300, FACTS, avoid=avoid)
        return answer.status, answer.backend

    assert await admitted("r1", ("b1", "b2")) == (AdmissionStatus.GRANTED, "b3")
    assert await admitted("r2", ("b1", "b2")) == (AdmissionStatus.REFUSED, "")
    assert await admitted("r3", ("b1",), exclude_backend="b9") == (AdmissionStatus.GRANTED, "b2")
    assert await admitted("r4", ("b2",), exclude_backend="b1") == (AdmissionStatus.REFUSED, "")
    assert await admitted("r5", ()) == (AdmissionStatus.GRANTED, "b1")


async def test_the_second_request_waits_and_is_granted_by_the_leader_with_a_notification(
    pool_store: PoolStore, redis_url: str
):
    epoch = await led(pool_store)
    heard: list[bytes] = []
    rung = asyncio.Event()

    def listen(_channel: str, payload: bytes) -> None:
        heard.append(payload)
        rung.set()

    ears = Subscriber(redis_url, [gateway_channel("gw-1")], listen)
    await ears.start()
    await admit(pool_store, "r1")
    last, queue = await pool_store.load_queue()
    assert queue == []
    queued = await admit(pool_store, "r2")
    assert (queued.status, queued.position) == (AdmissionStatus.QUEUED, 1)
    (event,) = await pool_store.events(last, 1000)
    assert event.kind is EventKind.QUEUED
    assert event.request is not None
    assert (event.request.id, event.request.seq) == ("r2", queued.seq)
    assert [r.id for r in (await pool_store.load_queue())[1]] == ["r2"]

    item = GrantItem("r2", 1, "b1", 8, "priority@1", "rank 1 before 0 waiting")
    assert await pool_store.grant(epoch, [item]) == [GrantStatus.FULL]
    assert (await pool_store.finish("r1", 1, Reason.STOP, 140, True, ledger("r1"))).status is FinishStatus.OK
    (freed,) = await pool_store.events(event.id, 1000)
    assert (freed.kind, freed.backend) == (EventKind.FREED, "b1")
    assert await pool_store.grant(epoch, [item]) == [GrantStatus.OK]
    await asyncio.wait_for(rung.wait(), 10)
    notice = codec.decode_notice(heard[0])
    assert (notice.request_id, notice.attempt, notice.backend) == ("r2", 1, "b1")
    assert (notice.policy, notice.why) == ("priority@1", "rank 1 before 0 waiting")
    (renewal,) = await pool_store.renew("gw-1", [("r2", 1, 0)])
    assert (renewal.status, renewal.backend, renewal.why) == (RenewStatus.HOLDS, "b1", "rank 1 before 0 waiting")
    await ears.close()


async def test_the_first_terminal_state_wins_and_writes_one_ledger_entry(pool_store: PoolStore):
    await led(pool_store)
    await admit(pool_store, "r1")
    record = ledger("r1")
    assert (await pool_store.finish("r1", 1, Reason.STOP, 140, True, record)).status is FinishStatus.OK
    second = await pool_store.finish("r1", 1, Reason.CLIENT_LEFT, 0, False, ledger("r1", Reason.CLIENT_LEFT))
    assert (second.status, second.reason) == (FinishStatus.ENDED, Reason.STOP)
    (entry,) = await pool_store.ledger_read(100)
    assert entry.record == record
    await pool_store.ledger_delete([entry.id])
    assert await pool_store.ledger_read(100) == []
    view = await pool_store.view()
    assert (view.running, view.backends["b1"].work_tokens, view.entitlements["acme"].kv_tokens) == (0, 0, 0)
    late = await admit(pool_store, "r1")
    assert (late.status, late.reason) == (AdmissionStatus.ENDED, Reason.STOP)


async def test_a_bucket_is_charged_the_estimate_and_settled_to_the_actual(pool_store: PoolStore):
    await led(pool_store, slots=4)
    frozen = entitlement("slow", tokens_per_s=0.001, burst_tokens=1000.0)
    first = await admit(pool_store, "r1", frozen)
    assert first.level_tokens == pytest.approx(850, abs=1)
    await pool_store.finish("r1", 1, Reason.STOP, 40, True, ledger("r1"))
    second = await admit(pool_store, "r2", frozen)
    assert second.level_tokens == pytest.approx(810, abs=1)
    await pool_store.finish("r2", 1, Reason.BACKEND_LOST, 0, False, ledger("r2"))
    big = await admit(pool_store, "r3", frozen, estimate(900, 200))
    assert (big.status, big.reason, big.retry_s) == (AdmissionStatus.REFUSED, Reason.TOKEN_BUDGET, None)
    soon = await admit(pool_store, "r4", frozen, estimate(900, 70))
    assert soon.reason is Reason.TOKEN_BUDGET
    assert soon.retry_s == pytest.approx(10_000, rel=0.1)


async def test_a_failed_attempt_moves_to_another_replica_or_waits_under_its_old_arrival(pool_store: PoolStore):
    epoch = await led(pool_store)
    await pool_store.set_ready(epoch, "b2", backend("b2", slots=1))
    est = estimate()
    r1 = request("r1", ACME, est)
    first = await pool_store.admit(ACME, POOL, r1, est, 300, FACTS)
    moved = await pool_store.requeue(r1, 300, FACTS, first.backend)
    assert (moved.status, moved.backend, moved.attempt) == (AdmissionStatus.GRANTED, "b2", 2)
    assert (await pool_store.requeue(r1, 300, FACTS, first.backend)).backend == "b2"
    await admit(pool_store, "r2")
    await pool_store.set_ready(epoch, "b1", None)
    r1b = request("r1", ACME, est, attempt=2)
    waits = await pool_store.requeue(r1b, 300, FACTS, "b2")
    assert (waits.status, waits.attempt, waits.seq) == (AdmissionStatus.QUEUED, 3, first.seq)
    (queued,) = (await pool_store.load_queue())[1]
    assert (queued.attempt, queued.exclude_backend, queued.seq) == (3, "b2", first.seq)
    assert (await pool_store.finish("r1", 1, Reason.STOP, 1, True, ledger("r1"))).status is FinishStatus.STALE


async def test_a_moved_attempt_beyond_its_baseline_leaves_the_headroom_alone(pool_store: PoolStore):
    epoch = await led(pool_store)
    await pool_store.set_ready(epoch, "b2", backend("b2", slots=1))
    bursting = replace(ACME, concurrency=1)
    spot = replace(ACME, id="spot", tier=tier(service_class=ServiceClass.SPOT))
    answers = {}
    for spec in (ACME, spot, bursting):
        est = estimate()
        mine = request(f"r-{spec.id}-{spec.concurrency}", spec, est)
        first = await pool_store.admit(spec, POOL, mine, est, 300, FACTS)
        moved = await pool_store.requeue(mine, 300, FACTS, first.backend, 2)
        answers[f"{spec.id} {spec.concurrency}"] = moved.status
        await pool_store.finish(mine.id, 2, Reason.CLIENT_LEFT, 0, False, ledger(mine.id))
    assert answers == {
        "acme 8": AdmissionStatus.GRANTED,
        "spot 8": AdmissionStatus.QUEUED,
        "acme 1": AdmissionStatus.GRANTED,
    }


async def test_what_a_dead_gateway_held_is_swept_with_a_ledger_entry(
    resp: RespConnection, pool_store: PoolStore, pool_id: str
):
    epoch = await led(pool_store)
    await admit(pool_store, "r1")
    await admit(pool_store, "r2")
    assert await pool_store.sweep(epoch) == []
    for key, name in (("leases", "r1"), ("waiting", "r2")):
        await resp.call("ZADD", f"qm:{{{pool_id}}}:{key}", 1, name)  # its expiry was long ago
    swept = await pool_store.sweep(epoch)
    assert [(s.request_id, s.backend) for s in swept] == [("r2", ""), ("r1", "b1")]
    records = [e.record for e in await pool_store.ledger_read(10)]
    assert [r.request_id for r in records if r] == ["r2", "r1"]
    for r in records:
        assert r is not None
        assert (r.outcome, r.reason, r.slo_met) == (Outcome.FAILED, Reason.GATEWAY_LOST, False)
        assert (r.model, r.key_id, r.tenant, r.pool) == ("llama", "abcdefghijkl", "acme", pool_id)
    assert (await pool_store.view()).running == 0
    (gone,) = await pool_store.renew("gw-1", [("r1", 1, 0)])
    assert (gone.status, gone.reason) == (RenewStatus.ENDED, Reason.GATEWAY_LOST)


async def test_a_superseded_request_is_refunded_if_its_gateway_dies_before_it_says_so(
    resp: RespConnection, pool_store: PoolStore, pool_id: str
):
    epoch = await led(pool_store)
    late = entitlement("late", concurrency=2, burst_tokens=1000.0, tokens_per_s=0.001)
    await admit(pool_store, "r1", late)
    await admit(pool_store, "r2", late, arrival_s=1.0, ttft_deadline_s=1.1)
    before = (await admit(pool_store, "r3", late)).level_tokens
    assert await pool_store.sweep(epoch) == []
    await resp.call("ZADD", f"qm:{{{pool_id}}}:leaving", 1, "r2")
    swept = await pool_store.sweep(epoch)
    assert [(s.request_id, s.backend) for s in swept] == [("r2", "")]
    (record,) = [e.record for e in await pool_store.ledger_read(10)]
    assert record is not None
    assert (record.outcome, record.reason) == (Outcome.REFUSED, Reason.SUPERSEDED)
    after = (await admit(pool_store, "r3", late)).level_tokens
    assert before is not None
    assert after == pytest.approx(before + estimate().cost_tokens, abs=1)


async def test_after_an_outage_gateways_renew_before_anything_is_swept(
    resp: RespConnection, pool_store: PoolStore, pool_id: str
):
    epoch = await led(pool_store)
    await admit(pool_store, "r1")
    await pool_store.sweep(epoch)
    prefix = f"qm:{{{pool_id}}}:"
    await resp.call("ZADD", prefix + "leases", 1, "r1")  # Redis was away for longer than a lease ...
    await resp.call("HINCRBY", prefix + "meta", "swept_at", -60_000)  # ... and nobody swept meanwhile
    assert await pool_store.sweep(epoch) == []
    (renewal,) = await pool_store.renew("gw-1", [("r1", 1, 0)])
    assert renewal.status is RenewStatus.HOLDS


async def test_a_fenced_leader_changes_nothing(pool_store: PoolStore):
    old = await led(pool_store)
    await admit(pool_store, "r1")
    await admit(pool_store, "r2")
    await pool_store.resign("leader-1")
    new = await pool_store.elect("leader-2", 0, first_start=False)
    assert new.leader
    assert new.epoch == old + 1
    assert not (await pool_store.elect("leader-1", 0, first_start=False)).leader
    with pytest.raises(Fenced):
        await pool_store.grant(old, [GrantItem("r2", 1, "b1", 8)])
    with pytest.raises(Fenced):
        await pool_store.sweep(old)
    with pytest.raises(Fenced):
        await pool_store.set_ready(old, "b1", None)
    assert (await pool_store.view()).backends["b1"].ready


async def test_what_a_gateway_tells_goes_before_what_a_node_that_took_over_knows(pool_store: PoolStore):
    """Which has an earlier attempt of the one, and lets the other wait."""
    epoch, est = await led(pool_store), estimate()
    await pool_store.set_ready(epoch, "b2", backend("b2", slots=0))
    await admit(pool_store, "r1")
    await admit(pool_store, "r2")
    before = (await pool_store.view()).entitlements["acme"].level_tokens

    async def announce(name: str, attempt: int, at: str) -> AnnounceStatus:
        told = request(name, ACME, est, attempt=attempt)
        return (await pool_store.announce(ACME, POOL, told, est, 300, FACTS, at)).status

    gateway = request("r1", ACME, est).gateway
    statuses = [(await pool_store.renew(gateway, [("r1", attempt, 0)]))[0].status for attempt in (1, 2)]
    assert statuses == [RenewStatus.HOLDS, RenewStatus.UNKNOWN]
    said = [await announce("r1", attempt, at) for attempt, at in ((1, "b2"), (2, "b2"), (2, "b2"), (1, "b1"))]
    assert said == [AnnounceStatus.KNOWN, AnnounceStatus.OK, AnnounceStatus.KNOWN, AnnounceStatus.KNOWN]
    said = [await announce("r2", 1, at) for at in ("", "b2", "b2", "")]
    assert said == [AnnounceStatus.KNOWN, AnnounceStatus.OK, AnnounceStatus.KNOWN, AnnounceStatus.KNOWN]
    view = await pool_store.view()
    assert (view.running, view.waiting, view.backends["b1"].running, view.backends["b2"].running) == (2, 0, 0, 2)
    assert not view.differences()
    assert view.entitlements["acme"].level_tokens == pytest.approx(before, abs=20)  # charged once
    said = [(await pool_store.finish("r2", n, Reason.STOP, 10, True, ledger("r2"))).status for n in (0, 2, 2)]
    assert said == [FinishStatus.STALE, FinishStatus.OK, FinishStatus.ENDED]
    assert await pool_store.record([ledger("r1"), ledger("r2")]) == {"r1"}


async def test_what_is_told_anew_counts_once_for_its_key(pool_store: PoolStore):
    """A node that took over knows an earlier attempt of the one, and lets the other wait."""
    await led(pool_store)
    limits = write_limits(Limited(400, (Scope("~acme:k:key", RateLimits(tokens_per_minute=1300, concurrency=3)),)))
    facts, est = replace(FACTS, limits=limits), estimate()

    async def asked(name: str) -> AdmissionStatus:
        return (await pool_store.admit(ACME, POOL, request(name, ACME, est), est, 300, facts)).status

    assert [await asked("r1"), await asked("r2")] == [AdmissionStatus.GRANTED, AdmissionStatus.QUEUED]
    for name, attempt in (("r1", 2), ("r2", 1)):
        told = request(name, ACME, est, attempt=attempt)
        assert (await pool_store.announce(ACME, POOL, told, est, 300, facts, "b1")).status is AnnounceStatus.OK
    assert [await asked("r3"), await asked("r4")] == [AdmissionStatus.QUEUED, AdmissionStatus.REFUSED]


async def test_after_a_lost_state_nothing_is_admitted_until_leases_are_announced(pool_store: PoolStore):
    (unknown,) = await pool_store.renew("gw-1", [("r1", 1, 0)])
    assert unknown.status is RenewStatus.UNKNOWN
    election = await pool_store.elect("leader-9", 41, first_start=False)
    assert election.epoch == 42
    await pool_store.set_ready(42, "b1", backend(slots=1))
    refused = await admit(pool_store, "r2")
    assert refused.reason is Reason.REBUILDING
    assert refused.retry_s is not None
    assert 0 < refused.retry_s <= 5
    est = estimate()
    r1 = request("r1", ACME, est, seq=17)
    assert (await pool_store.announce(ACME, POOL, r1, est, 300, FACTS, "b1")).status is AnnounceStatus.OK
    assert (await pool_store.announce(ACME, POOL, r1, est, 300, FACTS, "b1")).status is AnnounceStatus.KNOWN
    view = await pool_store.view()
    assert (view.running, view.backends["b1"].running) == (1, 1)
    assert view.rebuilding_ms > 0


async def test_a_tier_that_waits_goes_over_its_concurrency_up_to_its_queue_limit(pool_store: PoolStore):
    await led(pool_store, slots=4)
    batch = entitlement(
        "batch",
        concurrency=1,
        tier=tier(service_class=ServiceClass.GUARANTEED, over_limit=OverLimit.WAIT, queue_limit=1),
    )
    assert (await admit(pool_store, "r1", batch)).status is AdmissionStatus.GRANTED
    assert (await admit(pool_store, "r2", batch)).status is AdmissionStatus.QUEUED
    full = await admit(pool_store, "r3", batch)
    assert (full.reason, full.inflight) == (Reason.QUEUE_FULL, 2)
    strict = entitlement("strict", concurrency=0, tier=tier(service_class=ServiceClass.GUARANTEED))
    assert (await admit(pool_store, "r4", strict)).reason is Reason.CONCURRENCY


async def test_refusals_are_recorded_once_each(pool_store: PoolStore):
    refusals = [ledger(f"r{i}", Reason.TOKEN_BUDGET, slo_met=None) for i in range(250)]
    await pool_store.record(refusals)
    await pool_store.record(refusals[:10])
    assert [e.record for e in await pool_store.ledger_read(1000)] == refusals


async def test_an_unreadable_ledger_entry_does_not_block_the_rest(
    resp: RespConnection, pool_store: PoolStore, pool_id: str
):
    await resp.call("XADD", f"qm:{{{pool_id}}}:ledger", "*", "r", "{}")
    await pool_store.record([ledger("r1")])
    entries = await pool_store.ledger_read(10)
    assert [e.record.request_id if e.record else None for e in entries] == [None, "r1"]


async def test_a_suspicion_reaches_the_leader(pool_store: PoolStore):
    await pool_store.suspect("b1", "connection refused")
    (event,) = await pool_store.events("0-0", 1000)
    assert (event.kind, event.backend, event.why) == (EventKind.SUSPECT, "b1", "connection refused")


async def test_a_swept_ttlt_request_keeps_its_slo(resp: RespConnection, pool_store: PoolStore, pool_id: str):
    epoch = await led(pool_store)
    est = estimate()
    facts = type(FACTS)("llama", "k", False, Slo(ttlt_s=600.0))
    await pool_store.admit(ACME, POOL, request("r1", ACME, est), est, 1, facts)
    await resp.call("ZADD", f"qm:{{{pool_id}}}:leases", 1, "r1")
    await pool_store.sweep(epoch)
    (entry,) = await pool_store.ledger_read(10)
    assert entry.record is not None
    assert (entry.record.ttlt_slo_s, entry.record.streamed, entry.record.policy) == (600.0, False, "direct")


@pytest.mark.parametrize("actual", [10**23, 2**63, -(2**63), 2**63 - 1, MAX_USED + 1])
async def test_no_figure_of_tokens_leaves_a_request_half_ended(pool_store: PoolStore, actual: int):
    """A script that fails after its first write would free the slot and lose the ledger entry."""
    await led(pool_store)
    for name in ("r1", "r2"):
        assert (await admit(pool_store, name)).status is AdmissionStatus.GRANTED
        await pool_store.renew("gw-1", [(name, 1, actual)])
        ended = await pool_store.finish(name, 1, Reason.STOP, actual, True, ledger(name, Reason.STOP))
        assert ended.status is FinishStatus.OK
    view = await pool_store.view()
    assert view.running == 0
    assert [e.record.request_id for e in await pool_store.ledger_read(10) if e.record] == ["r1", "r2"]
    acme = view.entitlements["acme"]
    assert acme.level_tokens is not None
    assert acme.level_tokens > 0, "it pays what it was charged"
    assert 0 <= acme.served_tokens <= 4 * MAX_USED


async def test_a_sum_that_cannot_be_increased_starts_from_zero(pool_store: PoolStore, resp: RespConnection):
    await led(pool_store)
    await admit(pool_store, "r1")
    await resp.call("HSET", pool_store._key("meter"), "acme:served", str(2**63 - 1))
    ended = await pool_store.finish("r1", 1, Reason.STOP, 30, True, ledger("r1", Reason.STOP))
    assert ended.status is FinishStatus.OK
    assert (await pool_store.view()).entitlements["acme"].served_tokens == 30


async def test_requests_for_an_adapter_are_placed_and_make_room_only_where_it_is(pool_store: PoolStore):
    epoch = await led(pool_store)
    await pool_store.set_ready(epoch, "b2", backend("b2", 1, 10_000))
    await pool_store.set_adapters(epoch, {"sql": (False, ["b2"]), "law": (True, [])})
    spot = entitlement("spot", tier=tier(service_class=ServiceClass.PREEMPTIBLE))
    owner = entitlement("owner", tier=tier(service_class=ServiceClass.GUARANTEED))

    nowhere = await admit(pool_store, "r0", spot, adapter="code")
    assert (nowhere.status, nowhere.reason) == (AdmissionStatus.REFUSED, Reason.NO_ADAPTER)
    assert (nowhere.retry_s or 0) > 0
    there = await admit(pool_store, "r1", spot, adapter="sql")
    assert (there.status, there.backend) == (AdmissionStatus.GRANTED, "b2"), "not b1, the first by name"
    here = await admit(pool_store, "r2", spot)
    assert here.backend == "b1"
    evicting = await admit(pool_store, "r3", owner, adapter="sql")
    assert (evicting.status, evicting.backend) == (AdmissionStatus.GRANTED, "b2"), "r2 is the newer one, and elsewhere"
    view = await pool_store.view()
    assert {name: b.running for name, b in view.backends.items()} == {"b1": 1, "b2": 1}
    await pool_store.finish("r2", 1, Reason.STOP, 10, True, ledger("r2"))
    loading = await admit(pool_store, "r4", owner, adapter="law")
    assert loading.status is AdmissionStatus.QUEUED, "b1 has room, and is to load it first"


async def test_without_a_ready_replica_requests_wait_where_one_is_woken_for_them_and_are_told_how_long(
    pool_store: PoolStore,
):
    election = await pool_store.elect("leader-1", 0, first_start=True)
    await leads_on(pool_store)
    await pool_store.set_waking(election.epoch, 12_000)
    first = await admit(pool_store, "r1")
    assert (first.status, first.position, first.wakes_s) == (AdmissionStatus.QUEUED, 1, 12.0)
    assert (await pool_store.view()).waking_ms == 12_000
    limited = replace(ACME, concurrency=1)
    assert (await admit(pool_store, "r2", limited)).reason is Reason.CONCURRENCY, "all other rules hold"

    await pool_store.set_ready(election.epoch, "b1", backend(slots=1))
    second = await admit(pool_store, "r3")
    assert (second.status, second.wakes_s) == (AdmissionStatus.QUEUED, None), "one serves: nobody waits for a wake"

    await pool_store.set_ready(election.epoch, "b1", None)
    await pool_store.set_waking(election.epoch, 0)
    assert (await admit(pool_store, "r4")).reason is Reason.NO_BACKEND
    with pytest.raises(Fenced):
        await pool_store.set_waking(election.epoch - 1, 12_000)
