"""Virtual time, workloads, chunk sizes and relegation: the parts that the engine models are made of."""

from __future__ import annotations

from itertools import islice, pairwise
from math import inf, isnan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.engine.step_time import StepTime
from scheduling.core.inside_engine.chunking import DecodeSlack, prefill_budget, time_left_s, tokens_to_catch_up
from scheduling.core.percentiles import interpolated
from scheduling.core.policies.relegation import Relegation, judge, may_interrupt, smoothed_rate, will_miss
from scheduling.core.types import Slo
from scheduling.simulator.exact import ExactStep, run, steps_to
from scheduling.simulator.kernel import Kernel, rng
from scheduling.simulator.result import goodput, is_late
from scheduling.simulator.trace import read_trace
from scheduling.simulator.workload import (
    CODE,
    Belief,
    Tier,
    bursts,
    from_families,
    independent_lengths,
    make_families,
    make_request,
    mixed_prompts,
    open_loop,
    poisson,
    square_wave,
    uniform_gaps,
    waves,
    write_mix,
)
from tests.support.slack import answers, due_in

A100 = StepTime(14.936e-3, 81.3e-6, 95.17e-6, 0.1111e-6, 2801e-12, 512, 8.86e-6)


def test_events_of_one_instant_come_by_rank_and_then_as_they_were_posted():
    kernel = Kernel()
    for at, rank, what in ((5, 1, "c"), (5, 0, "a"), (5, 0, "b"), (3, 9, "first")):
        kernel.post(at, rank, what)
    assert [kernel.pop().what for _ in range(4)] == ["first", "a", "b", "c"]
    assert kernel.now_fs == 5


def test_nothing_is_posted_into_the_past():
    kernel = Kernel()
    kernel.post(5, 0, "now")
    kernel.pop()
    with pytest.raises(ValueError, match="cannot be posted"):
        kernel.post(4, 0, "too late")


def test_what_one_stream_draws_never_shifts_another():
    alone = [rng(7, "lengths").random() for _ in range(1)]
    arrivals = rng(7, "arrivals")
    lengths = rng(7, "lengths")
    arrivals.random()
    assert [lengths.random()] == alone
    assert rng(7, "arrivals").random() != rng(8, "arrivals").random()


def test_the_exact_step_is_the_model_to_a_femtosecond_per_unit():
    exact = ExactStep(A100)
    pp2 = 700 * (2 * 512 + 700)
    assert exact.step(700, 12, 30_000, pp2) / 1e15 == pytest.approx(A100.step(700, 12, 30_000, pp2 / 2), rel=1e-12)


@pytest.mark.parametrize(("first", "growth"), [(10, 0), (10, 3), (10**13, 17), (1, 10**9)])
def test_as_many_steps_as_a_duration_needs_and_no_more(first: int, growth: int):
    for duration in (1, first, first + 1, 7 * first + growth, 10**6, 10**15):
        k = steps_to(first, growth, duration, 50_000)
        assert k == 50_000 or run(first, growth, k) >= duration
        assert k == 1 or run(first, growth, k - 1) < duration


def test_poisson_arrivals_come_at_their_rate():
    arrivals = list(islice(poisson(rng(1, "a"), 4.0), 20_000))
    assert 20_000 / arrivals[-1] == pytest.approx(4.0, rel=0.03)


def test_a_square_wave_has_each_rate_in_its_own_period():
    arrivals = [at for at in islice(square_wave(rng(1, "a"), (2.0, 5.0), 900.0), 13_000) if at < 3600]
    low = sum(1 for at in arrivals if (at // 900) % 2 == 0)
    high = len(arrivals) - low
    assert low == pytest.approx(2.0 * 1800, rel=0.06)
    assert high == pytest.approx(5.0 * 1800, rel=0.06)


def test_bursts_and_waves_keep_their_mean_rate_and_come_as_they_say():
    came = [at for at in islice(bursts(rng(1, "a"), 5.0), 20_000) if at < 3600]
    assert len(came) / 3600 == pytest.approx(5.0, rel=0.05)
    assert came == sorted(came)
    assert sum(b - a for a, b in pairwise(came) if b - a > 3.0) > 0.25 * 3600, "often nobody comes"
    swung = [at for at in islice(waves(rng(1, "a"), 5.0), 20_000) if at < 3600]
    assert len(swung) / 3600 == pytest.approx(5.0, rel=0.05)
    assert sum((at // 300) % 2 == 0 for at in swung) == pytest.approx(0.2 * len(swung), rel=0.1)


@pytest.mark.parametrize(
    ("kind", "prompt", "answer"), [("ewsjf", 140, 12), ("reasoning", 250, 2300), ("waves", 660, 150)]
)
def test_made_up_traffic_is_a_trace_with_the_lengths_of_its_kind(
    tmp_path: Path, kind: str, prompt: int, answer: int
) -> None:
    path = tmp_path / "made.csv"
    write_mix(path, 3000, 5.0, 1, kind)
    rows = read_trace(path)
    assert len(rows) == 3000
    assert interpolated([row.input_tokens for row in rows], 0.5) == pytest.approx(prompt, rel=0.3)
    assert interpolated([row.output_tokens for row in rows], 0.5) == pytest.approx(answer, rel=0.1)
    write_mix(path, 400, 5.0, 1, "two-lengths")
    assert {row.input_tokens for row in read_trace(path)} == {60, 6000}


def test_uniform_gaps_stay_in_their_interval():
    arrivals = list(islice(uniform_gaps(rng(1, "a"), 0.05, 0.15), 500))
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert min(gaps) >= 0.05
    assert max(gaps) <= 0.15


def test_clipped_lengths_have_the_paper_s_quantiles_and_never_exceed_the_clip():
    random = rng(3, "lengths")
    drawn = [CODE[0].draw(random) for _ in range(20_000)]
    assert interpolated(drawn, 0.5) == pytest.approx(1930, rel=0.03)
    assert interpolated(drawn, 0.9) == pytest.approx(6251, rel=0.05)
    assert max(drawn) == 7000


def test_sharegpt_lengths_come_from_the_shipped_percentiles():
    random, lengths = rng(3, "lengths"), independent_lengths("sharegpt")
    drawn = [lengths(random) for _ in range(20_000)]
    assert interpolated([given for given, _ in drawn], 0.5) == pytest.approx(1732, rel=0.05)
    assert interpolated([out for _, out in drawn], 0.9) == pytest.approx(837, rel=0.05)


def test_unknown_lengths_are_named_with_those_that_exist():
    with pytest.raises(ValueError, match="azure-code"):
        independent_lengths("azure-cod")


def test_tiers_come_by_their_shares_and_a_policy_sees_no_true_length():
    tiers = (Tier("a", Slo(ttft_s=1.0), share=3), Tier("b", Slo(ttlt_s=9.0), rank=1, share=1))
    work = open_loop(
        poisson(rng(1, "a"), 1.0),
        4000,
        independent_lengths("azure-code"),
        tiers,
        Belief(15.0, 1024),
        length_stream=rng(1, "l"),
        tier_stream=rng(1, "t"),
        low_share=0.2,
    )
    assert sum(r.tier == "a" for r in work) == pytest.approx(3000, rel=0.05)
    assert sum(not r.important for r in work) == pytest.approx(800, rel=0.1)
    assert {(r.queued.output_tokens, r.queued.output_bound) for r in work} == {(15.0, 1024)}


def test_a_request_without_output_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        make_request(1, 0.0, 10, 0, Tier("a"), Belief(1.0))


# --- chunking


def test_a_chunk_is_as_large_as_the_slack_allows_and_one_more_is_too_much():
    budget = prefill_budget(A100, 10, 25_000, 0, due_in(0.08))
    assert 1.2 * A100.step(budget, 10, 25_000, budget * budget / 2) <= 0.08
    over = budget + 1
    assert 1.2 * A100.step(over, 10, 25_000, over * over / 2) > 0.08


def test_a_chunk_grows_with_the_slack_between_its_bounds():
    soonest = A100.step(128, 10, 25_000, 128 * 64)
    sizes = [prefill_budget(A100, 10, 25_000, 0, due_in(slack)) for slack in (soonest, 0.06, 0.1, 0.2, 9.0)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (128, 2500)
    assert prefill_budget(A100, 10, 25_000, 0, due_in()) == 2500


def test_what_has_lost_its_promise_does_not_limit_the_step():
    soonest = A100.step(128, 10, 25_000, 128 * 64)
    assert prefill_budget(A100, 10, 25_000, 0, due_in(-1.0, 0.0, soonest - 1e-6)) == 2500
    limited = prefill_budget(A100, 10, 25_000, 0, due_in(0.08))
    assert prefill_budget(A100, 10, 25_000, 0, due_in(-1.0, 0.08)) == limited < 2500


@given(
    slacks=st.lists(st.floats(-1.0, 1.0), max_size=20),
    decodes=st.integers(0, 200),
    context=st.integers(0, 8000),
    least=st.integers(1, 600),
)
def test_fewer_tokens_than_most_always_save_one_from_being_late(
    slacks: list[float], decodes: int, context: int, least: int
):
    def seconds(tokens: int) -> float:
        return A100.step(tokens, decodes, 500 * decodes, tokens * (context + tokens / 2))

    budget = prefill_budget(A100, decodes, 500 * decodes, context, due_in(*slacks), least=least)
    assert least <= budget <= 2500
    saved = [slack for slack in slacks if seconds(budget) <= slack < 1.2 * seconds(budget + 1)]
    late = [slack for slack in slacks if slack < seconds(least)]
    assert budget == 2500 or saved, "a small step that saves nothing costs throughput"
    if len(late) == len(slacks):
        assert budget == 2500


def test_what_is_behind_limits_steps_while_it_can_catch_up_and_not_afterwards():
    """Its next token is late; with 60 more at 50 ms each it can still end in time, with 5 it cannot."""
    full, least = 2500, 128
    assert prefill_budget(A100, 10, 25_000, 0, answers((-1.0, 0.05, 60))) == least
    assert prefill_budget(A100, 10, 25_000, 0, answers((-1.0, 0.05, 5))) == full
    assert prefill_budget(A100, 10, 25_000, 0, answers((-1.0, 0.05, 0))) == full, "its first token came late"
    assert prefill_budget(A100, 10, 25_000, 0, answers((-1.0, 0.02, 1000))) == full, "no step is as short as its pace"
    easy = prefill_budget(A100, 10, 25_000, 0, answers((-1.0, 0.05, 1000)))
    assert least < easy < full, "it need not catch up at once"


def test_many_answers_make_steps_too_long_for_their_pace_and_small_chunks_let_them_end():
    """256 answers decode; even beside the least chunk a step takes longer than 50 ms, until some have ended."""
    assert A100.step(128, 256, 256 * 400, 128 * 64) > 0.05
    assert prefill_budget(A100, 256, 256 * 400, 0, answers(*[(0.01, 0.05, 300)] * 256)) == 128


@given(
    slack=st.floats(-5.0, 1.0), pace=st.sampled_from((0.01, 0.05, 0.4)), tokens=st.integers(1, 500),
    step=st.floats(0.01, 0.3), alone=st.floats(0.005, 0.3),
)  # fmt: skip
def test_an_answer_that_is_behind_ends_in_time_with_steps_of_what_it_leaves(
    slack: float, pace: float, tokens: int, step: float, alone: float
):
    left = time_left_s(slack, pace, tokens, step, alone)
    last_s = slack + pace * (tokens - 1)
    if slack >= step:
        assert left == slack
    elif left == inf:
        assert tokens * alone > last_s - 1e-9, "what could be in time counts"
    else:
        assert left >= alone
        assert tokens * left == pytest.approx(last_s, abs=1e-9)
    assert time_left_s(slack, pace, 0, step, alone) == (slack if slack >= step else inf)


@pytest.mark.parametrize(
    ("slo", "first_s", "tokens"),
    [
        (Slo(ttft_s=1.0, tbt_s=0.05), 1.0, 1020),
        (Slo(ttft_s=1.0, tbt_s=0.05), 1.01, 0),
        (Slo(ttlt_s=60.0), 59.0, 96),
    ],
    ids=["up to its bound", "its first token came late", "a whole answer's deadline counts with its expected length"],
)
def test_within_how_many_tokens_an_answer_has_to_catch_up(slo: Slo, first_s: float, tokens: int):
    request = make_request(1, 0.0, 10, 200, Tier("a", slo), Belief(100.0, 1024)).queued
    assert tokens_to_catch_up(request, first_s, 4) == tokens
    assert tokens_to_catch_up(request, first_s, 5000) == min(1, tokens)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.booleans(), st.floats(0, 10), st.sampled_from((0.05, 0.4, inf)), st.integers(0, 60)
        ),
        max_size=30,
    ),
    st.integers(0, 50), st.floats(0.01, 2), st.floats(0.01, 0.3),
)  # fmt: skip
def test_time_left_is_the_least_that_any_sequence_leaves(
    moves: list[tuple[int, bool, float, float, int]], step: int, step_s: float, alone_s: float
):
    slack, there = DecodeSlack(), dict[int, tuple[float, float, int]]()
    for sequence, joins, due, pace, tokens in moves:
        if joins:
            slack.join(sequence, due, pace, 0, tokens)
            there[sequence] = (due, pace, tokens)
        else:
            slack.leave(sequence)
            there.pop(sequence, None)
    now = [
        (due + pace * step - 5.0, pace, max(1, tokens - step) if tokens else 0)
        for due, pace, tokens in there.values() if pace != inf
    ]  # fmt: skip
    assert slack.slack_s(step, 5.0) == pytest.approx(min((left for left, _, _ in now), default=inf))
    near = [left - step_s for left, _, _ in now] + [pace + (left - pace) / n - alone_s for left, pace, n in now if n]
    if all(abs(each) > 1e-9 for each in near):
        expected = answers(*now)(step_s, alone_s)
        assert slack.time_left_s(step, 5.0, step_s, alone_s) == pytest.approx(expected)


def test_slack_is_that_of_the_sequence_whose_next_token_is_due_first():
    slack = DecodeSlack()
    assert slack.slack_s(0, 0.0) == inf
    slack.join(1, next_due_s=10.0, pace_s=0.05, step=0, tokens=50)
    slack.join(2, next_due_s=3.0, pace_s=0.4, step=0, tokens=50)
    assert slack.slack_s(0, 2.0) == pytest.approx(1.0)
    # After 20 steps the second is due at 3 + 20 * 0.4 = 11, the first at 10 + 20 * 0.05 = 11; then paces part.
    assert slack.slack_s(21, 2.0) == pytest.approx(9.05)
    slack.leave(1)
    assert slack.slack_s(21, 2.0) == pytest.approx(9.4)


def test_slack_counts_the_steps_since_a_sequence_joined_not_all_steps():
    slack = DecodeSlack()
    slack.join(1, next_due_s=10.0, pace_s=0.05, step=100, tokens=50)
    assert slack.slack_s(100, 9.0) == pytest.approx(1.0)
    assert slack.slack_s(104, 9.0) == pytest.approx(1.2)


def test_a_sequence_that_joins_again_is_counted_once_with_its_new_deadline():
    slack = DecodeSlack()
    slack.join(1, next_due_s=10.0, pace_s=0.05, step=0, tokens=50)
    slack.join(1, next_due_s=20.0, pace_s=0.05, step=0, tokens=50)
    assert slack.slack_s(0, 0.0) == pytest.approx(20.0)


# --- relegation


def test_only_a_request_that_cannot_be_in_time_is_relegated():
    assert not will_miss(10.0, 9.0, 1000, 1000.0)
    assert will_miss(10.0, 9.0, 1001, 1000.0)


@pytest.mark.parametrize(
    ("low", "low_waiting", "left", "backlog", "verdict"),
    [
        (False, False, 500, 10**9, Relegation.SERVE),
        (False, False, 5000, 0, Relegation.RELEGATE),
        (False, True, 5000, 0, Relegation.RELEGATE_LOW_FIRST),
        (True, True, 500, 0, Relegation.SERVE),
        (True, True, 500, 600, Relegation.RELEGATE),
    ],
)
def test_low_tiers_give_way_first_and_to_the_backlog_of_the_others(
    low: bool, low_waiting: bool, left: int, backlog: int, verdict: Relegation
):
    judged = judge(10.0, 9.0, left, 1000.0, low=low, low_waiting=low_waiting, backlog_tokens=backlog)
    assert judged is verdict


def test_a_prefill_is_interrupted_only_if_its_own_deadline_holds_or_is_lost_anyway():
    assert may_interrupt(10.0, 5.0, 1000, 1000.0, pause_s=1.0)
    assert not may_interrupt(10.0, 8.5, 1000, 1000.0, pause_s=1.0)
    assert may_interrupt(10.0, 9.5, 1000, 1000.0, pause_s=1.0)


def test_the_believed_rate_moves_towards_what_was_seen():
    assert smoothed_rate(8000.0, 256, 0.032) == pytest.approx(8000.0)
    assert 8000.0 < smoothed_rate(8000.0, 2500, 0.25) < 10_000.0


# --- results


def test_promises_are_broken_by_the_first_or_by_the_last_token():
    chat, batch = Slo(ttft_s=1.0, tbt_s=0.1), Slo(ttlt_s=10.0)
    assert not is_late(chat, 1.0, 1.4, 5)
    assert is_late(chat, 1.1, 1.2, 5)
    assert is_late(chat, 0.5, 1.41, 5)
    assert not is_late(batch, 9.0, 10.0, 5)
    assert is_late(batch, 9.0, 10.1, 5)
    assert not is_late(Slo(), 1e9, 1e9, 5)


def test_goodput_is_the_last_rate_of_the_grid_that_keeps_its_promises():
    assert goodput(lambda rate: 0.0 if rate <= 2.74 else 0.5, 1.0, 4.0, step=0.05) == pytest.approx(2.7)
    assert goodput(lambda rate: 0.0, 1.0, 4.0, step=0.05) == pytest.approx(4.0)
    assert isnan(goodput(lambda rate: 1.0, 1.0, 4.0, step=0.05)), "the lowest rate is too high: nothing is known"
    assert goodput(lambda rate: 0.0 if rate <= 3.8 else 1.0, 2.8, 4.4, step=0.05) == 3.8


def test_families_tell_policies_the_distribution_that_their_outputs_are_drawn_from():
    families = make_families(rng(1, "families"), 12)
    work = from_families(poisson(rng(1, "a"), 1.0), 600, families, Tier("all"), rng(1, "l"))
    by_name = {family.name: family for family in families}
    assert len(by_name) == 12
    for request in work:
        family = by_name[request.label]
        assert float(request.output_tokens) in family.lengths
        assert request.queued.output_lengths == family.lengths
        assert family.input_low <= request.input_tokens <= family.input_high


def test_a_mix_of_prompts_has_its_shares_and_one_output_length():
    draw, random = mixed_prompts([(0.8, 32, 256), (0.2, 1024, 4096)], 12), rng(1, "lengths")
    drawn = [draw(random) for _ in range(5000)]
    assert {out for _, out in drawn} == {12}
    assert sum(given <= 256 for given, _ in drawn) == pytest.approx(4000, rel=0.03)
    assert not any(256 < given < 1024 for given, _ in drawn)
