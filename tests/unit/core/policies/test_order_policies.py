"""What each policy says about two requests, in the words of its paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduling.core.policies.contracts import RequestQueue
from scheduling.core.policies.order.edf import EarliestDeadlineFirst
from scheduling.core.policies.order.ewsjf import Ewsjf
from scheduling.core.policies.order.gittins import Gittins
from scheduling.core.policies.order.hybrid import Hybrid
from scheduling.core.policies.order.unified import Unified
from scheduling.core.policies.queues.relegated import Relegate
from scheduling.core.policies.registry import PolicyError, make_ordering, orderings
from scheduling.core.policies.rounds import Round
from scheduling.core.types import PoolView, QueuedRequest, ServiceClass
from scheduling.simulator.lab import load_scenario, scenario_names
from scheduling.simulator.setups import engine_config

VIEW = PoolView({})
BASE = QueuedRequest(
    id="r", seq=0, arrival_s=0.0, entitlement="e", tenant="t", tier="standard", rank=1, weight=30.0,
    service_class=ServiceClass.ELASTIC, input_tokens=100, output_bound=400, output_tokens=100.0, kv_tokens=500,
)  # fmt: skip


def request(name: str, **changes: object) -> QueuedRequest:
    return replace(BASE, id=name, entitlement=name, seq=sum(map(ord, name)), **changes)  # type: ignore[arg-type]


def fits(_: QueuedRequest) -> bool:
    return True


def order(queue: RequestQueue, now_s: float = 0.0) -> list[str]:
    """Everything out, one per step."""
    result: list[str] = []
    while (chosen := queue.select(Round(VIEW, lambda r: True), now_s)) is not None:
        result.append(chosen.id)
    return result


def filled(policy: str, *requests: QueuedRequest, **params: float | int | str) -> RequestQueue:
    queue = make_ordering(policy, params).queue()
    for r in requests:
        queue.push(r, r.arrival_s)
    return queue


def test_shortest_serves_the_smallest_expected_budget() -> None:
    long_prompt, long_answer = request("p", input_tokens=900), request("a", output_tokens=700.0)
    assert order(filled("shortest", long_prompt, long_answer, BASE)) == ["r", "a", "p"]


@pytest.mark.parametrize("policy", orderings())
def test_a_request_whose_gateway_said_a_length_twice_can_be_queued(policy: str) -> None:
    """It would wait in Redis for every next leader, and end each one's term."""
    twice = request("twice", output_lengths=(1.0, 1.0, 40.0), output_probabilities=(0.25, 0.25, 0.5))
    once = request("once", output_lengths=(1.0, 40.0), output_probabilities=(0.5, 0.5))
    assert sorted(order(filled(policy, twice, once))) == ["once", "twice"]


def test_aging_lets_a_low_tier_pass_after_the_rank_difference_over_the_rate() -> None:
    old_batch = request("old", rank=2, arrival_s=0.0)
    before, after = request("before", rank=1, arrival_s=99.0), request("after", rank=1, arrival_s=101.0)
    assert order(filled("aging", before, after, old_batch, rate=0.01)) == ["before", "old", "after"]


def test_edf_serves_the_nearer_deadline_first_and_none_last() -> None:
    chat = request("chat", ttft_deadline_s=6.0)
    report = request("report", ttlt_deadline_s=5.0)
    assert order(filled("edf", request("whenever"), chat, report)) == ["report", "chat", "whenever"]


def test_orders_by_deadline_and_relegation_go_by_one_time() -> None:
    long_answer = request("long", ttlt_deadline_s=600.0, output_tokens=1000.0)
    short_answer = request("short", ttlt_deadline_s=590.0, output_tokens=10.0)
    chat = request("chat", ttft_deadline_s=540.0)
    for each in (long_answer, short_answer, chat):
        due = Relegate().due_s(each)
        assert EarliestDeadlineFirst().key(each) == (due,)
        assert Hybrid(alpha_ms=0.0, alpha_low_ms=0.0).key(each) == (due,)
        assert Unified(alpha_ms=0.0).urgency(each) == (due,)
        assert EarliestDeadlineFirst().due_s(each) == Unified(alpha_ms=0.0).due_s(each) == due
    assert order(filled("edf", short_answer, chat, long_answer)) == ["long", "chat", "short"]
    assert order(filled("edf", short_answer, chat, long_answer, pace_s=0.0)) == ["chat", "short", "long"]


@pytest.mark.parametrize("name", [name for name in scenario_names() if name.startswith("qoserve")])
def test_runs_that_relegate_by_deadline_alone_order_by_the_engines_own_due_time(name: str) -> None:
    for run in load_scenario(name).runs.values():
        if run.policy == "edf" and run.engine.get("relegate"):
            assert run.params["pace_s"] == engine_config(run.engine).ttlt_pace_s, run.name


def test_srpf_counts_what_is_left_of_a_prompt() -> None:
    begun = request("begun", input_tokens=5000, prefilled=4900)
    assert order(filled("srpf", request("fresh", input_tokens=200), begun)) == ["begun", "fresh"]


def test_hybrid_is_edf_without_alpha_and_shortest_work_with_a_large_one() -> None:
    urgent_long = request("urgent", ttft_deadline_s=1.0, input_tokens=8000)
    later_short = request("later", ttft_deadline_s=6.0, input_tokens=50)
    assert order(filled("hybrid", urgent_long, later_short, alpha_ms=0.0, alpha_low_ms=0.0)) == ["urgent", "later"]
    assert order(filled("hybrid", urgent_long, later_short, alpha_ms=8.0, alpha_low_ms=8.0)) == ["later", "urgent"]


def test_hybrid_adds_the_expected_answer_for_non_interactive_requests_only() -> None:
    assert Hybrid.priority(request("i", ttft_deadline_s=6.0, input_tokens=1000), 8.0, 0.1) == pytest.approx(6.0 + 8.0)
    assert Hybrid.priority(request("n", ttlt_deadline_s=600.0, input_tokens=1000, output_tokens=500.0), 8.0, 0.1) == (
        pytest.approx(600.0 - 0.1 * 500 + 0.008 * 1500)
    )


def test_hybrid_changes_over_to_short_work_when_much_waits() -> None:
    urgent_long = request("urgent", ttft_deadline_s=1.0, input_tokens=4000)
    later_short = request("later", ttft_deadline_s=6.0, input_tokens=50)
    params = {"alpha_ms": 8.0, "alpha_low_ms": 0.5}
    assert order(filled("hybrid", urgent_long, later_short, busy_tokens=50_000.0, **params)) == ["urgent", "later"]
    assert order(filled("hybrid", urgent_long, later_short, busy_tokens=1_000.0, **params))[0] == "later"


def test_gittins_prefers_what_may_end_soon_to_a_smaller_mean() -> None:
    gamble = request("gamble", output_lengths=(10.0, 400.0), output_probabilities=(0.7, 0.3), output_tokens=127.0)
    steady = request("steady", output_tokens=110.0)
    assert order(filled("gittins", steady, gamble)) == ["gamble", "steady"]
    assert order(filled("mean_cost", steady, gamble)) == ["steady", "gamble"]


def test_gittins_looks_again_only_at_bucket_edges() -> None:
    policy = Gittins(bucket_tokens=200)
    r = request("g", output_lengths=(100.0, 1000.0), output_probabilities=(0.5, 0.5))
    assert policy.key(replace(r, generated=199)) == policy.key(r)
    assert policy.key(replace(r, generated=200)) != policy.key(r)


def test_mean_remaining_cost_forgets_what_was_paid() -> None:
    nearly_done = request("nearly", output_tokens=1000.0, generated=990)
    fresh = request("fresh", output_tokens=300.0)
    assert order(filled("mean_cost", nearly_done, fresh, remaining=1)) == ["nearly", "fresh"]
    assert order(filled("mean_cost", nearly_done, fresh, remaining=0)) == ["fresh", "nearly"]


def test_weighted_turns_are_in_proportion_and_evenly_spread() -> None:
    queue = make_ordering("weighted", {}).queue()
    weights = {"premium": 50.0, "standard": 30.0, "batch": 20.0}
    for n in range(300):
        for tier, weight in weights.items():
            queue.push(request(f"{tier}{n}", tier=tier, weight=weight), 0.0)
    taken = [name.rstrip("0123456789") for name in order(queue)[:100]]
    assert Counter(taken) == {"premium": 50, "standard": 30, "batch": 20}
    for start in range(0, 100, 10):
        assert Counter(taken[start : start + 10]) == {"premium": 5, "standard": 3, "batch": 2}


def test_an_idle_tier_saves_up_no_turns() -> None:
    queue = make_ordering("weighted", {}).queue()
    for n in range(50):
        queue.push(request(f"a{n}", tier="a", weight=1.0), 0.0)
    assert len(order_n(queue, 20)) == 20
    for n in range(50):
        queue.push(request(f"b{n}", tier="b", weight=1.0), 0.0)
    assert Counter(name[0] for name in order_n(queue, 20)) == {"a": 10, "b": 10}


def order_n(queue: RequestQueue, count: int) -> list[str]:
    chosen = [queue.select(Round(VIEW, lambda r: True), 0.0) for _ in range(count)]
    return [r.id for r in chosen if r is not None]


def test_ewsjf_score_is_the_papers_formula() -> None:
    policy = Ewsjf(base=2.0, urgency=3.0, fairness=0.5, urgency_slope=1.0, prefill_t0_ms=10.0, prefill_us=100.0)
    # q = 2, b = 99, mean 500: w_urg = 3.5, C = 0.01 + 0.0099
    from math import log

    expected = 2 / 100 * (2.0 + 3.5 * 4.0 / 0.0199 + 0.5 * log(100))
    assert policy.score(2, 500.0, 99, 4.0) == pytest.approx(expected)


def test_ewsjf_fills_greedily_from_the_best_queue_then_from_its_neighbours() -> None:
    queue = filled(
        "ewsjf",
        *(request(f"short{n}", input_tokens=50 + n) for n in range(3)),
        *(request(f"middle{n}", input_tokens=900 + n) for n in range(2)),
        *(request(f"long{n}", input_tokens=5000 + n) for n in range(2)),
        partition="1-100,800-1000,4000-6000",
    )
    taken, one_round = [], Round(VIEW, fits)
    while (chosen := queue.select(one_round, 1.0)) is not None:
        taken.append(chosen.id.rstrip("0123456789"))
    assert taken == ["short"] * 3 + ["middle"] * 2 + ["long"] * 2


def test_ewsjf_gives_a_prompt_in_a_gap_a_bubble_that_goes_when_it_stays_empty() -> None:
    queue = filled("ewsjf", request("odd", input_tokens=2000), partition="1-100,8000-9000", empty_steps=3)
    assert len(queue.queues) == 3  # type: ignore[attr-defined]
    assert order(queue) == ["odd"]
    for _ in range(5):
        queue.select(Round(VIEW, lambda r: True), 0.0)
    assert len(queue.queues) == 2  # type: ignore[attr-defined]


def drain_under_stream(step_s: float, limit: int, make: Callable[[int], QueuedRequest]) -> int:
    """Steps until a long request gets through while a fresh short one arrives at every step."""
    queue = filled("ewsjf", request("long", input_tokens=8000), partition="1-100,4000-9000")
    for n in range(limit):
        queue.push(make(n), n * step_s)
        chosen = queue.select(Round(VIEW, lambda r: True), n * step_s)
        if chosen is not None and chosen.id == "long":
            return n
    return limit


def test_ewsjf_starves_nobody_under_an_endless_stream_of_short_prompts() -> None:
    fresh = drain_under_stream(0.05, 50_000, lambda n: request(f"s{n}", input_tokens=50, arrival_s=n * 0.05))
    assert 0 < fresh < 50_000


@pytest.mark.parametrize(
    ("policy", "params", "hint"),
    [
        ("aging", {"rate": 0.0}, "above 0"),
        ("hybrid", {"alpha_ms": 1.0, "alpha_low_ms": 2.0}, "alpha_low_ms"),
        ("ewsjf", {"urgency": 0.0}, "must be above 0, not 0.0"),
        ("ewsjf", {"partition": "5-1"}, "must rise"),
        ("ewsjf", {"partition": "a-b"}, "LOW-HIGH"),
        ("gittins", {"bucket_tokens": -1}, "at least 0"),
        ("mean_cost", {"remaining": 2}, "0 or 1"),
    ],
)
def test_parameters_out_of_range_are_refused_with_the_reason(
    policy: str, params: dict[str, float | int | str], hint: str
) -> None:
    with pytest.raises(PolicyError, match=hint):
        make_ordering(policy, params)
