"""Made-up traffic of several tenants of each tier, and what they get under equal limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scheduling.simulator.compare import Case, limits_of, prepare, run_case
from scheduling.simulator.recording import read_recording
from scheduling.simulator.tenant_mix import DEMANDS, tenant_mix, write_tenant_mix


def asked(demand: str) -> Counter[str]:
    return Counter(row.tenant for row in tenant_mix(20_000, 20.0, 1, "conversation", demand).rows)


def test_tenants_ask_for_what_their_demand_says_and_tiers_for_their_share() -> None:
    for demand in DEMANDS:
        counts = asked(demand)
        assert len(counts) == 11
        standard = sum(count for name, count in counts.items() if name.startswith("standard"))
        assert standard == pytest.approx(10_000, rel=0.1)
    assert asked("one-loud")["standard-1"] == pytest.approx(10 * asked("one-loud")["standard-2"], rel=0.2)
    assert asked("falling")["standard-1"] == pytest.approx(3 * asked("falling")["standard-3"], rel=0.2)
    assert asked("even")["standard-1"] == pytest.approx(asked("even")["standard-5"], rel=0.2)


def test_pulses_are_twelve_seconds_of_each_minute() -> None:
    rows = [row for row in tenant_mix(20_000, 20.0, 1, "code", "pulses").rows if row.tenant == "standard-1"]
    begins = min(row.arrival_s for row in rows)
    assert all((row.arrival_s - begins + 1.0) % 60.0 < 14.0 for row in rows)


def test_it_is_a_recording_whose_tenants_may_run_as_many_under_equal_limits(tmp_path: Path) -> None:
    path = tmp_path / "mix.jsonl"
    count = write_tenant_mix(path, 600, 10.0, 1, "conversation", "one-loud")
    with path.open(encoding="utf-8") as stream:
        assert len(read_recording(path, enumerate(stream, 1)).rows) == count
    case = Case(str(path), "unified", minutes=5.0, limits=True)
    requests = prepare(replace(case, limits=False, policy="")).requests
    _, by_demand = limits_of(requests, 256)
    _, equal = limits_of(requests, 256, equal=True)
    of_standard = {spec.tenant: spec.concurrency for spec in equal if spec.tier.name == "standard"}
    assert len(set(of_standard.values())) == 1
    assert sum(of_standard.values()) == pytest.approx(
        sum(spec.concurrency for spec in by_demand if spec.tier.name == "standard"), abs=10
    )
    figures = run_case(replace(case, equal_limits=True))
    assert 0.0 <= figures["kept_least.standard"] <= figures["kept.standard"] <= 100.0
