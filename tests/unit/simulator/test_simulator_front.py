"""The policy in front of replicas: grants by room, engines that work on them in the order in which they came."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from scheduling.core.capacity.prefill_credit import MOST_AHEAD_S
from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import Phase, ServiceClass, Slo
from scheduling.simulator.compare import Case, CompareError, bare, run_case
from scheduling.simulator.engine_queue import Stay, waiting
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

A100 = StepTime(14.936e-3, 81.3e-6, 95.17e-6, 0.1111e-6, 2801e-12, 512, 8.86e-6)
PREMIUM = Tier("premium", Slo(ttft_s=1.0, tbt_s=0.1), 0, 50.0)
BATCH = Tier("batch", Slo(ttlt_s=600.0), 2, 20.0)


def request(index: int, at_s: float, prompt: int, output: int, tier: Tier) -> SimRequest:
    return make_request(index, at_s, prompt, output, tier, Belief(float(output), output))


def overload(count: int = 400, seed: int = 1) -> list[SimRequest]:
    """Prompts of 1,000 to 3,000 tokens, more than two replicas can prefill."""
    random, at, made = Random(seed), 0.0, []
    for index in range(count):
        at += random.expovariate(16.0)
        tier = PREMIUM if random.random() < 0.25 else BATCH
        made.append(request(index, at, random.randint(1000, 3000), random.randint(5, 40), tier))
    return made


def replay_of(credit: int | None, signal_s: float = 0.0, replicas: int = 2, **more: int) -> Replay:
    replica = Replica(A100, 64, 400_000, 512, credit)
    return Replay([replica] * replicas, make_ordering("unified"), make_routing("least_work"), signal_s=signal_s, **more)


def in_time(outcomes: list[Outcome], tier: str) -> float:
    rows = [o for o in outcomes if o.tier == tier]
    return sum(not o.late for o in rows) / len(rows)


def test_an_engine_works_on_requests_in_the_order_in_which_they_were_granted():
    work = [
        request(0, 0.0, 64, 50, BATCH),
        request(1, 0.0, 64, 50, BATCH),  # both slots come free in the same step
        request(2, 0.1, 2000, 5, BATCH),
        request(3, 0.2, 2000, 5, PREMIUM),
    ]
    replay = Replay([Replica(A100, 2, 100_000, 512)], make_ordering("priority"), make_routing("least_work"))
    outcomes = replay.run(work)
    first = {o.index: o.arrival_s + o.ttft_s for o in outcomes}
    assert first[3] < first[2]


def test_without_credit_a_policy_in_front_reaches_nothing_and_with_it_premium_is_served_first():
    work = overload()
    without, with_credit = replay_of(0), replay_of(2048)
    late, early = without.run(work), with_credit.run(work)
    assert in_time(late, "premium") < 0.2
    assert in_time(early, "premium") > 0.9
    assert waiting(without.stays, 2).p99 > 20
    assert waiting(with_credit.stays, 2).p99 <= 3


@pytest.mark.parametrize("credit", [1, 2048, 4096])
@pytest.mark.parametrize("signal_s", [0.0, 0.005])
def test_no_replica_is_granted_more_than_its_credit_beside_what_it_prefills(credit: int, signal_s: float):
    work = overload(300)
    replay = replay_of(credit, signal_s, replicas=1)
    outcomes = replay.run(work)
    # Each takes its prompt's tokens from its grant until its first token was heard of. What is beyond the credit was
    # predicted to be prefilled: it had been granted before the last first token that was heard of.
    spans = sorted((o.arrival_s + o.wait_s, o.arrival_s + o.ttft_s + signal_s, o.input_tokens) for o in outcomes)
    for begun, _, tokens in spans:
        last = max((until for _, until, _ in spans if until <= begun + 1e-9), default=0.0)
        beside = [(since, other) for since, until, other in spans if since < begun - 1e-9 and until > begun + 1e-9]
        counts = sum(other for since, other in beside if since > last + 1e-9)
        first = min((since for since, _ in beside), default=0.0)  # what an idle replica was granted may be predicted
        counts -= sum(other for since, other in beside if since > last + 1e-9 and since <= first + 1e-9)
        assert counts == 0 or counts + tokens <= max(credit, tokens)
    assert max(sum(t for a, b, t in spans if a <= at < b) for at, _, _ in spans) > credit / 2


def test_a_grant_is_in_the_engine_when_a_prompt_is_done_although_the_signal_takes_time():
    work = overload(200)
    for signal_s in (0.0, 0.005, 0.05):
        replay = replay_of(1, signal_s, replicas=1)
        replay.view.backends["0"].resumes = False  # what an interrupted prompt has run before is in no outcome
        outcomes = replay.run(work)
        ordered = sorted(outcomes, key=lambda o: o.arrival_s + o.wait_s)
        gaps = [
            after.arrival_s + after.wait_s - (before.arrival_s + before.ttft_s) for before, after in pairwise(ordered)
        ]
        assert max(gaps) <= signal_s + 1e-9, "it follows at the latest from the first token"
        assert signal_s == 0.0 or sorted(gaps)[len(gaps) // 2] < 0.0, "most come before it"


@pytest.mark.parametrize("credit", [0, 1, 2048])
def test_what_was_granted_comes_back_whole(credit: int):
    replay = replay_of(credit, 0.005)
    outcomes = replay.run(overload(200))
    assert len(outcomes) == 200
    for backend in replay.view.backends.values():
        assert (backend.running, backend.kv_used, backend.prefill_used, backend.work_tokens) == (0, 0, 0, 0)
    assert set(replay.view.running_by_entitlement.values()) == {0}


def test_the_last_free_slots_are_kept_for_who_is_within_a_baseline():
    guaranteed = Tier("g", Slo(ttft_s=1.0), 0, service_class=ServiceClass.GUARANTEED)
    spot = Tier("s", Slo(), 1, service_class=ServiceClass.SPOT)
    work = [request(n, 0.0, 64, 400, spot) for n in range(4)] + [request(4, 0.5, 64, 10, guaranteed)]
    work[4].queued = replace(work[4].queued, concurrency=2)
    waits = {}
    for headroom in (0, 1):
        replay = Replay(
            [Replica(A100, 4, 100_000, 512)], make_ordering("fifo"), make_routing("least_work"), headroom=headroom
        )
        waits[headroom] = {o.index: o.wait_s for o in replay.run(work)}
    assert (waits[0][4] > 1.0, waits[0][3]) == (True, 0.0)
    assert (waits[1][4], waits[1][3] > 1.0) == (0.0, True)


def test_an_engine_that_orders_by_rank_takes_the_first_tier_of_what_it_was_granted_first():
    work = overload()
    outcomes = {}
    for order in ("fifo", "priority"):
        replica = Replica(A100, 128, 400_000, 512, order=order)
        outcomes[order] = Replay([replica] * 2, make_ordering("fifo"), make_routing("least_work")).run(work)
    assert in_time(outcomes["priority"], "premium") > in_time(outcomes["fifo"], "premium") + 0.2


def test_requests_that_wait_in_engines_are_counted_over_time_and_engines():
    random = Random(3)
    stays = []
    for _ in range(40):
        sent = random.randint(0, 1000)
        stays.append(Stay(random.randint(0, 2), sent, sent + random.choice([0, random.randint(0, 200)])))
    begin, end = min(s.sent_fs for s in stays), max(s.begun_fs for s in stays)
    seen = sorted(
        sum(s.replica == replica and s.sent_fs <= at < s.begun_fs for s in stays)
        for replica in range(4)  # the last was sent nothing
        for at in range(begin, end)
    )
    found = waiting(stays, 4)
    assert found.mean == pytest.approx(sum(seen) / len(seen))
    assert found.most == seen[-1]
    assert found.p99 == seen[-(-99 * len(seen) // 100) - 1]
    assert waiting([], 4) == waiting([Stay(0, 5, 5)], 4)


def test_a_case_says_where_its_policy_decides(tmp_path: Path):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:{n // 60:02}:{n % 60:02}.0,{800 + 37 * n % 2000},{5 + n % 30}" for n in range(400)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(lines))
    live = Case(str(trace), "unified", load=1.2)
    inside = replace(live, where="inside")
    front = replace(live, prefill_tokens=2048, engine_order="fifo")
    assert bare(inside) == bare(front)
    assert live.label == "unified"
    assert inside.label == "unified inside"
    assert front.label == "unified, credit 2048, 5 ms, engines by fifo"
    figures = run_case(front)
    assert figures["requests"] == run_case(inside)["requests"]
    assert figures["engine_waiting.p99"] <= 3
    with pytest.raises(CompareError, match="leave out --where inside"):
        run_case(replace(inside, prefill_tokens=2048))
    with pytest.raises(CompareError, match="inside or front"):
        run_case(replace(inside, where="beside"))
    with pytest.raises(CompareError, match="at least 0"):
        run_case(replace(front, signal_ms=-1.0))


def test_automatic_credit_begins_with_half_a_step_and_keeps_promises_as_a_fixed_one_does():
    work = overload()
    automatic, none = replay_of(None, 0.005), replay_of(0, 0.005)
    assert {b.prefill_credit for b in automatic.view.backends.values()} == {256}
    early, late = automatic.run(work), none.run(work)
    assert in_time(early, "premium") > 0.85 > 0.3 > in_time(late, "premium")
    assert waiting(automatic.stays, 2).p99 <= 6 < waiting(none.stays, 2).p99
    grown = {b.prefill_credit for b in automatic.view.backends.values()}
    assert max(grown) <= 1.2 * MOST_AHEAD_S * 8_500, "what the engine prefills in an eighth of a second"


def test_engines_whose_steps_take_long_leave_the_policy_its_choice_and_compute_as_much():
    first_only = Slo(ttft_s=1.0)  # a step with one prompt takes longer than premium is promised between two tokens
    work = [replace(sim, slo=first_only) if sim.tier == "premium" else sim for sim in overload()]
    large = Replica(A100, 64, 400_000, 8192)

    def served(credit: int | None) -> tuple[float, float]:
        replay = Replay(
            [replace(large, prefill_tokens=credit)] * 2, make_ordering("unified"), make_routing("least_work")
        )
        outcomes = replay.run(work)
        return in_time(outcomes, "premium"), max(o.arrival_s + o.ttlt_s for o in outcomes)

    (found, found_s), (whole_step, whole_step_s) = served(None), served(8192)
    assert found > whole_step + 0.3
    assert found_s < 1.03 * whole_step_s


def test_prefill_replicas_with_large_steps_have_no_request_wait_for_one():
    work = overload(250)
    prefill = Replica(A100, 64, 400_000, 8192, None, "priority", phase=Phase.PREFILL)
    decode = replace(prefill, token_budget=1024, phase=Phase.DECODE)
    replay = Replay([decode, decode, prefill, prefill], make_ordering("unified"), make_routing("least_work"))
    assert in_time(replay.run(work), "premium") > 0.8


def test_a_fixed_credit_is_left_alone():
    replay = replay_of(2048, 0.005)
    replay.run(overload(200))
    assert {b.prefill_credit for b in replay.view.backends.values()} == {2048}


def test_what_a_replica_has_in_its_prefix_cache_is_not_computed_again():
    tier = Tier("t", Slo(ttft_s=1.0))
    work = [replace(request(n, 2.0 * n, 2048, 2, tier), blocks=(1, 2, 3, 4)) for n in range(3)]
    work.append(replace(request(3, 6.0, 2048, 2, tier), blocks=(1, 2, 9, 4)))
    work.append(request(4, 8.0, 2048, 2, tier))
    replay = Replay([Replica(A100, 8, 100_000, 512)], make_ordering("fifo"), make_routing("least_work"))
    first, again, third, half, other = (o.ttft_s for o in replay.run(work))
    assert replay.cached_tokens == 2 * 2047 + 1024
    assert again == third < half < first == other
    small = Replay(
        [Replica(A100, 8, 100_000, 512, cache_tokens=1024)], make_ordering("fifo"), make_routing("least_work")
    )
    small.run(work)
    assert small.cached_tokens == 0, "the least recently used block has left"


def test_engines_by_priority_are_told_the_policys_own_order():
    tier = Tier("t", Slo(ttlt_s=100.0))
    first, long, soon = request(0, 0.0, 4000, 3, tier), request(1, 0.1, 3000, 3, tier), request(2, 0.1, 300, 3, tier)
    for order, expected in (("priority", [0, 2, 1]), ("fifo", [0, 1, 2])):
        replay = Replay([Replica(A100, 8, 100_000, 512, 0, order)], make_ordering("edf"), make_routing("least_work"))
        late = replace(long, queued=replace(long.queued, ttlt_deadline_s=60.0))
        early = replace(soon, queued=replace(soon.queued, ttlt_deadline_s=30.0))
        found = replay.run([first, late, early])
        assert [o.index for o in sorted(found, key=lambda o: o.ttft_s + o.arrival_s)] == expected


def test_nobody_sees_the_first_token_of_a_whole_answer_and_its_credit_comes_back_all_the_same():
    """At a look at the engine's queue, with a stream's first token, or at its end: once, and later than a stream's."""
    longest_s = []
    for whole in (False, True):
        replay, work = replay_of(2000, replicas=1), [request(n, 0.0, 1500, 100, BATCH) for n in range(40)]
        for one in work:
            one.whole = whole
        outcomes = replay.run(work)
        assert not any(o.refused for o in outcomes)
        assert {backend.prefill_used for backend in replay.view.backends.values()} == {0}
        longest_s.append(max(o.wait_s for o in outcomes))
    assert longest_s[1] > longest_s[0] + 0.5


def test_a_stream_s_first_token_gives_back_what_whole_answers_before_it_held():
    def waited(streams: int) -> float:
        work = [request(n, 0.0, 1500, 100, BATCH) for n in range(40)]
        for n, one in enumerate(work):
            one.whole = n % 2 >= streams
        return max(o.wait_s for o in replay_of(2000, replicas=1).run(work))

    assert waited(1) < waited(0)
