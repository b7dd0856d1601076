"""Whom a full cache preempts: who goes last by the plugin's policy, at little cost to a step."""

from __future__ import annotations

import pytest

from scheduling.engines.vllm_plugin.victims import PLACED, VICTIMS
from tests.support.plugged_engine import LATER, ask, digest, plugged
from tests.support.vllm_stand_in import Clock, Request


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
    assert engine.qm_victims is not None
    place = engine.qm_victims.place
    monkeypatch.setattr(engine.qm_victims, "place", lambda queued: (placed.append(queued.id), place(queued))[1])
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
