"""Continuous batching: what goes into a step, who gives way, and that nothing leaks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.capacity.kv import BLOCK_TOKENS
from scheduling.engines.simulated.engine import Engine, EngineLimits, QueueFull, Sequence, State, Step


def limits(**changes: object) -> EngineLimits:
    values: dict[str, object] = {"slots": 4, "kv_tokens": 1024, "token_budget": 64, "max_model_len": 512}
    return EngineLimits(**{**values, **changes})  # type: ignore[arg-type]


class Clock:
    """Drives an engine step by step; every step takes one second."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 0.0

    def step(self) -> Step | None:
        step = self.engine.plan(self.now)
        check(self.engine, step)
        if step is not None:
            self.now += 1.0
            self.engine.complete(step, self.now)
            check(self.engine, None)
        return step

    def drain(self, most: int = 100_000) -> None:
        for _ in range(most):
            if self.step() is None:
                return
        raise AssertionError("the engine never became idle")


def check(engine: Engine, step: Step | None) -> None:
    """What holds after every transition."""
    assert len(engine.running) <= engine.limits.slots
    assert 0 <= engine.free_blocks <= engine.total_blocks
    held = [block for seq in engine.running for block in seq.cached_blocks[: seq.held]]
    once = sum(seq.blocks for seq in engine.running) - len(held) + len(set(held))
    assert engine.total_blocks - engine.free_blocks == once
    for seq in engine.running:
        assert seq.state is State.RUNNING
        assert seq.computed <= seq.blocks * BLOCK_TOKENS
    if step is not None:
        assert len(step.decodes) + step.prefill_tokens <= engine.limits.token_budget
        assert step.prefill_tokens == sum(chunk for _, chunk in step.chunks)
        assert step.kv_decoding == sum(seq.computed + 1 for seq in step.decodes)
        assert step.prefill_products == sum(chunk * (seq.computed + chunk / 2) for seq, chunk in step.chunks)
        assert all(seq.state is State.RUNNING for seq in [*step.decodes, *(seq for seq, _ in step.chunks)])


def test_a_long_prompt_is_computed_in_chunks_and_its_first_token_comes_with_the_last_one() -> None:
    engine = Engine(limits())
    seq = Sequence(150, 3)
    engine.add(seq, 0.0)
    clock = Clock(engine)
    chunks = [step.prefill_tokens for step in (clock.step(), clock.step(), clock.step()) if step]
    assert chunks == [64, 64, 22]
    assert seq.generated == 1
    clock.drain()
    assert (seq.state, seq.generated) == (State.FINISHED, 3)


def test_a_prompt_and_what_was_cached_of_it_count_when_it_is_done_and_not_when_it_is_aborted() -> None:
    engine = Engine(limits())
    seqs = [Sequence(150, 3, cached=16), Sequence(150, 3, cached=16)]
    for seq in seqs:
        engine.add(seq, 0.0)
    clock = Clock(engine)
    counted = []
    for step in range(5):
        if step == 1:
            engine.abort(seqs[1])
        clock.step()
        counted.append((engine.totals.prompt_tokens, engine.totals.cached_tokens))
    assert counted == [(0, 0), (0, 0), (150, 16), (150, 16), (150, 16)]


def test_decodes_go_before_prompts_within_the_budget() -> None:
    engine = Engine(limits())
    short, long = Sequence(10, 50), Sequence(400, 1)
    clock = Clock(engine)
    engine.add(short, 0.0)
    clock.step()
    engine.add(long, 0.0)
    step = clock.step()
    assert step is not None
    assert step.decodes == [short]
    assert step.chunks == [(long, 63)]


def test_a_cancelled_sequence_frees_its_slot_and_blocks_at_once_even_within_a_step() -> None:
    engine = Engine(limits(slots=1))
    seq, next_one = Sequence(40, 100), Sequence(40, 1)
    engine.add(seq, 0.0)
    engine.add(next_one, 0.0)
    step = engine.plan(0.0)
    assert step is not None
    engine.abort(seq)
    assert engine.free_blocks == engine.total_blocks
    assert engine.running == []
    assert engine.complete(step, 1.0) == []
    step = engine.plan(1.0)
    assert step is not None
    assert [s for s, _ in step.chunks] == [next_one]
    engine.abort(seq)  # again: nothing happens
    assert engine.totals.aborted == 1


def test_a_cancelled_waiting_sequence_never_runs_and_does_not_count_as_waiting() -> None:
    engine = Engine(limits(slots=1))
    first, second, third = Sequence(5, 5), Sequence(5, 5), Sequence(5, 5)
    for seq in (first, second, third):
        engine.add(seq, 0.0)
    Clock(engine).step()
    engine.abort(second)
    assert engine.waiting == 1
    Clock(engine).drain()
    assert (first.state, second.state, third.state) == (State.FINISHED, State.ABORTED, State.FINISHED)
    assert second.generated == 0


def test_when_blocks_run_out_the_tail_gives_way_and_still_finishes_with_its_right_length() -> None:
    engine = Engine(limits(kv_tokens=128, max_model_len=128))
    first, second = Sequence(32, 90), Sequence(32, 90)
    engine.add(first, 0.0)
    engine.add(second, 0.0)
    clock = Clock(engine)
    while engine.totals.preemptions == 0:
        clock.step()
    assert second.state is State.WAITING
    assert second.generated > 1
    assert first.state is State.RUNNING
    clock.drain()
    assert (first.generated, second.generated) == (90, 90)
    assert first.admissions == 1
    assert second.admissions >= 2
    assert engine.totals.generation_tokens == 180
    assert engine.totals.prompt_tokens == 64  # computed again, counted once


def test_nothing_is_admitted_in_a_step_that_preempted() -> None:
    engine = Engine(limits(kv_tokens=128, max_model_len=128))
    for _ in range(2):
        engine.add(Sequence(32, 90), 0.0)
    clock = Clock(engine)
    before = 0
    while engine.totals.preemptions == 0:
        before = len(engine.running)
        step = clock.step()
        assert step is not None
    assert before == 2
    assert step.chunks == []


def test_priority_orders_the_waiting_and_chooses_who_gives_way() -> None:
    engine = Engine(limits(kv_tokens=128, max_model_len=128, priority_scheduling=True))
    spot, premium = Sequence(32, 90, priority=5), Sequence(32, 90, priority=-1)
    engine.add(spot, 0.0)
    clock = Clock(engine)
    clock.step()
    engine.add(premium, 1.0)  # comes later, runs beside it, and stays when there is no room for both
    while engine.totals.preemptions == 0:
        clock.step()
    assert spot.state is State.WAITING
    assert premium.state is State.RUNNING
    clock.drain()
    assert (spot.generated, premium.generated) == (90, 90)

    engine = Engine(limits(slots=1, priority_scheduling=True))
    order: list[int] = []
    for priority in (3, 1, 2, 1):
        engine.add(Sequence(5, 1, priority=priority), 0.0)
    clock = Clock(engine)
    while (step := clock.step()) is not None:
        order.extend(seq.priority for seq, _ in step.chunks)
    assert order == [1, 1, 2, 3]


def test_without_priority_scheduling_priority_is_ignored() -> None:
    engine = Engine(limits(slots=1))
    first, urgent = Sequence(5, 1, priority=9), Sequence(5, 1, priority=-9)
    engine.add(first, 0.0)
    engine.add(urgent, 0.0)
    step = Clock(engine).step()
    assert step is not None
    assert step.chunks[0][0] is first


def test_a_waiting_sequence_never_takes_a_seat_from_one_that_runs() -> None:
    engine = Engine(limits(slots=1, priority_scheduling=True))
    running, urgent = Sequence(5, 20, priority=5), Sequence(5, 1, priority=-5)
    engine.add(running, 0.0)
    clock = Clock(engine)
    clock.step()
    engine.add(urgent, 0.0)
    clock.drain()
    assert running.admissions == 1


def test_a_full_queue_refuses() -> None:
    engine = Engine(limits(max_queued=2))
    for _ in range(2):
        engine.add(Sequence(5, 5), 0.0)
    with pytest.raises(QueueFull):
        engine.add(Sequence(5, 5), 0.0)
    assert engine.totals.rejections == 1
    Clock(engine).drain()
    engine.add(Sequence(5, 5), 0.0)


def test_limits_that_could_never_serve_a_request_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into 100 KV tokens"):
        limits(kv_tokens=100, max_model_len=100)
    with pytest.raises(ValueError, match="slots must be at least 1"):
        limits(slots=0)


def test_latencies_are_those_of_the_steps() -> None:
    engine = Engine(limits())
    engine.add(Sequence(100, 5), 0.0)  # two chunks, then four decodes of one second each
    Clock(engine).drain()
    totals = engine.totals
    assert (totals.first_token.count, totals.first_token.sum) == (1, 2.0)
    assert (totals.inter_token.count, totals.inter_token.sum) == (4, 4.0)
    assert (totals.latency.count, totals.latency.sum) == (1, 6.0)


@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 8),
    kv_blocks=st.integers(8, 40),
    budget=st.integers(1, 100),
    priority=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_whatever_arrives_and_leaves_nothing_leaks_and_every_answer_has_its_length(
    seed: int, slots: int, kv_blocks: int, budget: int, priority: bool
) -> None:
    rng = random.Random(seed)
    longest = 8 * BLOCK_TOKENS
    engine = Engine(EngineLimits(slots, kv_blocks * BLOCK_TOKENS, budget, longest, priority_scheduling=priority))
    clock = Clock(engine)
    everyone: list[Sequence] = []
    for _ in range(rng.randrange(1, 30)):
        for _ in range(rng.randrange(4)):
            prompt = rng.randrange(1, longest)
            seq = Sequence(prompt, rng.randrange(1, longest - prompt + 1), priority=rng.randrange(3))
            begins, alike = rng.choice(("a", "b", "")), rng.randrange(8)  # so many blocks as others of its kind
            own = len(everyone)
            if begins:
                chain = [hash((begins, at, None if at < alike else own)) for at in range(prompt // BLOCK_TOKENS)]
                seq.cached_blocks, seq.cached = chain, rng.randrange(len(chain) + 1) * BLOCK_TOKENS
                seq.cached = min(seq.cached, (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS)
            engine.add(seq, clock.now)
            everyone.append(seq)
        for _ in range(rng.randrange(6)):
            step = engine.plan(clock.now)
            check(engine, step)
            if step is None:
                break
            if everyone and rng.random() < 0.2:
                engine.abort(rng.choice(everyone))  # clients leave in the middle of steps
                check(engine, None)
            clock.now += 1.0
            engine.complete(step, clock.now)
            check(engine, None)
    clock.drain()
    assert engine.free_blocks == engine.total_blocks
    assert engine.waiting == 0
    for seq in everyone:
        if seq.state is State.FINISHED:
            assert seq.generated == seq.output_tokens
        else:
            assert seq.state is State.ABORTED
    assert engine.totals.generation_tokens == sum(seq.generated for seq in everyone)
    assert engine.totals.aborted + engine.totals.finished_length == len(everyone)


def test_sequences_that_begin_alike_hold_that_once() -> None:
    """As vLLM keeps it: eight prompts of four blocks with three in common need eleven blocks, and in ten seven run."""
    for kv_blocks, runs in ((11, 8), (10, 7)):
        limits = EngineLimits(8, kv_blocks * BLOCK_TOKENS, 1_000, 5 * BLOCK_TOKENS, priority_scheduling=False)
        engine = Engine(limits)
        for own in range(8):
            seq = Sequence(4 * BLOCK_TOKENS, 1, cached_blocks=[1, 2, 3, 100 + own], cached=3 * BLOCK_TOKENS)
            engine.add(seq, 0.0)
        step = engine.plan(0.0)
        check(engine, step)
        assert len(engine.running) == runs
        assert engine.kv_usage == pytest.approx((3 + runs) / kv_blocks)
