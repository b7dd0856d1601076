"""What the canary experiment says of each request that was sent meanwhile."""

from __future__ import annotations

import pytest

from controlplane.experiments import canary
from controlplane.experiments.clients import Sent
from scheduling.core.policies.registry import make_ordering


def sent(entitlement: str = "chat", *, ttft_s: float | None = 0.5, status: int = 200, reason: str = "") -> Sent:
    return Sent(entitlement, 1.0, status, reason, ttft_s, 2.0, queue_s=0.25)


def test_every_request_is_counted_once_by_how_it_ended_for_its_client():
    rows = [
        sent(), sent(ttft_s=1.5), sent(status=429, reason="queue_full"), sent(reason="cut"),
        sent(status=0, ttft_s=None),
        sent("docs", ttft_s=1.5), sent("docs", ttft_s=8.5),
    ]  # fmt: skip
    found = canary._outcomes(rows)
    assert found["chat"] == {
        "sent": 5, "in time": 1, "late": 1, "queue_full": 1, "cut": 1, "no answer": 1, "wait_p95_s": 0.25,
    }  # fmt: skip
    assert (found["docs"]["in time"], found["docs"]["late"]) == (1, 1)


@pytest.mark.parametrize("params", [canary.BASE, canary.GOOD, canary.POISON])
def test_what_is_proposed_is_a_policy(params: dict[str, float | str]):
    assert make_ordering("ewsjf", params)
