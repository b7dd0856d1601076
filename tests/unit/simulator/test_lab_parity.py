"""A replay's report once more in the lab: the same requests, promises and pool, judged by the same rule."""

from __future__ import annotations

import json
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.lab import parity
from controlplane.replay.report import Sent, rows_as_json, summarise
from scheduling.core.registry import make_ordering, make_routing
from scheduling.core.step_time import load_preset
from scheduling.core.types import Slo
from scheduling.simulator.compare import INSIDE
from scheduling.simulator.replay import Replay, Replica
from scheduling.simulator.workload import Belief, Tier, make_request

SLOS = {"premium": Slo(1.0, 0.1, None), "batch": Slo(None, None, 600.0)}
RANKS = {"premium": 0, "batch": 2}
POOL = {
    "pool": {"slug": "llama", "policy": "priority", "policy_params": {}, "modifiers": {}, "routing": "least_work",
             "routing_params": {}, "headroom_slots": 0},
    "backends": [{"slug": f"gpu-{n}", "slots": 128, "kv_tokens": 421_000, "prefill_tokens": 1024} for n in range(2)],
    "tiers": {
        name: {"service_class": "elastic", "rank": RANKS[name], "weight": 1.0, "ttft_s": slo.ttft_s,
               "tbt_s": slo.tbt_s, "ttlt_s": slo.ttlt_s}
        for name, slo in SLOS.items()
    },
    "entitlements": {
        name: {"slug": f"{name}-llama", "tenant": name, "tier": name, "concurrency": 0} for name in SLOS
    },
}  # fmt: skip


@cache
def live(credit: int) -> dict[str, Any]:
    """A report of an instance that does just what the lab does, with this prefill credit."""
    random, at, requests = Random(4), 100.0, []
    for index in range(200):
        at += random.expovariate(16.0)
        name = "premium" if random.random() < 0.3 else "batch"
        tier = Tier(name, SLOS[name], RANKS[name])
        out = random.randint(5, 40)
        requests.append(make_request(index, at, random.randint(1000, 3000), out, tier, Belief(float(out), out)))
    preset = load_preset("llama-3-8b-a100")
    replica = Replica(preset.step_time, 128, 421_000, 2048, credit, "priority")
    replay = Replay([replica] * 2, make_ordering("priority"), make_routing("least_work"), signal_s=0.005)
    rows = [
        Sent(
            f"r{o.index}", o.tier, o.tier, o.arrival_s - 0.01, 0.01, 200, "completed", "completed", o.ttft_s, o.ttlt_s,
            [], 0.0, o.input_tokens, o.output_tokens, o.input_tokens, o.output_tokens,
        )
        for o in replay.run(requests)
    ]  # fmt: skip
    rows.append(Sent("x", "batch", "batch", 3.0, 0.0, 429, "refused", "concurrency", wanted_input=9, wanted_output=9))
    random.shuffle(rows)  # they are kept as they end
    return {**summarise(rows, SLOS, 60.0), "trace": "t", "requests": rows_as_json(rows), "served_by": POOL}


def test_an_instance_that_does_what_the_lab_does_differs_by_nothing():
    report = live(1024)
    found = parity.compare(report, parity.Setup("llama-3-8b-a100"))
    assert [line.tier for line in found.lines] == ["all", "premium", "batch"]
    assert found.worst == 0.0
    assert found.left_out == 1
    for line in found.lines[1:]:
        assert line.live == pytest.approx(100 * report["tiers"][line.tier]["slo_attainment"], abs=0.01)
        assert line.live_ttft_s == pytest.approx(line.simulated_ttft_s, rel=0.01)  # the order is told in steps of 20 ms
    assert found.live_tokens_per_s == pytest.approx(found.simulated_tokens_per_s, rel=0.01)


def test_an_instance_without_the_credit_that_its_pool_claims_is_found_out():
    found = parity.compare(live(0), parity.Setup("llama-3-8b-a100"))
    assert found.worst > 30
    assert parity.compare(live(0), parity.Setup("llama-3-8b-a100", credit=0)).worst == 0.0


def test_headroom_that_nobody_set_is_what_the_pool_keeps_by_itself():
    report = live(1024)
    tiers = POOL["tiers"] | {"spot": POOL["tiers"]["batch"] | {"service_class": "spot"}}
    sharing = [
        {"slug": name, "tenant": name, "tier": tier, "concurrency": 40, "state": state}
        for name, tier, state in (("a", "premium", "bound"), ("b", "spot", "bound"), ("c", "premium", "expired"))
    ]

    def kept(headroom: int | None, **changes: Any) -> int:
        served = {**POOL, "pool": {**POOL["pool"], "headroom_slots": headroom}, "tiers": tiers, **changes}
        rows = [Sent(**row) for row in report["requests"] if row["outcome"] == "completed"]
        return parity._pool(served, rows, parity.Setup("llama-3-8b-a100"))[0].headroom

    assert kept(None, sharing=sharing) == 40  # a sixth of 256 slots were 43: no more than the baselines
    assert kept(None, sharing=[{**row, "concurrency": 100} for row in sharing]) == 43
    assert kept(None, sharing=sharing[:1]) == 0  # nobody to keep it from
    assert kept(0, sharing=sharing) == 0
    assert kept(7, sharing=sharing) == 7
    mine = {"premium": {**sharing[0], "slug": "p"}, "batch": {**sharing[1], "slug": "q"}}
    assert kept(None, entitlements=mine) == 40  # an older report names the senders only


def test_the_command_shows_both_and_fails_beyond_what_is_allowed(tmp_path: Path):
    path = tmp_path / "out.json"
    path.write_text(json.dumps(live(0)))
    out = StringIO()
    call_command("lab", "parity", "--report", str(path), "--credit", "0", "--within", "5", "--json", stdout=out)
    assert json.loads(out.getvalue())["worst"] == 0.0
    out = StringIO()
    with pytest.raises(CommandError, match="points, more than 5"):
        call_command("lab", "parity", "--report", str(path), "--within", "5", stdout=out)
    assert "premium" in out.getvalue()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"requests": None}, "--rows"),
        ({"served_by": None}, "access token"),
        ({"served_by": {**POOL, "backends": []}}, "no backend"),
        ({"served_by": {**POOL, "tiers": {}}}, "no tier batch, premium"),
        ({"served_by": {"pool": {}}}, "lacks"),
        ({"requests": [{"odd": 1}]}, "lacks"),
    ],
)
def test_what_a_report_lacks_is_told(tmp_path: Path, change: dict[str, Any], told: str):
    path = tmp_path / "out.json"
    path.write_text(json.dumps({**live(0), **change}))
    with pytest.raises(CommandError, match=told):
        call_command("lab", "parity", "--report", str(path))
    path.write_text("[")
    with pytest.raises(CommandError, match="no report"):
        call_command("lab", "parity", "--report", str(path))


def test_the_same_requests_can_be_served_with_the_policy_inside_every_engine() -> None:
    report = live(0)
    inside = parity.compare(report, parity.Setup("llama-3-8b-a100", where=INSIDE))
    front = parity.compare(report, parity.Setup("llama-3-8b-a100"))
    assert [line.requests for line in inside.lines] == [line.requests for line in front.lines]
    assert inside.waiting > front.waiting  # arrivals wait in the engines, where the policy orders them
