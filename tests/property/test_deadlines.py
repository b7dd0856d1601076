"""One answer to "was it in time?": the ledger's, the simulator's, and the deadline that a queue is ordered by."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.deadline import ordering_deadline_s
from scheduling.core.ledger.slo import promise_kept
from scheduling.core.outcomes import Outcome
from scheduling.core.types import (
    EntitlementSpec,
    EntitlementState,
    Estimate,
    KeySpec,
    PoolSpec,
    Slo,
)
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.estimate.estimates import make_queued
from scheduling.gateway.headers import Limits
from scheduling.simulator.result import is_late
from tests.support.gateway_world import TIER
from tests.support.preparing import prepare

# eighths of a second: sums are exact, so that a deadline met to the point is met everywhere
SECONDS = st.integers(1, 800).map(lambda eighths: eighths / 8)
SLOS = st.one_of(
    st.builds(Slo, ttft_s=SECONDS, tbt_s=st.none() | SECONDS),
    st.builds(Slo, ttlt_s=SECONDS),
)
PREPARED = prepare(b'{"model": "demo", "prompt": "x", "max_tokens": 8}', False, PoolSpec("p", "demo", "up", ()))


@given(SLOS, SECONDS, SECONDS, st.integers(1, 40))
def test_the_ledger_and_the_simulator_judge_alike(slo: Slo, first: float, more: float, tokens: int) -> None:
    arrival = 4096.0
    kept = promise_kept(Outcome.COMPLETED, True, tokens, arrival, arrival, arrival + first, arrival + first + more, slo)
    late_without_rate = slo.interactive and slo.tbt_s is None
    if not (late_without_rate and tokens == 1):  # its only token is its last: the ledger sees it leave, too
        assert kept is not is_late(slo, first, first + more, tokens)


@given(SLOS)
def test_a_request_is_ordered_by_the_deadline_by_which_it_is_judged(slo: Slo) -> None:
    entitlement = EntitlementSpec("e", "t", "p", replace(TIER, slo=slo), EntitlementState.BOUND, 0.0, 0.0, 0, 4)
    pool = PoolSpec("p", "demo", "up", ())
    access = Access(KeySpec("k" * 12, b"", "e"), entitlement, pool, Limits(entitlement), None)
    arrival = 4096.0
    queued = make_queued("r", arrival, access, PREPARED, Estimate(1, 1, 1.0, 2, 2), None, "gw")
    due = ordering_deadline_s(queued)

    def kept(at: float) -> bool | None:
        return promise_kept(Outcome.COMPLETED, True, 1, arrival, arrival, at, at, slo)

    assert kept(due) is True
    assert kept(due + 0.125) is False
