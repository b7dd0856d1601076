"""Attainment is of everything asked: what was refused by a limit or for want of capacity counts, what was wrong of
itself does not."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.core.ledger.slo import Kept, turned_away
from scheduling.core.outcomes import Reason
from tests.support.telemetry_world import record, refused


def test_a_refusal_lowers_attainment_but_not_that_of_those_served() -> None:
    kept = Kept(kept=80, missed=0, turned_away=20)
    assert (kept.asked, kept.served) == (100, 80)
    assert (kept.attainment, kept.attainment_served) == (0.8, 1.0)


def test_where_nothing_was_asked_attainment_is_not_known() -> None:
    assert Kept(0, 0, 0).attainment is None
    assert Kept(0, 0, 3).attainment == 0.0
    assert Kept(0, 0, 3).attainment_served is None


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        (Reason.CONCURRENCY, True),
        (Reason.QUOTA_EXCEEDED, True),
        (Reason.BUDGET_EXCEEDED, True),
        (Reason.QUEUE_TIMEOUT, True),
        (Reason.NO_BACKEND, True),
        (Reason.INVALID_REQUEST, False),
        (Reason.TOO_LONG, False),
        (Reason.TENANT_PAUSED, False),
        (Reason.DUPLICATE, False),
    ],
)
def test_refusals_count_that_the_service_answers_for(reason: Reason, counts: bool) -> None:
    assert turned_away(refused(1, reason=reason.value)) is counts


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"ttft_slo_s": None, "tbt_slo_s": None}, False),
        ({"ttft_slo_s": None, "ttlt_slo_s": 60.0}, True),
        ({"streamed": False}, True),
        ({"streamed": False, "tbt_slo_s": None}, False),
    ],
)
def test_a_refusal_counts_where_the_slo_could_have_been_judged(changes: dict[str, Any], counts: bool) -> None:
    assert turned_away(refused(1, **changes)) is counts


def test_what_failed_is_judged_and_no_refusal() -> None:
    assert not turned_away(record(1, outcome="failed", reason="backend_lost", slo_met=False))
