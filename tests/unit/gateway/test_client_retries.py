"""What clients say of their own retries: read within bounds, kept in the ledger, and no way to better figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.ledger.record import LedgerRecord
from scheduling.gateway.entry.guard import MOST_RETRIES, Head
from telemetry.feed.window import Window
from tests.support.telemetry_world import NOW, globex_record, record, refused


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        (b"0", 0), (b"2", 2), (b"100", MOST_RETRIES), (b"101", 0), (b"1000", 0), (b"-1", 0), (b"two", 0), (b"", 0),
        (b"1.0", 0), (b" 1", 0), ("²".encode(), 0), (b"9" * 5000, 0),
    ],
)  # fmt: skip
def test_what_cannot_be_a_count_is_not_believed_and_refuses_nothing(said: bytes, believed: int):
    assert Head([(b"x-stainless-retry-count", said)], 10_000).client_retry == believed
    assert Head([(b"authorization", b"Bearer x")], 10_000).client_retry == 0


def filled(records: list[LedgerRecord]) -> Window:
    window = Window()
    for r in records:
        window.add([r], NOW)
    return window


def test_retries_of_a_client_that_was_refused_are_told_beside_the_attempts():
    """The first was refused and came in the second time, the second in time at once, the third never."""
    tries = [refused(1), record(2, client_retry=1), record(3)]
    tries += [refused(4), refused(5, client_retry=1), refused(6, client_retry=2)]
    slo = filled(tries).pool.slo
    assert (slo.kept, slo.asked, slo.attainment) == (2, 6, 2 / 6), "of attempts"
    assert (slo.retries, slo.retries_kept, slo.attainment_first) == (3, 1, 1 / 3), "of requests, three"


def test_who_says_that_all_are_retries_has_no_figure_of_first_attempts():
    slo = filled([refused(1, client_retry=1), record(2, client_retry=7)]).pool.slo
    assert (slo.attainment, slo.attainment_first) == (0.5, None)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, MOST_RETRIES)), max_size=40))
def test_whatever_clients_say_moves_no_attainment_and_nothing_of_others(said: list[tuple[bool, bool, int]]):
    honest = [(refused if away else record)(n) if mine else globex_record(n) for n, (mine, away, _) in enumerate(said)]
    lying = [replace(r, client_retry=count) if mine else r for r, (mine, _, count) in zip(honest, said, strict=True)]
    true, told = filled(honest), filled(lying)
    for of_true, of_told in ((true.pool, told.pool), *((true.tenants[n], told.tenants[n]) for n in true.tenants)):
        assert (of_true.slo.attainment, of_true.slo.asked) == (of_told.slo.attainment, of_told.slo.asked)
    assert true.tenants.get("globex") == told.tenants.get("globex")
