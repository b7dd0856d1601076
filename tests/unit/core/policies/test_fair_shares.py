"""Fair shares count what was granted on arrival, and the next leader goes on from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.contracts import RequestQueue, Served, counts_service, shares_of
from scheduling.core.policies.queues.fair import Fair, FairQueue
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import QueuedRequest, ServiceClass
from tests.support.scheduling_world import backend_view, pool_view, waiting

ELASTIC = ServiceClass.ELASTIC
AROUND = [("fair",), ("bands", "fair"), ("bands", "fair", "relegate")]
every_composition = pytest.mark.parametrize("around", AROUND, ids="+".join)


def scheduler(around: tuple[str, ...] = ("fair",)) -> Scheduler:
    policy = make_policy("fifo", None, {name: {} for name in around})
    return Scheduler(policy, make_routing("least_work"), rights=True)


def asked(name: str, number: int, now_s: float = 1000.0) -> QueuedRequest:
    return waiting(
        number, name, 1, id=f"{name}-{number}", input_tokens=100, output_tokens=0.0, ttft_deadline_s=now_s + 1e6
    )


def served(name: str, number: int, tokens: int = 100) -> Served:
    return Served(f"{name}-direct-{number}", name, ELASTIC, 30.0, tokens, 0)


def turns(world: Scheduler, count: int, now_s: float = 1100.0) -> list[str]:
    got = []
    for turn in range(count):
        (grant,) = world.step(pool_view(backend_view(slots=1)), now_s + turn)
        got.append(grant.request.entitlement)
        world.served(Served(grant.request.id, grant.request.entitlement, ELASTIC, 30.0, 100, 0))
    return got


@every_composition
def test_who_was_granted_on_arrival_while_another_waited_has_had_its_turns(around: tuple[str, ...]):
    world = scheduler(around)
    for number in range(20):
        world.offer(asked("waits", number), 1000.0)
    for number in range(10):  # small ones, that found room beside it
        world.served(served("direct", number))
    for number in range(20):
        world.offer(asked("direct", number), 1001.0)
    assert turns(world, 10) == ["waits"] * 10
    assert turns(world, 10, 1200.0).count("waits") == 5


@every_composition
def test_what_was_granted_on_arrival_and_still_runs_counts(around: tuple[str, ...]):
    world = scheduler(around)
    world.served(served("direct", 0))  # so long is one of them
    for number in range(20):
        world.offer(asked("waits", number), 1000.0)
    world.watch([("direct", ELASTIC, 30.0, 8)])
    for number in range(20):
        world.offer(asked("direct", number), 1001.0)
    assert turns(world, 8) == ["waits"] * 8
    world.watch([])  # they have ended; what they used comes with the ledger
    for number in range(8):
        world.served(served("direct", 1 + number))
    assert turns(world, 10, 1200.0).count("waits") == 5


def test_what_runs_is_charged_what_it_used_when_it_ends():
    world = scheduler()
    world.served(served("direct", 0))
    for number in range(30):
        world.offer(asked("waits", number), 1000.0)
    world.watch([("direct", ELASTIC, 30.0, 2)])
    for number in range(20):
        world.offer(asked("direct", number), 1001.0)
    for number in (1, 2):
        world.served(served("direct", number, tokens=500))
    assert turns(world, 10) == ["waits"] * 10
    assert turns(world, 10, 1200.0).count("waits") == 5


def test_an_end_that_is_told_twice_counts_once():
    world = scheduler()
    for number in range(20):
        world.offer(asked("waits", number), 1000.0)
    for _ in range(5):
        world.served(served("direct", 1, tokens=400))
    for number in range(20):
        world.offer(asked("direct", number), 1001.0)
    assert turns(world, 4) == ["waits"] * 4
    assert turns(world, 10, 1200.0).count("waits") == 5


def test_what_was_had_while_nobody_waited_is_held_against_nobody():
    """A night of idle capacity costs no turns in the morning."""
    world = scheduler()
    for number in range(500):
        world.served(served("night", number))
    for number in range(20):
        world.offer(asked("morning", number), 1000.0)
        world.offer(asked("night", number), 1000.0)
    assert 9 <= turns(world, 20).count("night") <= 11


def test_a_crowd_of_entitlements_that_never_wait_is_not_remembered():
    world = scheduler()
    for number in range(20_000):
        world.served(served(f"tenant-{number}", number))
    (values,) = world.kept_shares().values()
    assert len(values) < 5000


@pytest.mark.parametrize("queue", [list, lambda waiting: sorted(waiting, key=lambda r: r.entitlement)])
def test_a_new_leader_goes_on_from_the_last_ones_counters_in_any_order_of_requests(
    queue: Callable[[Iterable[QueuedRequest]], list[QueuedRequest]],
):
    first = scheduler(("bands", "fair"))
    for number in range(20):
        first.offer(asked("behind", number), 1000.0)
        first.offer(asked("ahead", number), 1000.0)
    for number in range(6):  # "ahead" has had six more
        first.served(served("ahead", number))
    left = list(first)
    second = scheduler(("bands", "fair"))
    second.resume_shares(first.kept_shares())
    for request in queue(left):
        second.offer(request, 1000.0)
    assert turns(second, 6) == ["behind"] * 6
    assert turns(second, 10, 1200.0).count("behind") == 5


def test_a_new_leader_charges_what_its_predecessor_granted_once():
    first = scheduler()
    for number in range(20):
        first.offer(asked("one", number), 1000.0)
        first.offer(asked("two", number), 1000.0)
    granted = first.step(pool_view(backend_view(slots=4)), 1001.0)
    assert [g.request.entitlement for g in granted].count("one") == 2
    kept, left = first.kept_shares(), list(first)
    second = scheduler()
    second.resume_shares(kept)
    for request in left:
        second.offer(request, 1002.0)
    second.watch([("one", ELASTIC, 30.0, 2), ("two", ELASTIC, 30.0, 2)])
    for grant in granted:
        second.served(Served(grant.request.id, grant.request.entitlement, ELASTIC, 30.0, 100, 0))
    (values,) = second.kept_shares().values()
    assert values["one"] == values["two"] == pytest.approx(200 / 30)


def test_a_change_of_the_policy_keeps_the_share_counters():
    world = scheduler()
    for number in range(20):
        world.offer(asked("direct", number), 1000.0)
        world.offer(asked("waits", number), 1000.0)
    for number in range(5):
        world.served(served("direct", number))
    world.swap(make_policy("edf", None, {"fair": {}}), make_routing("least_work"), 1001.0)
    assert turns(world, 5) == ["waits"] * 5


def test_an_order_that_takes_turns_itself_learns_what_its_requests_used():
    """Else it would remember each of them: `unified`, the default, takes turns in spot."""
    ordering = make_ordering("fifo")
    inside: list[RequestQueue] = []

    def make(group: str) -> RequestQueue:
        inside.append(Fair().around(lambda _: ordering.queue())(group))
        return inside[-1]

    queue = Fair().around(make)("")
    for number in range(2):
        queue.push(asked("acme", number), 1000.0)
    chosen = queue.select(Round(pool_view(backend_view(slots=1)), lambda r: True), 1000.0)
    assert chosen is not None
    assert counts_service(queue)
    assert queue.settle(chosen.id, 30, 0)
    (shares,) = shares_of(inside[0], ELASTIC)
    assert shares.kept()["acme"] == pytest.approx(30 / chosen.weight)


def test_where_a_class_is_counted_is_not_looked_up_for_each_entitlement(monkeypatch: pytest.MonkeyPatch):
    world = scheduler(("bands", "fair"))
    monkeypatch.delattr(FairQueue, "shares")
    world.watch((f"t{n}", ELASTIC, 30.0, 1) for n in range(1000))
    world.served(served("t1", 1))
    assert len(world.kept_shares()["elastic/"]) >= 1000
