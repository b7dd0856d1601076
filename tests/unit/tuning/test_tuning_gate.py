"""The gate: a candidate wins by enough for a change, and does not lose when more comes than was recorded."""

from __future__ import annotations

import pytest

from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.recording import Recorded
from scheduling.tuning.gate import HURRIED, HURRY, GateDecision, Met, asked, decide, replays
from scheduling.tuning.merit import TierMerit
from scheduling.tuning.settings import LoopSettings
from scheduling.tuning.traffic import Traffic

SETTINGS = LoopSettings()


def met(kept: float) -> Met:
    """A replay of one tier of 10,000 requests, of which this share is in time."""
    return Met({"standard": TierMerit(1.0, 10_000, round(10_000 * kept), 0.5)}, {"standard, short": 1.0})


def judged(gains: list[float], hurried: float = 0.0) -> GateDecision:
    """What serves keeps 0.8 of the promises and 0.5 when more comes; the candidate so much more."""
    before = [met(0.8) for _ in gains] + [met(0.5)] * HURRIED
    after = [met(0.8 + gain) for gain in gains] + [met(0.5 + hurried)] * HURRIED
    return decide(before, after, SETTINGS, {})


def test_a_candidate_that_wins_by_enough_passes():
    verdict = judged([0.02, 0.021, 0.019, 0.02, 0.022])
    assert verdict.passed
    assert len(verdict.pairs) == SETTINGS.pairs
    assert len(verdict.hurried) == HURRIED


def test_what_is_better_by_a_hair_is_no_reason_for_a_change_however_certain():
    verdict = judged([0.0002, 0.0003, 0.0002, 0.0003, 0.0002])
    assert verdict.least_gain > 0
    assert not verdict.passed
    assert not verdict.hurts
    assert "too little for a change" in verdict.reason


@pytest.mark.parametrize(("hurried", "passes"), [(-0.2, False), (-0.004, True), (0.1, True)])
def test_what_wins_on_a_calm_recording_must_not_lose_when_twice_as_much_comes(hurried: float, passes: bool):
    verdict = judged([0.02, 0.021, 0.019, 0.02, 0.022], hurried)
    assert verdict.passed is passes
    assert passes or "2 times the load" in verdict.reason


def test_a_recording_is_met_as_it_was_and_then_twice_as_fast():
    rows = tuple(Recorded(float(n), 100, 10, "standard", "standard", output_bound=10) for n in range(120))
    traffic = Traffic(rows, SHIPPED, ())
    assert traffic.hurried(HURRY).rows[-1].arrival_s == pytest.approx(rows[-1].arrival_s / HURRY)
    assert len(traffic.hurried(HURRY).rows) == len(rows)
    assert replays(SETTINGS) == SETTINGS.pairs + HURRIED


def test_a_hurried_replay_asks_for_a_variant_of_the_recording_in_half_the_time(monkeypatch: pytest.MonkeyPatch):
    spans: list[float] = []

    def requests(traffic: Traffic, number: int = 0) -> list[object]:
        spans.append(traffic.rows[-1].arrival_s - traffic.rows[0].arrival_s)
        return [number]

    monkeypatch.setattr(Traffic, "requests", requests)
    rows = tuple(Recorded(float(n), 100, 10, "standard", "standard", output_bound=10) for n in range(121))
    numbers = [asked(Traffic(rows, SHIPPED, ()), n, SETTINGS) for n in range(1, replays(SETTINGS) + 1)]
    assert numbers == [[1], [2], [3], [4], [5], [1], [2]]
    assert spans == [120.0] * 5 + [60.0] * 2
