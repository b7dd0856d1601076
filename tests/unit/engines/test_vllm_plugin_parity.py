"""The plugin inside a real vLLM and the simulator's engine decide alike: what was decided there, decided again.

Recorded on vLLM 0.32.0 (CPU) by ``tests/integration/test_vllm_plugin_real.py``, which also records anew and compares.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling.engines.vllm_plugin.settings import Settings
from tests.support.recorded_steps import Replayed, differing, read, victim_of

RECORDED = Path(__file__).parents[2] / "support" / "recorded"
HYBRID = Settings(policy="hybrid")


def test_each_recorded_step_has_the_same_budget_the_same_prompts_and_the_same_order() -> None:
    rows = read(RECORDED / "vllm_hybrid.jsonl.gz")
    steps, differ = differing(rows, HYBRID)
    assert differ == []
    assert steps >= 150
    given = [row for row in rows if row["tokens"]]
    assert len({row["room"] for row in given}) > 20, "budgets that follow the slack"
    assert sum(len(row["tokens"]) > 1 for row in given) > 20, "steps in which several prompts are worked on"
    late = [row for row in given if row["slack_s"] is not None and row["slack_s"] < 0]
    assert sum(row["room"] < row["most"] for row in late) > 100, "what is behind and can catch up shortens steps"
    assert sum(row["room"] == row["most"] for row in late) > 20, "what cannot does not"


def test_the_slack_that_was_recorded_is_that_of_the_simulators_heaps() -> None:
    rows = [row for row in read(RECORDED / "vllm_hybrid.jsonl.gz") if row["kind"] == "step"]
    replayed, compared = Replayed(HYBRID, rows[0]), 0
    for row in rows:
        replayed._be_as(row)
        if row["slack_s"] is not None:
            assert replayed.slack_s() == pytest.approx(row["slack_s"], abs=1e-9)
            compared += 1
        replayed._be_as({**row, "arrived": [], "ended": []})
        replayed._engine.stretch(replayed._engine.clock)
    assert compared > 100


def test_a_recording_that_was_tampered_with_is_found_out() -> None:
    rows = read(RECORDED / "vllm_hybrid.jsonl.gz")
    at = next(n for n, row in enumerate(rows) if len(row["tokens"]) > 1)
    rows[at]["tokens"].reverse()
    rows[at]["room"] += 1
    rows[at + 1]["slack_s"] = 0
    assert len(differing(rows, HYBRID)[1]) >= 1
    assert differing(rows, Settings(policy="fifo"))[1], "another order is another decision"


def test_each_recorded_victim_is_whom_the_simulator_preempts() -> None:
    rows = [row for row in read(RECORDED / "vllm_gittins_full.jsonl.gz") if row["kind"] == "victim"]
    assert len(rows) >= 10
    for row in rows:
        assert victim_of(row, "gittins", {"bucket_tokens": 40}) == row["victim"]
    tail = [max(row["running"], key=lambda each: each["order"])["id"] for row in rows]
    assert any(row["victim"] != last for row, last in zip(rows, tail, strict=True)), "not only who came last"
