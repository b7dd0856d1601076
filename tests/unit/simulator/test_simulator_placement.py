"""The evaluation of placement on a trace of growing sessions that share a system prompt."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from scheduling.core.placement.rule import read_points
from scheduling.simulator.placement import CACHE_ORACLE, evaluate, read
from scheduling.simulator.prefix_cache import BlockCache, prefixes_of


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Sessions of up to eight turns, of three blocks more a turn."""
    random, rows, number = Random(7), [], 100
    for _session in range(60):
        ids, at = [], random.randrange(200_000)
        for _ in range(random.randint(2, 8)):
            ids = [*ids, number, number + 1, number + 2]
            number += 3
            rows.append({"timestamp": at // 3000 * 3000, "input_length": 512 * len(ids) - 100, "output_length": 60,
                         "hash_ids": ids})  # fmt: skip
            at += random.randrange(10_000, 30_000)
    path = tmp_path / "trace.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in sorted(rows, key=lambda r: r["timestamp"]))
    return path


def test_placement_by_prefix_finds_nearly_what_one_cache_of_all_would_and_keeps_the_balance(trace: Path) -> None:
    ideal, rows = evaluate(read(trace), replicas=4)
    least, affinity = rows
    assert (least.routing, affinity.routing) == ("least_work", "prefix_affinity")
    assert ideal > 0.5
    assert least.of_ideal < 0.7
    assert affinity.of_ideal > 0.9
    assert affinity.busiest_assigned < 1.3  # of 280 requests only
    assert affinity.ttft_p50_s <= least.ttft_p50_s
    assert affinity.ttft_p99_s <= 1.05 * least.ttft_p99_s


def test_who_is_told_what_small_caches_hold_finds_what_an_index_of_grants_takes_for_cached_and_is_not(
    trace: Path,
) -> None:
    _, (index, told) = evaluate(read(trace), replicas=4, cache_tokens=16 * 512, names=("prefix_affinity", CACHE_ORACLE))
    assert told.hit_rate != index.hit_rate, "caches this small have evicted what the index remembers"
    _, (index, told) = evaluate(read(trace), replicas=4, names=("prefix_affinity", CACHE_ORACLE))
    assert told.hit_rate == pytest.approx(index.hit_rate, rel=0.03), "nothing is evicted, and both know the same"


def test_points_of_block_ids_are_chained() -> None:
    ids = list(range(20))
    (_, one), (_, other) = read_points(prefixes_of(ids, 10_000)), read_points(prefixes_of(ids[:9] + [99] * 20, 14_000))
    assert [name for name, _ in one[:4]] == [name for name, _ in other[:4]]  # after 1, 2, 4 and 8 blocks
    assert not {name for name, _ in one[4:]} & {name for name, _ in other[4:]}
    assert [tokens for _, tokens in one] == [512, 1024, 2048, 4096, 8192, 10_000]


def test_a_cache_finds_the_beginning_only_and_forgets_the_least_recently_used() -> None:
    cache = BlockCache(4)
    assert cache.take([1, 2, 3]) == 0
    assert [cache.cached(ids) for ids in ([1, 2, 3, 4], [1, 9, 3], [2], [9])] == [3, 1, 1, 0]
    assert cache.take([1, 9, 3]) == 1
    assert cache.take([4]) == 0
    assert cache.take([2]) == 0
