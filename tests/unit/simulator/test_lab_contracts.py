"""Shipped tiers with another promise or other limits, in comparisons of policies."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from scheduling.core.types import OverLimit, ServiceClass, Slo
from scheduling.simulator.compare import Case, prepare, run_case
from scheduling.simulator.contracts import SHIPPED_CONTRACTS, ContractError, contract_of, parse_contract


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three prompts a second of 1,500 tokens for two minutes."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 00:{n // 180:02}:{n // 3 % 60:02}.{n % 3 * 300:03},1500,20" for n in range(360)]
    path = tmp_path / "even.csv"
    path.write_text("\n".join(lines))
    return path


def test_what_a_contract_does_not_name_is_as_shipped() -> None:
    premium = contract_of("premium")
    waits = parse_contract("premium:over=wait,queue=7,max_wait=90")
    assert waits.tier == premium.tier
    assert (waits.over_limit, waits.queue_limit, waits.max_wait_s) == (OverLimit.WAIT, 7, 90.0)
    assert parse_contract("premium:class=elastic").tier.service_class is ServiceClass.ELASTIC


def test_latencies_that_are_not_named_beside_another_are_not_promised() -> None:
    assert parse_contract("premium:ttlt=300").tier.slo == Slo(ttlt_s=300.0)
    assert parse_contract("premium:ttft=2").tier.slo == Slo(ttft_s=2.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gold:ttft=1", "with a TIER of premium, standard, batch"),
        ("premium", "is not TIER:KEY=VALUE"),
        ("premium:patience=1", "with a KEY of class, ttft"),
        ("premium:ttft=-1", "-1 is no time above 0 s"),
        ("premium:ttft=nan", "nan is no time above 0 s"),
        ("premium:queue=many", "many"),
        ("premium:queue=-1", "-1 is no number of requests"),
        ("premium:over=drop", "drop"),
        ("premium:class=gold", "gold"),
    ],
)
def test_a_contract_that_cannot_be_read_says_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(ContractError, match=says):
        parse_contract(text)


def test_a_tier_that_nobody_knows_refuses_and_promises_nothing() -> None:
    assert contract_of("gold").tier.slo == Slo()
    assert contract_of("gold").over_limit is OverLimit.REFUSE


def test_what_was_changed_comes_before_what_is_shipped() -> None:
    changed = parse_contract("batch:max_wait=5")
    assert contract_of("batch", (changed,)).max_wait_s == 5.0
    assert contract_of("premium", (changed,)) is SHIPPED_CONTRACTS[0]


def test_requests_have_the_promise_of_the_contract_and_are_judged_by_it(trace: Path) -> None:
    loose = parse_contract("standard:ttft=100")
    case = Case(str(trace), "fifo", load=1.3, contracts=(loose,))
    slos = {
        request.tier: request.slo for request in prepare(Case(str(trace), "", load=1.3, contracts=(loose,))).requests
    }
    assert slos["standard"] == Slo(ttft_s=100.0)
    assert run_case(case)["slo.standard"] == 100.0
    assert run_case(Case(str(trace), "fifo", load=1.3))["slo.standard"] < 100.0


def test_limits_are_those_of_the_contract(trace: Path) -> None:
    refused = {}
    for queue, text in (("short", "over=wait,queue=1"), ("long", "over=wait,queue=999,max_wait=999")):
        contracts = (parse_contract(f"premium:{text}"),)
        case = Case(str(trace), "fifo", load=3.0, limits=True, slots=2, shares=(("premium", 1.0),), contracts=contracts)
        refused[queue] = run_case(case)["refused"]
    assert refused["long"] == 0.0 < refused["short"]


def test_the_table_says_what_was_promised(trace: Path) -> None:
    out = StringIO()
    call_command(
        "lab", "--processes", "1", "compare", "fifo", "--trace", str(trace), "--seeds", "1", "--token-budget", "768",
        "--contract", "premium:ttlt=300,over=wait", stdout=out,
    )  # fmt: skip
    said = " ".join(out.getvalue().split())
    assert "premium is guaranteed, promised ttlt 300 s, waits above its limit (queue 100, 30 s)" in said


def test_the_command_says_what_is_wrong_with_a_contract(trace: Path) -> None:
    with pytest.raises(CommandError, match="--contract: contract 'gold:ttft=1'"):
        call_command("lab", "compare", "fifo", "--trace", str(trace), "--contract", "gold:ttft=1")
