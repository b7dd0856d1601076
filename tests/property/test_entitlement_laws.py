"""What holds of weight, debt and burst whatever was used and wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.admission.entitlement import (
    TICK_S,
    Baseline,
    Coefficients,
    Usage,
    next_burst,
    next_debt,
    service_gap,
    tick,
    weight,
)
from scheduling.core.types import ServiceClass

COEFFICIENTS = Coefficients()
amounts = st.floats(0, 1e6)
gaps = st.floats(-1, 1)
debts = st.floats(-1, 1)
bursts = st.floats(0, 1e3)
ratios = st.floats(0, 1e3)
classes = st.sampled_from(list(ServiceClass))


@given(st.floats(1e-3, 1e6), amounts, amounts)
def test_a_gap_is_bounded_and_never_owed_to_one_that_got_what_it_wanted(
    promised: float, allocated: float, wanted: float
) -> None:
    gap = service_gap(promised, allocated, wanted)
    assert -1 <= gap <= 1
    if wanted <= allocated:
        assert gap <= 0
    if allocated > promised:
        assert gap < 0


@given(st.floats(1e-3, 1e6), amounts, amounts, amounts)
def test_a_gap_grows_with_demand_and_falls_with_what_is_given(
    promised: float, allocated: float, wanted: float, more: float
) -> None:
    gap = service_gap(promised, allocated, wanted)
    assert service_gap(promised, allocated, wanted + more) >= gap
    assert service_gap(promised, allocated + more, max(wanted, allocated + more)) <= max(gap, 0.0)


@given(classes, ratios, debts, bursts, st.floats(1e-3, 1))
def test_weight_is_positive_and_moves_the_way_each_factor_says(
    service_class: ServiceClass, ratio: float, debt: float, burst: float, step: float
) -> None:
    here = weight(service_class, ratio, debt, burst, COEFFICIENTS)
    assert here > 0
    assert weight(service_class, ratio, debt + step, burst, COEFFICIENTS) > here
    assert weight(service_class, ratio, debt, burst + step, COEFFICIENTS) < here
    assert weight(service_class, ratio + step, debt, burst, COEFFICIENTS) < here


@given(debts, st.lists(gaps, max_size=50))
def test_debt_stays_within_the_gaps_that_made_it(debt: float, seen: list[float]) -> None:
    bounds = [debt, *seen]
    for gap in seen:
        debt = next_debt(debt, gap, COEFFICIENTS)
        assert min(bounds) - 1e-9 <= debt <= max(bounds) + 1e-9


@given(debts, gaps, bursts, bursts, st.integers(1, 20))
def test_one_late_tick_counts_as_those_it_stands_for(
    debt: float, gap: float, burst: float, excess: float, ticks: int
) -> None:
    late = (next_debt(debt, gap, COEFFICIENTS, ticks), next_burst(burst, excess, COEFFICIENTS, ticks))
    for _ in range(ticks):
        debt, burst = next_debt(debt, gap, COEFFICIENTS), next_burst(burst, excess, COEFFICIENTS)
    assert abs(late[0] - debt) < 1e-9
    assert abs(late[1] - burst) < 1e-6


@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=40))
def test_an_idle_entitlement_comes_back_to_its_plain_weight(history: list[tuple[float, float]]) -> None:
    promised = {"a": Baseline(ServiceClass.ELASTIC, 2.0, 100.0, 0.0, 4.0)}
    plain = tick(promised, {}, {}, COEFFICIENTS)["a"].weight
    standings = tick(promised, {}, {}, COEFFICIENTS)
    for used, wanted in history:
        usage = {"a": Usage(tokens_per_s=used, wanted_tokens_per_s=wanted)}
        standings = tick(promised, usage, standings, COEFFICIENTS)
    standings = tick(promised, {}, standings, COEFFICIENTS, elapsed_s=120 * TICK_S)
    assert abs(standings["a"].weight / plain - 1) < 1e-6
