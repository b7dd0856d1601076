"""The bound on what can be in time: right by arithmetic, never below what any order reaches, and caught when it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf

import pytest

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import make_ordering, make_routing, modifiers, orderings
from scheduling.core.types import QueuedRequest, ServiceClass, Slo
from scheduling.simulator import bound
from scheduling.simulator.batches import make_engine
from scheduling.simulator.bound import Job, jobs_of, most_in_time
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome, outcomes_of
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

MODEL = StepTime(t0=0.01, a=1e-4, b=1e-4, c=1e-7, e=2e-9, knee=300.0, a2=5e-5)
TIERS = (
    Tier("premium", Slo(ttft_s=0.3, tbt_s=0.03), 0, 50.0, 1.0, ServiceClass.GUARANTEED),
    Tier("standard", Slo(ttft_s=1.0, tbt_s=0.05), 1, 30.0, 1.0, ServiceClass.ELASTIC),
    Tier("batch", Slo(ttlt_s=2.5), 2, 20.0, 1.0, ServiceClass.SPOT),
    Tier("whenever"),
)


@dataclass(frozen=True)
class Ranked:
    """Serves in an order that is given."""

    ranks: tuple[int, ...]
    name = "ranked"

    def queue(self) -> RequestQueue:
        return KeyedQueue(self.key, str)

    def key(self, request: QueuedRequest) -> Key:
        return (float(self.ranks[request.seq]),)


def request(index: int, arrival_s: float, tokens: int, out: int = 1, tier: Tier = TIERS[3]) -> SimRequest:
    return make_request(index, arrival_s, tokens, out, tier, Belief(30.0, 512))


def drawn(seed: int, count: int, span_s: float) -> list[SimRequest]:
    draw = random.Random(seed)
    times = sorted(draw.uniform(0.0, span_s) for _ in range(count))
    return [
        request(n, at, draw.choice((40, 300, 900, 3000)), draw.choice((1, 5, 20, 60)), draw.choice(TIERS))
        for n, at in enumerate(times)
    ]


def in_time(outcomes: Sequence[Outcome]) -> int:
    return sum(not outcome.late for outcome in outcomes)


def most_of_any_order(requests: Sequence[SimRequest], config: EngineConfig) -> int:
    """The most that any fixed order of these few requests has in time on one engine."""
    orders = permutations(range(len(requests)))
    return max(in_time(outcomes_of(make_engine(config, Ranked(order)).run(requests))) for order in orders)


def config_of(**changes: object) -> EngineConfig:
    return EngineConfig(MODEL, preempt_prefills=True, **changes)  # type: ignore[arg-type]


CONFIGS = [config_of(token_budget=512), config_of(token_budget=64, max_seqs=2), config_of(dynamic_chunks=True)]


@pytest.mark.parametrize("config", CONFIGS, ids=["budget 512", "two slots", "dynamic chunks"])
@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_a_few_requests_has_more_in_time_than_the_bound(config: EngineConfig, seed: int):
    requests = drawn(seed, 4, 0.5)
    assert most_of_any_order(requests, config) <= most_in_time(requests, config)


def test_a_bound_that_charges_the_fixed_cost_to_every_token_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bound, "_share", lambda model, most: model.t0)
    assert any(
        most_of_any_order(requests, CONFIGS[0]) > most_in_time(requests, CONFIGS[0])
        for requests in (drawn(seed, 4, 0.5) for seed in range(8))
    )


def test_the_bound_is_what_arithmetic_says():
    model = StepTime(t0=1e-9, a=1e-3, b=0.0, c=0.0, e=0.0, knee=0.0, a2=0.0)
    config, tier = EngineConfig(model, token_budget=4000), Tier("t", Slo(ttlt_s=2.0))
    # three seconds of work that must be done within two: the largest is given up
    three = [request(0, 0.0, 500, 1, tier), request(1, 0.0, 500, 1, tier), request(2, 0.0, 2000, 1, tier)]
    assert most_in_time(three, config) == 2
    assert most_in_time(three, config, replicas=2) == 3
    # again an hour later, and one without a promise
    again = [request(n, 3600.0, r.input_tokens, 1, tier) for n, r in enumerate(three, 3)]
    assert most_in_time([*three, *again, request(6, 3600.0, 9000)], config) == 5
    # nobody else is there, and it is late alone
    assert most_in_time([request(0, 0.0, 2500, 1, tier)], config, replicas=9) == 0


def test_intervals_that_lie_in_each_other_count_together():
    # one second of work due after 1 s, and a second of work due after 1.5 s, none of which can begin before 0.5 s
    early, late = Job(0.0, 1.0, 1.0, 1.0, 0.0, 0.9, 0.9), Job(0.5, 1.5, 1.5, 1.0, 0.0, 0.9, 0.9)
    assert bound._most([early, late], 1) == 1


def brute(jobs: Sequence[Job], replicas: int) -> int:
    """The most jobs whose windows hold in every interval: all subsets, all intervals."""
    best = 0
    for chosen in range(1 << len(jobs)):
        some = [job for n, job in enumerate(jobs) if chosen >> n & 1]
        if any(job.hopeless for job in some):
            continue
        windows = [(j.arrival_s, j.first_by_s, j.prompt_s) for j in some]
        windows = [w for w in windows if w[1] < inf]
        whole = [(j.arrival_s, j.last_by_s, j.prompt_s, j.answer_s, j.first_by_s) for j in some if j.last_by_s < inf]
        begins = {w[0] for w in windows} | {w[0] for w in whole}
        ends = {w[1] for w in windows} | {w[1] for w in whole}
        fits = True
        for begin in begins:
            for end in ends:
                load = sum(
                    (j.prompt_s if j.first_by_s <= end or j.last_by_s <= end else 0.0)
                    + (j.answer_s if j.last_by_s <= end else 0.0)
                    for j in some
                    if j.arrival_s >= begin
                )
                fits = fits and load <= replicas * max(0.0, end - begin) + 1e-9
        if fits:
            best = max(best, len(some))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_program_is_never_below_the_best_subset_of_a_relaxed_machine_and_at_most_one_above(seed: int):
    requests = drawn(seed, 9, 0.8)
    jobs = jobs_of(requests, CONFIGS[0])
    exact, found = brute(jobs, 1), most_in_time(requests, CONFIGS[0])
    assert exact <= found <= exact + 1


def named() -> list[str]:
    return [*orderings(), *(f"{modifier}+hybrid" for modifier in modifiers()), "bands+relegate+fair+edf"]


@pytest.mark.parametrize("policy", named())
def test_no_shipped_policy_exceeds_the_bound_in_front_of_replicas(policy: str):
    requests = drawn(77, 160, 9.0)
    config = EngineConfig(MODEL, token_budget=512, max_seqs=32, kv_tokens=60_000)
    replica = Replica(MODEL, 32, 60_000, 512, None, "priority")
    outcomes = Replay([replica] * 2, make_named(policy), make_routing("least_work"), signal_s=0.005).run(requests)
    assert len(requests) / 4 < most_in_time(requests, config, 2) < len(requests)
    for tier in ("", *(tier.name for tier in TIERS)):
        mine = [r for r in requests if tier in ("", r.tier)]
        assert in_time([o for o in outcomes if tier in ("", o.tier)]) <= most_in_time(mine, config, 2)


@pytest.mark.parametrize("policy", ["hybrid", "srpf", "unified"])
def test_nobody_beats_the_bound_inside_an_engine_that_relegates(policy: str):
    config = EngineConfig(MODEL, preempt_prefills=True, dynamic_chunks=True, relegate=True)
    requests = drawn(5, 200, 20.0)
    served = in_time(outcomes_of(make_engine(config, make_ordering(policy)).run(requests)))
    assert served <= most_in_time(requests, config) < len(requests)


def test_what_a_prefix_cache_may_have_is_not_charged():
    blocks = tuple(range(5))
    twins = [request(n, 0.0, 2600, 1, TIERS[0]) for n in range(2)]
    for twin in twins:
        twin.blocks = blocks
    alone = request(0, 0.0, 2600, 1, TIERS[0])
    config = CONFIGS[0]
    assert jobs_of(twins, config)[0].prompt_s < jobs_of([alone], config)[0].prompt_s / 10


def test_a_request_alone_takes_at_least_what_it_is_charged():
    for tokens, out in ((10, 1), (499, 30), (501, 5), (7000, 200)):
        one = request(0, 0.0, tokens, out)
        for config in CONFIGS:
            (life,) = make_engine(config, make_ordering("fifo")).run([one])
            (job,) = jobs_of([one], config)
            assert life.end_fs / 1e15 >= max(job.alone_s, job.prompt_s + job.answer_s) - 1e-9
            assert life.first_fs / 1e15 >= job.first_alone_s - 1e-9
