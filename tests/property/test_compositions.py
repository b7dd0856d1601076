"""Modifiers around policies: live and simulator alike, engines keep their laws, shares and bounds are as promised."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.policies.queues.relegated import MAX_PER_STEP
from scheduling.core.policies.registry import make_routing, modifiers, orderings
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import PoolView, QueuedRequest, ServiceClass
from scheduling.simulator.batches import make_engine
from scheduling.simulator.engine import Engine
from scheduling.simulator.result import outcomes_of
from scheduling.simulator.workload import SimRequest
from tests.property.test_simulator_laws import config, models, times, workload
from tests.property.test_simulator_laws import requests as engine_work
from tests.property.test_simulator_parity import live_grants, simulated_grants
from tests.property.test_simulator_parity import requests as slot_work
from tests.support.scheduling_world import backend_view, pool_view, waiting
from tests.support.simulator_laws import LawWatch, check_ended, check_foresight, check_little, check_tokens

POLICIES = sorted(orderings())
CLASSES = (ServiceClass.GUARANTEED, ServiceClass.ELASTIC, ServiceClass.SPOT)  # of the tiers, by rank
KINDS = ("preempting", "relegating", "tight", "ranked")

modifier_sets = st.sets(st.sampled_from(list(modifiers())), min_size=1).map(lambda names: {name: {} for name in names})


def classed(work: list[SimRequest]) -> list[SimRequest]:
    """The same requests, of entitlements of different classes: low tiers are relegated first."""
    return [replace(r, queued=replace(r.queued, service_class=CLASSES[r.queued.rank])) for r in work]


@settings(max_examples=150, deadline=None)
@given(work=slot_work.map(classed), slots=st.integers(1, 4), policy=st.sampled_from(POLICIES), around=modifier_sets)
def test_loop_and_simulator_grant_the_same_requests_at_the_same_instants(
    work: list[SimRequest], slots: int, policy: str, around: Mapping[str, dict[str, float]]
):
    ordering = make_policy(policy, None, around)
    assert simulated_grants(ordering, work, slots) == live_grants(ordering, work, slots)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    work=engine_work.map(classed), model=models, policy=st.sampled_from(POLICIES), around=modifier_sets,
    budget=st.integers(9, 700), data=st.data(),
)  # fmt: skip
def test_engines_keep_their_laws_and_jump_exactly_inside_modifiers(
    kind: str, work: list[SimRequest], model: StepTime, policy: str, around: Mapping[str, dict[str, float]],
    budget: int, data: st.DataObject,
):  # fmt: skip
    ordering = make_policy(policy, None, around)
    watches: list[LawWatch] = []

    def run(work: list[SimRequest], jumps: bool) -> Engine:
        engine = make_engine(config(kind, model, budget, jumps), ordering)
        engine.decisions = []
        watches.append(LawWatch())
        engine.run(work, watches[-1])
        return engine

    jumped, stepped = run(work, True), run(work, False)
    assert [str(violation) for watch in watches for violation in watch.broken[:3]] == []
    assert check_ended(jumped.finished, len(work)) == []
    assert check_tokens(jumped) == []
    assert check_little(outcomes_of(jumped.finished)) == []
    assert times(jumped) == times(stepped)
    assert jumped.decisions == stepped.decisions
    which = data.draw(st.integers(0, len(work) - 1))
    other = run([replace(r, output_tokens=r.output_tokens + 40) if r.index == which else r for r in work], True)
    shows = next(s.end_fs for s in jumped.finished if s.sim.index == which)
    assert check_foresight(jumped.decisions or [], other.decisions or [], shows) == []


def test_an_arrival_during_a_long_prompt_is_heard_of_before_the_ends_after_it():
    """A jump over the prompt's chunks told the fair shares of an end, which charges for more than was expected, before
    the arrival of the last request, whose share then began elsewhere. Found by Hypothesis."""
    short, long_answer, long_prompt = (0.0, 1, 1, 0, False), (0.0, 1, 77, 0, False), (0.0, 637, 1, 0, False)
    rows = [*[short] * 5, long_answer, long_prompt, *[short] * 4, (0.1, 1, 1, 0, False), (0.0, 1, 1, 1, False)]
    model = StepTime(t0=0.03125, a=0.0, b=0.0, c=0.0, e=0.0, knee=0.0, a2=0.0)

    def run(jumps: bool) -> Engine:
        engine = make_engine(config("tight", model, 9, jumps), make_policy("aging", None, {"fair": {}}))
        engine.decisions = []
        engine.run(classed(workload(rows)), LawWatch())
        return engine

    jumped, stepped = run(True), run(False)
    assert times(jumped) == times(stepped)
    assert jumped.decisions == stepped.decisions


# --- fair shares


class Counter:
    """One slot, tenants that always have something waiting, and the service that each has had."""

    def __init__(self, policy: OrderingPolicy, weights: Mapping[str, float]) -> None:
        self.scheduler = Scheduler(policy, make_routing("least_work"))
        self.weights = dict(weights)
        self.served = dict.fromkeys(weights, 0.0)  # tokens per weight
        self.largest = 0.0
        self.number = 0

    def offer(self, tenant: str, size: tuple[int, int], now_s: float, **changes: object) -> QueuedRequest:
        self.number += 1
        request = waiting(
            self.number, tenant, weight=self.weights[tenant], input_tokens=size[0], output_tokens=float(size[1]),
            arrival_s=now_s, ttft_deadline_s=None, **changes,
        )  # fmt: skip
        self.largest = max(self.largest, self.cost(request))
        self.scheduler.offer(request, now_s)
        return request

    def cost(self, request: QueuedRequest) -> float:
        return (request.input_tokens + 2 * request.output_tokens) / request.weight

    def grant(self, now_s: float, room: int = 1, running: dict[str, int] | None = None) -> list[QueuedRequest]:
        view = pool_view(backend_view(slots=room, kv_tokens=10**9), running=running)
        granted = [grant.request for grant in self.scheduler.step(view, now_s)]
        for request in granted:
            self.served[request.entitlement] += self.cost(request)
        return granted


sizes = st.tuples(st.integers(1, 4000), st.integers(0, 1000))
tenants = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([1.0, 3.0, 50.0]), min_size=2)


def widest_gap(
    policy: OrderingPolicy, weights: Mapping[str, float], draw: Callable[[str], tuple[int, int]], grants: int
) -> tuple[float, float]:
    """The widest difference of service per weight over any stretch of grants, and the largest request per weight.

    All tenants have three requests waiting at all times.
    """
    world = Counter(policy, weights)
    for tenant in weights:
        for _ in range(3):
            world.offer(tenant, draw(tenant), 0.0)
    widest = 0.0
    low = {(a, b): 0.0 for a in weights for b in weights if a < b}
    high = dict(low)
    for turn in range(grants):
        (request,) = world.grant(float(turn))
        world.offer(request.entitlement, draw(request.entitlement), float(turn))
        for a, b in low:
            gap = world.served[a] - world.served[b]
            low[a, b], high[a, b] = min(low[a, b], gap), max(high[a, b], gap)
            widest = max(widest, high[a, b] - low[a, b])
    return widest, world.largest


@settings(max_examples=150, deadline=None)
@given(weights=tenants, policy=st.sampled_from(POLICIES), data=st.data())
def test_service_per_weight_of_backlogged_tenants_differs_by_at_most_twice_the_largest_request(
    weights: dict[str, float], policy: str, data: st.DataObject
):
    seed = data.draw(st.integers(0, 10_000))
    stream = random.Random(seed)
    scale = {tenant: data.draw(st.sampled_from([1, 30, 900])) for tenant in weights}

    def draw(tenant: str) -> tuple[int, int]:
        return 1 + stream.randrange(4 * scale[tenant]), stream.randrange(1 + scale[tenant])

    widest, largest = widest_gap(make_policy(policy, None, {"fair": {}}), weights, draw, 120)
    assert widest <= 2 * largest + 1e-6


def test_without_fairness_the_tenant_with_the_larger_requests_gets_more_and_more():
    widest, largest = widest_gap(
        make_policy("fifo"), {"a": 1.0, "b": 1.0}, lambda tenant: (1000, 0) if tenant == "a" else (10, 0), 120
    )
    assert widest > 10 * largest


@settings(max_examples=100, deadline=None)
@given(quiet=st.integers(1, 40), size=sizes, policy=st.sampled_from(POLICIES))
def test_a_tenant_that_was_away_has_no_claim_on_the_past(quiet: int, size: tuple[int, int], policy: str):
    world = Counter(make_policy(policy, None, {"fair": {}}), {"away": 1.0, "busy": 1.0})
    for turn in range(quiet):
        world.offer("busy", size, float(turn))
        world.offer("busy", size, float(turn))
        world.grant(float(turn))
    for _ in range(20):
        world.offer("away", size, float(quiet))
        world.offer("busy", size, float(quiet))
    turns = [world.grant(float(quiet + n))[0].entitlement for n in range(20)]
    assert 9 <= turns.count("busy") <= 11


def test_a_tenant_at_its_concurrency_saves_up_nothing():
    world = Counter(make_policy("fifo", None, {"fair": {}}), {"limited": 1.0, "other": 1.0})
    for _ in range(60):
        world.offer("limited", (10, 0), 0.0, concurrency=2)
        world.offer("other", (10, 0), 0.0)
    for turn in range(20):
        assert world.grant(float(turn), running={"limited": 2})[0].entitlement == "other"
    turns = [world.grant(20.0 + n)[0].entitlement for n in range(20)]
    assert turns.count("limited") == 10


def test_what_was_not_used_is_given_back_and_what_was_not_expected_is_charged():
    world = Counter(make_policy("fifo", None, {"fair": {}}), {"a": 1.0, "b": 1.0})
    for _ in range(20):
        world.offer("a", (100, 50), 0.0)
        world.offer("b", (100, 50), 0.0)
    turns = []
    for turn in range(18):
        (request,) = world.grant(float(turn))
        turns.append(request.entitlement)
        used = 0 if request.entitlement == "a" else 125  # a's answers are empty, b's longer than expected
        world.scheduler.settle(request.id, 100, used)
    # one of a is worth 100, one of b 350
    assert turns.count("a") == 14
    world.scheduler.settle("req_999999", 5, 5)  # never granted


def test_a_grant_that_came_to_nothing_costs_no_turn():
    world = Counter(make_policy("fifo", None, {"fair": {}}), {"a": 1.0, "b": 1.0})
    for _ in range(4):
        world.offer("a", (100, 0), 0.0)
        world.offer("b", (100, 0), 0.0)
    (request,) = world.grant(1.0)
    assert request.entitlement == "a"
    world.scheduler.offer(request, 1.0)  # the state refused it: it waits again
    assert world.grant(2.0) == [request]


def test_a_grant_taken_back_at_once_keeps_its_turn_although_nothing_else_of_its_tenant_waits():
    world = Counter(make_policy("fifo", None, {"fair": {}}), {"b": 1.0, "z": 1.0})
    for tenant in "bbz":
        world.offer(tenant, (100, 0), 0.0)
    assert world.grant(1.0)[0].entitlement == "b"
    (request,) = world.grant(2.0)
    assert request.entitlement == "z"
    world.scheduler.offer(request, 2.0)
    assert world.grant(3.0) == [request]


# --- bands and relegation


@settings(max_examples=100, deadline=None)
@given(policy=st.sampled_from(POLICIES), seed=st.integers(0, 1000), around=modifier_sets)
def test_a_lower_class_is_granted_only_when_no_higher_one_that_waits_has_room(
    policy: str, seed: int, around: dict[str, dict[str, float]]
):
    stream = random.Random(seed)
    bands = {name: given for name, given in around.items() if name != "relegate"} | {"bands": {}}
    queue = make_policy(policy, None, bands).queue()
    order = (
        (ServiceClass.DEDICATED, ServiceClass.GUARANTEED),
        (ServiceClass.ELASTIC,),
        (ServiceClass.SPOT,),
        (ServiceClass.PREEMPTIBLE,),
    )
    for number in range(60):
        service_class = stream.choice(list(ServiceClass))
        queue.push(waiting(number, f"{service_class}-{number % 3}", service_class=service_class), 1000.0 + number)
    blocked = {f"{service_class}-{n}" for service_class in ServiceClass for n in range(3) if stream.random() < 0.3}
    seen = []
    one_round = Round(PoolView({}), lambda request: request.entitlement not in blocked)
    while (request := queue.select(one_round, 1100.0)) is not None:
        seen.append(next(band for band, classes in enumerate(order) if request.service_class in classes))
    assert seen == sorted(seen)
    assert all(request.entitlement in blocked for request in queue)


def relegating(policy: str = "edf", **params: float | str) -> Scheduler:
    return Scheduler(make_policy(policy, None, {"relegate": params}), make_routing("least_work"))


def next_of(scheduler: Scheduler, now_s: float) -> tuple[str, str]:
    (grant,) = scheduler.step(pool_view(backend_view(slots=1, kv_tokens=10**9)), now_s)
    return grant.request.id, grant.reason


def late(number: int, due_s: float, service_class: ServiceClass = ServiceClass.GUARANTEED, **changes: object):
    return waiting(number, "acme", service_class=service_class, ttft_deadline_s=due_s, **changes)


def test_what_is_late_gives_way_to_what_can_be_in_time_and_runs_afterwards():
    scheduler = relegating(prefill_rate=1000.0)
    scheduler.offer(late(1, 1000.0), 1001.0)
    scheduler.offer(late(2, 1002.05), 1001.0)  # 100 tokens take 0.1 s: it would be late as well
    scheduler.offer(late(3, 1010.0), 1001.0)
    assert next_of(scheduler, 1002.0)[0] == "req_000003"
    after = [next_of(scheduler, 1002.0) for _ in range(2)]
    assert [name for name, _ in after] == ["req_000001", "req_000002"]
    assert all(reason.startswith("relegated, earliest deadline") for _, reason in after)


@pytest.mark.parametrize(("measured", "first"), [(0.0, "req_000002"), (500.0, "req_000003"), (40_000.0, "req_000002")])
def test_what_is_late_is_judged_by_the_speed_that_was_measured(measured: float, first: str):
    scheduler = relegating(prefill_rate=8_500.0)
    scheduler.offer(late(2, 1004.0, input_tokens=2_000), 1001.0)  # 0.2 s of an A100, 4 s at 500 tokens/s
    scheduler.offer(late(3, 1010.0), 1001.0)
    view = pool_view(replace(backend_view(slots=1, kv_tokens=10**9), prefill_per_s=measured))
    (grant,) = scheduler.step(view, 1002.0)
    assert grant.request.id == first


def test_low_classes_are_relegated_before_any_other():
    scheduler = relegating(prefill_rate=1000.0)
    scheduler.offer(late(1, 1000.0), 1001.0)  # late, but low ones wait: they go instead
    scheduler.offer(late(2, 1005.0, ServiceClass.SPOT), 1001.0)
    scheduler.offer(late(3, 1020.0), 1001.0)
    order = [next_of(scheduler, 1002.0) for _ in range(3)]
    assert [name for name, _ in order] == ["req_000001", "req_000003", "req_000002"]
    assert [reason.startswith("relegated, ") for _, reason in order] == [False, False, True]


def test_a_low_request_is_relegated_when_the_backlog_of_the_others_would_make_it_late():
    scheduler = relegating(prefill_rate=1000.0)
    scheduler.offer(late(1, 1003.0, ServiceClass.PREEMPTIBLE), 1001.0)
    scheduler.offer(late(2, 1009.0, input_tokens=3000), 1001.0)
    assert next_of(scheduler, 1001.0)[0] == "req_000002"
    assert next_of(scheduler, 1001.0)[0] == "req_000001"


def test_a_request_without_deadline_is_never_relegated():
    scheduler = relegating("fifo")
    scheduler.offer(waiting(1, ttft_deadline_s=None), 1001.0)
    scheduler.offer(waiting(2, ttft_deadline_s=9000.0), 1002.0)
    assert next_of(scheduler, 5000.0)[0] == "req_000001"


def test_a_prompt_that_was_begun_is_not_relegated_unless_it_was_before():
    queue = make_policy("fifo", None, {"relegate": {}}).queue()
    queue.push(late(1, 1000.0, prefilled=50), 2000.0)
    queue.push(late(2, 9000.0), 2000.0)
    one_round = Round(PoolView({}), lambda request: True)
    first = queue.select(one_round, 2000.0)
    assert first is not None
    assert first.id == "req_000001"
    queue.push(late(3, 1000.0), 2000.0)
    assert [r.id for r in iter(lambda: queue.select(one_round, 2000.0), None)] == ["req_000002", "req_000003"]
    queue.push(late(3, 1000.0, prefilled=60), 2001.0)  # interrupted: it goes on waiting for room nobody needs
    queue.push(late(4, 9000.0), 2001.0)
    assert [r.id for r in iter(lambda: queue.select(one_round, 2001.0), None)] == ["req_000004", "req_000003"]


def test_a_step_relegates_a_bounded_number_and_all_run_in_the_end():
    scheduler = relegating()
    for number in range(500):
        scheduler.offer(late(number, 1000.0), 2000.0)
    scheduler.offer(late(900, 9000.0), 2000.0)
    order = [next_of(scheduler, 2000.0 + turn)[0] for turn in range(501)]
    assert len(set(order)) == 501
    assert order.index("req_000900") <= 500 // 4 + 1


def test_the_relegations_of_one_step_are_bounded():
    queue = make_policy("fifo", None, {"relegate": {}}).queue()
    requests = [late(number, 1000.0) for number in range(60)]
    for request in requests:
        queue.push(request, 2000.0)
    assert queue.select(Round(PoolView({}), lambda request: True), 2000.0) is not None
    assert sum(queue.explain(request).startswith("relegated") for request in queue) == MAX_PER_STEP


@pytest.mark.parametrize(("pace_s", "first"), [(0.1, "req_000900"), (20.0, "req_000001")])
def test_the_backlog_is_judged_by_the_rate_at_which_prompts_have_left(pace_s: float, first: str):
    """200,000 tokens/s or 1,000, where 10,000 were believed: 20,000 tokens of others fit before one second, or not."""
    queue = make_policy("edf", None, {"relegate": {"prefill_rate": 10_000.0}}).queue()
    queue.push(late(1, 9e9, input_tokens=20_000), 1000.0)
    for number in range(300):
        queue.push(late(number + 2, 8e9, input_tokens=20_000), 1000.0)
        assert queue.select(Round(PoolView({}), lambda request: True), 1000.0 + number * pace_s) is not None
    now_s = 1000.0 + 300 * pace_s
    queue.push(late(900, now_s + 1.0, ServiceClass.SPOT), now_s)
    chosen = queue.select(Round(PoolView({}), lambda request: True), now_s)
    assert chosen is not None
    assert chosen.id == first


# --- nobody waits for ever

NOBODY_STARVES = [
    name
    for name, cls in orderings().items()
    if "Who starves: none" in (__import__(cls.__module__, fromlist=["x"]).__doc__ or "")
]
FLOOD = 4000  # grants


@pytest.mark.parametrize("around", [{}, {"fair": {}}], ids=["plain", "fair"])
@pytest.mark.parametrize("policy", NOBODY_STARVES)
def test_where_nobody_starves_one_request_outlives_any_flood(policy: str, around: dict[str, dict[str, float]]):
    """The least attractive request (longest, worst rank, smallest weight) against a fresh attractive one each time."""
    stream = random.Random(7)
    scheduler = Scheduler(make_policy(policy, None, around), make_routing("least_work"))
    victim = waiting(0, "victim", 2, input_tokens=4000, output_tokens=1000.0, arrival_s=1000.0, ttft_deadline_s=None)
    scheduler.offer(victim, 1000.0)
    for number in range(1, FLOOD):
        now_s = 1000.0 + number * 0.25
        fresh = waiting(
            number, f"flood-{stream.randrange(3)}", 0, input_tokens=8, arrival_s=now_s, ttft_deadline_s=now_s + 0.1
        )
        scheduler.offer(fresh, now_s)
        (grant,) = scheduler.step(pool_view(backend_view(slots=1, kv_tokens=10**9)), now_s)
        if grant.request.id == victim.id:
            return
    pytest.fail(f"{policy} let a request wait for {FLOOD} grants")


def test_policies_that_promise_it_were_found():
    assert {"fifo", "aging", "weighted", "ewsjf"} <= set(NOBODY_STARVES)


@settings(max_examples=60, deadline=None)
@given(policy=st.sampled_from(POLICIES), seed=st.integers(0, 1000))
def test_fair_shares_bound_what_others_get_while_a_tenant_waits(policy: str, seed: int):
    """Whatever the policy inside, a tenant that begins to wait has its turn before the others had two requests each."""
    stream = random.Random(seed)
    world = Counter(make_policy(policy, None, {"fair": {}}), {"new": 1.0, "a": 1.0, "b": 1.0})
    for turn in range(stream.randrange(5, 40)):
        for tenant in "ab":
            world.offer(tenant, (100, 20), float(turn))
        world.grant(float(turn))
    world.offer("new", (100, 20), 50.0)
    others = 0
    while world.grant(51.0 + others)[0].entitlement != "new":
        others += 1
    assert others <= 4
