"""What is believed of an engine's step times follows its own steps, and is given up when it no longer holds."""

from __future__ import annotations

import pytest

from scheduling.core.engine.calibration import StepFit, fit_steps
from scheduling.core.engine.step_model import BATCH, LOOKS, StepModel
from scheduling.core.engine.step_time import StepTime
from tests.support.logged_steps import TRUTH, steps


def fitted(model: StepModel) -> StepFit | None:
    """As the leader does it, at once."""
    if due := model.due():
        model.took(fit_steps(due))
    return model.fit


def test_nothing_is_known_before_there_are_steps_enough() -> None:
    model = StepModel()
    model.saw(list(steps(30)))
    assert model.due() == ()
    assert model.believed is None
    model.saw(list(steps(100)))
    assert fitted(model) is not None
    assert model.believed is not None
    assert model.believed.step_time.a == pytest.approx(TRUTH.a, rel=0.05)


def test_one_fit_is_due_at_a_time_and_the_next_after_many_more_steps() -> None:
    model = StepModel()
    model.saw(list(steps(500)))
    first = model.due()
    assert first
    model.saw(list(steps(500, seed=2)))
    assert model.due() == (), "somebody fits"
    model.took(fit_steps(first))
    assert model.due()
    model.took(None)
    assert model.fit is not None, "a fit that tells nothing takes nothing away"
    model.saw(list(steps(10, seed=3)))
    assert model.due() == ()


def test_an_engine_that_became_slower_is_noticed_and_fitted_to_its_new_steps_alone() -> None:
    model = StepModel()
    model.saw(list(steps(15 * BATCH)))
    before = fitted(model)
    assert before is not None
    model.saw(list(steps(7 * BATCH, seed=2)))
    assert model.drifts == 0
    assert model.recent_error is not None
    assert model.recent_error < 0.05
    fitted(model)
    model.saw(list(steps(LOOKS * BATCH, TRUTH.slowed(1.6), seed=3)))
    assert model.drifts == 1
    after = fitted(model)
    assert after is not None
    assert after.steps == LOOKS * BATCH
    assert after.step_time.t0 == pytest.approx(1.6 * TRUTH.t0, rel=0.05)
    model.saw(list(steps(4 * BATCH, TRUTH.slowed(1.6), seed=4)))
    assert model.drifts == 1, "it holds now"


def test_one_odd_moment_is_no_drift() -> None:
    model = StepModel()
    model.saw(list(steps(10 * BATCH)))
    fitted(model)
    model.saw(list(steps(BATCH, TRUTH.slowed(3.0), seed=2)))
    model.saw(list(steps(4 * BATCH, seed=3)))
    assert model.drifts == 0


def test_steps_that_something_else_disturbed_do_not_move_the_fit() -> None:
    found = fit_steps(list(steps(1000, strays=0.15)))
    assert found is not None
    assert found.step_time.t0 == pytest.approx(TRUTH.t0, rel=0.1)
    assert found.error < 0.05


def test_a_fit_that_predicts_badly_is_shown_and_not_believed() -> None:
    model = StepModel()
    model.saw(list(steps(800, noise=0.9)))
    found = fitted(model)
    assert found is not None
    assert found.error > 0.25
    assert model.believed is None


def test_after_a_restart_the_old_steps_are_forgotten_and_the_old_fit_stays_for_the_time_being() -> None:
    model = StepModel()
    model.saw(list(steps(600)))
    fit = fitted(model)
    model.restarted()
    assert model.fit is fit
    model.saw(list(steps(100, TRUTH.slowed(2.0), seed=5)))
    again = fitted(model)
    assert again is not None
    assert again.step_time.t0 == pytest.approx(2 * TRUTH.t0, rel=0.1)


def test_throughput_by_a_step_model_is_that_of_its_steady_state() -> None:
    model = StepTime(t0=0.01, a=1e-5, b=0.0, c=0.0, e=0.0, knee=0.0, a2=0.0)
    assert model.prefill_per_s(1000) == pytest.approx(1000 / 0.02)
    # 10 sequences whose answers of 100 tokens bring prompts of 200: 20 prompt tokens a step
    assert model.tokens_per_s(200, 100, 10, 2048) == pytest.approx(30 / (0.01 + 20e-5))
    # a step of 15 tokens holds 5 sequences and their share of prompts
    assert model.tokens_per_s(200, 100, 10, 15) == pytest.approx(15 / (0.01 + 10e-5))
