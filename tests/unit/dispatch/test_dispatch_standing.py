"""The leader's tick: what each entitlement had and wanted between two looks, and for whom others make room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.scheduler.evictions import AT_ONCE
from scheduling.core.types import Catalog, EntitlementState, Grant, PoolView, QueuedRequest, ServiceClass, Standing
from scheduling.dispatch.decision_items import evict_items, grant_item
from scheduling.dispatch.standing import Standings
from scheduling.state.store import NO_CAP, most_running
from scheduling.state.types import EntitlementTotals, PoolSnapshot
from tests.support.scheduling_world import backend_view, pool_view, waiting
from tests.support.state_world import entitlement, pool_spec

ACME = entitlement("acme", tokens_per_s=100.0, burst_tokens=1000.0, kv_tokens=400, concurrency=2)
POOL = pool_spec()


def catalog(*specs):
    return Catalog(1, {"p": POOL}, {spec.id: spec for spec in specs}, {})


def snapshot(at_s: float, standings: dict[str, Standing] | None = None, **entitlements: EntitlementTotals):
    return PoolSnapshot(int(at_s * 1000), 1, "a", 0, None, 0, 0, 0, 0, {}, entitlements, standings or {})


def totals(running=0, queued=0, kv=0, served=0, refused=0, refusals=0, service_ms=None):
    return EntitlementTotals(running, queued, kv, None, service_ms, served, refused, refusals)


def asks(name: str = "acme", kv: int = 150) -> QueuedRequest:
    return waiting(1, name, input_tokens=100, output_tokens=50.0, kv_tokens=kv)


def seen(spec, looks, standings=None):
    """The one standing after a tick over ``looks`` (snapshot, what waited)."""
    kept = Standings(POOL, catalog(spec), snapshot(1000, standings))
    for shot, queued in looks:
        kept.look(shot, queued)
    return kept.tick(looks[-1][0], looks[-1][1])[spec.id]


def test_shares_are_not_known_before_the_first_tick_of_a_leader():
    other = replace(ACME, id="other")
    kept = Standings(POOL, catalog(ACME, other), snapshot(1000, {"acme": Standing(500.0, 0.1, 0.2)}))
    assert kept.shares == {}
    kept.tick(snapshot(1005, acme=totals(served=900), other=totals(served=300)), [])
    assert kept.shares["acme"] > 1 > kept.shares["other"]


def test_an_idle_entitlement_is_owed_nothing_and_bursts_nothing():
    found = seen(ACME, [(snapshot(1005), [])])
    assert (found.debt, found.burst) == (0.0, 0.0)


def test_tokens_served_are_what_the_meter_grew_by_and_slots_and_kv_are_means_of_the_looks():
    """Twice its tokens, 3 slots of 2 on average, KV as promised: an excess of 1 + 0.5 in a tick that keeps 0.7."""
    shots = [(snapshot(1001 + n, acme=totals(running=running, kv=400)), []) for n, running in enumerate((2, 4, 4, 3))]
    shots.append((snapshot(1005, acme=totals(running=2, kv=400, served=1000)), []))
    found = seen(ACME, shots)
    assert found.burst == pytest.approx(0.3 * 1.5)
    assert found.debt == pytest.approx(0.3 * -1.0)


def test_kv_of_what_only_waits_is_not_held():
    queued = [asks(kv=150), replace(asks(kv=250), id="r2")]
    found = seen(ACME, [(snapshot(1005, acme=totals(running=1, queued=2, kv=800, served=500)), queued)])
    assert found.burst == 0.0  # 400 are held, as many as promised


@pytest.mark.parametrize(
    ("met", "queued", "gap"),
    [
        (totals(served=300), [], 0.0),  # asked for no more than it had
        (totals(served=300, refused=600, refusals=4), [], 0.4),  # wanted 180/s, is owed up to its 100, had 60
        (totals(served=300, refused=100, refusals=1), [], 0.2),  # wanted 80/s
        (totals(served=300, queued=1), [asks()], 0.3),  # 150 tokens wait: 90/s
        (totals(refused=9000, refusals=60), [], 1.0),
    ],
)
def test_debt_is_what_was_wanted_within_the_baseline_and_not_given(met, queued, gap):
    assert seen(ACME, [(snapshot(1005, acme=met), queued)]).debt == pytest.approx(0.3 * gap)


def test_without_a_token_rate_the_gap_is_in_slots_and_refusals_count_by_how_long_each_would_have_run():
    spec = replace(ACME, tokens_per_s=0.0, kv_tokens=0)
    met = totals(running=1, refusals=3, refused=1, service_ms=4000.0)  # 0.6 refusals/s of 4 s each: 2.4 slots
    assert seen(spec, [(snapshot(1005, acme=met), [])]).debt == pytest.approx(0.3 * 0.5)  # of 2 it had 1


def test_a_meter_that_started_again_counts_from_zero():
    kept = Standings(POOL, catalog(ACME), snapshot(1000, acme=totals(served=10**6)))
    found = kept.tick(snapshot(1005, acme=totals(served=500)), [])
    assert (found["acme"].debt, found["acme"].burst) == (0.0, 0.0)


def test_weights_are_there_at_once_and_a_former_leaders_debts_go_on():
    before = {"acme": Standing(50.0, 0.5, 0.25), "left": Standing(1.0)}
    kept = Standings(POOL, catalog(ACME), snapshot(1000, before))
    assert kept.gone == ["left"]
    found = kept.tick(snapshot(1000), [])
    assert (found["acme"].debt, found["acme"].burst) == (0.5, 0.25)
    assert found["acme"].weight == pytest.approx(100 / 3 * 3 / 1.25)  # class and SLO, x debt 3, / burst 1.25
    assert kept.gone == []


def test_only_what_is_bound_to_this_pool_stands_anywhere():
    others = (
        replace(ACME, id="elsewhere", pool="q"),
        replace(ACME, id="pending", state=EntitlementState.PENDING),
        replace(ACME, id="degraded", state=EntitlementState.DEGRADED),
    )
    kept = Standings(POOL, catalog(ACME, *others), snapshot(1000))
    assert set(kept.tick(snapshot(1000), [])) == {"acme", "degraded"}


def test_a_debt_of_one_is_forgotten_within_fifty_seconds():
    kept = Standings(POOL, catalog(ACME), snapshot(1000, {"acme": Standing(1.0, 1.0)}))
    for n in range(10):
        standing = kept.tick(snapshot(1005 + 5 * n), [])
    assert standing["acme"].debt < 0.05


# --- for whom others make room


def ask_of(number: int, name: str, service_class: ServiceClass, **changes) -> QueuedRequest:
    return waiting(number, name, service_class=service_class, **({"concurrency": 2} | changes))


def test_room_is_made_for_owners_first_then_in_order_of_arrival_and_never_beyond_r_e():
    queue = [
        ask_of(1, "elastic", ServiceClass.ELASTIC),
        ask_of(2, "spot", ServiceClass.SPOT),
        ask_of(3, "cheap", ServiceClass.PREEMPTIBLE),
        ask_of(4, "gold", ServiceClass.GUARANTEED),
        ask_of(5, "gold", ServiceClass.GUARANTEED),
        ask_of(6, "gold", ServiceClass.GUARANTEED),
        ask_of(7, "own", ServiceClass.DEDICATED, concurrency=1),
        ask_of(8, "elastic", ServiceClass.ELASTIC),
    ]
    view = pool_view(backend_view(), running={"own": 1, "elastic": 1})
    found = evict_items(queue, view, "fifo@1")
    assert [item.request_id for item in found] == ["req_000004", "req_000005", "req_000001"]
    assert found[0].cap == 2
    assert "guaranteed" in found[0].why


def test_evictions_at_once_are_bounded_and_not_where_an_attempt_failed_unless_it_is_the_only_replica():
    queue = [ask_of(n, f"t{n}", ServiceClass.GUARANTEED, exclude_backend="b1") for n in range(2 * AT_ONCE)]
    one, two = pool_view(backend_view("b1")), pool_view(backend_view("b1"), backend_view("b2"))
    assert len(evict_items(queue, one, "x")) == AT_ONCE
    assert {item.exclude_backend for item in evict_items(queue, one, "x")} == {""}
    assert {item.exclude_backend for item in evict_items(queue, two, "x")} == {"b1"}
    assert evict_items([], PoolView({}), "x") == []


def test_grants_know_how_many_may_run_as_a_request_that_is_tried_again_does():
    def told(service_class: ServiceClass, concurrency: int) -> int:
        return grant_item(Grant(ask_of(1, "t", service_class, concurrency=concurrency), "b1", "why"), "x").cap

    assert told(ServiceClass.GUARANTEED, 2) == most_running(ServiceClass.GUARANTEED, 2) == 2
    assert told(ServiceClass.GUARANTEED, 0) == most_running(ServiceClass.GUARANTEED, 0) == 0, "none, not any number"
    assert told(ServiceClass.ELASTIC, 2) == most_running(ServiceClass.ELASTIC, 2) == NO_CAP
    assert told(ServiceClass.ELASTIC, 0) == NO_CAP


def test_nor_is_room_made_for_more_than_the_concurrency_of_a_class():
    asks = [ask_of(n, f"t{n}", ServiceClass.ELASTIC, concurrency=n) for n in (0, 2)]
    assert [item.cap for item in evict_items(asks, pool_view(backend_view("b1")), "x")] == [0, 2]
