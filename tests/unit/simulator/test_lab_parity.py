"""A replay's report once more in the lab: the same requests, promises and pool, judged by the same rule."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.lab import parity
from controlplane.replay.report import Sent, rows_as_json, summarise
from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import Slo
from scheduling.simulator.admission import Admission
from scheduling.simulator.compare import GRANT_DELAY_S, INSIDE
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
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


def test_of_answers_that_arrived_whole_the_lab_shows_no_first_token_either():
    """Live it is not seen."""
    report = live(1024)
    whole = [row | {"streamed": False, "ttft_s": None} for row in report["requests"]]
    found = parity.compare(report | {"requests": whole}, parity.Setup("llama-3-8b-a100"))
    assert {line.live_ttft_s for line in found.lines} == {(None, None)}
    assert {line.simulated_ttft_s for line in found.lines} == {(None, None)}


def test_an_instance_without_the_credit_that_its_pool_claims_is_found_out():
    found = parity.compare(live(0), parity.Setup("llama-3-8b-a100"))
    assert found.worst > 30
    assert parity.compare(live(0), parity.Setup("llama-3-8b-a100", credit=0)).worst == 0.0


@pytest.mark.parametrize(
    ("measured", "delay_s"), [(18.0, 0.020), (None, GRANT_DELAY_S), ("soon", GRANT_DELAY_S), (-1, GRANT_DELAY_S)]
)
def test_the_lab_grants_as_late_as_the_leader_did(measured: object, delay_s: float):
    rows = [Sent(**row) for row in live(1024)["requests"] if row["outcome"] == "completed"]
    served = {**POOL, "turnaround_ms": measured}
    assert parity._pool(served, rows, parity.Setup("llama-3-8b-a100"))[0].signal_s == pytest.approx(delay_s)
    asked = parity.Setup("llama-3-8b-a100", signal_ms=3.0)
    assert parity._pool(served, rows, asked)[0].signal_s == pytest.approx(0.003)


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
        ({"served_by": {**POOL, "backends": [{**POOL["backends"][0], "phase": "decode"}]}}, "decode are apart"),
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


def test_a_composition_serves_instead_of_the_pools_policy() -> None:
    def waited_s(policy: str) -> dict[str, float | None]:
        result = parity.compare(live(0), parity.Setup("llama-3-8b-a100", policy=policy))
        assert result.served.startswith(f"{policy}, ")
        return {line.tier: line.simulated_ttft_s[0] for line in result.lines}

    assert waited_s("mean_cost") != waited_s("relegate+mean_cost")


LIMITED: dict[str, Any] = {
    **POOL,
    "pool": {**POOL["pool"], "queue_limit": 40, "queue_bytes": 1 << 20, "threshold": 0.0, "coefficients": {},
             "slo_mean_s": None},
    "tiers": {
        name: {**row, "over_limit": "wait" if name == "batch" else "refuse", "queue_limit": 15, "max_wait_s": 3.0}
        for name, row in POOL["tiers"].items()
    },
    "entitlements": {name: {**row, "concurrency": 24} for name, row in POOL["entitlements"].items()},
    "sharing": [
        {**row, "concurrency": 24, "state": "bound", "tokens_per_s": 9000.0 if name == "premium" else 0.0,
         "burst_tokens": 20_000.0, "kv_tokens": 0}
        for name, row in POOL["entitlements"].items()
    ],
}  # fmt: skip


def test_what_limits_refuse_live_they_refuse_in_the_lab() -> None:
    """An overload of an instance that does what the lab does: the same requests are refused, for the same reasons, and
    count in what was kept of all that was asked for."""
    pool, specs = parity._limits(LIMITED)
    preset = load_preset("llama-3-8b-a100")
    replica = Replica(preset.step_time, 128, 421_000, 2048, 1024, "priority")
    replay = Replay(
        [replica] * 2, make_ordering("priority"), make_routing("least_work"), signal_s=0.005,
        admission=lambda view: Admission(pool, specs, view),
    )  # fmt: skip
    random, at, requests = Random(9), 100.0, []
    for index in range(300):
        at += random.expovariate(40.0)
        name = "premium" if random.random() < 0.4 else "batch"
        out = random.randint(5, 40)
        made = make_request(
            index, at, random.randint(1000, 3000), out, Tier(name, SLOS[name], RANKS[name]), Belief(float(out), out)
        )
        requests.append(replace(made, queued=replace(made.queued, entitlement=f"{name}-llama")))
    rows = []
    for o in replay.run(requests):
        said = (429, "refused", o.refused) if o.refused else (200, "completed", "completed")
        times = (None, None) if o.refused else (o.ttft_s, o.ttlt_s)
        got = (0, 0) if o.refused else (o.input_tokens, o.output_tokens)
        rows.append(
            Sent(f"r{o.index}", o.tier, o.tier, o.arrival_s, 0.0, *said, *times, [], 0.0, *got, o.input_tokens,
                 o.output_tokens)
        )  # fmt: skip
    assert {row.reason for row in rows} >= {"completed", "token_budget", "queue_full", "queue_timeout"}
    report = {**summarise(rows, SLOS, 60.0), "trace": "t", "requests": rows_as_json(rows), "served_by": LIMITED}
    found = parity.compare(report, parity.Setup("llama-3-8b-a100"))
    assert found.left_out == 0
    assert found.lines[0].requests == 300
    for line in found.lines:
        assert line.live_refused > 10
        assert line.simulated_refused == pytest.approx(line.live_refused, abs=1.0)
        assert line.points == pytest.approx(0.0, abs=1.0)
        assert line.live_kept < line.live
    wide = {**LIMITED, "sharing": [{**row, "tokens_per_s": 0.0} for row in LIMITED["sharing"]]}
    other = parity.compare({**report, "served_by": wide}, parity.Setup("llama-3-8b-a100"))
    assert other.lines[1].simulated_refused < found.lines[1].simulated_refused - 5, "other limits were not noticed"
    tight = {**LIMITED, "sharing": [{**row, "tokens_per_s": 900.0} for row in LIMITED["sharing"]]}
    fewer = parity.compare({**report, "served_by": tight}, parity.Setup("llama-3-8b-a100"))
    shares = [1.0 - getattr(fewer.lines[0], f"{side}_refused") / 100.0 for side in ("live", "simulated")]
    assert shares[1] < 0.7 * shares[0]
    assert fewer.simulated_tokens_per_s < 0.9 * fewer.live_tokens_per_s, "the lab serves no tokens of what it refuses"
    old = parity.compare({**report, "served_by": POOL}, parity.Setup("llama-3-8b-a100"))
    assert old.left_out == sum(row.outcome == "refused" for row in rows), "a report without limits"
