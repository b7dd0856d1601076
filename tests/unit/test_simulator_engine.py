"""Engine models against cases that are worked out by hand."""

from __future__ import annotations

import pytest

from scheduling.core.registry import make_ordering
from scheduling.core.step_time import StepTime
from scheduling.core.types import Slo
from scheduling.simulator.batches import make_engine
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import Engine, EngineConfig
from scheduling.simulator.kernel import to_s
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

PLAIN = StepTime(t0=1.0, a=0.01, b=0.1, c=0.0, e=0.0, knee=1e9, a2=0.0)
TIER = Tier("only")


def ask(index: int, at: float, given: int, out: int, tier: Tier = TIER, **more: bool) -> SimRequest:
    return make_request(index, at, given, out, tier, Belief(10.0, 64), **more)


def ends(engine: Engine) -> dict[int, float]:
    return {s.sim.index: round(to_s(s.end_fs), 9) for s in engine.finished}


def simulate(config: EngineConfig, work: list[SimRequest], policy: str = "fifo") -> Engine:
    engine = make_engine(config, make_ordering(policy))
    engine.run(work)
    return engine


def test_a_prompt_takes_one_step_per_chunk_and_gives_its_first_token_with_the_last():
    engine = simulate(EngineConfig(PLAIN, token_budget=100), [ask(0, 0.0, 250, 3)])
    (only,) = engine.finished
    # Chunks of 100, 100 and 50: 2 + 2 + 1.5 s; then two decode steps of 1.1 s.
    assert to_s(only.first_fs) == pytest.approx(5.5)
    assert to_s(only.end_fs) == pytest.approx(7.7)


def test_decoding_sequences_take_their_part_of_the_budget_first():
    engine = simulate(EngineConfig(PLAIN, token_budget=100), [ask(0, 0.0, 100, 50), ask(1, 0.0, 198, 1)])
    # After the first prompt (2 s) one sequence decodes, so 99 tokens are left per step: two steps of 1 + .99 + .1.
    assert ends(engine)[1] == pytest.approx(2 + 2 * 2.09)


def test_what_a_prompt_leaves_of_the_budget_goes_to_the_next_one():
    engine = simulate(EngineConfig(PLAIN, token_budget=100), [ask(0, 0.0, 60, 1), ask(1, 0.0, 40, 1)])
    assert ends(engine) == {0: 2.0, 1: 2.0}


def test_an_urgent_arrival_interrupts_a_prefill_between_two_chunks_where_that_is_allowed():
    urgent, calm = Tier("urgent", Slo(ttft_s=1.0)), Tier("calm", Slo(ttlt_s=999.0))
    work = [ask(0, 0.0, 1000, 1, calm), ask(1, 3.0, 100, 1, urgent)]
    eager = EngineConfig(PLAIN, token_budget=100, preempt_prefills=True)
    assert ends(simulate(eager, work, "edf")) == {1: 6.0, 0: 22.0}
    patient = EngineConfig(PLAIN, token_budget=100)
    assert ends(simulate(patient, work, "edf")) == {0: 20.0, 1: 22.0}


def test_a_full_cache_preempts_the_last_admitted_and_computes_it_again():
    config = EngineConfig(PLAIN, token_budget=200, kv_tokens=160, block=16, watermark=0.0)
    engine = simulate(config, [ask(0, 0.0, 64, 60), ask(1, 0.0, 64, 60)])
    assert engine.counters.preemptions >= 1
    first, second = sorted(engine.finished, key=lambda s: s.sim.index)
    assert first.recomputed == 0
    assert second.recomputed > 0
    assert second.end_fs > first.end_fs


def test_a_full_cache_preempts_the_worst_rank_where_priorities_say_so():
    high, low = Tier("high", rank=0), Tier("low", rank=1)
    config = EngineConfig(PLAIN, token_budget=200, kv_tokens=160, watermark=0.0, victims="priority")
    engine = simulate(config, [ask(0, 0.0, 64, 60, low), ask(1, 0.0, 64, 60, high)], "fifo")
    again = {s.sim.index: s.recomputed for s in engine.finished}
    assert again[1] == 0
    assert again[0] > 0


def test_a_request_that_can_never_fit_is_refused_when_it_is_offered():
    engine = make_engine(EngineConfig(PLAIN, kv_tokens=1000), make_ordering("fifo"))
    with pytest.raises(ValueError, match="r0 needs"):
        engine.offer(ask(0, 0.0, 900, 200))


def test_arrivals_have_to_be_offered_in_order():
    engine = make_engine(EngineConfig(PLAIN), make_ordering("fifo"))
    engine.offer(ask(0, 5.0, 10, 1))
    with pytest.raises(ValueError, match="offered earlier"):
        engine.offer(ask(1, 4.0, 10, 1))


def test_dynamic_chunks_are_large_while_nothing_is_due_and_small_beside_a_chat():
    step = StepTime(t0=0.01, a=1e-4, b=0.0, c=0.0, e=0.0, knee=1e9, a2=0.0)
    chat, batch = Tier("chat", Slo(ttft_s=0.2, tbt_s=0.06)), Tier("batch", Slo(ttlt_s=999.0))
    config = EngineConfig(step, dynamic_chunks=True, preempt_prefills=True, max_chunk=1000, min_chunk=10)
    engine = make_engine(config, make_ordering("edf"))
    assert isinstance(engine, ContinuousEngine)
    sizes: list[int] = []
    before = [0]

    def watch(seen: Engine) -> None:
        if seen.counters.prefill_tokens > before[0]:
            sizes.append(seen.counters.prefill_tokens - before[0])
            before[0] = seen.counters.prefill_tokens

    engine.run([ask(0, 0.0, 100, 500, chat), ask(1, 0.05, 20_000, 1, batch)], watch)
    chat_life = next(s for s in engine.finished if s.sim.index == 0)
    assert to_s(chat_life.end_fs) <= 0.2 + 499 * 0.06
    assert max(sizes) == 1000  # the early first token of the chat had gathered slack
    assert min(sizes[2:-1]) <= 500


def test_a_request_that_is_lost_is_relegated_and_still_served():
    chat = Tier("chat", Slo(ttft_s=3.0))
    config = EngineConfig(PLAIN, token_budget=100, relegate=True, first_rate=50.0)
    engine = simulate(config, [ask(0, 0.0, 500, 1, chat), ask(1, 0.0, 100, 1, chat)], "fifo")
    assert engine.counters.relegations == 1
    assert ends(engine) == {1: 2.0, 0: 12.0}


def test_low_tiers_are_relegated_when_an_important_request_would_be():
    calm = Tier("calm", Slo(ttlt_s=30.0))
    config = EngineConfig(PLAIN, token_budget=100, relegate=True, first_rate=50.0, ttlt_pace_s=0.0)
    work = [ask(0, 0.0, 1400, 1, calm), *(ask(i, 0.1, 200, 1, calm, important=i % 2 == 0) for i in range(1, 7))]
    engine = simulate(config, work, "fifo")
    lost = {s.sim.index for s in engine.finished if s.relegated}
    assert lost
    assert {index for index in lost if index % 2 == 0} <= {2, 4, 6}
    assert lost >= {1, 3, 5}


def test_a_whole_batch_answers_everybody_when_its_last_sequence_has_ended():
    config = EngineConfig(PLAIN, mode="whole_batch", token_budget=1000, max_seqs=2)
    engine = simulate(config, [ask(0, 0.0, 50, 3), ask(1, 0.0, 50, 5), ask(2, 0.0, 100, 1)])
    # 2 s prefill, two steps with both (1.2), two with one (1.1); the third waits for the next batch of 2 s.
    assert ends(engine) == {0: 6.6, 1: 6.6, 2: 8.6}


def test_a_padded_batch_costs_what_its_longest_members_cost():
    config = EngineConfig(PLAIN, mode="padded_batch", max_seqs=2)
    engine = simulate(config, [ask(0, 0.0, 10, 1), ask(1, 0.0, 100, 5)])
    assert ends(engine) == {0: pytest.approx(3 + 4 * 1.2), 1: pytest.approx(3 + 4 * 1.2)}


def test_slots_serve_each_request_at_its_own_pace():
    config = EngineConfig(PLAIN, mode="slots", max_seqs=2)
    engine = simulate(config, [ask(0, 0.0, 100, 4), ask(1, 0.0, 100, 4), ask(2, 1.0, 100, 1)])
    assert ends(engine) == {0: 5.0, 1: 5.0, 2: 7.0}


@pytest.mark.parametrize(
    ("setting", "value"), [("mode", "batch"), ("victims", "head"), ("token_budget", 0), ("watermark", 1.0)]
)
def test_a_setting_out_of_range_is_named(setting: str, value: object):
    with pytest.raises(ValueError, match=setting):
        EngineConfig(PLAIN, **{setting: value})  # type: ignore[arg-type]


def test_a_running_sequence_gives_way_to_one_that_ranks_before_it_and_keeps_what_it_has():
    config = EngineConfig(PLAIN, mode="ranked", token_budget=100, max_seqs=1)
    engine = simulate(config, [ask(0, 0.0, 100, 50), ask(1, 10.0, 20, 2)], "shortest")
    # 2 s of prefill and 8 decode steps of 1.1 s until 10.8; then 1.2 s and one decode step for the other.
    assert ends(engine)[1] == pytest.approx(10.8 + 1.2 + 1.1)
    assert ends(engine)[0] == pytest.approx(2 + 49 * 1.1 + 2.3)
    assert engine.counters.preemptions == 1
    assert all(s.recomputed == 0 for s in engine.finished)


def test_a_ranked_engine_whose_cache_fills_lets_the_last_in_order_wait():
    config = EngineConfig(PLAIN, mode="ranked", token_budget=300, kv_tokens=200)
    engine = simulate(config, [ask(0, 0.0, 60, 60), ask(1, 0.1, 60, 60)], "fifo")
    assert engine.counters.preemptions >= 1
    assert ends(engine)[0] < ends(engine)[1]
    assert engine.counters.prefill_tokens == 120
