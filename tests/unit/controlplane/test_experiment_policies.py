"""The live comparison of policies: what is sent, what is kept, what the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.experiments.instance import ExperimentError
from controlplane.experiments.policies import Results, Run, page, rows_of


@pytest.fixture
def trace(tmp_path: Path) -> str:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:{s // 60:02d}:{s % 60:02d}.0000000,{800 + s % 7 * 100},{20 + s % 5}" for s in range(600)]
    path = tmp_path / "small.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def _run(trace: str, **changes: object) -> Run:
    settings: dict[str, object] = {
        "trace": trace, "load": 1.0, "policy": "unified", "credit": "on", "from_minute": 2.0, "minutes": 0.1,
        "replicas": 2, "preset": "llama-3-8b-a100", "seed": 0,
    }  # fmt: skip
    return Run(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_slice_begins_at_once_and_ends_in_its_minutes_of_real_time(trace: str) -> None:
    rows = rows_of(_run(trace))
    assert rows[0].arrival_s == 0.0
    assert rows[0].input_tokens == 800 + 120 % 7 * 100  # of minute 2, not of the beginning
    assert 0 < rows[-1].arrival_s < 6.0


def test_more_load_sends_the_same_requests_in_less_time(trace: str) -> None:
    usual, more = rows_of(_run(trace, minutes=1.0)), rows_of(_run(trace, load=2.0, minutes=1.0))
    assert [row.input_tokens for row in more[: len(usual)]] == [row.input_tokens for row in usual]
    assert more[len(usual) - 1].arrival_s == pytest.approx(usual[-1].arrival_s / 2)


def test_a_run_that_ended_is_kept_and_not_made_again(trace: str, tmp_path: Path) -> None:
    results = Results(tmp_path / "kept.json")
    results.add(_run(trace), {"tokens_per_s": 1.0})
    again = Results(tmp_path / "kept.json")
    assert _run(trace).key in again.runs
    assert _run(trace, credit="off").key not in again.runs
    assert str(tmp_path) not in (tmp_path / "kept.json").read_text(encoding="utf-8")


def test_a_runs_report_is_kept_where_it_is_asked_for(trace: str, tmp_path: Path) -> None:
    report = {"tiers": {}, "requests": [{"tier": "premium"}]}
    Results(tmp_path / "kept.json").report(_run(trace), report)
    assert not list(tmp_path.glob("small-*"))
    Results(tmp_path / "kept.json", tmp_path).report(_run(trace, load=1.3), report)
    assert json.loads((tmp_path / "small-1.3-unified-on.json").read_text(encoding="utf-8")) == report


def test_a_file_that_holds_something_else_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"tiers": {}}), encoding="utf-8")
    with pytest.raises(ExperimentError, match="does not hold"):
        Results(path)


def test_the_page_shows_what_was_not_judged_as_a_dash(trace: str) -> None:
    times = {"p50": None, "p95": None, "p99": None}
    tier = {"sent": 3, "in_time": None, "refused": 3, "failed": 0, "ttft_s": times, "queue_s": times}
    lab = {"tiers": {}, "tokens_per_s": 9.0, "live_tokens_per_s": 8.0, "engine_waiting_p99": 0.0}
    lab |= {"inside": {"tiers": {}, "tokens_per_s": None}, "ttft_s": {"premium": [0.25, None]}}
    row = {
        "trace": "small", "load": 1.0, "policy": "unified", "credit": "on", "replicas": 2, "preset": "x",
        "minutes": 1.0, "from_minute": 0.0, "tiers": {"premium": tier}, "lab": lab, "engine_waiting_mean": None,
        "engine_waiting_p99": None,
    }  # fmt: skip
    assert "| unified | on | - / - / - | - / 0.25 | - / - | 3 | 8 / 9 / - | - / - |" in page(
        [row], "command", "machine", "2026-01-01"
    )
