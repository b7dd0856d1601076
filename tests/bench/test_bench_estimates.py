"""A prediction's time at a full window: ``make bench`` prints it and holds it to its budget (SageSched: 0.37 ms)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.bench_estimates import table
from tests.support.instance import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]


def test_a_prediction_at_a_full_window_fits_its_budget(tmp_path: Path, capsys: Any) -> None:
    figures = tmp_path / "figures.json"
    # a process of its own: others have imported numpy here, with as many threads as there are cores
    subprocess.run([sys.executable, "-m", "tests.bench.bench_estimates", "--json", figures], cwd=ROOT, check=True)
    steps = json.loads(figures.read_text())
    with capsys.disabled():
        print("\n" + table(steps))
    p50, p99 = steps["predict a new prompt"]
    assert p50 < 500
    assert p99 < 2_000
    assert steps["predict a prompt known by heart"][0] < p50
