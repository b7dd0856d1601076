"""The engine that serves HTTP and the lab's are one model of continuous batching: held together step by step.

They are two programs on purpose. The one behind sockets (``engines/simulated/engine.py``) visits every sequence, since
it has to deliver every token, and a client may go away in the middle of a step; the lab's
(``simulator/continuous.py``) counts sequences and jumps over steps, and policies may interrupt prompts in it.

One thing differs, and is left out here: where prompts are computed in chunks *and* the cache is short, the one behind
sockets reserves blocks chunk by chunk (as vLLM V1), the lab's the whole prompt when it is admitted (as the papers do).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.registry import make_ordering
from scheduling.engines.simulated.engine import Engine, EngineLimits, Sequence
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.exact import ExactStep
from scheduling.simulator.kernel import to_s
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

A100 = StepTime(14.936e-3, 81.3e-6, 95.17e-6, 0.1111e-6, 2801e-12, 512, 8.86e-6)
Row = tuple[float, int, int, int]  # gap before it [s], prompt, output, rank of its tier

rows = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.003, 0.02, 0.3, 2.0]),
        st.integers(1, 300),
        st.integers(1, 60),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=25,
)


def requests_of(rows: list[Row]) -> list[SimRequest]:
    at, made = 0.0, []
    for index, (gap, prompt, output, rank) in enumerate(rows):
        at += gap
        made.append(make_request(index, at, prompt, output, Tier(str(rank), rank=rank), Belief(float(output), output)))
    return made


# when a step ended [fs], prompt tokens and output tokens computed since the start, sequences preempted since the start
Step = tuple[int, int, int, int]
# first and last token of each request [fs]
Ends = dict[str, tuple[int, int]]


def served(work: list[SimRequest], limits: EngineLimits) -> tuple[list[Step], Ends]:
    """The engine behind sockets, one step after the other, on exact time."""
    engine, exact = Engine(limits), ExactStep(A100)
    arrivals = list(reversed(work))
    names = {}
    steps, first, ends = [], {}, {}
    now = prefilled = made = 0
    while True:
        while arrivals and arrivals[-1].arrival_fs <= now:
            sim = arrivals.pop()
            seq = Sequence(sim.input_tokens, sim.output_tokens, priority=sim.queued.rank)
            names[id(seq)] = (sim.queued.id, seq)
            engine.add(seq, to_s(now))
        step = engine.plan(to_s(now))
        if step is None:
            if not arrivals:
                return steps, {name: (first[name], ends[name]) for name in first}
            now = arrivals[-1].arrival_fs
            continue
        now += exact.step(step.prefill_tokens, len(step.decodes), step.kv_decoding, round(2 * step.prefill_products))
        emitted = engine.complete(step, to_s(now))
        prefilled += step.prefill_tokens
        made += len(emitted)
        steps.append((now, prefilled, made, engine.totals.preemptions))
        for seq in emitted:
            name = names[id(seq)][0]
            first.setdefault(name, now)
            if seq.generated == seq.output_tokens:
                ends[name] = now


def simulated(work: list[SimRequest], config: EngineConfig, policy: str) -> tuple[list[Step], Ends]:
    """The lab's engine."""
    engine = ContinuousEngine(config, make_ordering(policy))
    steps: list[Step] = []

    def after(_: object) -> None:
        counters = engine.counters
        if counters.steps > len(steps):
            done = (counters.prefill_tokens, counters.output_tokens, counters.preemptions)
            steps.append((engine.clock, *done))

    lives = engine.run(work, after)
    return steps, {life.queued.id: (life.first_fs, life.end_fs) for life in lives}


@pytest.mark.parametrize("policy", ["fifo", "priority"])
@settings(max_examples=80, deadline=None)
@given(rows=rows, slots=st.integers(1, 6), budget=st.integers(8, 200))
def test_with_room_in_the_cache_every_step_is_the_same(policy: str, rows: list[Row], slots: int, budget: int):
    work = requests_of(rows)
    limits = EngineLimits(slots, 16 * 25 * 25, budget, 400, priority_scheduling=policy == "priority")
    config = EngineConfig(A100, token_budget=budget, max_seqs=slots, jumps=False)
    steps, ends = served(work, limits)
    assert simulated(work, config, policy) == (steps, ends)
    assert simulated(work, replace(config, jumps=True), policy)[1] == ends


@settings(max_examples=150, deadline=None)
@given(rows=rows, slots=st.integers(1, 6), blocks=st.integers(24, 60))
def test_with_a_short_cache_the_same_sequences_give_way_in_the_same_steps(rows: list[Row], slots: int, blocks: int):
    work = requests_of(rows)
    budget = 6 * 400  # no prompt is computed in chunks
    config = EngineConfig(A100, token_budget=budget, max_seqs=slots, kv_tokens=16 * blocks, watermark=0.0, jumps=False)
    steps, ends = served(work, EngineLimits(slots, 16 * blocks, budget, 16 * 24))
    assert simulated(work, config, "fifo") == (steps, ends)
    assert simulated(work, replace(config, jumps=True), "fifo")[1] == ends


SHORT = [(0.0, 160, 60, 0), (0.003, 100, 40, 0), (0.0, 150, 50, 0), (0.02, 160, 60, 0)]  # for a cache of 44 blocks
BROKEN = {
    "the oldest gives way": ("_victim", lambda self: min(self.admitted.values(), key=lambda s: s.order)),
    "nobody gives way": ("_make_room", lambda self: True),
}


@pytest.mark.parametrize("broken", ["", *BROKEN])
def test_an_engine_that_is_wrong_about_who_gives_way_differs(broken: str, monkeypatch: pytest.MonkeyPatch):
    work = requests_of(SHORT)
    steps, ends = served(work, EngineLimits(4, 16 * 44, 2400, 384))
    assert steps[-1][3] > 0
    if broken:
        monkeypatch.setattr(ContinuousEngine, *BROKEN[broken])
    config = EngineConfig(A100, token_budget=2400, max_seqs=4, kv_tokens=16 * 44, watermark=0.0, jumps=False)
    assert (simulated(work, config, "fifo") == (steps, ends)) is not bool(broken)
