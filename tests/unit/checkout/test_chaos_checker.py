"""The checker of the chaos runner notices each way in which a run can have been bad."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.faults import BAD_ENGINES, QUIET_S, Fault, schedule
from tests.chaos.history import Left, Seen, check, recovery

KILL = [(5.0, Fault(5.0, "kill", "web"))]
FLUSH = [(5.0, Fault(5.0, "flush", "redis"))]
STOP = [(5.0, Fault(5.0, "stop", "engine-0", 3.0))]


def seen(name: str = "r1", **changes: Any) -> Seen:
    one = Seen("premium", 1.0, True, "completed", "", 200, name, 3.0, 20, 100)
    return replace(one, **changes)


def row(name: str = "r1", **changes: Any) -> dict[str, Any]:
    return {
        "request_id": name, "entitlement": "acme", "outcome": "completed", "reason": "length", "input_tokens": 30,
        "output_tokens": 20, "input_tokens_est": 30, "output_bound": 70,
    } | changes  # fmt: skip


GOOD = Left(used={"acme": 50.0})


def test_a_good_run_breaks_no_law() -> None:
    assert check([seen()], [row()], GOOD, STOP) == []


@pytest.mark.parametrize(
    ("one", "rows", "left", "faults"),
    [
        (seen(end="silent"), [row()], GOOD, STOP),
        (seen(end="hung"), [row()], GOOD, STOP),
        (seen(end="nonsense"), [row()], GOOD, STOP),
        (seen(), [], Left(), KILL),
        (seen(end="reset"), [], Left(), KILL),
        (seen(ended_s=60.0), [], Left(), FLUSH),
        (seen(end="refused"), [], Left(), STOP),
        (seen(), [row(), row()], Left(used={"acme": 100.0}), STOP),
        (seen(), [row(outcome="failed", reason="backend_lost")], GOOD, STOP),
        (seen(end="refused"), [row()], GOOD, STOP),
        (seen(), [row(output_tokens=19)], Left(used={"acme": 49.0}), STOP),
        (seen(), [row()], replace(GOOD, totals={"run": "1"}), STOP),
        (seen(), [row()], replace(GOOD, leases=1), STOP),
        (seen(), [row()], replace(GOOD, waiting=1), STOP),
        (seen(), [row()], replace(GOOD, open_on_engines=1), STOP),
        (seen(), [row()], replace(GOOD, set_aside=1), STOP),
        (seen(), [row()], replace(GOOD, ready=False), STOP),
        (seen(), [row()], Left(used={"acme": 100.0}), STOP),
        (seen(), [row()], Left(used={"acme": 0.0}), STOP),
        (seen(), [row(outcome="failed", reason="gateway_lost")], Left(used={"acme": 150.0}), KILL),
    ],
    ids=[
        "silent end", "hung", "nonsense", "no row", "no row after a reset", "no row long after a flush",
        "refusal without row though no gateway fell", "two rows", "another end", "refused but completed",
        "other tokens", "totals", "lease", "waiting", "generation", "set aside", "not ready", "bucket paid twice",
        "bucket paid nothing", "bucket paid more than the charge",
    ],
)  # fmt: skip
def test_the_checker_notices(one: Seen, rows: list[dict[str, Any]], left: Left, faults: list) -> None:
    assert check([one], rows, left, faults) != []


@pytest.mark.parametrize(
    ("one", "rows", "left", "faults"),
    [
        (seen(end="reset", request_id=""), [], Left(), KILL),
        (seen(end="not_connected", request_id=""), [], Left(), KILL),
        (seen(end="refused"), [], Left(), KILL),
        (seen(), [row(outcome="failed", reason="gateway_lost")], Left(used={"acme": 90.0}), KILL),
        (seen(ended_s=3.0), [], Left(used={"acme": 12345.0}), FLUSH),
    ],
    ids=["reset unseen", "no connection", "refused by a killed gateway", "nobody knows", "flushed"],
)
def test_what_a_fault_excuses_is_no_break(one: Seen, rows: list[dict[str, Any]], left: Left, faults: list) -> None:
    assert check([one], rows, left, faults) == []


def test_the_faults_follow_from_the_seed() -> None:
    assert schedule(7, 5) == schedule(7, 5)
    assert schedule(7, 5) != schedule(8, 5)
    assert schedule(7, 5)[:10] == schedule(7, 9)[:10]


def test_faults_are_of_all_kinds_and_a_flush_only_where_it_may_be() -> None:
    everything = [fault for seed in range(20) for fault in schedule(seed, 3)]
    assert {fault.kind for fault in everything} == {"kill", "stop", "flush", "restart-redis", "bad-engine"}
    assert {f.target for f in everything if f.kind == "bad-engine"} == set(BAD_ENGINES)
    assert all(QUIET_S <= fault.at_s <= 180 - QUIET_S for fault in everything)
    flushed = [any(f.kind == "flush" for f in schedule(seed, 3)) for seed in range(20)]
    assert True in flushed
    assert False in flushed
    assert not any(f.kind == "flush" for seed in range(20) for f in schedule(seed, 3, flush=False))


def test_recovery_counts_requests_sent_after_the_fault_was_over() -> None:
    at_s, fault = STOP[0]
    during = seen(began_s=6.0, ended_s=9.0)
    after = seen("r2", began_s=8.5, ended_s=10.0)
    assert recovery([during], at_s, fault) is None
    assert recovery([during, after], at_s, fault) == 2.0
