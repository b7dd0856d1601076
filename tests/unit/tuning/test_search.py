"""Successive halving over settings: what is tried, what goes on, what the gate says, and how a study is resumed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from controlplane.lab import shift
from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import PolicyError
from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replica import Replica
from scheduling.tuning import search
from scheduling.tuning.gate import GateDecision
from scheduling.tuning.search import DEFAULT, GATE, GATED, SERVING, Search, Step, apart, busiest
from scheduling.tuning.settings import LoopSettings, read_settings
from scheduling.tuning.structure import Structure
from scheduling.tuning.traffic import Serving, Traffic

SHARED = Serving("unified", modifiers={"fair": {}})  # as much for all, whatever they were promised
FEW = LoopSettings(trials=20, pairs=3)


def traffic(until_s: float = 20.0, kind: str = "documents") -> Traffic:
    preset = load_preset("llama-3-8b-a100")
    rows = shift.rows_of(kind, 1, until_s, 0.0)
    return Traffic(rows, SHIPPED, (Replica(preset.step_time, 16, preset.kv_tokens, preset.token_budget),))


def ran(found: Search, steps: int = 1000) -> list[Step]:
    done = []
    while len(done) < steps and (step := found.step()) is not None:
        found.run(step)
        done.append(step)
    return done


def test_a_third_of_the_candidates_goes_on_and_what_serves_and_the_default_always_do():
    found = Search(traffic(), Serving("priority"), FEW, 1)
    done = ran(found)
    rounds = Counter(step.round for step in done)
    assert rounds[0] == 22
    assert rounds[1] == 2 + 7
    assert rounds[2] == 2 + GATED
    for number in range(GATE):
        assert {SERVING, DEFAULT} <= {step.candidate for step in done if step.round == number}
    assert len(done) <= found.total


def test_rounds_and_the_gate_are_on_different_blocks_of_the_same_hours():
    window = traffic(60.0)
    found = Search(window, Serving("priority"), FEW, 1)
    chosen_by, held_out = found._chosen_by.rows, found._held_out.rows
    assert len(chosen_by) + len(held_out) == len(window.rows)
    span = window.rows[-1].arrival_s - window.rows[0].arrival_s
    assert held_out[-1].arrival_s - held_out[0].arrival_s == pytest.approx(span / 3, rel=0.1)
    asked = sorted((row.input_tokens, row.output_tokens) for row in (*chosen_by, *held_out))
    assert asked == sorted((row.input_tokens, row.output_tokens) for row in window.rows)
    for part in (chosen_by, held_out):
        assert [row.arrival_s for row in part] == sorted(row.arrival_s for row in part)
    assert len(found._traffic(Step(0, SERVING)).rows) < len(found._traffic(Step(1, SERVING)).rows) < len(chosen_by)
    assert found._traffic(Step(GATE, SERVING)).rows == held_out


@pytest.mark.parametrize("killed_after", [1, 12, 20, 25])
def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(killed_after: int):
    window = traffic()
    whole = Search(window, Serving("priority"), FEW, 5)
    ran(whole, killed_after + 3)
    first = Search(window, Serving("priority"), FEW, 5)
    ran(first, killed_after)
    again = Search(window, Serving("priority"), FEW, 5, json.loads(json.dumps(first.replays)))
    assert again.step() == first.step()
    ran(again, 3)
    assert again.replays == whole.replays


def test_a_pool_that_is_served_badly_gets_a_better_setting_that_won_where_it_was_not_chosen():
    found = Search(traffic(60.0, "same"), Serving("ewsjf"), FEW, 1)
    ran(found)
    serving, why = found.verdict()
    assert serving is not None, why
    assert why.startswith("it wins")
    winner = found.winner()
    assert winner is not None
    assert winner.serving == serving
    assert winner.decision is not None
    assert winner.decision.least_gain > 0


def decided(passed: bool, reason: str) -> GateDecision:
    return GateDecision(passed, reason, 0.1, 0.05, (), {})


def test_where_the_best_one_fails_at_the_gate_the_next_best_has_its_turn(monkeypatch: pytest.MonkeyPatch):
    found = Search(traffic(120.0, "same"), SHARED, FEW, 1)
    monkeypatch.setattr(search, "decide", lambda before, after, *_: _verdict(found, after))
    gated = [step.candidate for step in ran(found) if step.round == GATE]
    best, second, *_ = [n for n in found._finalists() if n != DEFAULT]
    assert list(dict.fromkeys(gated)) == [SERVING, DEFAULT, best, second]
    winner = found.winner()
    assert winner is not None
    assert winner.number == second


def _verdict(found: Search, after: Any) -> GateDecision:
    number = next(n for n, met in found._met.items() if met is after)
    best = next(n for n in found._finalists() if n != DEFAULT)
    return decided(number not in (DEFAULT, best), "it starves somebody" if number == best else "it wins")


def merit_told(number: int, candidate: int, premium: int, standard: int) -> dict[str, Any]:
    """What one replay came to: of 200 premium and 400 standard requests so many in time."""
    tiers = {"premium": (50.0, 200, premium), "standard": (30.0, 400, standard)}
    merit = {name: {"weight": w, "asked": asked, "kept": kept, "tail": 0.5} for name, (w, asked, kept) in tiers.items()}
    return {"round": number, "candidate": candidate, "point": {}, "merit": merit}


def test_beside_what_gains_most_goes_on_what_costs_nobody_anything():
    """Four gain more by what premium pays, all of it within what may be lost here; one gains less and costs nothing."""
    found = Search(traffic(), Serving("priority"), FEW, 1)
    kept = {SERVING: (160, 240), DEFAULT: (160, 240), 2: (151, 330), 3: (151, 328), 4: (152, 326), 5: (156, 300),
            6: (160, 280)}  # fmt: skip
    dull = dict.fromkeys(range(7, found.tried), (160, 239))
    for number, (premium, standard) in (kept | dull).items():
        found._learn(merit_told(0, number, premium, standard))
    best = found._best(0, range(2, found.tried))
    assert best[:3] == [2, 5, 6], "the best, the best that costs half, and the best that costs nothing"
    for candidate in found._of_round(1):
        found._learn(merit_told(1, candidate, *(kept | dull)[candidate]))
    assert {2, 5, 6} < set(found._of_round(2))
    for candidate in found._of_round(2):
        found._learn(merit_told(2, candidate, *(kept | dull)[candidate]))
    assert found._finalists() == [2, 5, 6]


def test_a_point_that_is_no_policy_is_out_and_the_study_goes_on(monkeypatch: pytest.MonkeyPatch):
    real = Structure.serving

    def serving(self: Structure, point: Any) -> Serving:
        if point["order"] == "edf":
            raise PolicyError("no such thing")
        return real(self, point)

    monkeypatch.setattr(Structure, "serving", serving)
    found = Search(traffic(), Serving("priority"), FEW, 1)
    done = ran(found, 22)
    assert len(done) == 22
    invalid = [one["candidate"] for one in found.replays if "invalid" in one]
    assert invalid
    assert not set(invalid) & set(found._of_round(1)) - {SERVING, DEFAULT}


def test_what_is_held_out_is_as_busy_as_the_rest_whatever_the_beat_of_the_traffic():
    """Stacks that came every other block were all on one side, and nobody won where nobody waited."""
    for beat in (2, 3, 4):
        rows = [
            Recorded(10.0 * block + n / 20, 2000 if block % beat == 0 else 10, 10, "acme", "premium")
            for block in range(12)
            for n in range(60)
        ]
        chosen_by, held_out = apart(Traffic(tuple(rows), SHIPPED, traffic().replicas))
        work = [sum(row.input_tokens for row in part.rows) for part in (chosen_by, held_out)]
        assert work[1] / sum(work) == pytest.approx(1 / 3, abs=0.09)


def test_a_window_too_short_to_hold_anything_out_is_refused():
    with pytest.raises(ValueError, match="too few"):
        Search(traffic(4.0), Serving("priority"), FEW, 1)


def test_the_busiest_stretch_is_the_one_with_most_tokens_a_second():
    rows = shift.rows_of("same", 1, 600.0, 300.0)
    part = busiest(rows, 0.2)
    assert len(part) == round(0.2 * len(rows))
    assert part[0].arrival_s > 250.0, "after the shift prompts are long"
    assert busiest(rows, 1.0) == rows


def test_settings_of_earlier_releases_are_read_and_have_no_effect():
    assert read_settings({"compactness": 0.5, "queues": 1, "trials": 9}) == LoopSettings(trials=9)
    with pytest.raises(ValueError, match="no 'compact'"):
        read_settings({"compact": 0.5})
    with pytest.raises(ValueError, match="cpu_share"):
        read_settings({"cpu_share": 1.5})
