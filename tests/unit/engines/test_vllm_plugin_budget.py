"""How much prompt a step of the plugin takes: as much as the promises of what decodes leave time for."""

from __future__ import annotations

import pytest

from scheduling.core.inside_engine.chunking import prefill_budget
from tests.support.plugged_engine import CHAT, LATER, STEP, ask, plugged
from tests.support.slack import answers, due_in
from tests.support.vllm_stand_in import Clock


def test_the_prompt_tokens_of_a_step_are_what_the_core_says_for_the_least_slack() -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "chat", 40, 30, CHAT)
    engine.step(clock, 0.01)
    ask(engine, clock, "long", 60_000, 4, LATER)
    due = 1000.0 + 0.5  # of the first token; the next ones follow at 50 ms
    budgets = []
    for made in range(1, 19):
        slack = due + 0.05 * made - clock.at
        given = engine.step(clock, 0.08)
        assert given["long"] == prefill_budget(STEP, 1, 39 + made, 0, due_in(slack), most=2047)
        assert given["chat"] == 1, "what decodes is never left out"
        budgets.append(given["long"])
    assert budgets[0] == 2047, "at first there is slack enough"
    assert 128 < budgets[-1] < 300
    assert budgets == sorted(budgets, reverse=True)
    assert engine.qm_log.counters.shortened > 0


def test_answers_that_cannot_be_in_time_any_more_do_not_shorten_steps_until_they_have_caught_up() -> None:
    clock = Clock()
    engine = plugged(clock)
    chat = ask(engine, clock, "chat", 40, 120, CHAT)
    engine.step(clock, 0.01)
    clock.at += 4.5  # its second token was due in half a second, its last one in 6.5
    ask(engine, clock, "long", 10_000, 4, LATER)
    assert [engine.step(clock, 0.2)["long"] for _ in range(4)] == [2047] * 4
    assert [step.late for step in engine.qm_log.steps()[1:]] == [1] * 4
    while chat.num_output_tokens < 108:  # nothing else to do: it writes faster than it has to
        engine.step(clock, 0.005)
    ask(engine, clock, "next", 10_000, 4, LATER)
    slack = 1000.5 + 0.05 * 108 - clock.at
    assert 0.03 < slack < 0.2
    assert engine.step(clock, 0.01)["next"] == prefill_budget(STEP, 1, 147, 0, due_in(slack), most=2047) < 2047
    assert engine.qm_log.steps()[-1].late == 0


def test_an_answer_that_is_behind_and_can_catch_up_shortens_steps_until_it_has() -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "chat", 40, 60, CHAT)
    engine.step(clock, 0.01)
    clock.at = 1001.0  # the second token was due 0.45 s ago, the last one is due in 2.45
    ask(engine, clock, "long", 60_000, 4, LATER)
    behind = answers((1000.55 - clock.at, 0.05, 59))
    given = engine.step(clock, 0.04)
    assert given["long"] == prefill_budget(STEP, 1, 40, 0, behind, most=2047) < 500
    assert engine.qm_log.steps()[-1].late == 0


def test_an_answer_whose_first_token_came_late_saves_nothing_by_small_steps() -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "chat", 40, 30, CHAT)
    engine.step(clock, 3.0)  # it was promised in half a second
    ask(engine, clock, "long", 10_000, 4, LATER)
    assert engine.step(clock)["long"] == 2047


def test_without_a_promise_or_a_model_of_steps_the_budget_is_vllms() -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "chat", 40, 30)
    engine.step(clock)
    ask(engine, clock, "long", 20_000)
    assert engine.step(clock) == {"chat": 1, "long": 2047}
    unknowing = plugged(clock, step_time={})
    ask(unknowing, clock, "chat", 40, 30, CHAT)
    unknowing.step(clock, 3.0)
    ask(unknowing, clock, "long", 20_000)
    assert unknowing.step(clock) == {"chat": 1, "long": 2047}


def test_a_step_that_is_planned_while_one_is_computed_has_only_the_time_after_that_one() -> None:
    clock = Clock()
    engine = plugged(clock)
    chat = ask(engine, clock, "chat", 40, 30, CHAT)
    engine.step(clock, 0.01)
    clock.at = 1000.5  # the second token is due in 50 ms
    ask(engine, clock, "long", 20_000, 4, LATER)
    first = engine.schedule()
    assert 128 < first.num_scheduled_tokens["long"] < 2047
    chat.num_output_placeholders = 1  # as vLLM's asynchronous scheduler books it
    second = engine.schedule()
    planned = [plan for _, plan in engine.qm_flight]
    assert planned[0].predicted_s is not None
    expected = 1000.5 + 2 * 0.05 - (1000.5 + planned[0].predicted_s)
    assert planned[1].slack_s == pytest.approx(expected), "the token after the one in flight, once that step is over"
    assert second.num_scheduled_tokens["chat"] == 1
