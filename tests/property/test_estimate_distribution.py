"""Distributions of output lengths: laws that hold for any samples."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.estimate.distribution import BINS, as_samples, distribution
from scheduling.core.policies.gittins_index import CostDistribution

SAMPLES = st.lists(
    st.tuples(
        st.integers(1, 8192).map(float), st.booleans(), st.floats(0.001, 10.0, allow_nan=False, allow_infinity=False)
    ),
    min_size=1,
    max_size=120,
)


@given(SAMPLES)
def test_a_distribution_is_one_and_in_order_and_small(samples: list[tuple[float, bool, float]]) -> None:
    found = distribution(samples, "x", 1.0)
    assert math.isclose(sum(found.probabilities), 1.0, abs_tol=1e-9)
    assert all(p > 0 for p in found.probabilities)
    assert all(b > a for a, b in zip(found.lengths, found.lengths[1:], strict=False))
    assert len(found.lengths) <= BINS + 1
    CostDistribution(found.lengths, found.probabilities)  # what ordering makes of it


@given(SAMPLES)
def test_the_mean_of_answers_that_were_not_cut_is_kept(samples: list[tuple[float, bool, float]]) -> None:
    whole = [(length, False, weight) for length, _, weight in samples]
    mean = sum(length * weight for length, _, weight in whole) / sum(weight for _, _, weight in whole)
    assert math.isclose(distribution(whole, "x", 1.0).mean, mean, rel_tol=1e-6)


@given(SAMPLES)
def test_cut_answers_never_make_it_shorter(samples: list[tuple[float, bool, float]]) -> None:
    whole = [(length, False, weight) for length, _, weight in samples]
    assert distribution(samples, "x", 1.0).mean >= distribution(whole, "x", 1.0).mean - 1e-6


@given(SAMPLES, st.integers(1, 9000))
def test_a_bound_is_never_exceeded_and_nothing_below_it_changes(
    samples: list[tuple[float, bool, float]], bound: int
) -> None:
    found = distribution(samples, "x", 1.0)
    cut = found.truncated(bound)
    assert cut.lengths[-1] <= bound
    assert math.isclose(sum(cut.probabilities), 1.0, abs_tol=1e-9)
    assert cut.mean <= found.mean + 1e-9
    below = [v for v in found.lengths if v < bound]
    assert list(cut.lengths[: len(below)]) == below


@given(SAMPLES, st.floats(0.0, 1.0))
def test_a_quantile_covers_its_share(samples: list[tuple[float, bool, float]], q: float) -> None:
    found = distribution(samples, "x", 1.0)
    limit = found.quantile(q)
    covered = sum(p for v, p in zip(found.lengths, found.probabilities, strict=True) if v <= limit)
    assert covered >= q - 1e-6


@given(SAMPLES)
def test_a_distribution_as_samples_is_itself(samples: list[tuple[float, bool, float]]) -> None:
    found = distribution(samples, "x", 1.0)
    again = distribution(as_samples(found, 3.0), "x", 1.0, bins=10_000)
    assert math.isclose(again.mean, found.mean, rel_tol=1e-9)
