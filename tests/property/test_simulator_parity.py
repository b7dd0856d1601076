"""The lab says what the system does: the live decision loop on a virtual clock and the simulator decide alike."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.policies.registry import make_ordering, make_routing, orderings
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import BackendView, PoolView, Slo
from scheduling.simulator.batches import SlotsEngine
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.exact import ExactStep
from scheduling.simulator.kernel import to_s
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

MODEL = StepTime(t0=0.02, a=1e-4, b=0.0, c=0.0, e=0.0, knee=1e9, a2=0.0)
TIERS = (
    Tier("chat", Slo(ttft_s=1.0, tbt_s=0.05), rank=0, weight=5.0),
    Tier("work", Slo(ttlt_s=20.0), rank=1, weight=3.0),
    Tier("batch", Slo(ttlt_s=60.0), rank=2, weight=2.0),
)


def workload(rows: list[tuple[float, int, int, int, float]]) -> list[SimRequest]:
    made, now = [], 0.0
    for index, (gap, given_tokens, out, tier, expected) in enumerate(rows):
        now += gap
        belief = Belief(expected, 512, (20.0, 60.0, 120.0), (0.5, 0.25, 0.25))
        made.append(make_request(index, now, given_tokens, out, TIERS[tier], belief))
    return made


requests = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        st.integers(1, 4000),
        st.integers(1, 120),
        st.integers(0, 2),
        st.sampled_from([10.0, 50.0, 200.0]),
    ),
    min_size=1,
    max_size=40,
).map(workload)


def live_grants(policy: OrderingPolicy, work: list[SimRequest], slots: int) -> list[tuple[int, str]]:
    """The dispatch loop's object, one replica, a step at every arrival and every end."""
    scheduler = Scheduler(policy, make_routing("least_work"))
    exact = ExactStep(MODEL)
    view = PoolView({"only": BackendView("only", slots, 1 << 60)})
    ends: list[tuple[int, int, int]] = []
    started = 0
    arrivals = list(reversed(work))
    by_id = {request.queued.id: request for request in work}
    decided: list[tuple[int, str]] = []
    while arrivals or ends:
        now = min([request.arrival_fs for request in arrivals[-1:]] + [end for end, _, _ in ends[:1]])
        while ends and ends[0][0] <= now:
            sim = work[heappop(ends)[2]]
            scheduler.settle(sim.queued.id, sim.input_tokens, sim.output_tokens)
            view.backends["only"] = replace(view.backends["only"], running=view.backends["only"].running - 1)
        while arrivals and arrivals[-1].arrival_fs <= now:
            request = arrivals.pop()
            scheduler.offer(request.queued, request.queued.arrival_s)
        for grant in scheduler.step(view, to_s(now)):
            decided.append((now, grant.request.id))
            sim = by_id[grant.request.id]
            started += 1
            end = now + exact.a * sim.input_tokens + exact.t0 * sim.output_tokens
            heappush(ends, (end, started, sim.index))
    return decided


def simulated_grants(policy: OrderingPolicy, work: list[SimRequest], slots: int) -> list[tuple[int, str]]:
    engine = SlotsEngine(EngineConfig(MODEL, mode="slots", max_seqs=slots), policy)
    engine.decisions = []
    engine.run(work)
    return [(at, name) for at, name, _ in engine.decisions]


@pytest.mark.parametrize("policy", sorted(orderings()))
@settings(max_examples=40, deadline=None)
@given(work=requests, slots=st.integers(1, 4))
def test_loop_and_simulator_grant_the_same_requests_at_the_same_instants(
    policy: str, work: list[SimRequest], slots: int
):
    ordering = make_ordering(policy)
    assert simulated_grants(ordering, work, slots) == live_grants(ordering, work, slots)
