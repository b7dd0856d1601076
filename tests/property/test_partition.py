"""Refine-and-Prune: contiguous, disjoint, covering, bounded; bubbles only in true gaps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.policies.partition import Interval, bubble, place, refine_and_prune, utility

lengths = st.lists(st.integers(1, 8192), min_size=1, max_size=300)


@given(lengths, st.floats(1.1, 8.0), st.integers(1, 32))
def test_every_observed_length_is_in_exactly_one_queue_and_queues_are_bounded(
    observed: list[int], alpha: float, max_queues: int
) -> None:
    queues = refine_and_prune(observed, alpha=alpha, max_queues=max_queues)
    assert 1 <= len(queues) <= max_queues
    assert all(a.high < b.low for a, b in pairwise(queues))
    for length in observed:
        assert sum(queue.low <= length <= queue.high for queue in queues) == 1
    assert sum(queue.count for queue in queues) == len(observed)
    assert all(queue.low <= queue.mean <= queue.high for queue in queues)


@given(lengths, st.integers(1, 10_000))
def test_every_length_has_a_queue_or_a_bubble_between_its_neighbours(observed: list[int], length: int) -> None:
    queues = refine_and_prune(observed)
    found = place(length, queues)
    if found is None:
        made = bubble(length, queues)
        assert made.low <= length <= made.high
        assert not any(queue.low <= made.high and made.low <= queue.high for queue in queues)
        assert place(length, sorted([*queues, made], key=lambda queue: queue.low)) == made
    else:
        assert found.low * 0.9 <= length <= found.high * 1.1


def test_two_separate_groups_become_separate_queues() -> None:
    queues = refine_and_prune([*range(32, 257), *range(1024, 4097, 16)], alpha=3.0)
    assert any(queue.high == 256 for queue in queues)
    assert any(queue.low == 1024 for queue in queues)


def test_a_gap_splits_only_above_alpha_times_the_mean_gap() -> None:
    observed = [*range(0, 400, 10), *range(460, 860, 10)]  # one gap of 70 among gaps of 10, mean 10.9
    split = refine_and_prune(observed, alpha=6.0, coarse=1)
    whole = refine_and_prune(observed, alpha=7.0, coarse=1)
    assert [(queue.low, queue.high) for queue in split] == [(0, 390), (460, 850)]
    assert len(whole) == 1


def test_pruning_merges_the_pair_of_lowest_utility_first() -> None:
    observed = [10] * 50 + [11] * 50 + [500] * 2 + [900] * 2 + [4000] * 40
    queues = refine_and_prune(observed, alpha=1.1, min_width=1, max_queues=4, coarse=5)
    # 500 and 900 are sparse and far apart: keeping them apart is worth least
    assert Interval(500, 900, 4, 700.0) in queues


def test_utility_falls_with_distance_and_rises_with_density() -> None:
    near, far, dense = Interval(0, 9, 10, 5.0), Interval(90, 99, 10, 95.0), Interval(20, 29, 100, 25.0)
    assert utility(near, far) < utility(near, Interval(20, 29, 10, 25.0)) < utility(near, dense)


def test_fifty_thousand_lengths_are_partitioned_into_few_queues() -> None:
    import random

    rng = random.Random(1)
    observed = [rng.randint(32, 256) if rng.random() < 0.8 else rng.randint(1024, 4096) for _ in range(50_000)]
    assert len(refine_and_prune(observed)) <= 32


@pytest.mark.parametrize("bad", [{"alpha": 1.0}, {"max_queues": 0}, {"coarse": 0}])
def test_parameters_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="alpha must be above 1"):
        refine_and_prune([1, 2, 3], **bad)  # type: ignore[arg-type]
