"""Slots of a replica and places of an entitlement count sequences: a request of several answers takes as many, from the
last free one on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.admission.rule import PreemptibleLease, choose_victims
from scheduling.core.placement.room import Need
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.preview import copy_of, preview
from scheduling.core.types import BackendView, QueuedRequest
from scheduling.simulator import room
from scheduling.state.types import BackendTotals, Counts, EntitlementTotals, PoolSnapshot
from tests.support.scheduling_world import backend_view, pool_view, waiting


def scheduler_of(*requests: QueuedRequest) -> Scheduler:
    made = Scheduler(make_ordering("fifo"), make_routing("least_work"))
    for request in requests:
        made.offer(request, request.arrival_s)
    return made


@pytest.mark.parametrize(("running", "granted", "then"), [(0, 2, 16), (7, 2, 23), (9, 1, 17), (15, 1, 23), (16, 0, 16)])
def test_a_request_of_eight_answers_takes_eight_slots_from_the_last_free_one_on(running: int, granted: int, then: int):
    view = pool_view(backend_view(slots=16, running=running))
    requests = [waiting(n, sequences=8) for n in range(3)]
    before = remember(view, requests)
    scheduler = scheduler_of(*requests)
    grants = scheduler.step(view, 2000.0)
    assert len(grants) == granted
    assert view.backends["b1"].running == then
    assert check_step(before, grants, scheduler, 2000.0) == []


def test_narrow_requests_pass_no_wide_one_that_waits_for_a_slot():
    view = pool_view(backend_view(slots=16, running=15))
    [grant] = scheduler_of(waiting(1, sequences=16), *(waiting(n) for n in range(2, 9))).step(view, 2000.0)
    assert grant.request.sequences == 16


@pytest.mark.parametrize(("sequences", "granted"), [(1, 6), (2, 3), (4, 2), (6, 1)])
def test_an_entitlement_runs_as_many_sequences_as_it_may_from_its_last_free_place_on(sequences: int, granted: int):
    view = pool_view(backend_view(slots=100))
    requests = [waiting(n, sequences=sequences, concurrency=6) for n in range(9)]
    before, scheduler = remember(view, requests), scheduler_of(*requests)
    grants = scheduler.step(view, 2000.0)
    assert len(grants) == granted
    assert view.running_by_entitlement["acme"] == view.backends["b1"].running == granted * sequences
    assert check_step(before, grants, scheduler, 2000.0) == []


def test_what_ends_gives_back_the_slots_that_it_took():
    view = pool_view(backend_view(slots=16))
    for request in (waiting(1, sequences=8), waiting(2)):
        room.take(view, request, "b1")
    assert view.backends["b1"].running == 9
    room.end(view, waiting(1, sequences=8), "b1")
    assert view.backends["b1"].running == 1


def test_one_wide_preemptible_request_makes_the_room_of_all_its_answers():
    full = BackendView("b1", 4, 1000, running=9)
    wide, narrow = PreemptibleLease("wide", "b1", 100, sequences=8), PreemptibleLease("narrow", "b1", 100)
    assert choose_victims((wide, narrow), [full], Need(100)) == ("b1", ("wide",))
    assert choose_victims((narrow, wide), [full], Need(100)) == ("b1", ("narrow", "wide"))
    assert choose_victims((narrow,), [full], Need(100)) is None


def test_a_queue_is_shown_to_wait_until_enough_answers_have_ended():
    scheduler = Scheduler(make_policy("fifo", None, {}), make_routing("least_work"), max_grants=1)
    for n in range(2):
        scheduler.offer(waiting(n, sequences=4), 1000.0 + n)
    full = pool_view(backend_view(slots=4, running=8, kv_tokens=10**9), running={"acme": 8})
    starts = [p.start_s for p in preview(copy_of(scheduler, 5000.0), full, 5000.0, 9, 8.0).planned]
    assert starts == [5005.0, 5013.0], "the fifth end of eight leaves a slot; then its own four end"


def totals(running: int) -> BackendTotals:
    return BackendTotals(True, 64, 1000, running, 0, 0)


@pytest.mark.parametrize(
    ("on_replicas", "sound"), [((2, 1), True), ((32, 16), True), ((2, 0), False), ((48, 1), False)]
)
def test_sums_over_replicas_lie_between_requests_and_the_most_sequences_of_as_many(
    on_replicas: tuple[int, int], sound: bool
):
    snapshot = PoolSnapshot(
        0, 1, "a", 0, None, running=3, waiting=0, waiting_bytes=0, ledger_waiting=0,
        backends={f"b{n}": totals(running) for n, running in enumerate(on_replicas)},
        entitlements={"acme": EntitlementTotals(sum(on_replicas), 0, 0, None, None)}, counts=Counts(leases=3, held=3),
    )  # fmt: skip
    assert (snapshot.differences() == []) is sound
    by_request = {"acme": EntitlementTotals(2, 0, 0, None, None)}
    assert replace(snapshot, entitlements=by_request).differences() != [], "as many run of entitlements as on replicas"
