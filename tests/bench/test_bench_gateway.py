"""The gateway's cost against the simulated engine's, in one run: ``make bench`` prints it and watches the ratios."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.bench_gateway import WORKLOADS, medians, run, table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]


def test_the_gateway_costs_little_beside_an_engine_that_computes_nothing(capsys: Any):
    rows = run(seconds=2.0, repeats=1)
    with capsys.disabled():
        print("\n" + table(rows))
    middle = medians(rows)
    assert not any(row.errors for row in rows)
    _, short, streams, paced = ((middle[w.name, "engine"], middle[w.name, "product"]) for w in WORKLOADS)
    # loose on purpose: a regression of a factor shows, a busy machine does not
    assert short[1].cpu_us < 8 * short[0].cpu_us
    assert streams[1].cpu_us < 4 * streams[0].cpu_us
    assert paced[1].answers_s > 0.8 * paced[0].answers_s
