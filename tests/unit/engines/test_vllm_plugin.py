"""The scheduler inside vLLM, over a stand-in of vLLM's own: what it decides, and that no error of it gets further."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import tomllib
import urllib.request
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from scheduling.core.chunking import prefill_budget
from scheduling.core.engine_digest import encode
from scheduling.core.step_time import UNITS, StepTime
from scheduling.core.types import QueuedRequest, ServiceClass, Slo
from scheduling.engines.prometheus_text import total
from scheduling.engines.vllm_plugin.deciding import PLACED, VICTIMS
from scheduling.engines.vllm_plugin.export import serve
from scheduling.engines.vllm_plugin.fit import main as fit
from scheduling.engines.vllm_plugin.settings import Settings, settings_of
from scheduling.engines.vllm_plugin.versions import METHODS, supported, unlike
from tests.support.slack import answers, due_in
from tests.support.vllm_stand_in import Clock, Plugged, Request, StandIn

STEP = StepTime(t0=0.005, a=1e-4, b=1e-4, c=0.0, e=0.0, knee=0.0, a2=0.0)
COEFFICIENTS = {"t0": 0.005, "a": 1e-4, "b": 1e-4, "c": 0.0}
CHAT = Slo(ttft_s=0.5, tbt_s=0.05)
LATER = Slo(ttlt_s=60.0)


def digest(slo: Slo, *, rank: int = 0, output: float = 10.0, lengths: tuple[float, ...] = ()) -> str:
    even = tuple(1 / len(lengths) for _ in lengths)
    request = QueuedRequest(
        "", 0, 0.0, "e", "", "", rank, 1.0, ServiceClass.GUARANTEED, 0, 0, output, 0, ttft_deadline_s=slo.ttft_s,
        ttlt_deadline_s=slo.ttlt_s, output_lengths=lengths, output_probabilities=even,
    )  # fmt: skip
    return encode(request, slo, 0.0)


def plugged(clock: Clock, **given: Any) -> Plugged:
    stand_in = {name: given.pop(name) for name in ("budget", "seats", "blocks", "lora") if name in given}
    values = {"policy": "hybrid", "step_time": COEFFICIENTS, "learn": False, **given}
    return Plugged(Settings(**values), clock, **stand_in)


def ask(engine: Plugged, clock: Clock, name: str, prompt: int, output: int = 4, slo: Slo | None = None) -> Request:
    request = Request(name, prompt, output, digest=None if slo is None else digest(slo), arrival=clock.at)
    engine.add_request(request)
    return request


# --- how much


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


# --- whose


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


# --- who gives way when the cache is full


def test_a_full_cache_preempts_who_goes_last_by_the_policy_of_what_is_left() -> None:
    """Gittins with lengths of 100 or 1,000: what has outlived 100 will surely be long, what is new may be short."""
    clock = Clock()
    engine = plugged(clock, policy="gittins", policy_params={"bucket_tokens": 20}, bucket_tokens=20, blocks=18)
    for name in ("old", "new"):
        text = digest(LATER, lengths=(100.0, 1000.0))
        engine.add_request(Request(name, 48, 1000, digest=text, arrival=clock.at))
        for _ in range(120 if name == "old" else 1):
            engine.step(clock)
    while not engine.preempted:
        engine.step(clock)
    assert engine.preempted == ["old"], "vLLM itself would have taken the last to arrive"
    assert engine.qm_log.counters.victims == 1


def test_vllms_victim_is_taken_where_ours_is_not_wanted() -> None:
    clock = Clock()
    engine = plugged(clock, policy="gittins", victims=False, blocks=18)
    for name in ("old", "new"):
        engine.add_request(Request(name, 48, 1000, digest=digest(LATER, lengths=(100.0, 1000.0)), arrival=clock.at))
        for _ in range(120 if name == "old" else 1):
            engine.step(clock)
    while not engine.preempted:
        engine.step(clock)
    assert engine.preempted == ["new"]


def test_a_step_places_few_of_those_that_run_and_begins_before_the_cache_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of 100 has a place when cache gets scarce; a step that gave one to each would take a millisecond."""
    clock = Clock()
    engine = plugged(clock, policy="gittins", bucket_tokens=100, budget=4096, blocks=1000, seats=200)
    placed: list[str] = []
    place = engine.qm_place
    monkeypatch.setattr(engine, "qm_place", lambda queued: (placed.append(queued.id), place(queued))[1])
    for number in range(100):
        ask(engine, clock, f"{number}", 16, 400, LATER)
    for _ in range(9):
        engine.step(clock)
    assert placed == [], "there is cache enough"
    engine.free = 400  # more than a step needs, which is 101; not four times as much
    per_step = []
    for _ in range(6):
        before = len(placed)
        engine.step(clock)
        per_step.append(len(placed) - before)
    assert per_step[:5] == [PLACED, PLACED, PLACED, PLACED, 100 - 4 * PLACED]
    assert len(set(placed[:100])) == 100
    assert engine.preempted == []


def test_who_has_no_place_yet_is_not_preempted_while_others_have_one() -> None:
    clock = Clock()
    engine = plugged(clock, policy="gittins", policy_params={"bucket_tokens": 20}, bucket_tokens=20, seats=200)
    for number in range(100):
        ask(engine, clock, f"{number}", 16, 400, LATER)
    engine.step(clock)
    engine.free = 0
    engine.schedule()
    placed = {r.request_id for r in [*engine.running, *engine.waiting] if r.quartermaster.standing is not None}
    assert len(placed) == PLACED
    assert engine.preempted
    assert set(engine.preempted[:VICTIMS]) <= placed


# --- when something is wrong


class Broken(Exception):
    pass


def _breaks(*args: object, **kwargs: object) -> Any:
    raise Broken("by a test")


@pytest.mark.parametrize("where", ["select", "push", "discard"])
def test_a_policy_that_fails_leaves_vllms_order_and_loses_nothing(where: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    engine = plugged(clock, seats=1)
    for number in range(4):
        ask(engine, clock, f"{number}", 10, 1)
        clock.at += 1
    assert engine.qm_order is not None
    setattr(engine.qm_order._queue, where, _breaks)
    with caplog.at_level(logging.ERROR, logger="vllm.quartermaster"):
        late = ask(engine, clock, "gone", 10, 1, CHAT)
        engine.finish(late)
        ask(engine, clock, "last", 10, 1, CHAT)
        served = [next(iter(engine.step(clock))) for _ in range(5)]
    if where != "discard":
        assert served == ["0", "1", "2", "3", "last"], "as vLLM would: first come, first served"
    assert sorted(served) == ["0", "1", "2", "3", "last"]
    assert engine.requests == {}
    assert [record.levelname for record in caplog.records] == ["ERROR"], "said once"
    assert total(engine.qm_log.metrics(), ("quartermaster_plugin_degraded",)) == 1
    assert total(engine.qm_log.metrics(), ("quartermaster_plugin_errors_total",)) == 1
    assert "Broken" in engine.qm_log.off


def test_an_error_in_a_decision_leaves_vllms_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "chat", 40, 30, CHAT)
    engine.step(clock, 0.6)
    monkeypatch.setattr("scheduling.engines.vllm_plugin.deciding.prefill_budget", _breaks)
    ask(engine, clock, "long", 20_000, 4, LATER)
    assert engine.step(clock) == {"chat": 1, "long": 2047}
    assert engine.qm_log.off.startswith("decide: Broken")
    assert engine.policy == "fcfs"
    assert engine.requests["chat"].priority == 0
    assert engine.step(clock) == {"chat": 1, "long": 2047}


@pytest.mark.parametrize("method", ["_qm_scheduled", "_qm_ended", "_qm_meet", "_qm_rank"])
def test_an_error_anywhere_lets_the_engine_serve_on(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "one", 40, 3, CHAT)
    engine.step(clock)
    monkeypatch.setattr(engine, method, _breaks)
    ask(engine, clock, "two", 40, 3, CHAT)
    for _ in range(6):
        engine.step(clock)
    assert engine.requests == {}
    assert engine.qm_log.off


def test_a_digest_that_cannot_be_read_is_counted_and_its_request_served_without() -> None:
    clock = Clock()
    engine = plugged(clock)
    for at, odd in enumerate((17, "", "1 2", "9 " + digest(CHAT), "1 0 0 nan e 1 - - 3", "x" * 5000)):
        engine.add_request(Request(f"{at}", 10, 1, digest=odd, arrival=clock.at))
    engine.add_request(Request("good", 10, 1, digest=digest(CHAT), arrival=clock.at))
    assert len(engine.step(clock)) == 7
    page = engine.qm_log.metrics()
    assert total(page, ("quartermaster_plugin_digests_refused_total",)) == 6
    assert total(page, ("quartermaster_plugin_digests_total",)) == 1
    assert "at most 1024 letters" in engine.qm_log.state()["last_refused_digest"]
    assert not engine.qm_log.off


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


# --- what others can read


def test_steps_and_the_time_in_the_engines_queue_are_logged() -> None:
    clock = Clock()
    engine = plugged(clock, seats=1)
    ask(engine, clock, "one", 100, 3, CHAT)
    ask(engine, clock, "two", 150, 1, CHAT)
    for _ in range(5):
        engine.step(clock, 0.02)
    steps, admitted = engine.qm_log.steps(), engine.qm_log.requests()
    assert [(step.prefill, step.decodes) for step in steps] == [(100, 0), (0, 1), (0, 1), (150, 0)]
    assert [step.seconds for step in steps] == pytest.approx([0.02] * 4)
    assert steps[0].pp == 5000
    assert [(one.id, one.prompt) for one in admitted] == [("one", 100), ("two", 150)]
    assert [one.queued_s for one in admitted] == pytest.approx([0.0, 0.06])
    rows = [json.loads(line) for line in engine.qm_log.lines()]
    assert [row["kind"] for row in rows] == ["admitted", "step", "step", "step", "admitted", "step"]


def test_the_log_is_bounded_and_can_be_thinned() -> None:
    clock = Clock()
    engine = plugged(clock, log_steps=5, log_every=3)
    ask(engine, clock, "one", 10, 100)
    for _ in range(40):
        engine.step(clock)
    assert len(engine.qm_log.steps()) == 5
    assert engine.qm_log.counters.steps == 40


def test_who_comes_again_is_told_the_steps_since_and_all_of_another_process() -> None:
    clock = Clock()
    engine = plugged(clock, log_steps=5)
    ask(engine, clock, "one", 10, 100)
    for _ in range(8):
        engine.step(clock)
    log = engine.qm_log
    assert log.began

    def told(after: int, began: str) -> tuple[dict[str, Any], list[int]]:
        head, *steps = [json.loads(line) for line in log.since(after, began)]
        assert head["kind"] == "log"
        assert head["limits"] == {"slots": engine.max_num_running_reqs, "step_tokens": 2048}
        return head, [step["number"] for step in steps]

    head, numbers = told(0, "")
    assert (head["last"], numbers) == (8, [4, 5, 6, 7, 8])
    assert told(6, log.began)[1] == [7, 8]
    head, numbers = told(8, log.began)
    assert (head["last"], numbers) == (8, [])
    assert told(8, "abc")[1] == [4, 5, 6, 7, 8], "the process that it had read before was another one"
    head, numbers = told(99, "abc")
    assert (head["last"], len(numbers)) == (8, 5)


def test_metrics_log_and_state_are_served_and_nothing_else() -> None:
    clock = Clock()
    engine = plugged(clock)
    engine.qm_log.facts = {"policy": 'a"b'}
    ask(engine, clock, "one", 10, 2, CHAT)
    engine.step(clock)
    server = serve(engine.qm_log, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        page = opener.open(url + "/metrics", timeout=5).read().decode()
        assert total(page, ("quartermaster_plugin_steps_total",)) == 1
        assert 'policy="a\\"b"' in page
        assert len(opener.open(url + "/steps", timeout=5).read().splitlines()) == 2
        since = opener.open(url + f"/steps?after=0&began={engine.qm_log.began}", timeout=5).read().splitlines()
        assert [json.loads(line)["kind"] for line in since] == ["log", "step"]
        for odd in ("/steps?after=-1", "/steps?after=1&began=../x", "/steps?after=" + "9" * 30):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                opener.open(url + odd, timeout=5)
        assert json.loads(opener.open(url + "/state", timeout=5).read())["degraded"] == ""
        with pytest.raises(urllib.error.HTTPError, match="404"):
            opener.open(url + "/../settings", timeout=5)
    finally:
        server.shutdown()
        server.server_close()


def test_every_metric_is_documented_and_every_documented_one_is_there() -> None:
    clock = Clock()
    engine = plugged(clock)
    ask(engine, clock, "one", 10, 2)
    engine.step(clock)
    engine.qm_log.counters.errors["here"] = 1
    engine.qm_log.model = {"error": 0.1}
    there = {line.split()[2] for line in engine.qm_log.metrics().splitlines() if line.startswith("# TYPE")}
    page = (Path(__file__).parents[3] / "docs" / "guide" / "vllm-plugin.md").read_text()
    assert there == set(re.findall(r"^\| `(quartermaster_plugin_\w+)`", page, re.MULTILINE))


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "vllm-plugin.md").read_text()
    said = {name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(Settings)} <= said


def test_step_times_are_learned_from_the_engines_own_steps() -> None:
    clock = Clock()
    engine = plugged(clock, step_time={}, learn=True, budget=512)
    number = 0
    for at in range(700):
        if len(engine.requests) < 6:
            number += 1
            ask(engine, clock, f"{number}", 37 * (number % 20) + 3, 3 + number % 40)
        output = engine.schedule()
        plan = engine.qm_flight[-1][1]
        clock.at += STEP.step(plan.prefill, plan.decodes, plan.kv_dec, plan.pp)
        engine.update_from_output(output, None)
        if at == 60:
            assert engine.qm_learning.planner is None
    learned = engine.qm_learning.planner
    assert learned is not None
    assert learned.step(300, 4, 2000) == pytest.approx(STEP.step(300, 4, 2000), rel=0.02)
    assert engine.qm_log.model["error"] < 0.02
    assert not engine.qm_log.off


# --- where it may run


@pytest.mark.parametrize(
    ("version", "yes"),
    [("0.32.0", True), ("0.32.4+cpu", True), ("0.31.9", False), ("0.33.0", False), ("1.32.0", False), ("dev", False)],
)
def test_it_acts_in_the_versions_it_was_tried_with_only(version: str, yes: bool) -> None:
    assert supported(version) is yes


def test_an_interface_that_is_not_the_expected_one_is_found() -> None:
    assert set(METHODS) <= set(dir(StandIn))
    assert unlike(StandIn) == ""

    class Other(StandIn):
        def schedule(self, budget: int) -> Any:  # type: ignore[override]
            return None

    assert unlike(Other) == "its schedule takes self, budget, not self, throttle_prefills"
    assert unlike(object) == "its scheduler has no schedule"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"polcy": "edf"}, "has no 'polcy'; there are: policy"),
        ({"policy": "edff"}, "did you mean 'edf'"),
        ({"most": "7"}, "most must be int"),
        ({"most": True}, "most must be int"),
        ({"margin": 0.5}, "margin must be at least 1"),
        ({"most": 5}, "most must be 0 or at least as large as least"),
        ({"preset": "abacus"}, "unknown engine preset"),
        ({"step_time": {"t0": 1, "z": 2}}, "step_time"),
        ({"port": 70_000}, "port must be within"),
        ([], "must be an object"),
    ],
)
def test_a_setting_that_is_wrong_is_named(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings_of({"quartermaster": given})


def test_no_setting_is_needed() -> None:
    assert settings_of({}) == settings_of(None) == Settings()


def test_on_a_gpu_host_nothing_of_the_product_but_the_core_is_imported() -> None:
    code = (
        "import sys\n"
        "import scheduling.engines.vllm_plugin.deciding, scheduling.engines.vllm_plugin.export\n"
        "from scheduling.engines.vllm_plugin.settings import settings_of\n"
        "settings_of({})\n"
        "ours = {'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('scheduling.')}\n"
        "assert ours == {'scheduling.core', 'scheduling.engines'}, ours\n"
        "others = {'django', 'redis', 'celery', 'httpx', 'aiohttp', 'msgspec', 'tenants', 'controlplane'}\n"
        "assert not others & set(sys.modules), others & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_log_becomes_the_table_of_a_preset_or_an_error_that_names_the_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        {"kind": "step", "prefill": p, "decodes": d, "kv_dec": 50 * d, "pp": p * p / 2, "seconds": STEP.step(p, d)}
        for p in (0, 10, 200, 900)
        for d in range(20)
    ]
    out = io.StringIO()
    assert fit([json.dumps(row) for row in [*rows, {"kind": "admitted"}]], out) == 0
    told = tomllib.loads(out.getvalue())["step_time"]
    assert set(told) == set(UNITS)
    assert told["t0_ms"] == pytest.approx(5, rel=0.01)
    assert told["a_us"] == pytest.approx(100, rel=0.01)
    assert fit([json.dumps(rows[0])] * 3, out) == 1
    assert "No model in 3 steps: at least 64" in capsys.readouterr().err
    for odd in ("x", "{}", '{"kind": "step"}', '{"kind": "step", "prefill": NaN}', "[]"):
        assert fit([json.dumps(rows[0]), odd], out) == 1
        assert "line 2 is not one of /steps" in capsys.readouterr().err
