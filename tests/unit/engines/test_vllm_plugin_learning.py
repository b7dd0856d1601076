"""Step times from what was logged of steps: learned in the engine, or fitted to a file of them."""

from __future__ import annotations

import io
import json
import tomllib

import pytest

from scheduling.core.engine.step_time import UNITS
from scheduling.engines.vllm_plugin.fit import main as fit
from tests.support.plugged_engine import STEP, ask, plugged
from tests.support.vllm_stand_in import Clock


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
