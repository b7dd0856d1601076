"""A pool on virtual time: what holds whoever sends, and what the paper's experiments say (TP-2, TP-3)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.outcomes import Reason
from scheduling.core.policies.registry import make_ordering
from scheduling.core.types import (
    BackendSpec,
    EntitlementSpec,
    EntitlementState,
    PoolSpec,
    ServiceClass,
    Slo,
    TierSpec,
)
from scheduling.simulator.lab import Task, load_scenario, perform
from scheduling.simulator.pools import Attempt, Client, PoolModel, Service, Story
from scheduling.simulator.setups import SetupError, execute

SERVICE = Service(0.0, 0.1)  # ten tokens a second and slot
PROMPT = Slo(ttft_s=1.0, tbt_s=0.1)
RANKS = {c: rank for rank, c in enumerate(ServiceClass)}


def client(
    name: str,
    service_class: ServiceClass,
    slots: int,
    demand: float | None = None,
    begin_s: float = 0.0,
    end_s: float = 60.0,
    even: bool = True,
    slo: Slo = PROMPT,
) -> Client:
    tier = TierSpec(service_class.value, service_class, RANKS[service_class], 1.0, slo)
    spec = EntitlementSpec(name, name, "p", tier, EntitlementState.BOUND, 0.0, 0.0, 0, slots)
    return Client(spec, begin_s, end_s, demand or slots, even, 10, (20, 40))


def played(
    clients: Sequence[Client],
    slots: int = 8,
    replicas: int = 1,
    capacity: Sequence[tuple[float, int]] = (),
    seed: int = 1,
    admission: bool = True,
) -> Story:
    pool = PoolSpec("p", "m", "m", tuple(BackendSpec(f"r{n}", "p", "", slots, 1 << 30) for n in range(replicas)))
    model = PoolModel(
        pool, clients, SERVICE, make_ordering("priority"), capacity=capacity, seed=seed, admission=admission
    )
    return model.run(60.0)


def of(story: Story, name: str) -> list[Attempt]:
    return [attempt for attempt in story.attempts if attempt.client.spec.id == name]


shares = st.lists(
    st.tuples(st.sampled_from(list(ServiceClass)), st.integers(1, 8), st.floats(0.5, 12), st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(shares, st.integers(1, 2), st.booleans(), st.integers(1, 5))
def test_every_request_ends_once_and_no_slot_is_given_twice(
    drawn: list[tuple[ServiceClass, int, float, bool]], replicas: int, outage: bool, seed: int
) -> None:
    clients = [client(f"e{n}", c, slots, demand, even=even) for n, (c, slots, demand, even) in enumerate(drawn)]
    capacity = [(20.0, 4 * (replicas - 1)), (40.0, 4 * replicas)] if outage else []
    story = played(clients, slots=4, replicas=replicas, capacity=capacity, seed=seed)
    for attempt in story.attempts:
        assert sum((attempt.end_s is not None, attempt.refused is not None, bool(attempt.cut))) == 1
        assert attempt.end_s is None or attempt.end_s - attempt.arrival_s >= 0.1 * attempt.output_tokens - 1e-9
    edges = sorted(
        edge
        for a in story.attempts
        if a.start_s is not None and a.end_s is not None
        for edge in ((round(a.start_s, 9), 1), (round(a.end_s, 9), -1))
    )
    running = 0
    for _, change in edges:
        running += change
        assert running <= 4 * replicas
    assert all(sum(look.running.values()) <= look.slots for look in story.looks)


def test_who_takes_the_place_of_a_late_request_lets_no_more_wait_than_before() -> None:
    """The scripts end the late one (docs/reference/admission.md#superseded-requests)."""
    story = played([client("a", ServiceClass.ELASTIC, 6, 12)], slots=2)
    assert Reason.SUPERSEDED in {a.refused for a in of(story, "a")}
    assert max(look.waiting + look.running.get("a", 0) for look in story.looks) == 6


def test_the_same_seed_gives_the_same_story() -> None:
    clients = [client("a", ServiceClass.ELASTIC, 4, 6, even=False), client("b", ServiceClass.SPOT, 8, even=False)]
    assert played(clients).attempts == played(clients).attempts
    assert played(clients).attempts != played(clients, seed=2).attempts


def test_spot_makes_way_for_a_guaranteed_tenant_that_joins_and_comes_back_when_it_leaves() -> None:
    story = played(
        [
            client("a", ServiceClass.GUARANTEED, 6, 5.0, begin_s=20, end_s=40),
            client("b", ServiceClass.SPOT, 8, 9.0),
        ]
    )
    assert {a.refused for a in of(story, "a")} <= {None, Reason.CONCURRENCY, Reason.SUPERSEDED}, "its own limit"
    held = {look.at_s: look.running["b"] for look in story.looks}
    assert min(fmean(held[t + n] for n in range(10)) for t in (10.0, 50.0)) >= 6
    assert fmean(held[30.0 + n] for n in range(10)) <= 4


def test_a_preemptible_request_is_cut_off_for_one_with_a_right_to_its_slot() -> None:
    story = played(
        [
            client("a", ServiceClass.DEDICATED, 4, begin_s=20, end_s=40),
            client("b", ServiceClass.PREEMPTIBLE, 8, 10.0),
        ]
    )
    cut = [a for a in of(story, "b") if a.cut == "evicted"]
    assert cut
    waits = [a.start_s - a.arrival_s for a in of(story, "a") if a.start_s is not None]
    assert max(waits) < 1e-9


def test_half_a_pool_gone_makes_debt_for_the_looser_promise_and_it_is_paid_back() -> None:
    tight = client("tight", ServiceClass.ELASTIC, 5, 4.0)
    loose = client("loose", ServiceClass.ELASTIC, 5, 4.0, slo=Slo(ttlt_s=30.0))
    story = played([tight, loose], slots=5, replicas=2, capacity=[(5.0, 5), (20.0, 10)])
    debts = {tick.at_s: {name: s.debt for name, s in tick.standings.items()} for tick in story.ticks}
    assert debts[20.0]["loose"] > 0.2
    assert debts[20.0]["loose"] > debts[20.0]["tight"] + 0.1
    assert debts[60.0]["loose"] < 0.05


def test_without_admission_everybody_waits_and_nobody_is_refused() -> None:
    story = played([client("a", ServiceClass.GUARANTEED, 6), client("b", ServiceClass.SPOT, 8)], admission=False)
    assert not [a for a in story.attempts if a.refused is not None]
    assert max(waiting for _, waiting in story.queue) > 20


@pytest.mark.parametrize("name", ["token-pools-1", "token-pools-2"])
def test_a_pool_scenario_has_a_figure_for_every_row(name: str) -> None:
    scenario = load_scenario(name)
    for run in scenario.runs.values():
        known = perform(Task(scenario.name, run.name, 1))
        assert {row.metric for row in scenario.rows if row.run == run.name} <= set(known)


def test_a_pool_setting_that_is_wrong_is_named() -> None:
    run = load_scenario("token-pools-1").runs["token pools"]
    for workload, word in (({**run.workload, "retires": 2}, "retires"), ({"kind": "pool"}, "phases")):
        with pytest.raises(SetupError, match=word):
            execute(make_ordering("fifo"), run.engine, workload, {}, None, 1)
    with pytest.raises(SetupError, match="slots"):
        execute(make_ordering("fifo"), {"preset": "qwen3-8b-gb10"}, run.workload, {}, None, 1)
