"""From a target to backends: ordered, registered, drained, and ended only when nothing runs there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from controlplane.scaling import controller as controller_module
from controlplane.scaling.controller import Controller
from controlplane.scaling.drivers import DriverError, Order, Replica, drivers
from controlplane.scaling.planner_loop import Turn
from scheduling.core.types import BackendView, PoolView
from scheduling.dispatch.ports import BackendStatus, Sample
from telemetry.models import Alert, ScalingDecision
from tenants import rows, services
from tenants.audit import SYSTEM
from tenants.models import Backend, Pool
from tests.support import worlds

pytestmark = pytest.mark.django_db
NOW = 1_795_000_000.0


class Fleet:
    """A driver whose engines are a list."""

    def __init__(self) -> None:
        self.there: list[Replica] = []
        self.orders: list[tuple[str, Order]] = []
        self.broken = ""
        self.ordered = False

    def replicas(self) -> list[Replica]:
        return list(self.there)

    def in_turn(self, names: Sequence[str]) -> Sequence[str] | None:
        return sorted(names, reverse=True) if self.ordered else None

    def grow(self, order: Order) -> None:
        if self.broken:
            raise DriverError(self.broken)
        self.orders.append(("grow", order))
        while len(self.there) < order.replicas:
            number = len(self.orders) * 10 + len(self.there)
            self.there.append(Replica(f"r-{number}", f"http://10.1.0.{number}:8000"))

    def shrink(self, order: Order) -> None:
        self.orders.append(("shrink", order))
        self.there = [r for r in self.there if r not in order.remove]


@pytest.fixture
def pool() -> Pool:
    worlds.build()
    row = Pool.objects.get(slug="llama")
    row.scaling_mode, row.scaling_driver, row.max_replicas = "automatic", "local", 5
    return services.save(actor=SYSTEM, instance=row)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def controller(fleet: Fleet) -> Iterator[Controller]:
    return Controller(lambda pool: fleet)


def sample(running: dict[str, int] | None = None, at_s: float = NOW, engine: dict[str, int] | None = None) -> Sample:
    """As the leader sees the catalog now: what drains is not ready; ``running`` are leases, ``engine`` its count."""
    spec = rows.pool_spec(Pool.objects.get(slug="llama"))
    views = {
        b.id: BackendView(b.id, b.slots, b.kv_tokens, (running or {}).get(b.id, 0), ready=not b.draining)
        for b in spec.backends
    }
    statuses = [BackendStatus(b.id, "ready", "", at_s, engine_running=(engine or {}).get(b.id)) for b in spec.backends]
    return Sample(at_s, spec, "me", 1, "fifo@1", PoolView(views), {}, 0.0, {}, statuses)


def decision(before: int, after: int) -> int:
    row = ScalingDecision.objects.create(
        pool="llama", at="2026-11-21T00:00:00Z", epoch=1, from_replicas=before, to_replicas=after,
        reason=f"from {before} to {after}", applied=True, outcome="running",
    )  # fmt: skip
    return row.pk


def names(**where: object) -> list[str]:
    return sorted(Backend.objects.filter(pool__slug="llama", **where).values_list("slug", flat=True))


def test_the_four_drivers_are_found_by_name() -> None:
    assert {"local", "kubernetes", "webhook"} <= set(drivers())


def test_growing_registers_what_the_driver_made_beside_what_a_person_made(
    pool: Pool, fleet: Fleet, controller: Controller
) -> None:
    controller.turn(Turn(sample(), 3, decision(1, 3)))
    assert len(names(managed=True)) == 2
    made = Backend.objects.filter(managed=True).first()
    assert (made.slots, made.kv_tokens) == (32, 100_000)  # as the one that is there
    assert (fleet.orders[0][1].replicas, fleet.orders[0][1].why) == (2, "from 1 to 3")


def test_the_same_turn_again_orders_nothing_more(pool: Pool, fleet: Fleet, controller: Controller) -> None:
    number = decision(1, 3)
    controller.turn(Turn(sample(), 3, number))
    controller.turn(Turn(sample(), 3, number))
    assert len(names(managed=True)) == 2


def test_shrinking_drains_the_idlest_first_and_never_what_a_person_made(
    pool: Pool, fleet: Fleet, controller: Controller
) -> None:
    controller.turn(Turn(sample(), 3, decision(1, 3)))
    busy, idle = names(managed=True)
    controller.turn(Turn(sample({busy: 5, "gpu-1": 0}), 2, decision(3, 2)))
    assert names(leaving_since__isnull=False) == [idle]
    assert Backend.objects.get(slug=idle).draining
    assert not [order for what, order in fleet.orders if what == "shrink"]


def test_a_replica_ends_only_after_it_was_seen_empty_for_a_while(
    pool: Pool, fleet: Fleet, controller: Controller
) -> None:
    controller.turn(Turn(sample(), 2, decision(1, 2)))
    (name,) = names(managed=True)
    number = decision(2, 1)
    before = sample()
    controller.turn(Turn(before, 1, number))
    empty_s = controller_module.EMPTY_FOR_S
    # The leader does not know yet: it might still grant.
    controller.turn(Turn(before, None))
    controller.turn(Turn(replace(before, at_s=NOW + 100), None))
    # A lease, then the engine itself still at it, then empty, then a lease that was announced again.
    for step, seen in enumerate(
        (sample({name: 1}), sample(engine={name: 1}), sample(), sample({name: 1}), sample(engine={name: 0}))
    ):
        controller.turn(Turn(replace(seen, at_s=NOW + 200 + step), None))
        assert names(managed=True) == [name]
    controller.turn(Turn(sample(at_s=NOW + 204 + empty_s - 0.5), None))
    assert names(managed=True) == [name]
    controller.turn(Turn(sample(at_s=NOW + 204 + empty_s), None))
    assert names(managed=True) == []
    ((_, order),) = [(what, o) for what, o in fleet.orders if what == "shrink"]
    assert ([r.name for r in order.remove], order.why) == ([name], "from 2 to 1")
    assert ScalingDecision.objects.get(pk=number).outcome == "done"


def test_a_drain_that_takes_too_long_ends(pool: Pool, fleet: Fleet, controller: Controller) -> None:
    controller.turn(Turn(sample(), 2, decision(1, 2)))
    (name,) = names(managed=True)
    controller.turn(Turn(sample(), 1, decision(2, 1)))
    leaving_s = Backend.objects.get(slug=name).leaving_since.timestamp()
    controller.turn(Turn(sample({name: 1}, at_s=leaving_s + 599), None))
    assert names(managed=True) == [name]
    controller.turn(Turn(sample({name: 1}, at_s=leaving_s + 601), None))
    assert names(managed=True) == []


def test_growing_again_calls_back_what_is_leaving_instead_of_ordering(
    pool: Pool, fleet: Fleet, controller: Controller
) -> None:
    controller.turn(Turn(sample(), 2, decision(1, 2)))
    controller.turn(Turn(sample(), 1, decision(2, 1)))
    (name,) = names(leaving_since__isnull=False)
    controller.turn(Turn(sample(), 2, decision(1, 2)))
    assert names(draining=False, managed=True) == [name]
    assert [what for what, _ in fleet.orders] == ["grow"]


def test_a_replica_that_was_called_back_is_seen_empty_anew_before_it_ends(
    pool: Pool, fleet: Fleet, controller: Controller
) -> None:
    controller.turn(Turn(sample(), 2, decision(1, 2)))
    (name,) = names(managed=True)
    controller.turn(Turn(sample(), 1, decision(2, 1)))
    controller.turn(Turn(sample(at_s=NOW + 10), None))  # empty, not for long
    controller.turn(Turn(sample(at_s=NOW + 11), 2, decision(1, 2)))
    controller.turn(Turn(sample({name: 1}, at_s=NOW + 50), None))
    controller.turn(Turn(sample(at_s=NOW + 100), 1, decision(2, 1)))
    controller.turn(Turn(sample(at_s=NOW + 101), None))
    assert names(leaving_since__isnull=False) == [name]
    controller.turn(Turn(sample(at_s=NOW + 101 + controller_module.EMPTY_FOR_S), None))
    assert names(managed=True) == []


def test_an_engine_that_vanished_takes_its_backend_along(pool: Pool, fleet: Fleet, controller: Controller) -> None:
    controller.turn(Turn(sample(), 3, decision(1, 3)))
    gone = fleet.there.pop()
    controller.turn(Turn(sample(), 3, decision(2, 3)))
    assert gone.name not in names()
    assert len(names(managed=True)) == 2


def test_a_failure_is_the_decisions_outcome_and_an_alert(pool: Pool, fleet: Fleet, controller: Controller) -> None:
    fleet.broken = "no quota for GPUs in this zone"
    number = decision(1, 3)
    controller.turn(Turn(sample(), 3, number))
    row = ScalingDecision.objects.get(pk=number)
    assert (row.outcome, row.detail) == ("failed", fleet.broken)
    assert fleet.broken in Alert.objects.get(kind="scaling_failed").line


def test_only_hand_made_backends_left_is_said(pool: Pool, fleet: Fleet, controller: Controller) -> None:
    number = decision(1, 0)
    controller.turn(Turn(sample(), 0, number))
    assert "made by hand" in ScalingDecision.objects.get(pk=number).detail
    assert names() == ["gpu-1"]


def test_a_target_is_not_lost_to_a_later_look() -> None:
    done: list[Turn] = []
    controller = Controller()
    controller._thread = object()  # type: ignore[assignment]  # nobody works it off
    controller.turn = done.append  # type: ignore[method-assign]
    worlds.build()
    controller(Turn(sample(), 4, 7))
    controller(Turn(sample(at_s=NOW + 1), None))
    (turn,) = controller._turns.values()
    assert (turn.target, turn.decision, turn.sample.at_s) == (4, 7, NOW + 1)


def test_where_the_cluster_chooses_which_replica_ends_they_drain_and_end_in_its_order(
    pool: Pool, fleet: Fleet, controller: Controller
) -> None:
    """Groups of a LeaderWorkerSet end from the last one down: the idle one in front must not end a busy one."""
    fleet.ordered = True
    controller.turn(Turn(sample(), 4, decision(1, 4)))
    first, second, last = names(managed=True)
    controller.turn(Turn(sample({last: 5}), 2, decision(4, 2)))
    assert names(leaving_since__isnull=False) == [second, last]
    for step in range(3):
        controller.turn(Turn(sample({last: 5}, at_s=NOW + 10 * step), None))
    assert names(managed=True) == [first, second, last], "the last one runs something"
    for step in range(2):
        controller.turn(Turn(sample(at_s=NOW + 100 + 10 * step), None))
    assert names(managed=True) == [first]
    assert [r.name for what, o in fleet.orders if what == "shrink" for r in o.remove] == [second, last]


def test_a_pool_goes_to_zero_and_comes_back_with_what_a_replica_has(
    pool: Pool, fleet: Fleet, controller: Controller
) -> None:
    pool.min_replicas, pool.sleep_after_s, pool.wakes_in_s = 0, 60.0, 30.0
    pool.scaling_params = {"slots": 24, "kv_tokens": 90_000}
    services.save(actor=SYSTEM, instance=pool)
    services.delete(actor=SYSTEM, instance=pool.backends.get())
    controller.turn(Turn(sample(), 1, decision(0, 1)))
    made = Backend.objects.get(pool=pool)
    assert (made.slots, made.kv_tokens) == (24, 90_000)
    controller.turn(Turn(sample(at_s=NOW + 1), 0, decision(1, 0)))
    for step in range(3):
        controller.turn(Turn(sample(at_s=NOW + 10 + 10 * step), None))
    assert names() == []
    assert fleet.there == []
    controller.turn(Turn(sample(at_s=NOW + 60), 1, decision(0, 1)))
    assert len(names()) == 1
