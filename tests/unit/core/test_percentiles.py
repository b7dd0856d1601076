"""The two definitions of a percentile: a value that occurred, and one between two that did."""

from __future__ import annotations

from math import isnan

import pytest

from scheduling.core.percentiles import interpolated, nearest_rank


def test_a_measured_percentile_is_a_value_that_occurred() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert [nearest_rank(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50.0, 95.0, 99.0, 100.0]
    assert [nearest_rank([3.0, 1.0, 2.0], share) for share in (0.0, 0.01, 0.5, 0.99)] == [1.0, 1.0, 2.0, 3.0]
    assert nearest_rank([7.0], 0.5) == 7.0


def test_a_percentile_of_a_model_lies_between_neighbours() -> None:
    assert interpolated([4.0, 0.0], 0.25) == pytest.approx(1.0)
    assert interpolated([3.0, 1.0, 2.0], 1.0) == 3.0


def test_without_values_there_is_no_percentile() -> None:
    assert nearest_rank([], 0.5) is None
    assert isnan(interpolated([], 0.5))
