"""Engines over random workloads: the laws hold after every event, and a jump is the steps it stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.registry import make_ordering, orderings
from scheduling.core.types import Slo
from scheduling.simulator.batches import make_engine
from scheduling.simulator.engine import Engine, EngineConfig
from scheduling.simulator.result import outcomes_of
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request
from tests.support.simulator_laws import LawWatch, check_ended, check_foresight, check_little, check_tokens

TIERS = (
    Tier("chat", Slo(ttft_s=1.0, tbt_s=0.05), rank=0, weight=5.0),
    Tier("work", Slo(ttlt_s=20.0), rank=1, weight=3.0),
    Tier("batch", Slo(ttlt_s=60.0), rank=2, weight=2.0),
)
POLICIES = sorted(orderings())
KINDS = ("plain", "preempting", "dynamic", "relegating", "tight", "tight by priority", "ranked")


def workload(rows: list[tuple[float, int, int, int, bool]]) -> list[SimRequest]:
    made, now = [], 0.0
    for index, (gap, given_tokens, out, tier, important) in enumerate(rows):
        now += gap
        belief = Belief(50.0, 512, (20.0, 60.0, 120.0), (0.5, 0.25, 0.25))
        made.append(make_request(index, now, given_tokens, out, TIERS[tier], belief, important=important))
    return made


requests = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 3.0]),
        st.integers(1, 900),
        st.integers(1, 120),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
).map(workload)
models = st.builds(
    StepTime,
    t0=st.floats(1e-4, 0.05),
    a=st.floats(0, 1e-4),
    b=st.floats(0, 1e-4),
    c=st.floats(0, 1e-6),
    e=st.floats(0, 1e-8),
    knee=st.sampled_from([0.0, 64.0, 300.0]),
    a2=st.floats(0, 1e-5),
)


def config(kind: str, model: StepTime, budget: int, jumps: bool) -> EngineConfig:
    base = EngineConfig(model, token_budget=budget, max_seqs=8, kv_tokens=40_000, jumps=jumps)
    if kind == "preempting":
        return replace(base, preempt_prefills=True)
    if kind == "dynamic":
        return replace(base, preempt_prefills=True, dynamic_chunks=True)
    if kind == "relegating":
        return replace(base, preempt_prefills=True, dynamic_chunks=budget % 2 == 0, relegate=True)
    if kind == "ranked":
        return replace(base, mode="ranked", kv_tokens=1600 if budget % 2 else 0, bucket_tokens=20)
    if kind.startswith("tight"):
        # Room for the largest request and little else, so that sequences are preempted all the time.
        victims = "priority" if kind == "tight by priority" else "tail"
        return replace(base, kv_tokens=1600, victims=victims, preempt_prefills=budget % 2 == 0)
    return base


def run(settings_: EngineConfig, policy: str, work: list[SimRequest], after: LawWatch | None = None) -> Engine:
    engine = make_engine(settings_, make_ordering(policy))
    engine.decisions = []
    engine.run(work, after)
    return engine


def times(engine: Engine) -> list[tuple[int, int, int, int, int]]:
    return sorted((s.sim.index, s.start_fs, s.first_fs, s.end_fs, s.recomputed) for s in engine.finished)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(work=requests, model=models, policy=st.sampled_from(POLICIES), budget=st.integers(9, 700))
def test_a_jump_ends_on_the_very_instant_that_its_steps_end_on(
    kind: str, work: list[SimRequest], model: StepTime, policy: str, budget: int
):
    jumped = run(config(kind, model, budget, True), policy, work)
    stepped = run(config(kind, model, budget, False), policy, work)
    assert times(jumped) == times(stepped)
    assert jumped.decisions == stepped.decisions
    assert jumped.counters.steps == stepped.counters.steps
    assert jumped.counters.busy_fs == stepped.counters.busy_fs


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(work=requests, model=models, policy=st.sampled_from(POLICIES), budget=st.integers(9, 700), jumps=st.booleans())
def test_the_laws_hold_after_every_event(
    kind: str, work: list[SimRequest], model: StepTime, policy: str, budget: int, jumps: bool
):
    watch = LawWatch()
    engine = run(config(kind, model, budget, jumps), policy, work, watch)
    assert [str(violation) for violation in watch.broken[:3]] == []
    assert check_ended(engine.finished, len(work)) == []
    assert check_tokens(engine) == []
    assert check_little(outcomes_of(engine.finished)) == []


@pytest.mark.parametrize("mode", ["whole_batch", "padded_batch", "slots"])
@settings(max_examples=40, deadline=None)
@given(work=requests, model=models, policy=st.sampled_from(POLICIES))
def test_engines_without_continuous_batching_keep_the_laws_too(
    mode: str, work: list[SimRequest], model: StepTime, policy: str
):
    base = EngineConfig(model, mode=mode, token_budget=300, max_seqs=5)
    watch = LawWatch()
    engine = run(base, policy, work, watch)
    assert [str(violation) for violation in watch.broken[:3]] == []
    assert check_ended(engine.finished, len(work)) == []
    assert check_tokens(engine) == []
    assert check_little(outcomes_of(engine.finished)) == []
    assert times(engine) == times(run(replace(base, jumps=False), policy, work))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(work=requests, model=models, policy=st.sampled_from(POLICIES), data=st.data())
def test_no_decision_depends_on_a_true_length_before_it_shows(
    kind: str, work: list[SimRequest], model: StepTime, policy: str, data: st.DataObject
):
    which = data.draw(st.integers(0, len(work) - 1))
    longer = [replace(r, output_tokens=r.output_tokens + 40) if r.index == which else r for r in work]
    one, other = (run(config(kind, model, 200, True), policy, w) for w in (work, longer))
    shows = next(s.end_fs for s in one.finished if s.sim.index == which)
    assert check_foresight(one.decisions or [], other.decisions or [], shows) == []
