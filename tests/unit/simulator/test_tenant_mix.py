"""Made-up traffic of several tenants of each tier, and what they get under equal limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

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


def test_crowds_are_twenty_at_once_and_as_many_on_the_mean() -> None:
    rows = tenant_mix(20_000, 20.0, 1, "code", "crowds").rows
    assert len(rows) == pytest.approx(20_000, rel=0.15)
    times = sorted(row.arrival_s for row in rows if row.tenant == "premium-1")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gap > 0.5 for gap in gaps) == pytest.approx(len(times) / 20, rel=0.1)


def test_a_tier_may_have_prompts_of_a_kind_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mix.jsonl"
    ask = ("lab", "mix", "--out", str(path), "--requests", "600", "--kind", "conversation", "--tenants", "even")
    call_command(*ask, "--kind-of", "premium=documents")
    with path.open(encoding="utf-8") as stream:
        rows = read_recording(path, enumerate(stream, 1)).rows
    longest = {
        tier: max(row.input_tokens for row in rows if row.tier == tier) for tier in ("premium", "standard", "batch")
    }
    assert min(row.input_tokens for row in rows if row.tier == "premium") >= 3000
    assert longest["premium"] > 10_000 > max(longest["standard"], longest["batch"])
    with pytest.raises(
        CommandError, match=r"--kind-of gold=documents: write TIER=KIND with a TIER of premium, standard"
    ):
        call_command(*ask, "--kind-of", "gold=documents")
    with pytest.raises(CommandError, match="give --tenants as well"):
        call_command(*ask[:6], "--kind-of", "premium=documents")


def test_late_prompts_of_owners_leave_others_time_to_be_served(tmp_path: Path) -> None:
    """Premium's prompts take up to two seconds each where the first token is promised within one."""
    path = tmp_path / "mix.jsonl"
    write_tenant_mix(path, 700, 10.0, 1, "conversation", "even", {"premium": "documents"})
    case = Case(str(path), "unified", minutes=5.0, load=1.3, limits=True, equal_limits=True)
    by_part, always = run_case(case), run_case(replace(case, params=(("relegate", 2),)))
    assert by_part["kept.standard"] > 95.0 > 80.0 > always["kept.standard"]
    # of its own long prompts those that are late give way to those that are not, under both: the fewer wait, the better
    assert by_part["kept.premium"] > 15.0
    assert by_part["kept.premium"] >= always["kept.premium"] - 5.0
    assert by_part["ttft.p50.premium"] < 30.0, "they are served"


def test_a_loud_tenant_of_standard_does_not_go_after_a_batch_backlog_that_may_have_the_whole_pool(
    tmp_path: Path,
) -> None:
    """Of standard 15 % were refused, when such a backlog counted as a lack of slots."""
    path = tmp_path / "loud.jsonl"
    write_tenant_mix(path, 1500, 10.0, 1, "conversation", "one-loud")
    figures = run_case(Case(str(path), "unified", minutes=5.0, load=1.3, limits=True, equal_limits=True))
    assert figures["refused.standard"] < 2.0
    assert figures["kept.standard"] > 95.0
    assert figures["kept.batch"] == 100.0


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
    assert {spec.concurrency for spec in equal if spec.tier.name == "batch"} == {256}, "as the demo's"
    figures = run_case(replace(case, equal_limits=True))
    assert 0.0 <= figures["kept_least.standard"] <= figures["kept.standard"] <= 100.0
