"""The Gittins index is exact, and what remains of a job is its distribution given that it has not ended."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.policies.gittins_index import CostDistribution, cost_distribution, service_cost

samples = st.lists(st.integers(1, 2000).map(float), min_size=1, max_size=40)


def empirical(values: list[float]) -> CostDistribution:
    """Every sample counts alike."""
    counts = Counter(values)
    return CostDistribution(tuple(sorted(counts)), tuple(counts[value] / len(values) for value in sorted(counts)))


def brute_force(values: list[float]) -> float:
    """Straight from the definition, over a grid of budgets that holds every value."""
    best = inf
    for budget in {*values, *(v + 0.5 for v in values), *(v - 0.5 for v in values)}:
        done = sum(v <= budget for v in values) / len(values)
        if budget > 0 and done > 0:
            best = min(best, sum(min(v, budget) for v in values) / len(values) / done)
    return best


@given(samples)
def test_index_equals_the_definition(values: list[float]) -> None:
    assert empirical(values).index() == pytest.approx(brute_force(values))


@given(samples, st.integers(0, 2000))
def test_index_after_service_equals_the_index_of_what_remains(values: list[float], age: int) -> None:
    remaining = [v - age for v in values if v > age]
    distribution = empirical(values)
    if not remaining:
        assert distribution.index(age) == inf
        assert distribution.mean_remaining(age) == 0.0
    else:
        assert distribution.index(age) == pytest.approx(brute_force(remaining), rel=1e-6)
        assert distribution.mean_remaining(age) == pytest.approx(sum(remaining) / len(remaining), rel=1e-6)


@given(samples)
def test_index_never_exceeds_the_mean(values: list[float]) -> None:
    distribution = empirical(values)
    assert distribution.index() <= distribution.mean() * (1 + 1e-9)


def test_likely_to_end_soon_goes_before_a_smaller_mean() -> None:
    """SageSched figure 6: the mean misleads where a job is often short and sometimes very long."""
    gamble = CostDistribution((10.0, 1000.0), (0.6, 0.4))
    steady = CostDistribution((100.0,), (1.0,))
    assert gamble.mean() > steady.mean()
    assert gamble.index() < steady.index()


def test_a_gamble_that_was_lost_goes_last() -> None:
    gamble = CostDistribution((10.0, 1000.0), (0.6, 0.4))
    assert gamble.index(age=10.0) == pytest.approx(990.0)


def test_cost_counts_the_kv_a_request_holds_at_every_step() -> None:
    assert service_cost(100, 20) == sum(range(100, 120)) + 20 / 2  # the sum, up to the half step of its integral
    outputs = CostDistribution((10.0, 20.0), (0.5, 0.5))
    assert cost_distribution(100, outputs).values == (1050.0, 2200.0)


@pytest.mark.parametrize(
    ("values", "probabilities"),
    [((), ()), ((1.0, 1.0), (0.5, 0.5)), ((2.0, 1.0), (0.5, 0.5)), ((1.0,), (0.5,)), ((-1.0,), (1.0,)), ((1.0,), ())],
)
def test_what_is_no_distribution_is_refused(values: tuple[float, ...], probabilities: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"distribution|costs|probabilities"):
        CostDistribution(values, probabilities)
