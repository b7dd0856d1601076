"""Weight, debt and burst: the values the paper prints (TP-1), and what was decided where it is silent."""

from __future__ import annotations

import pytest

from scheduling.core.admission.entitlement import (
    TICK_S,
    Baseline,
    Coefficients,
    Usage,
    burst_excess,
    factors,
    next_debt,
    read_coefficients,
    service_gap,
    shares_of,
    slo_mean,
    slo_target,
    tick,
    weight,
)
from scheduling.core.types import ServiceClass, Slo, Standing

COEFFICIENTS = Coefficients()
MEAN_S = 15.25  # token pools 5.3: the pool-average SLO of copilot (0.5 s) and synth (30 s)


def elastic(slo_s: float, debt: float = 0.0, burst: float = 0.0) -> float:
    return weight(ServiceClass.ELASTIC, slo_s / MEAN_S, debt, burst, COEFFICIENTS)


def baseline(
    service_class: ServiceClass = ServiceClass.ELASTIC, tokens_per_s: float = 75.0, concurrency: float = 5.0
) -> Baseline:
    return Baseline(service_class, 0.5, tokens_per_s, 0.0, concurrency)


def test_weights_of_the_second_experiment_are_the_papers() -> None:
    assert slo_mean([0.5, 30.0]) == MEAN_S
    assert elastic(0.5) == pytest.approx(93.8, abs=0.06)
    assert elastic(30.0) == pytest.approx(20.3, abs=0.04)
    assert elastic(5.0) == pytest.approx(60, abs=0.5)
    assert elastic(0.5) / elastic(30.0) == pytest.approx(4.6, abs=0.05)


def test_weights_at_peak_debt_are_the_papers() -> None:
    assert elastic(30.0, debt=0.775) == pytest.approx(83.2, abs=0.15)
    assert elastic(0.5, debt=0.607) / elastic(30.0, debt=0.775) == pytest.approx(3.9, abs=0.04)


def test_debt_is_near_zero_fifty_seconds_after_the_papers_peak() -> None:
    debt = 0.775
    for _ in range(round(50 / TICK_S)):
        debt = next_debt(debt, 0.0, COEFFICIENTS)
    assert debt < 0.05


def test_class_weights_are_those_of_table_1() -> None:
    assert [COEFFICIENTS.class_weights[c] for c in ServiceClass] == [1000, 1000, 100, 1, 0.1]


def test_factors_explain_the_weight() -> None:
    found = factors(ServiceClass.ELASTIC, 2.0, 0.5, 1.0, COEFFICIENTS)
    assert (found.service_class, found.slo, found.burst, found.debt) == (100.0, 0.2, 0.5, 3.0)
    assert found.weight == pytest.approx(30.0)
    assert str(found) == "weight 30 = class 100 x SLO 0.2 x burst 0.5 x debt 3"


@pytest.mark.parametrize(
    ("allocated", "wanted", "gap"),
    [
        (0.0, 0.0, 0.0),  # asked for nothing: owed nothing
        (30.0, 30.0, 0.0),  # got all it asked for
        (30.0, 60.0, 0.4),  # asked for 60 of its 75 and got 30
        (30.0, 500.0, 0.6),  # more than the baseline is not owed
        (0.0, 75.0, 1.0),
        (105.0, 105.0, -0.4),  # bursts
        (600.0, 900.0, -1.0),  # and is not credited without bound
    ],
)
def test_gap_counts_only_what_was_wanted_and_not_given(allocated: float, wanted: float, gap: float) -> None:
    assert service_gap(75.0, allocated, wanted) == pytest.approx(gap)


def test_nothing_promised_is_no_gap() -> None:
    assert service_gap(0.0, 10.0, 50.0) == 0.0


def test_excess_sums_what_is_over_in_each_promised_dimension() -> None:
    promised = Baseline(ServiceClass.DEDICATED, 1.0, 100.0, 1000.0, 4.0)
    assert burst_excess(promised, Usage(150.0, 500.0, 8.0)) == pytest.approx(1.5)
    assert burst_excess(Baseline(ServiceClass.SPOT, 1.0, 0.0, 0.0, 4.0), Usage(9e9, 9e9, 2.0)) == 0.0


@pytest.mark.parametrize(
    ("promise", "target"), [(Slo(ttft_s=1.0, tbt_s=0.1), 1.0), (Slo(ttlt_s=600.0), 600.0), (Slo(), None)]
)
def test_slo_target_is_the_first_token_where_it_is_promised(promise: Slo, target: float | None) -> None:
    assert slo_target(promise) == target


def test_a_pools_setting_goes_before_the_mean_over_its_entitlements() -> None:
    assert slo_mean([1.0, None, 3.0]) == 2.0
    assert slo_mean([1.0, 3.0], setting=15.25) == 15.25
    assert slo_mean([None]) == 1.0


def test_tick_measures_in_tokens_where_tokens_are_promised_and_in_sequences_otherwise() -> None:
    usage = Usage(tokens_per_s=37.5, concurrency=5.0, wanted_tokens_per_s=75.0, wanted_concurrency=5.0)
    after = tick({"a": baseline(), "b": baseline(tokens_per_s=0.0)}, {"a": usage, "b": usage}, {}, COEFFICIENTS)
    assert after["a"].debt == pytest.approx(0.3 * 0.5)
    assert after["b"].debt == 0.0


@pytest.mark.parametrize("service_class", [ServiceClass.SPOT, ServiceClass.PREEMPTIBLE])
def test_those_without_a_baseline_carry_no_debt(service_class: ServiceClass) -> None:
    starved = {"a": Usage(wanted_tokens_per_s=75.0)}
    after = tick({"a": baseline(service_class)}, starved, {"a": Standing(1.0, debt=0.9)}, COEFFICIENTS)
    assert after["a"].debt == 0.0


def test_a_newcomer_is_not_privileged_and_one_that_left_is_forgotten() -> None:
    before = {"old": Standing(50.0, debt=0.5), "gone": Standing(50.0, debt=0.7)}
    after = tick({"old": baseline(), "new": baseline()}, {}, before, COEFFICIENTS)
    assert set(after) == {"old", "new"}
    assert after["new"].debt == 0.0
    assert after["old"].debt == pytest.approx(0.35)


def test_weight_that_comes_out_of_a_tick_is_that_of_its_debt_and_burst() -> None:
    usage = {"a": Usage(150.0, 0.0, 5.0, 150.0, 5.0)}
    after = tick({"a": baseline()}, usage, {"a": Standing(1.0, debt=0.2, burst=0.4)}, COEFFICIENTS, slo_mean_s=MEAN_S)
    assert after["a"].debt == pytest.approx(0.7 * 0.2 - 0.3)
    assert after["a"].burst == pytest.approx(0.7 * 0.4 + 0.3)
    assert after["a"].weight == elastic(0.5, after["a"].debt, after["a"].burst)


def test_coefficients_that_are_left_out_keep_the_papers_values() -> None:
    assert read_coefficients({}) == COEFFICIENTS
    read = read_coefficients({"debt": 2, "class_weights": {"spot": 5}})
    assert (read.debt, read.slo) == (2.0, 2.0)
    assert read.class_weights == {**COEFFICIENTS.class_weights, ServiceClass.SPOT: 5.0}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([1], "by name"),
        ({"dept": 1}, "no coefficient 'dept'; there are: slo, burst, debt, gamma_debt, gamma_burst, class_weights"),
        ({"gamma_debt": 1.0}, "gamma_debt must be a number from 0 to 0.999, not 1.0"),
        ({"slo": True}, "slo must be a number"),
        ({"burst": float("nan")}, "burst must be a number"),
        ({"class_weights": {"golden": 1}}, "no service class 'golden'"),
        ({"class_weights": {"spot": 0}}, "class_weights.spot must be a number"),
        ({"class_weights": 3}, "class_weights are by class"),
    ],
)
def test_a_wrong_coefficient_is_refused_with_what_would_be_right(values: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_coefficients(values)


def had(tokens_per_s: float, wanted: float | None = None) -> Usage:
    return Usage(tokens_per_s=tokens_per_s, wanted_tokens_per_s=tokens_per_s if wanted is None else wanted)


def test_a_share_is_what_an_entitlement_had_over_its_part_of_the_class_by_concurrency() -> None:
    small, large = baseline(concurrency=5.0), baseline(concurrency=15.0)
    assert shares_of({"a": small, "b": small}, {"a": had(90.0), "b": had(10.0)}) == {"a": 1.8, "b": 0.2}
    assert shares_of({"a": small, "b": large}, {"a": had(25.0), "b": had(75.0)}) == {"a": 1.0, "b": 1.0}
    assert shares_of({"a": small, "b": small}, {"a": had(90.0), "b": had(0.0)}) == {"a": 1.0}, "who wants nothing"
    assert shares_of({"a": small, "b": small}, {"a": had(90.0), "b": had(0.0, 50.0)}) == {"a": 2.0, "b": 0.0}
    assert shares_of({"a": small}, {"a": had(0.0, 50.0)}) == {}, "nobody had anything"
    other = baseline(ServiceClass.SPOT, concurrency=5.0)
    assert shares_of({"a": small, "b": other}, {"a": had(90.0), "b": had(10.0)}) == {"a": 1.0, "b": 1.0}


def test_a_share_follows_within_ticks_and_is_even_again_for_who_wants_nothing() -> None:
    baselines = {"a": baseline(), "b": baseline()}
    standings: dict[str, Standing] = {}
    for _ in range(12):
        standings = tick(baselines, {"a": had(90.0), "b": had(10.0)}, standings, COEFFICIENTS)
    assert standings["a"].share == pytest.approx(1.8, abs=0.02)
    assert standings["b"].share == pytest.approx(0.2, abs=0.02)
    for _ in range(12):
        standings = tick(baselines, {}, standings, COEFFICIENTS)
    assert standings["a"].share == pytest.approx(1.0, abs=0.02)
