"""DriftSched's table IV on its own workload: what the correction of drift is worth there, and why."""

from __future__ import annotations

import pytest

from scheduling.core.estimate.drift import Drift
from scheduling.simulator import driftsched
from scheduling.simulator.kernel import rng


def errors(per_token: float, *, on: bool, safety: bool = True, seed: int = 1) -> tuple[float, float, Drift]:
    """MAE and RMSE over its 3000 requests in a unit of which a token is ``per_token``, and what was learned."""
    arrivals, lengths = rng(seed, "arrivals"), rng(seed, "lengths")
    requests = driftsched.phase(0, 0.0, driftsched.CALIBRATION, arrivals, lengths)
    requests += driftsched.phase(len(requests), 200.0, driftsched.STRESS, arrivals, lengths)
    drift, off = Drift(on=on), []
    for request in requests:
        factor = driftsched.SAFETY[request.tier] if safety else 1.0
        size = request.input_tokens * per_token
        actual = request.output_tokens * per_token
        off.append(actual - drift.expected(request.label, size, base=request.base_tokens, safety=factor))
        drift.learn(request.label, actual, base=request.base_tokens)
    return sum(map(abs, off)) / len(off), (sum(e * e for e in off) / len(off)) ** 0.5, drift


def test_in_words_the_correction_takes_two_fifths_of_the_error_as_printed():
    before, after = errors(driftsched.WORDS_PER_TOKEN, on=False), errors(driftsched.WORDS_PER_TOKEN, on=True)
    assert before[:2] == pytest.approx((70.07, 97.30), rel=0.12)  # as printed
    assert after[:2] == pytest.approx((42.87, 57.92), rel=0.05)
    assert after[0] / before[0] - 1 == pytest.approx(-0.39, abs=0.06)
    assert after[1] / before[1] - 1 == pytest.approx(-0.40, abs=0.06)
    assert after[2].bias("report") == pytest.approx(driftsched.WORDS_PER_TOKEN, abs=0.05)


def test_in_tokens_there_is_next_to_nothing_to_correct():
    before, after = errors(1.0, on=False), errors(1.0, on=True)
    assert 0.9 < after[0] / before[0] <= 1.0
    assert after[2].bias("report") == pytest.approx(1.0, abs=0.06)


def test_most_of_the_error_that_is_left_is_the_tiers_own_factor():
    with_factor, without = (errors(driftsched.WORDS_PER_TOKEN, on=True, safety=s)[0] for s in (True, False))
    assert without < with_factor / 3
