"""Whose prompts a step of the plugin takes: what waits by the policy, and which begun prompt gives way."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from scheduling.core.types import Slo
from tests.support.plugged_engine import CHAT, LATER, ask, digest, plugged
from tests.support.vllm_stand_in import Clock, Request


def test_what_waits_is_admitted_in_the_policys_order() -> None:
    clock = Clock()
    engine = plugged(clock, seats=1)
    for name, slo in (("none", None), ("later", LATER), ("chat", CHAT)):
        ask(engine, clock, name, 10, 1, slo)
    admitted = [next(iter(engine.step(clock))) for _ in range(3)]
    assert admitted == ["chat", "later", "none"]


def test_without_a_digest_the_priority_that_vllm_was_given_is_the_rank() -> None:
    clock = Clock()
    engine = plugged(clock, policy="priority", seats=1)
    for name, priority in (("third", 9), ("second", 4), ("first", -3)):
        engine.add_request(Request(name, 10, 1, priority=priority, arrival=clock.at))
    assert [next(iter(engine.step(clock))) for _ in range(3)] == ["first", "second", "third"]


def test_a_step_that_compiled_kernels_does_not_make_all_that_wait_look_late() -> None:
    clock = Clock()
    engine = plugged(clock, policy="unified", seats=1)
    ask(engine, clock, "first", 10, 4)
    engine.step(clock)
    engine.step(clock, 30.0)  # the first step with an answer
    assert engine.qm_view.token_s <= engine.qm_settings.pace_s
    engine.step(clock)
    engine.step(clock)
    # ten tokens and twelve seconds to go: in time at any pace that is believed, and due before what has no promise
    ask(engine, clock, "none", 10, 1)
    ask(engine, clock, "later", 10, 1, Slo(ttlt_s=12.0))
    assert next(iter(engine.step(clock))) == "later"


def test_a_begun_prompt_gives_way_to_what_goes_first_and_keeps_its_cache() -> None:
    clock = Clock()
    engine = plugged(clock, budget=256)
    long = ask(engine, clock, "long", 2000, 4, LATER)
    engine.step(clock)
    ask(engine, clock, "chat", 300, 4, CHAT)
    assert engine.step(clock) == {"chat": 256}
    assert long.num_computed_tokens == 256, "nothing of it is thrown away"
    assert engine.step(clock) == {"chat": 44, "long": 212}, "what is left of the step goes on with it"
    assert engine.preempted == []
    assert engine.qm_log.counters.gave_way > 0


def test_a_begun_prompt_whose_own_deadline_would_not_hold_does_not_give_way() -> None:
    clock = Clock()
    engine = plugged(clock, budget=256, first_rate=5_000.0)
    engine.add_request(Request("urgent", 2000, 4, digest=digest(Slo(ttft_s=0.42, tbt_s=0.1)), arrival=clock.at))
    engine.step(clock, 0.05)
    engine.add_request(Request("sooner", 100, 4, digest=digest(Slo(ttft_s=0.01, tbt_s=0.1)), arrival=clock.at))
    assert engine.step(clock) == {"urgent": 256}


def test_where_begun_prompts_may_not_be_interrupted_they_are_not() -> None:
    clock = Clock()
    engine = plugged(clock, budget=256, preempt_prefills=False)
    ask(engine, clock, "long", 2000, 4, LATER)
    engine.step(clock)
    ask(engine, clock, "chat", 300, 4, CHAT)
    assert engine.step(clock) == {"long": 256}


def test_nothing_stands_still_for_a_prompt_that_finds_no_cache() -> None:
    clock = Clock()
    engine = plugged(clock, budget=256, blocks=140)
    ask(engine, clock, "long", 2000, 4, LATER)
    engine.step(clock)
    ask(engine, clock, "chat", 2100, 4, CHAT)
    for _ in range(3):
        assert engine.step(clock)["long"] == 256


def test_nothing_stands_still_for_a_prompt_that_finds_no_seat() -> None:
    clock = Clock()
    engine = plugged(clock, budget=256, seats=1)
    ask(engine, clock, "long", 2000, 4, LATER)
    engine.step(clock)
    ask(engine, clock, "chat", 100, 4, CHAT)
    assert engine.step(clock) == {"long": 256}


def test_with_adapters_a_prompt_that_gives_way_stays_in_the_step() -> None:
    """vLLM counts the adapters of what it schedules: one that was left out would find its place taken afterwards."""
    clock = Clock()
    engine = plugged(clock, budget=256, lora=True)
    ask(engine, clock, "long", 2000, 4, LATER)
    engine.step(clock)
    ask(engine, clock, "chat", 300, 4, CHAT)
    assert engine.step(clock)["long"] == 1


@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 30), st.integers(0, 3), st.integers(0, 3)), max_size=30),
    st.sampled_from(["unified", "hybrid", "gittins", "ewsjf", "weighted", "relegate+edf"]),
    st.sampled_from([70, 100_000]),
    st.randoms(use_true_random=False),
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_everything_that_was_asked_ends_whatever_the_policy(
    rows: list[tuple[int, int, int, int]], policy: str, blocks: int, draw: Any
) -> None:
    clock = Clock()
    *around, name = policy.split("+")
    engine = plugged(clock, policy=name, modifiers={each: {} for each in around}, budget=256, seats=4, blocks=blocks)
    slos = (None, CHAT, LATER, Slo(ttft_s=0.01, tbt_s=0.001))
    for at, (prompt, output, slo, steps) in enumerate(rows):
        ask(engine, clock, f"{at}", prompt, output, slos[slo])
        for _ in range(steps):
            engine.step(clock, 0.03)
        if engine.requests and draw.random() < 0.1:
            engine.finish(draw.choice(list(engine.requests.values())))
    for _ in range(5000):
        if not engine.requests:
            break
        engine.step(clock, 0.03)
    assert engine.requests == {}
    assert engine.free == engine.blocks
    assert not engine.qm_log.off
