"""Policies side by side on a recorded trace: the same requests for each, near saturation, and what is said of them."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from django.core.management import CommandError, call_command

from controlplane.lab.plot import Panel, Series, draw
from scheduling.core.policies.registry import PolicyError
from scheduling.simulator.compare import Beliefs, Case, CompareError, parse_policy, parse_shares, prepare, run_case
from scheduling.simulator.fairness import Service, jain, jain_of_backlogged
from scheduling.simulator.result import Outcome
from scheduling.simulator.servegen import Window, generate, read_mix
from scheduling.simulator.trace import TraceError, TraceRequest

RATES = """client,window_start_s,rate_rps,cv_iat,dist,param1,param2
7,0,20.0,1.0,Gamma,1.0,0.05
7,600,60.0,1.0,Gamma,1.0,0.02
8,0,10.0,2.0,Weibull,0.6,0.05
9,0,99.0,1.0,Gamma,1.0,0.05
"""
LENGTHS = [
    {"client": 7, "window_start_s": 0, "input_tokens": {"100": 0.5, "300": 0.5}, "output_tokens": {"10": 1.0}},
    {"client": 8, "window_start_s": 0, "input_tokens": {"50": 1.0}, "output_tokens": {"400": 1.0}},
]


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    """Half a thousand requests in bursts: 40 at once every 20 s."""
    draw, start = random.Random(3), datetime(2023, 11, 16)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number in range(500):
        at = start + timedelta(seconds=20 * (number // 40), milliseconds=number % 40)
        lines.append(f"{at.isoformat(' ')},{draw.randrange(50, 3000)},{draw.randrange(1, 80)}")
    path = tmp_path / "code.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def mix(tmp_path: Path) -> tuple[Path, Path]:
    rates, lengths = tmp_path / "rates.csv", tmp_path / "lengths.jsonl"
    rates.write_text(RATES)
    lengths.write_text("\n".join(json.dumps(entry) for entry in LENGTHS))
    return rates, lengths


def test_every_policy_is_handed_the_same_requests(azure: Path):
    case = Case(str(azure), "fifo")
    first, second = (prepare(replace(case, policy="")), prepare.__wrapped__(replace(case, policy="")))
    assert first.requests == second.requests
    assert first.requests != prepare(replace(case, policy="", seed=2)).requests


def test_the_mean_rate_is_the_asked_share_of_what_the_replicas_can_serve(azure: Path):
    for load, replicas in ((1.0, 2), (0.5, 3)):
        made = prepare(Case(str(azure), "", load=load, replicas=replicas))
        span = made.requests[-1].arrival_fs / 1e15
        asked = load * replicas * made.notes["capacity"]
        assert len(made.requests) / span == pytest.approx(asked, rel=0.15)


def test_a_tenth_is_history_and_is_not_replayed(azure: Path):
    made = prepare(Case(str(azure), ""))
    assert len(made.requests) == 450
    assert made.requests[0].arrival_fs == 0


def test_no_belief_knows_a_true_length():
    history = [TraceRequest(float(n), 10 if n % 2 else 1000, 5 if n % 2 else 50) for n in range(400)]
    believe = Beliefs(history)
    assert believe(TraceRequest(500.0, 10, 777)) == believe(TraceRequest(500.0, 10, 3))
    assert believe(TraceRequest(500.0, 10, 1)).output_tokens == pytest.approx(5)
    assert believe(TraceRequest(500.0, 1000, 1)).output_tokens == pytest.approx(50)


def test_a_tenant_with_enough_history_has_a_distribution_of_its_own():
    history = [TraceRequest(float(n), 100, 9 if n % 4 else 90, "many" if n % 4 else "few") for n in range(240)]
    believe = Beliefs(history)
    assert believe(TraceRequest(500.0, 100, 1, "many")).output_tokens == pytest.approx(9)
    assert believe(TraceRequest(500.0, 100, 1, "few")).output_tokens == pytest.approx(90)
    assert believe(TraceRequest(500.0, 100, 1, "new")).lengths == (9.0, 90.0)


def test_priority_helps_the_first_tier_and_costs_the_last(azure: Path):
    fifo, priority = (run_case(Case(str(azure), policy)) for policy in ("fifo", "priority"))
    assert priority["ttft.p99.premium"] < 0.5 * fifo["ttft.p99.premium"]
    assert priority["ttlt.p95.batch"] > fifo["ttlt.p95.batch"]
    assert priority["requests"] == fifo["requests"]
    assert 0 < fifo["jain"] <= 1


@pytest.mark.parametrize("policy", ["ewsjf", "gittins", "hybrid"])
def test_policies_that_need_beliefs_run_on_a_trace(azure: Path, policy: str):
    figures = run_case(Case(str(azure), policy))
    assert 0 <= figures["slo"] <= 100
    assert figures["ttft.p50"] < figures["ttft.p95"] < figures["ttft.p99"]


def test_limits_refuse_and_what_was_refused_was_not_kept(azure: Path):
    """Bursts of 40 on 8 slots: the same trace with and without the product's admission."""
    case = Case(str(azure), "unified", load=2.0, slots=4)
    free, limited = run_case(case), run_case(replace(case, limits=True))
    assert free["refused"] == 0.0
    assert free["kept"] == free["slo"]
    assert 0.0 < limited["refused"] < 100.0
    assert limited["kept"] == pytest.approx(limited["slo"] * (100.0 - limited["refused"]) / 100.0)
    reasons = {name: value for name, value in limited.items() if name.startswith("refused_why.")}
    assert sum(reasons.values()) == pytest.approx(limited["refused"])
    assert limited["refused.batch"] == 0.0, "batch waits instead of being refused"
    assert limited["of_bound"] <= 100.0
    with pytest.raises(CompareError, match="in front"):
        run_case(replace(case, limits=True, where="inside"))


def test_a_clairvoyant_run_is_told_true_lengths_and_no_other_is(azure: Path):
    case = Case(str(azure), "shortest")
    blind, seeing = run_case(case), run_case(replace(case, clairvoyant=True))
    assert seeing["ttlt.p95"] != blind["ttlt.p95"]
    assert seeing["requests"] == blind["requests"]
    assert run_case(case) == blind
    assert "knowing" in replace(case, clairvoyant=True).label


def test_clients_keep_their_rate_their_lengths_and_their_windows(mix: tuple[Path, Path]):
    found = read_mix(*mix)
    assert list(found.without_lengths) == ["9"]
    assert found.left_out(0, 600) == [pytest.approx(99)]
    assert found.left_out(600, 1200) == []
    assert found.rate(0, 600) == pytest.approx(30)
    assert found.rate(300, 900) == pytest.approx(15 + 30)
    rows = generate(found, 1, 0.5, 0.0, 1200.0)
    mine = [row for row in rows if row.tenant == "7"]
    assert sum(row.arrival_s < 600 for row in mine) == pytest.approx(6000, rel=0.05)
    assert sum(row.arrival_s >= 600 for row in mine) == pytest.approx(18000, rel=0.05)
    assert {row.input_tokens for row in mine} == {100, 300}
    assert {row.output_tokens for row in rows if row.tenant == "8"} == {400}
    assert rows == generate(found, 1, 0.5, 0.0, 1200.0)
    assert [row.arrival_s for row in rows] == sorted(row.arrival_s for row in rows)


@pytest.mark.parametrize(("family", "shape"), [("Gamma", 0.5), ("Gamma", 3.0), ("Weibull", 0.5), ("Weibull", 2.0)])
def test_a_gap_has_mean_one(family: str, shape: float):
    draw = random.Random(1)
    gaps = [Window(0.0, 1.0, family, shape).gap(draw) for _ in range(40_000)]
    assert math.fsum(gaps) / len(gaps) == pytest.approx(1.0, rel=0.05)


def test_a_tenant_belongs_to_one_tier_and_shares_are_nearly_kept(mix: tuple[Path, Path]):
    made = prepare(Case(str(mix[0]), "", lengths=str(mix[1]), minutes=5, shares=(("premium", 0.3), ("standard", 0.7))))
    tiers = {(request.queued.tenant, request.tier) for request in made.requests}
    assert tiers == {("7", "standard"), ("8", "premium")}
    assert made.notes["clients_left_out"] == 1
    assert made.notes["clients_left_out_share"] == pytest.approx(100 * 99 / 129)


@pytest.mark.parametrize(
    ("which", "line", "text", "told"),
    [
        ("rates", 2, "7,0,fast,1.0,Gamma,1.0,0.05", "line 3: rate_rps 'fast'"),
        ("rates", 3, "8,0,10.0,2.0,Zipf,0.6,0.05", "line 4: dist 'Zipf'"),
        ("rates", 1, "7,0,20.0", "line 2: expected the columns"),
        ("rates", 1, "7,0,-1,1.0,Gamma,1.0,0.05", "line 2: rate_rps '-1'"),
        ("lengths", 1, '{"client": 8, "window_start_s": 0, "input_tokens": {"5": 1}}', "line 2: 'output_tokens'"),
        ("lengths", 0, "{", "line 1: not an object"),
        ("lengths", 1, '{"client": 8, "window_start_s": 0, "input_tokens": {}, "output_tokens": {}}', "line 2"),
    ],
)
def test_a_bad_line_is_named(mix: tuple[Path, Path], which: str, line: int, text: str, told: str):
    path = mix[0] if which == "rates" else mix[1]
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines))
    with pytest.raises(TraceError, match=told):
        read_mix(*mix)


def test_policies_and_shares_are_checked_before_anything_runs():
    assert parse_policy("hybrid:alpha_ms=4,alpha_low_ms=2.5") == ("hybrid", (("alpha_ms", 4), ("alpha_low_ms", 2.5)))
    assert parse_shares("batch=1,premium=3") == (("premium", 3.0), ("batch", 1.0))
    assert parse_policy("bands+fair+fifo") == ("bands+fair+fifo", ())
    with pytest.raises(PolicyError, match="fifo"):
        parse_policy("fofi")
    with pytest.raises(PolicyError, match="unknown modifier 'band', did you mean 'bands'"):
        parse_policy("band+fifo")
    with pytest.raises(CompareError, match="PARAMETER=VALUE"):
        parse_policy("hybrid:alpha_ms")
    for text in ("gold=1", "premium=x", "premium=-1", "premium=0"):
        with pytest.raises(CompareError, match="tiers"):
            parse_shares(text)


def outcome(arrival: float, start: float, end: float, tokens: int) -> Outcome:
    return Outcome(0, "t", "", True, False, tokens, 1, arrival, start - arrival, end - arrival, end - arrival, False)


def test_jain_says_1_for_equal_and_1_over_n_for_one():
    assert jain([2.0, 2.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert math.isnan(jain([]))


def test_only_tenants_that_wait_are_compared():
    # a and b wait from 0 to 100; a is served throughout, b at its end; c never waits
    served = [Service("a", outcome(0, t, t + 10, 99)) for t in range(0, 101, 10)]
    served += [Service("b", outcome(0, 100, 110, 99)), Service("c", outcome(5, 5, 6, 10_000))]
    weights = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert jain_of_backlogged(served, weights) == pytest.approx(0.5)
    assert math.isnan(jain_of_backlogged(served[-1:], weights))


def test_weights_are_what_fair_is_measured_by():
    served = [Service("a", outcome(0, t, t + 10, 299)) for t in range(0, 101, 10)]
    served += [Service("b", outcome(0, t, t + 10, 99)) for t in range(0, 101, 10)]
    assert jain_of_backlogged(served, {"a": 3.0, "b": 1.0}) == pytest.approx(1.0)
    assert jain_of_backlogged(served, {"a": 1.0, "b": 1.0}) < 0.9


def test_the_command_prints_rows_draws_and_keeps_what_it_ran(
    azure: Path, tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    out, plot = StringIO(), tmp_path / "x.svg"
    ask = ("lab", "--processes", "1", "compare", "fifo", "edf", "--trace", str(azure), "--seeds", "2")
    call_command(*ask, "--json", "--plot", str(plot), stdout=out)
    rows = json.loads(out.getvalue())
    assert [row["policy"] for row in rows] == ["fifo", "edf"]
    assert {"slo.premium", "ttft.p50.batch", "ttlt.p99", "tokens_per_s", "jain"} <= set(rows[0])
    for row in rows:
        assert 0 < row["slo"] <= row["bound"] <= 100
        assert row["of_bound"] == pytest.approx(100 * row["slo"] / row["bound"], abs=0.5)
    ElementTree.parse(plot)
    monkeypatch.setattr("controlplane.lab.actions.compare.run_case", lambda case: pytest.fail("it was kept"))
    again = StringIO()
    call_command(*ask, stdout=again)
    assert "premium" in again.getvalue()
    assert "bound" in again.getvalue()


def test_the_command_shows_a_policy_inside_and_in_front_and_writes_the_page(
    azure: Path, tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    ask = ("lab", "--processes", "1", "front", "fifo", "unified", "--trace", str(azure), "--replicas", "2",
           "--loads", "1,1.3", "--credits", "0,2048", "--delays", "5", "--tiers", "premium=30,batch=70")  # fmt: skip
    out = StringIO()
    call_command(*ask, "--json", stdout=out)
    rows = json.loads(out.getvalue())
    ways = ["inside", "in front, automatic credit, 5 ms, engines in policy order"]
    ways += [f"in front, {credit}, 5 ms, engines by fifo" for credit in ("no credit", "credit 2048")]
    ways.append("in front, no credit, 5 ms, engines in policy order")
    assert [(row["load"], row["policy"], row["label"]) for row in rows] == [
        (load, policy, way) for load in (1.0, 1.3) for policy in ("fifo", "unified") for way in ways
    ]
    assert {"slo.premium", "slo.batch", "tokens_per_s", "share", "waiting", "waiting_p99"} <= set(rows[0])
    assert all(row["share"] == 100.0 for row in rows if row["where"] == "inside")
    monkeypatch.setattr("controlplane.lab.actions.compare.run_case", lambda case: pytest.fail("it was kept"))
    page = tmp_path / "page.md"
    call_command(*ask, "--output", str(page), stdout=StringIO())
    text = page.read_text()
    assert text.count("| unified | inside |") == 2
    assert "cores by" in text


def test_lab_compare_and_lab_tune_can_be_asked_for_a_policy_in_front(azure: Path, tmp_path: Path, settings: object):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    for ask in (("compare", "ewsjf"), ("tune", "--trials", "1", "--random", "0")):
        told = []
        for where in ((), ("--where", "inside")):
            out = StringIO()
            call_command(
                "lab", "--processes", "1", *ask, *where, "--seeds", "1", "--trace", str(azure), "--json", stdout=out
            )
            told.append(json.loads(out.getvalue()))
        assert told[0] != told[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fofi"], "unknown ordering policy"),
        (["fifo", "--tiers", "gold=1"], "TIER=SHARE"),
        (["fifo", "--preset", "abacus"], "there are: "),
        (["fifo", "--seeds", "0"], "--seeds"),
        (["fifo", "--where", "inside", "--credit", "2048"], "leave out --where inside"),
        (["fifo", "--where", "front", "--engine-order", "fofi"], "unknown ordering policy"),
        (["fifo", "--slots", "-1"], "slots"),
        (["fifo", "--load", "0"], "load"),
        (["fifo", "--plot", "/nowhere/x.svg"], "no folder"),
        (["fifo", "--from-minute", "999"], "nothing arrives"),
    ],
)
def test_a_wrong_argument_is_told(azure: Path, tmp_path: Path, settings: object, arguments: list[str], told: str):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    with pytest.raises(CommandError, match=told):
        call_command("lab", "--processes", "1", "compare", *arguments, "--trace", str(azure))


def test_a_file_that_is_missing_or_broken_is_told_with_its_line(
    tmp_path: Path, settings: object, mix: tuple[Path, Path]
):
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    bad = tmp_path / "bad.csv"
    bad.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,12,5\n2023-11-16 18:15:50,many,5\n")
    for name, told in ((str(bad), "line 3: ContextTokens 'many'"), (str(tmp_path / "none.csv"), "No such file")):
        with pytest.raises(CommandError, match=told):
            call_command("lab", "--processes", "1", "compare", "fifo", "--trace", name)
    with pytest.raises(CommandError, match="--lengths"):
        call_command("lab", "--processes", "1", "compare", "fifo", "--trace", str(mix[0]))


def test_a_drawing_is_the_same_bytes_each_time_and_shows_only_what_is_there():
    lines = Panel("t < 1", "s", (1.0, 10.0, 100.0), (Series("a", (1.0, math.nan, 3.0)),), log_x=True, log_y=True)
    bars = Panel("bars", "%", ("x", "y"), (Series("a", (1.0, 2.0)), Series("b", (3.0, -1.0))))
    first = draw("A & B", [lines, bars])
    assert first == draw("A & B", [lines, bars])
    assert ElementTree.fromstring(first) is not None
    assert "nan" not in first
    assert first.count("<circle") == 2
    own = draw("x", [Panel("p", "s", (0.0, 9.0), (Series("a", (1.0, 2.0)), Series("b", (1.0,), (4.5,))))])
    assert own.count("<circle") == 3
    with pytest.raises(ValueError, match="as many figures"):
        draw("x", [Panel("p", "s", (1.0,), (Series("a", ()),))])
