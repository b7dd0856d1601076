"""Ejection by the share of attempts that fail, and the way back."""

from __future__ import annotations

from scheduling.dispatch.replicas.outliers import (
    BACK_FIRST_S,
    COMPARED_S,
    FEWEST,
    GROW_S,
    OTHERS_ANSWERED,
    OTHERS_TRIED,
    REFUSALS_S,
    WINDOW_S,
    Outlier,
    worse,
)
from scheduling.state.types import Attempts


def test_a_replica_is_ejected_when_half_of_its_attempts_fail_whatever_the_status() -> None:
    outlier = Outlier()
    assert not outlier.report(Attempts(FEWEST - 1, FEWEST - 1, why="answers 404"), 0.0)
    assert "5 of 9 attempts failed in 10 s (answers 404)" in outlier.report(Attempts(0, 1, why="answers 404"), 1.0)


def test_few_failures_among_many_answers_and_old_ones_eject_nobody() -> None:
    outlier = Outlier()
    assert not outlier.report(Attempts(100, 60), 0.0)
    outlier = Outlier()
    assert not outlier.report(Attempts(0, FEWEST - 1), 0.0)
    assert not outlier.report(Attempts(0, FEWEST - 1), WINDOW_S)


def test_a_stream_that_begins_and_is_cut_counts_once_as_a_failure() -> None:
    outlier = Outlier()
    assert not outlier.report(Attempts(20, 6, cut=6), 0.0), "6 of 20"
    assert "16 of 30 attempts failed" in outlier.report(Attempts(10, 10, why="cut the answer", cut=10), 1.0)
    began_before = Outlier()
    assert "5 of 5 attempts failed" in began_before.report(Attempts(1, FEWEST, cut=FEWEST), 0.0)


def test_a_busy_replica_that_refuses_some_stays_and_one_that_admits_nothing_goes() -> None:
    busy, closed = Outlier(), Outlier()
    for second in range(FEWEST - 1):
        assert not busy.report(Attempts(1, 0, 5, why="answers 429"), float(second))
        assert not closed.report(Attempts(0, 0, 1, why="answers 429"), float(second))
    assert not busy.report(Attempts(0, 0, 5), 10.0)
    assert "none admitted (answers 429)" in closed.report(Attempts(0, 0, 1), REFUSALS_S - 1)


def test_it_comes_back_to_one_slot_and_gets_more_as_it_answers() -> None:
    outlier = Outlier()
    outlier.ejected(100.0)
    assert outlier.back_from_s == 100.0 + BACK_FIRST_S
    outlier.returned(106.0)
    assert outlier.offered(16, 106.0) == 1
    outlier.report(Attempts(1), 107.0)
    assert outlier.offered(16, 107.0) == 2
    outlier.report(Attempts(1, 1), 108.0)
    assert outlier.offered(16, 108.0) == 2
    assert outlier.offered(16, 108.0 + GROW_S) == 4
    for second in range(2):
        outlier.report(Attempts(3), 114.0 + second)
    assert outlier.offered(16, 116.0) == 16
    outlier.ejected(120.0)
    assert outlier.back_from_s == 120.0 + 2 * BACK_FIRST_S


def test_failures_that_are_told_of_after_an_ejection_do_not_eject_what_came_back() -> None:
    outlier = Outlier()
    outlier.ejected(100.0)
    assert outlier.report(Attempts(0, FEWEST, why="the answer was cut", cut=FEWEST), 101.0), "it is out already"
    outlier.returned(106.0)
    assert not outlier.report(Attempts(1), 107.0)
    assert outlier.report(Attempts(0, FEWEST), 108.0), "it goes on failing"


def test_after_a_pause_it_gets_one_more_than_it_runs() -> None:
    outlier = Outlier()
    outlier.pause(4.0, 10, "answers 429: it admits nothing now", 0.0)
    assert outlier.offered(16, 3.9) == 0
    assert "paused for 4 s (answers 429: it admits nothing now)" in outlier.says(0.0)
    assert outlier.offered(16, 4.1) == 11


def test_what_is_said_of_a_failure_names_it_and_has_no_gap_where_no_gateway_did():
    outlier = Outlier()
    assert outlier.doubt == "requests failed there"
    assert outlier.report(Attempts(0, FEWEST), 0.0) == "5 of 5 attempts failed in 10 s"
    outlier.failed("answers 500")
    outlier.failed("")
    assert outlier.doubt == "requests failed there (answers 500)"
    nameless = Outlier()
    nameless.pause(4.0, 1, "", 0.0)
    assert nameless.says(0.0) == "paused for 4 s"


def told(tried: int = 0, failed: int = 0, /, **by_tenant: tuple[int, int]) -> Outlier:
    """A replica that gateways told of: ``tried`` and ``failed`` of tenants without failures elsewhere, the others by
    name."""
    outlier = Outlier()
    tried += sum(n for n, _ in by_tenant.values())
    failed += sum(bad for _, bad in by_tenant.values())
    outlier.report(Attempts(tried, failed, cut=failed, why="cut the answer", by_tenant=by_tenant), 0.0)
    return outlier


def test_a_replica_that_fails_a_third_is_ejected_where_others_serve_the_same_tenants():
    sick, well = told(one=(30, 10), two=(6, 2)), told(one=(30, 0), two=(6, 0))
    said = "12 of 36 attempts failed in 10 s, 0 of 36 of the same tenants at other replicas (cut the answer)"
    assert worse(sick, [well], 1.0) == said
    assert not worse(well, [sick], 1.0)
    assert "in 60 s" in worse(sick, [well], COMPARED_S - 1.0)
    assert not worse(sick, [well], COMPARED_S), "that was long ago"


def test_a_replica_that_begins_to_fail_is_not_judged_by_the_many_answers_before():
    sick, well = told(one=(500, 0)), told(one=(500, 0))
    for second in (30.0, 31.0):
        sick.report(Attempts(18, 6, cut=6, by_tenant={"one": (18, 6)}), second)
        well.report(Attempts(18, 0, by_tenant={"one": (18, 0)}), second)
    assert worse(sick, [well], 31.0).startswith("12 of 36 attempts failed in 10 s")


def test_a_tenant_whose_attempts_fail_alike_everywhere_or_ran_at_one_replica_only_ejects_nobody():
    a, b = told(one=(30, 10), two=(30, 0)), told(one=(90, 30), two=(30, 0))
    assert not worse(a, [b], 1.0)
    assert not worse(b, [a], 1.0)
    everything = told(one=(30, 30))
    assert not worse(everything, [told(one=(30, 30))], 1.0)
    assert not worse(told(one=(90, 30)), [told(two=(90, 1))], 1.0), "nothing to compare it with"


def test_chance_and_few_failures_among_many_attempts_eject_nobody():
    assert not worse(told(one=(12, FEWEST)), [told(one=(12, 1))], 1.0)
    assert not worse(told(one=(1000, 100)), [told(one=(1000, 0))], 1.0), "a tenth"
    assert not worse(told(one=(FEWEST - 1, FEWEST - 1)), [told(one=(1000, 0))], 1.0)


def test_failures_of_one_tenant_beside_others_that_are_served_eject_no_replica():
    well = told(one=(60, 0), two=(60, 0))
    assert not worse(told(OTHERS_TRIED, one=(60, 20)), [well], 1.0)
    assert worse(told(OTHERS_TRIED - 1, one=(60, 20)), [well], 1.0), "too few others to tell"
    assert worse(told(one=(60, 20), two=(OTHERS_TRIED, 1)), [well], 1.0)


def mute(**empty_by_tenant: tuple[int, int]) -> Outlier:
    """A replica that answered some of its attempts without content."""
    outlier = Outlier()
    tried = sum(n for n, _ in empty_by_tenant.values())
    outlier.report(Attempts(tried + OTHERS_TRIED, empty_by_tenant=empty_by_tenant), 0.0)
    return outlier


def test_a_replica_that_answers_with_nothing_what_others_answer_is_ejected():
    sick, well = mute(one=(200, 200), two=(40, 40)), mute(one=(1, 0), two=(1, 0))
    said = "240 of 240 attempts were answered without content in 10 s, 0 of 2 of the same tenants at other replicas"
    assert worse(sick, [well], 1.0) == said
    assert not worse(well, [sick], 1.0)
    assert not worse(mute(one=(30, 6)), [mute(one=(30, 6))], 1.0), "the model has nothing to say"
    assert worse(mute(one=(30, 30)), [well], 1.0), "nobody else uses it"


def test_one_tenant_ejects_no_replica_that_answers_others_by_asking_for_empty_answers():
    well = mute(one=(60, 0), two=(1000, 0))
    assert not worse(mute(one=(60, 60), two=(OTHERS_ANSWERED, 0)), [well], 1.0)
    assert worse(mute(one=(60, 60), two=(2, 1)), [well], 1.0), "another one sees it as well"
