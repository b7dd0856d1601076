"""The decision loop and the two shipped orders."""

from __future__ import annotations

import pytest

from scheduling.core.policies.queues.keyed import LOOK_PAST, KeyedQueue
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.step import work_of
from scheduling.core.types import Grant, PoolView, QueuedRequest
from tests.support.scheduling_world import backend_view, ids, pool_view, waiting


def make(policy: str = "fifo", **options: float) -> Scheduler:
    return Scheduler(make_ordering(policy), make_routing("least_work"), **options)  # type: ignore[arg-type]


def offered(scheduler: Scheduler, *requests: QueuedRequest) -> Scheduler:
    for request in requests:
        scheduler.offer(request, request.arrival_s)
    return scheduler


def granted(grants: list[Grant]) -> list[str]:
    return ids(grant.request for grant in grants)


def big() -> PoolView:
    return pool_view(backend_view(slots=1000, kv_tokens=10**9))


def test_fifo_serves_the_oldest_arrival_first_whatever_its_tier():
    scheduler = offered(make(), waiting(2, rank=0), waiting(1, rank=2), waiting(3, rank=1))
    assert granted(scheduler.step(big(), 2000.0)) == ["req_000001", "req_000002", "req_000003"]


def test_priority_serves_lower_ranks_first_and_arrival_within_a_rank():
    scheduler = offered(
        make("priority"), waiting(1, "c", 2), waiting(2, "a", 0), waiting(3, "b", 1), waiting(4, "a", 0)
    )
    assert granted(scheduler.step(big(), 2000.0)) == ["req_000002", "req_000004", "req_000003", "req_000001"]


def test_a_clients_priority_exchanges_turns_within_its_entitlement_and_harms_nobody_else():
    scheduler = offered(
        make("priority"),
        waiting(1, "acme"),
        waiting(2, "globex"),
        waiting(3, "acme"),
        waiting(4, "globex"),
        waiting(5, "acme", client_priority=-5),
    )
    assert granted(scheduler.step(big(), 2000.0)) == [
        "req_000005",  # acme's turns are 1, 3 and 5; its most urgent request takes the first
        "req_000002",
        "req_000001",  # and its others move one turn back
        "req_000004",
        "req_000003",
    ]


def test_a_clients_priority_cannot_raise_it_over_another_tenant_of_its_rank():
    scheduler = offered(make("priority"), waiting(1, "globex"), waiting(2, "acme", client_priority=-100))
    assert granted(scheduler.step(big(), 2000.0)) == ["req_000001", "req_000002"]


def test_slots_are_never_exceeded_and_grants_are_booked_in_the_view():
    view = pool_view(backend_view("b1", slots=2, running=1), backend_view("b2", slots=1))
    scheduler = offered(make(), *(waiting(n) for n in range(5)))
    grants = scheduler.step(view, 2000.0)
    assert len(grants) == 2
    assert (view.backends["b1"].running, view.backends["b2"].running) == (2, 1)
    assert view.running_by_entitlement == {"acme": 2}
    assert view.backends["b2"].work_tokens + view.backends["b1"].work_tokens == 2 * work_of(waiting(0))
    assert scheduler.step(view, 2001.0) == []
    assert len(scheduler) == 3


def test_an_entitlement_at_its_concurrency_waits_while_others_go():
    scheduler = offered(
        make(), *(waiting(n, "acme", concurrency=2) for n in range(3)), waiting(9, "globex", concurrency=2)
    )
    view = big()
    assert granted(scheduler.step(view, 2000.0)) == ["req_000000", "req_000001", "req_000009"]
    view.running_by_entitlement["acme"] = 1
    assert granted(scheduler.step(view, 2001.0)) == ["req_000002"]


def test_an_expired_request_is_never_granted():
    scheduler = offered(
        make(), waiting(1, expires_s=1999.0), waiting(2, expires_s=2000.0), waiting(3, expires_s=2000.1)
    )
    assert ids(scheduler.expire(1999.5)) == ["req_000001"]
    assert granted(scheduler.step(big(), 2000.0)) == ["req_000003"]
    assert len(scheduler) == 0


def test_a_withdrawn_request_is_not_granted_and_withdrawing_twice_is_harmless():
    scheduler = offered(make(), waiting(1), waiting(2))
    assert scheduler.withdraw("req_000001")
    assert not scheduler.withdraw("req_000001")
    assert granted(scheduler.step(big(), 2000.0)) == ["req_000002"]


def test_a_step_is_bounded():
    scheduler = offered(make(max_grants=3), *(waiting(n) for n in range(10)))
    view = big()
    assert len(scheduler.step(view, 2000.0)) == 3
    assert len(scheduler) == 7


def test_a_request_avoids_the_replica_where_it_failed_unless_no_other_is_ready():
    def where(*backends: str) -> list[str]:
        view = pool_view(*(backend_view(name) for name in backends))
        return [g.backend for g in offered(make(), waiting(1, exclude_backend="b1")).step(view, 2000.0)]

    assert where("b1", "b2") == ["b2"]
    assert where("b1") == ["b1"]


def test_a_request_waits_for_the_other_replica_when_that_is_ready_but_full():
    view = pool_view(backend_view("b1"), backend_view("b2", slots=1, running=1))
    assert offered(make(), waiting(1, exclude_backend="b1")).step(view, 2000.0) == []


def test_a_request_too_long_for_a_replica_waits_for_another_and_keeps_nothing_free_there():
    scheduler = offered(make(patience_s=1.0), waiting(1, kv_tokens=3000), *(waiting(n) for n in range(2, 9)))

    def view() -> PoolView:
        return pool_view(backend_view("b1", slots=2, running=2), backend_view("b2", slots=4, longest=2000))

    assert {g.backend for g in scheduler.step(view(), 1000.0)} == {"b2"}
    assert len(scheduler.step(view(), 1010.0)) == 3, "shorter ones go on, however long it has waited"
    (late,) = scheduler.step(pool_view(backend_view("b1"), backend_view("b2", longest=2000)), 1011.0)
    assert (late.request.id, late.backend) == ("req_000001", "b1")


def test_smaller_requests_pass_one_that_lacks_kv_cache_until_its_patience_ends():
    scheduler = offered(
        make(patience_s=2.0), waiting(1, kv_tokens=800), *(waiting(n, kv_tokens=200) for n in range(2, 9))
    )
    view = pool_view(backend_view(slots=10, kv_tokens=1000, kv_used=600, running=3))
    assert granted(scheduler.step(view, 2000.0)) == ["req_000002", "req_000003"]
    view.backends["b1"].kv_used = 600
    assert granted(scheduler.step(view, 2002.5)) == []  # room for the small ones is kept free now
    assert scheduler.kv_hold == "req_000001"
    view.backends["b1"].kv_used = 200
    assert granted(scheduler.step(view, 2003.0)) == ["req_000001"]
    assert scheduler.kv_hold is None


def test_a_kept_replica_still_serves_what_the_policy_puts_first():
    scheduler = offered(make("priority", patience_s=1.0), waiting(1, "batch", 2, kv_tokens=800))
    view = pool_view(backend_view(slots=10, kv_tokens=1000, kv_used=600, running=1))
    scheduler.step(view, 2000.0)
    scheduler.step(view, 2005.0)
    offered(scheduler, waiting(2, "vip", 0), waiting(3, "later", 2))
    assert granted(scheduler.step(view, 2006.0)) == ["req_000002"]


def test_other_replicas_serve_on_while_one_is_kept():
    scheduler = offered(make(patience_s=1.0), waiting(1, kv_tokens=900), *(waiting(n) for n in range(2, 5)))
    view = pool_view(backend_view("b1", kv_tokens=1000, kv_used=400), backend_view("b2", kv_tokens=1000, kv_used=700))
    view.backends["b1"].running = view.backends["b2"].running = 3
    scheduler.step(pool_view(backend_view("b1", kv_tokens=1000, kv_used=1000)), 2000.0)
    grants = scheduler.step(view, 2005.0)
    assert [(g.request.id, g.backend) for g in grants] == [("req_000002", "b2")]


def test_a_request_that_fits_no_replica_at_all_keeps_nothing_free():
    scheduler = offered(make(patience_s=1.0), waiting(1, kv_tokens=5000), waiting(2))
    view = pool_view(backend_view(slots=1, kv_tokens=1000))
    scheduler.step(view, 2000.0)
    assert scheduler.kv_hold is None


def test_withdrawing_the_request_a_replica_is_kept_for_frees_it():
    scheduler = offered(make(patience_s=1.0), waiting(1, kv_tokens=900), waiting(2))
    view = pool_view(backend_view(kv_tokens=1000, kv_used=500))
    scheduler.step(view, 2000.0)
    scheduler.step(view, 2005.0)
    scheduler.withdraw("req_000001")
    offered(scheduler, waiting(3))
    assert granted(scheduler.step(view, 2006.0)) == ["req_000003"]


def test_changing_the_policy_moves_everything_that_waits():
    scheduler = offered(make(), waiting(1, "c", 2), waiting(2, "a", 0), waiting(3, "b", 1))
    scheduler.swap(make_ordering("priority"), make_routing("least_work"), 2000.0)
    assert granted(scheduler.step(big(), 2000.0)) == ["req_000002", "req_000003", "req_000001"]


def test_a_request_offered_again_is_replaced():
    scheduler = offered(make(), waiting(1), waiting(1, attempt=2))
    (grant,) = scheduler.step(big(), 2000.0)
    assert grant.request.attempt == 2


def test_the_reason_is_a_line_a_person_can_read():
    scheduler = offered(make("priority"), waiting(1, "a", 0), waiting(2, "b", 1))
    view = pool_view(backend_view("b1", slots=1), backend_view("b2", slots=0))
    (grant,) = scheduler.step(view, 1001.5)
    assert grant.reason == "rank 0, oldest arrival; waited 0.50 s, 1 still wait; least_work of 1"


def test_a_policy_that_selects_what_does_not_fit_is_named_in_the_error():
    class Careless(KeyedQueue):
        def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
            return next(iter(self), None)

    class Policy:
        name = "careless"

        def queue(self) -> Careless:
            return Careless(lambda r: (0.0,), lambda r: "")

    scheduler = offered(Scheduler(Policy(), make_routing("least_work")), waiting(1, kv_tokens=10**6))
    with pytest.raises(RuntimeError, match="'careless' selected request req_000001"):
        scheduler.step(pool_view(backend_view()), 2000.0)


def test_a_full_lane_is_asked_once_per_step_however_many_wait_in_it():
    asked: list[str] = []
    queue = KeyedQueue(lambda r: (r.arrival_s,), lambda r: "")
    for n in range(1000):
        queue.push(waiting(n, "full", concurrency=3), 0.0)
    queue.push(waiting(5000, "free"), 0.0)
    view = pool_view(backend_view(), running={"full": 3})

    def fits(request: QueuedRequest) -> bool:
        asked.append(request.id)
        return request.entitlement == "free"

    one_round = Round(view, fits)
    assert queue.select(one_round, 0.0).id == "req_005000"  # type: ignore[union-attr]
    assert queue.select(one_round, 0.0) is None
    assert asked == ["req_000000", "req_005000"]


def test_looking_past_requests_without_room_is_bounded_in_each_step():
    queue = KeyedQueue(lambda r: (r.arrival_s,), lambda r: "")
    for n in range(1000):
        queue.push(waiting(n), 0.0)
    for _ in range(3):
        asked: list[str] = []

        def fits(request: QueuedRequest, asked: list[str] = asked) -> bool:
            asked.append(request.id)
            return False

        assert queue.select(Round(big(), fits), 0.0) is None
        assert len(asked) == LOOK_PAST + 1
        assert asked[0] == "req_000000"
    assert len(queue) == 1000


def test_who_is_asked_last_may_have_room_kept_that_weighted_turns_counted_on():
    """The large one's patience ends between the question about the other tier's request and that one's turn."""
    scheduler = Scheduler(make_ordering("weighted"), make_routing("least_work"), patience_s=2.0)
    scheduler.offer(waiting(1, rank=0), 1000.0)  # so that its tier is asked first
    scheduler.withdraw("req_000001")
    scheduler.offer(waiting(2, "globex", rank=1, kv_tokens=50_000), 1000.0)

    def view() -> PoolView:
        return pool_view(backend_view("b1", kv_used=99_000), backend_view("b2", kv_used=90_000))

    assert scheduler.step(view(), 1000.0) == []
    scheduler.offer(waiting(3, rank=0, exclude_backend="b1"), 1002.0)
    assert scheduler.step(view(), 1003.0) == []
    assert scheduler.kv_hold == "req_000002"
    assert [grant.request.id for grant in scheduler.step(pool_view(backend_view("b2")), 1004.0)] == [
        "req_000003",
        "req_000002",
    ]
