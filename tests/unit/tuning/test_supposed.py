"""A recording as it would have been with more load, or with somebody more."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scheduling.simulator.recording import Recorded
from scheduling.tuning.supposed import busier, joined

ROWS = tuple(
    Recorded(7.0 + n, 100 + n, 10, "acme" if n % 4 else "globex", "standard", "acme-llama" if n % 4 else "globex-llama")
    for n in range(400)
)


def test_twice_the_load_is_the_same_requests_in_half_the_time() -> None:
    rows = busier(ROWS, 2.0)
    assert rows[-1].arrival_s - rows[0].arrival_s == (ROWS[-1].arrival_s - ROWS[0].arrival_s) / 2
    assert [row.input_tokens for row in rows] == [row.input_tokens for row in ROWS]


@pytest.mark.parametrize("times", [0.25, 1.0, 2.5])
def test_a_newcomer_sends_its_share_of_requests_of_the_same_sizes_in_other_moments(times: float) -> None:
    rows = joined(ROWS, "initech", "acme-llama", times)
    own = [row for row in rows if row.tenant == "initech"]
    like = [row for row in ROWS if row.entitlement == "acme-llama"]
    assert [row for row in rows if row.tenant != "initech"] == list(ROWS)
    assert len(own) == pytest.approx(times * len(like), rel=0.15)
    assert {row.entitlement for row in own} == {"initech"}
    assert {row.input_tokens for row in own} <= {row.input_tokens for row in like}
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(rows))
    assert all(ROWS[0].arrival_s <= row.arrival_s <= ROWS[-1].arrival_s for row in own), "within the recording"
    at = {row.input_tokens: row.arrival_s for row in like}
    assert all(row.arrival_s != at[row.input_tokens] for row in own), "not in the moments of whom it copies"
    assert joined(ROWS, "initech", "acme-llama", times) == rows, "the same question has the same answer"


def test_who_is_like_nobody_sends_nothing_and_one_moment_has_no_ring() -> None:
    assert joined(ROWS, "initech", "none", 1.0) == ROWS
    once = ROWS[1:2]
    assert [row.arrival_s for row in joined(once, "initech", "acme-llama", 1.0)] == [once[0].arrival_s] * 2
