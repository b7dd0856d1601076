"""What a line of the stream of events says about a change that somebody made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from telemetry.api.events import _line_of
from telemetry.ledger.verdict import _s
from tenants.models import AuditEntry


def line(action: str, kind: str, of: str, before: Any = None, after: Any = None, outcome: str = "done") -> str:
    entry = AuditEntry(
        actor="olga", action=action, kind=kind, object_id=of, before=before, after=after, outcome=outcome
    )
    return _line_of(entry)


@pytest.mark.parametrize(
    ("action", "kind", "of", "said"),
    [
        ("create", "tenant", "acme", "olga created tenant acme"),
        ("issue", "apikey", "qm-1", "olga issued API key qm-1"),
        ("log in", "request", "/login", "olga logged in"),
        ("polish", "slo", "fast", "olga did 'polish' to SLO fast"),
    ],
)
def test_a_change_is_told_as_a_sentence(action: str, kind: str, of: str, said: str) -> None:
    assert line(action, kind, of) == said


def test_what_was_refused_is_not_told_as_done() -> None:
    assert line("log in", "request", "/login", outcome="refused") == "olga failed to log in"
    assert (
        line("refuse", "request", "POST /api/v1/tenants", outcome="refused") == "olga was refused POST /api/v1/tenants"
    )


def test_every_action_of_the_audit_log_has_words() -> None:
    root = Path(__file__).resolve().parents[3]
    sources = [
        path.read_text() for name in ("tenants", "telemetry", "controlplane") for path in (root / name).rglob("*.py")
    ]
    given = r'\baction(?:: str)? ?= ?"([a-z ]+)"(?: if \w+ else "([a-z ]+)")?'
    actions = {found for text in sources for pair in re.findall(given, text) for found in pair} - {"append", ""}
    assert actions >= {"study", "undrain", "disable", "disable second factor"}
    assert [action for action in sorted(actions) if "did '" in line(action, "pool", "llama")] == ["health"], "not told"


def test_only_what_differs_is_told_and_nothing_stays_empty() -> None:
    before = {"state": "pending", "state_reason": "no room", "draining": False, "slots": 8, "note": ""}
    after = {"state": "bound", "state_reason": "", "draining": True, "slots": 8, "note": "moved"}
    assert line("state", "entitlement", "acme-llama", before, after) == (
        "olga changed the state of entitlement acme-llama: "
        "state pending -> bound, draining off -> on, note none -> moved"
    )


def test_a_long_value_is_cut_and_does_not_push_others_out() -> None:
    before = {"policy_version": 1, "policy_params": {}, "policy": "fifo"}
    after = {"policy_version": 2, "policy_params": {"note": "1-2," * 200}, "policy": "edf"}
    told = line("policy", "pool", "llama", before, after)
    assert told.endswith("…, policy fifo -> edf")
    assert "policy version" not in told
    assert len(told) < 160


def test_of_a_field_with_members_those_that_differ_are_told() -> None:
    before = {"policy_params": {"alpha_ms": 8.0, "partition": "1-2", "base": 1}, "pair": ["a"]}
    after = {"policy_params": {"alpha_ms": 4.0, "base": 1, "tier_ratio": 3.0}, "pair": ["b"]}
    assert line("policy", "pool", "llama", before, after) == (
        "olga changed the policy of pool llama: alpha ms 8.0 -> 4.0, partition 1 queue -> none, tier ratio none -> 3.0 "
        "and 1 more"
    )
    assert line("policy", "pool", "llama", {"policy_params": None}, {"policy_params": {"base": 1}}) == (
        "olga changed the policy of pool llama: base none -> 1"
    )


def test_a_verdict_writes_durations_as_the_console_does() -> None:
    assert [_s(s) for s in (0.64, 4.1, 12.34, 99.9, 125, 600)] == [
        "640 ms",
        "4.10 s",
        "12.3 s",
        "99.9 s",
        "2 min 05 s",
        "10 min",
    ]
