"""What the default policy says about two requests, term by term, and that nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace
from math import log
from random import Random
from typing import Any

import pytest

from scheduling.core.policies.contracts import RequestQueue, parts_of
from scheduling.core.policies.order.hybrid import work_left
from scheduling.core.policies.order.unified import MAX_MISSES, PREFILL_STEPS, Unified, index_left, mean_left
from scheduling.core.policies.queues.standing import StandingQueue, standing_factor
from scheduling.core.policies.registry import PolicyError, make_ordering, make_routing
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import BackendView, Coefficients, PoolView, QueuedRequest, ServiceClass, Standing

BASE = QueuedRequest(
    id="r", seq=0, arrival_s=0.0, entitlement="e", tenant="t", tier="standard", rank=1, weight=30.0,
    service_class=ServiceClass.ELASTIC, input_tokens=100, output_bound=400, output_tokens=100.0, kv_tokens=500,
)  # fmt: skip
FREE = PoolView({})
LOADED: dict[str, float] = {"alpha_low_ms": 2.0}  # always as under load


def request(name: str, **changes: object) -> QueuedRequest:
    return replace(BASE, **({"id": name, "entitlement": name, "seq": sum(map(ord, name))} | changes))  # type: ignore[arg-type]


def filled(*requests: QueuedRequest, **params: float | int | str) -> RequestQueue:
    queue = make_ordering("unified", params).queue()
    for r in requests:
        queue.push(r, r.arrival_s)
    return queue


def order(queue: RequestQueue, now_s: float = 0.0, view: PoolView = FREE) -> list[str]:
    """Everything out, one per step."""
    result: list[str] = []
    while (chosen := queue.select(Round(view, lambda r: True), now_s)) is not None:
        result.append(chosen.id)
    return result


def test_a_reserved_class_goes_before_an_urgent_lower_one() -> None:
    patient = request("patient", service_class=ServiceClass.GUARANTEED, ttlt_deadline_s=600.0)
    urgent = request("urgent", service_class=ServiceClass.SPOT, ttft_deadline_s=1.0)
    plain = request("plain", output_tokens=4000.0)
    assert order(filled(urgent, plain, patient)) == ["patient", "plain", "urgent"]


def test_promises_are_ordered_by_deadline_and_work_left() -> None:
    near_but_long = request("near", ttft_deadline_s=5.0, input_tokens=1000)
    later_but_short = request("later", ttft_deadline_s=6.0, input_tokens=10)
    assert order(filled(near_but_long, later_but_short, **LOADED)) == ["later", "near"]
    assert order(filled(near_but_long, later_but_short, alpha_ms=0.0)) == ["near", "later"]


def flood(queue: RequestQueue, tokens: int, name: str = "flood", **fields: Any) -> None:
    queue.push(request(name, ttft_deadline_s=500.0, input_tokens=tokens, **fields), 0.0)


def test_work_left_counts_for_more_as_soon_as_what_waits_takes_longer_than_busy_s() -> None:
    """One replica prefills 8,500 tokens/s, so 8 s are 68,000 tokens; under half of that it is calm again."""
    queue, nothing = filled(), Round(pool(), lambda r: False)
    near, later = request("near", ttft_deadline_s=5.0, input_tokens=1000), request("later", ttft_deadline_s=6.0)

    def first() -> str:
        for each in (near, later):
            queue.push(each, 0.0)
        chosen = queue.select(Round(pool(), lambda r: r.id in ("near", "later")), 0.0)
        assert chosen is not None
        for each in (near, later):
            queue.discard(each.id)
        return chosen.id

    assert first() == "near"
    flood(queue, 60_000)
    assert first() == "near"
    flood(queue, 10_000, "more")
    assert first() == "later"
    flood(queue, 40_000)
    assert first() == "later", "50,000 is more than half"
    flood(queue, 20_000)
    assert first() == "near"
    assert queue.select(nothing, 0.0) is None


def test_only_what_has_a_baseline_makes_a_pool_busy() -> None:
    queue = filled()
    flood(queue, 10**6, service_class=ServiceClass.SPOT)
    queue.push(request("near", ttft_deadline_s=5.0, input_tokens=1000), 0.0)
    queue.push(request("later", ttft_deadline_s=6.0), 0.0)
    assert order(queue)[0] == "near"


def test_a_pool_is_busy_by_the_rate_at_which_prompts_leave_and_relegated_ones_have_not_left() -> None:
    queue = filled()
    for n in range(12):  # ten of these are relegated within three seconds
        queue.push(request(f"hopeless {n}", ttft_deadline_s=0.01, input_tokens=4000), 0.0)
    for n in range(30):
        queue.push(request(f"patient {n}", ttft_deadline_s=900.0, input_tokens=500), 0.0)
    for second in range(4):
        queue.select(Round(pool(), lambda r: True), float(second))
    queue.push(request("near", ttft_deadline_s=905.0, input_tokens=4000), 4.0)
    queue.push(request("later", ttft_deadline_s=906.0), 4.0)
    left = order(queue, now_s=4.0)
    assert left.index("later") < left.index("near"), "58,000 tokens at 6,400/s are 9 s; with the relegated ones, 6"


def pool(prefill_per_s: float = 0.0, token_s: float = 0.0) -> PoolView:
    return PoolView({"b": BackendView("b", 8, 10**6, prefill_per_s=prefill_per_s)}, token_s=token_s)


def test_work_left_counts_by_what_it_takes_the_engines() -> None:
    """2,000 tokens put a request 4 s back at 8,500 tokens/s, less than a second at 40,000."""
    long, short = request("long", ttft_deadline_s=5.0, input_tokens=2000), request("short", ttft_deadline_s=6.5)
    for speed, first in ((0.0, "short"), (8_500.0, "short"), (40_000.0, "long")):
        queue = filled(**LOADED)
        queue.select(Round(pool(speed), lambda r: True), 0.0)  # looks at the pool
        queue.push(request("other"), 0.0)
        queue.select(Round(pool(speed), lambda r: True), 0.0)
        for each in (long, short):
            queue.push(each, 0.0)
        assert order(queue, view=pool(speed))[0] == first


@pytest.mark.parametrize(("token_s", "first"), [(0.0, "answer"), (0.1, "answer"), (0.006, "chat")])
def test_an_answer_is_expected_to_take_what_answers_take(token_s: float, first: str) -> None:
    """100 tokens before the end at 15 s: its prefill is due at 5 s, or at 14.4 s on an engine that needs 6 ms."""
    queue = filled(request("first"), alpha_ms=0.0)
    queue.select(Round(pool(token_s=token_s), lambda r: True), 0.0)
    queue.push(request("answer", ttlt_deadline_s=15.0), 0.0)
    queue.push(request("chat", ttft_deadline_s=10.0), 0.0)
    assert order(queue, view=pool(token_s=token_s)) == [first, *({"answer", "chat"} - {first})]


def test_what_can_be_in_time_at_the_pace_of_answers_is_not_put_back() -> None:
    """100 tokens are left for 2 s: too late at 0.1 s a token, in time at 6 ms."""
    for token_s, late in ((0.0, True), (0.1, True), (0.006, False)):
        queue = filled(request("due", ttlt_deadline_s=2.0), request("free"))
        chosen = queue.select(Round(pool(token_s=token_s), lambda r: True), 0.0)
        assert chosen is not None
        assert (chosen.id == "free") is late


@pytest.mark.parametrize("policy", ["hybrid", "unified"])
def test_a_total_deadline_weighs_what_an_answer_may_take_not_what_is_expected(policy: str) -> None:
    """``decode_left`` of a total deadline is mean + 2 sigma of the predicted lengths (QoServe 3.4), not the mean."""
    sure = request("sure", ttlt_deadline_s=30.0, output_tokens=100.0, output_bound=4000)
    gamble = replace(
        sure, id="gamble", ttlt_deadline_s=29.5, output_lengths=(50.0, 150.0), output_probabilities=(0.5, 0.5)
    )
    queue = make_ordering(policy, {"alpha_ms": 8.0, "alpha_low_ms": 8.0}).queue()
    for one in (sure, gamble):
        queue.push(one, 0.0)
    assert order(queue) == ["sure", "gamble"]  # 30 + 8 ms x 200 tokens, 29.5 + 8 ms x (100 + 200) tokens
    assert work_left(gamble) == pytest.approx(100 + 100 + 2 * 50)


def test_output_is_never_expected_to_pass_its_bound() -> None:
    wide = request("wide", ttlt_deadline_s=30.0, output_bound=160, output_lengths=(50.0, 150.0),
                   output_probabilities=(0.5, 0.5))  # fmt: skip
    assert work_left(wide) == 100 + 160


def test_without_promises_the_cheapest_goes_by_the_predicted_distribution() -> None:
    surely_long = request("long", output_tokens=300.0)
    mostly_short = request(
        "gamble", output_tokens=300.0, output_lengths=(10.0, 1170.0), output_probabilities=(0.75, 0.25)
    )
    assert order(filled(surely_long, mostly_short, preempts=1)) == ["gamble", "long"]


def test_a_prompt_costs_what_its_prefill_keeps_the_engine_from_doing() -> None:
    short_answer = request("reader", input_tokens=2000, output_tokens=10.0)  # 20,050 token steps of KV
    long_answer = request("writer", input_tokens=10, output_tokens=300.0)  # 48,000
    assert order(filled(short_answer, long_answer, preempts=1)) == ["writer", "reader"]
    assert index_left(short_answer) == pytest.approx(10**2 / 2 + 2000 * (10 + PREFILL_STEPS))


def test_a_request_that_was_preempted_is_ranked_by_what_is_left() -> None:
    begun = request("begun", output_tokens=500.0, prefilled=100, generated=450)
    fresh = request("fresh", output_tokens=200.0)
    assert order(filled(fresh, begun)) == ["begun", "fresh"]
    assert index_left(replace(begun, generated=0)) < index_left(replace(begun, generated=0, prefilled=0))


def test_one_that_outlived_its_prediction_is_expected_to_go_on_for_as_long_again() -> None:
    outlived = request("outlived", output_tokens=50.0, prefilled=100, generated=400)
    assert index_left(outlived) == pytest.approx(400**2 / 2 + 100 * 400 + 100 * PREFILL_STEPS)


def test_costs_that_are_alike_yield_to_the_tier_and_others_do_not() -> None:
    premium = request("premium", rank=0, output_tokens=120.0)
    standard = request("standard", rank=1, output_tokens=100.0)
    tiny = request("tiny", rank=2, output_tokens=2.0, input_tokens=2)
    assert order(filled(standard, premium, tiny)) == ["tiny", "premium", "standard"]
    assert order(filled(standard, premium, tiny, tier_ratio=1.0)) == ["tiny", "standard", "premium"]


def test_no_promise_is_a_promise_of_its_patience() -> None:
    promised = request("promised", ttlt_deadline_s=300.0)
    free = request("free", output_tokens=10.0)
    batch = request("batch", ttlt_deadline_s=3600.0)
    assert order(filled(batch, free, promised)) == ["promised", "free", "batch"]
    assert order(filled(batch, free, promised, patience_s=100.0)) == ["free", "promised", "batch"]


def test_an_entitlement_with_debt_goes_earlier_and_one_with_burst_later() -> None:
    same = [request(name, ttft_deadline_s=9.0, seq=seq) for seq, name in enumerate(("burst", "even", "owed"))]
    standings = {"owed": Standing(1.0, debt=0.5), "burst": Standing(1.0, burst=0.8)}
    assert order(filled(*same)) == ["burst", "even", "owed"]
    assert order(filled(*same), view=PoolView({}, standings=standings)) == ["owed", "even", "burst"]


def test_a_standing_that_changes_while_requests_wait_counts_at_once() -> None:
    queue = filled(*[request(f"{who}{n}", entitlement=who, seq=n) for n in range(3) for who in ("a", "b")])
    first = PoolView({}, standings={"b": Standing(1.0, debt=0.4)})
    then = PoolView({}, standings={"a": Standing(1.0, debt=0.4)})
    taken = [queue.select(Round(view, lambda r: True), 0.0) for view in (first, then, FREE)]
    assert [r.entitlement for r in taken if r] == ["b", "a", "a"]


def test_without_promises_requests_that_run_to_their_end_go_in_the_order_of_mean_cost() -> None:
    """Gittins is the index of service that may be broken off: it lets long answers that may be short go first."""
    gamble = request("gamble", output_lengths=(10.0, 1000.0), output_probabilities=(0.5, 0.5))
    sure = request("sure", output_lengths=(300.0,), output_probabilities=(1.0,))
    assert mean_left(gamble) > mean_left(sure)
    assert order(filled(gamble, sure)) == ["sure", "gamble"]
    assert order(filled(gamble, sure, preempts=1)) == ["gamble", "sure"]
    random = Random(5)
    mixed = [
        request(f"r{n}", input_tokens=random.randint(10, 4000), output_tokens=float(random.randint(1, 900)))
        for n in range(40)
    ]
    mean_cost = make_ordering("mean_cost", {}).queue()
    for r in mixed:
        mean_cost.push(r, 0.0)
    assert order(filled(*mixed)) == order(mean_cost)


def test_what_outlived_every_length_is_expected_to_go_on_for_as_much_as_it_has_had() -> None:
    outlived = request("old", generated=500, output_lengths=(100.0,), output_probabilities=(1.0,))
    assert mean_left(outlived) == pytest.approx(500**2 / 2 + 100 * 500)


def test_a_debt_of_a_grade_outweighs_a_cost_of_a_grade() -> None:
    queue = StandingQueue(lambda r: (r.output_tokens,), lambda r: "", unit=10.0)
    for r in (request("poor", output_tokens=25.0), request("rich", output_tokens=12.0)):
        queue.push(r, 0.0)
    owed = Standing(1.0, debt=1.0)
    assert standing_factor(owed) == pytest.approx(5.0)
    view = PoolView({}, standings={"poor": owed})
    assert queue.select(Round(view, lambda r: True), 0.0).id == "poor"  # type: ignore[union-attr]  # 25 - 10 ln 5 = 8.9
    assert queue.shift("poor") == pytest.approx(10.0 * log(5.0))


def test_who_had_more_than_its_share_goes_later_and_who_had_less_earlier() -> None:
    loud, even, quiet = (request(name, entitlement=name, seq=n) for n, name in enumerate(("loud", "even", "quiet")))
    view = PoolView({}, standings={"loud": Standing(1.0, share=3.0), "quiet": Standing(1.0, share=0.2)})
    queue, round_ = filled(loud, even, quiet), Round(view, lambda r: True)
    taken = [queue.select(round_, 0.0) for _ in range(3)]
    assert [r.entitlement for r in taken if r is not None] == ["quiet", "even", "loud"]


def test_what_is_owed_counts_by_the_pools_own_coefficients() -> None:
    standings = {"owed": Standing(1.0, debt=0.5)}
    for debt, expected in ((0.0, "even"), (4.0, "owed")):
        queue = filled(request("b", entitlement="owed", seq=2), request("a", entitlement="even", seq=1))
        view = PoolView({}, standings=standings, coefficients=Coefficients(debt=debt))
        taken = queue.select(Round(view, lambda r: True), 0.0)
        assert taken is not None
        assert taken.entitlement == expected
    queue = filled(request("b", entitlement="owed", seq=2), request("a", entitlement="even", seq=1))
    ignored = PoolView({}, standings=standings, coefficients=Coefficients(debt=0.0))
    assert queue.select(Round(ignored, lambda r: False), 0.0) is None
    changed = replace(ignored, coefficients=Coefficients())
    taken = queue.select(Round(changed, lambda r: True), 1.0)
    assert taken is not None
    assert taken.entitlement == "owed", "coefficients that change while requests wait count at once"


def test_extreme_standings_stay_within_a_factor_of_five_and_shares_within_one_of_eight() -> None:
    for debt, burst in ((9.0, 0.0), (-9.0, 0.0), (0.0, 99.0), (-1.0, 99.0), (1.0, 99.0)):
        assert 1 / 5 <= standing_factor(Standing(1.0, debt, burst)) <= 5
    assert standing_factor(Standing(1.0, share=0.0)) == 8.0
    assert standing_factor(Standing(1.0, share=1e9)) == 1 / 8


def test_in_spot_entitlements_take_turns_by_what_they_had() -> None:
    """Whatever their deadlines: who sends more there does not get more."""
    mine = [request(f"a{n}", entitlement="a", service_class=ServiceClass.SPOT, seq=n) for n in range(4)]
    yours = [request(f"b{n}", entitlement="b", service_class=ServiceClass.SPOT, seq=9 + n) for n in range(2)]
    for relegate in (0, 1, 2):
        assert order(filled(*mine, *yours, relegate=relegate)) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_where_much_has_no_room_a_step_asks_few_of_the_entitlements_that_take_turns() -> None:
    """What one round looks past is bounded over all of them: asked further, each of thousands would have nothing."""
    queue = filled(*(request(f"s{n}", service_class=ServiceClass.SPOT) for n in range(1000)))
    asked: list[str] = []

    def has_turn(name: str) -> bool:
        asked.append(name)
        return True

    assert queue.select(Round(FREE, lambda r: False, has_turn), 0.0) is None
    assert len(asked) < 3 * MAX_MISSES, "each is asked once or twice"


def test_what_is_too_late_gives_way_and_is_not_forgotten() -> None:
    late = request("late", ttft_deadline_s=5.0)
    saved = request("saved", ttft_deadline_s=30.0, arrival_s=20.0)
    assert order(filled(late, saved), now_s=21.0) == ["saved", "late"]
    assert order(filled(late, saved, relegate=0), now_s=21.0) == ["late", "saved"]


def classes_in_turn(relegate: int) -> list[str]:
    """One that is late and one that can be in time of each class, by who goes first."""
    requests = [
        request(f"{kind} {service_class}", service_class=service_class, ttft_deadline_s=due_s)
        for service_class in ServiceClass
        if service_class is not ServiceClass.DEDICATED
        for kind, due_s in (("late", 5.0), ("timely", 60.0))
    ]
    return order(filled(*requests, relegate=relegate), now_s=21.0)


def test_what_is_late_gives_way_across_the_classes_that_have_a_baseline_and_never_to_the_surplus() -> None:
    assert classes_in_turn(relegate=1) == [
        "timely guaranteed", "timely elastic", "late guaranteed", "late elastic",
        "timely spot", "late spot", "timely preemptible", "late preemptible",
    ]  # fmt: skip


def test_what_is_late_may_give_way_within_its_class_alone() -> None:
    assert classes_in_turn(relegate=2) == [
        f"{kind} {name}" for name in ("guaranteed", "elastic", "spot", "preemptible") for kind in ("timely", "late")
    ]


def test_the_parts_of_what_waits_are_named_in_the_order_in_which_they_are_looked_at() -> None:
    late = request("late", ttft_deadline_s=5.0, service_class=ServiceClass.GUARANTEED)
    saved = request("saved", ttft_deadline_s=60.0)
    spot = request("spot", ttlt_deadline_s=600.0, service_class=ServiceClass.SPOT)
    queue = filled(late, saved, spot, request("other", ttft_deadline_s=70.0))
    assert order_of_one(queue, now_s=21.0) == "saved"  # and the late one was found to be late on the way
    parts = [(part.name, part.kind, part.waiting) for part in parts_of(queue, "", 21.0)]
    assert parts == [
        ("reserved band", "band", 0), ("elastic band", "band", 1), ("relegated", "relegated", 1),
        ("spot band", "band", 1), ("preemptible band", "band", 0),
    ]  # fmt: skip
    assert queue.explain(late).startswith("relegated, reserved band, due ")
    assert queue.explain(spot).startswith("spot band, served 0 per weight, due ")


def order_of_one(queue: RequestQueue, now_s: float) -> str:
    chosen = queue.select(Round(FREE, lambda r: True), now_s)
    assert chosen is not None
    return chosen.id


@pytest.mark.parametrize("seed_kind", ["expensive", "low class", "late"])
def test_nobody_waits_for_ever_while_better_ones_keep_coming(seed_kind: str) -> None:
    victim = {
        "expensive": request("victim", output_tokens=4000.0, rank=2),
        "low class": request("victim", service_class=ServiceClass.PREEMPTIBLE),
        "late": request("victim", ttft_deadline_s=1.0, input_tokens=4000),
    }[seed_kind]
    queue = filled(victim, patience_s=60.0, every=8)
    turns_overdue = 0
    for second in range(400):
        for part in range(2):  # twice what is served: the queue only grows
            queue.push(
                request(f"new{second}-{part}", arrival_s=float(second), seq=10 + second, ttft_deadline_s=second + 5.0)
                if part
                else request(f"new{second}-{part}", arrival_s=float(second), seq=10 + second, output_tokens=5.0),
                float(second),
            )
        turns_overdue += second > 61
        if queue.select(Round(FREE, lambda r: True), float(second)).id == "victim":  # type: ignore[union-attr]
            break
    assert turns_overdue <= 2 * 8


def test_the_order_is_not_touched_while_nobody_is_overdue() -> None:
    requests = [request(f"n{n}", output_tokens=float(5 * n), seq=n) for n in range(1, 80)]
    assert order(filled(*requests, every=2), now_s=599.0) == [r.id for r in requests]


def test_a_clients_priority_orders_its_own_requests_only() -> None:
    mine = [
        request("a", entitlement="me", output_tokens=10.0),
        request("b", entitlement="me", output_tokens=10.0, client_priority=-1),
        request("large", entitlement="me", output_tokens=90.0, client_priority=-9),
    ]
    other = request("c", output_tokens=30.0)
    scheduler = Scheduler(make_ordering("unified"), make_routing("least_work"))
    for each in (*mine, other):
        scheduler.offer(each, 0.0)
    grants = scheduler.step(PoolView({"r": BackendView("r", 9, 10**6)}), 1.0)
    assert [grant.request.id for grant in grants] == ["b", "a", "c", "large"]


def test_explanations_give_the_terms() -> None:
    queue = filled(request("x", ttft_deadline_s=5.0), request("y"), **LOADED)
    for _ in range(2):
        request_, text = (r := queue.select(Round(FREE, lambda r: True), 0.0)), queue.explain(r)  # type: ignore[arg-type]
        assert request_ is not None
        told = {
            "x": "elastic band, due 5.20 s after arrival: deadline 5.00 + work 0.20",
            "y": "elastic band, cost 1.5e+04 token steps, rank 1: grade 10",
        }
        assert text == told[request_.id]


@pytest.mark.parametrize("wrong", [{"every": 1}, {"tier_ratio": 0.5}, {"patience_s": 0.0}, {"relegate": 3}])
def test_parameters_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=next(iter(wrong))):
        make_ordering("unified", wrong)


def test_defaults_are_what_the_page_says() -> None:
    assert Unified() == Unified(2.0, 0.25, 8.0, 3.0, 5.0, 600.0, 32, 1)
