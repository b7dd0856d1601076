"""Queues by prompt length: Refine-and-Prune and bubbles (EWSJF 4.2, 4.3, appendix D).

A partition is a list of :class:`Interval`, contiguous in order, disjoint, bounded in number. Between two neighbours
there may be a gap in which no prompt was seen; a prompt that falls into it far from both gets a bubble of its own.
Together intervals, their margins and bubbles cover every length, so each prompt has exactly one queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise

MARGIN = 0.10  # a prompt within 10 % of a neighbour's edge belongs to it (appendix D)
BUBBLE_WIDTH = 256  # [tokens] of a queue made on demand
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Interval:
    """Prompts of ``low <= length <= high`` tokens, with what was seen of them."""

    low: int
    high: int
    count: int
    mean: float

    @property
    def density(self) -> float:
        """Requests per token of width."""
        return self.count / (self.high - self.low + 1)

    def merge(self, other: Interval) -> Interval:
        count = self.count + other.count
        mean = (self.mean * self.count + other.mean * other.count) / count
        return Interval(min(self.low, other.low), max(self.high, other.high), count, mean)


def refine_and_prune(
    lengths: Iterable[int], *, alpha: float = 3.0, max_queues: int = 32, min_width: int = 16, coarse: int = 3
) -> tuple[Interval, ...]:
    """Partitions observed prompt lengths [tokens] into queues. O(N log N).

    :param alpha: a gap splits where it exceeds this many times the mean gap of its cluster (eq. 2); above 1.
    :param max_queues: most queues kept; adjacent ones of lowest utility merge (eq. 3) until they fit.
    :param min_width: a cluster narrower than this [tokens] is not split further.
    :raises ValueError: no lengths, or parameters out of range.

    Gaps are taken between *distinct* lengths: the paper calls D a set, and with every repetition counted the mean gap
    of a long history falls below one token, so that every gap would be significant.
    """
    if alpha <= 1.0 or max_queues < 1 or coarse < 1:
        raise ValueError("alpha must be above 1, max_queues and coarse at least 1")
    counts: dict[int, int] = {}
    for length in lengths:
        counts[length] = counts.get(length, 0) + 1
    if not counts:
        raise ValueError("a partition needs at least one observed length")
    distinct = sorted(counts)
    weight = [0, *accumulate(counts[value] for value in distinct)]
    moment = [0, *accumulate(value * counts[value] for value in distinct)]
    pieces: list[tuple[int, int]] = []
    for start, end in _kmeans(distinct, weight, moment, coarse):
        _refine(distinct, start, end, alpha, min_width, pieces)
    pieces.sort()
    intervals = [
        Interval(
            distinct[start],
            distinct[end - 1],
            weight[end] - weight[start],
            (moment[end] - moment[start]) / (weight[end] - weight[start]),
        )
        for start, end in pieces
    ]
    return tuple(_prune(intervals, max_queues))


def utility(left: Interval, right: Interval) -> float:
    """Scheduling utility of keeping two neighbours apart (EWSJF eq. 3)."""
    return (left.density + right.density) / (abs(right.mean - left.mean) + EPSILON)


def place(length: int, intervals: Sequence[Interval]) -> Interval | None:
    """The interval a prompt belongs to, or None where it falls into a true gap (appendix D, lines 3-7).

    Below the first and above the last interval there is only one neighbour to compare with.
    """
    right = bisect_right(intervals, length, key=lambda interval: interval.low)
    if right > 0 and length <= intervals[right - 1].high * (1.0 + MARGIN):
        return intervals[right - 1]
    if right < len(intervals) and length >= intervals[right].low * (1.0 - MARGIN):
        return intervals[right]
    return None


def bubble(length: int, intervals: Sequence[Interval], width: int = BUBBLE_WIDTH) -> Interval:
    """A temporary interval around a prompt in a gap, kept between its neighbours (appendix D, lines 9-13)."""
    right = bisect_right(intervals, length, key=lambda interval: interval.low)
    floor = intervals[right - 1].high + 1 if right > 0 else 0
    ceiling = intervals[right].low - 1 if right < len(intervals) else length + width
    span = min(width, ceiling - floor + 1)
    return Interval(max(floor, length - span // 2), min(ceiling, length + span // 2), 0, float(length))


def _kmeans(
    distinct: Sequence[int], weight: Sequence[int], moment: Sequence[int], k: int, rounds: int = 50
) -> list[tuple[int, int]]:
    """Lloyd's k-means on sorted values, as index ranges: clusters of numbers on a line are contiguous.

    Deterministic: starts at the quantiles. One round costs O(k log N) thanks to the prefix sums.
    """
    k = min(k, len(distinct))
    total = weight[-1]
    cuts = [0]
    for part in range(1, k):
        cut = bisect_right(weight, total * part / k) - 1
        cuts.append(min(max(cut, cuts[-1] + 1), len(distinct) - (k - part)))
    cuts.append(len(distinct))
    for _ in range(rounds):
        centres = [(moment[end] - moment[start]) / (weight[end] - weight[start]) for start, end in pairwise(cuts)]
        moved = [0]
        for left, right in pairwise(centres):
            cut = bisect_right(distinct, (left + right) / 2.0)
            moved.append(min(max(cut, moved[-1] + 1), len(distinct) - (k - len(moved))))
        moved.append(len(distinct))
        if moved == cuts:
            break
        cuts = moved
    return list(pairwise(cuts))


def _refine(
    distinct: Sequence[int], start: int, end: int, alpha: float, min_width: int, pieces: list[tuple[int, int]]
) -> None:
    """Splits ``distinct[start:end]`` at its significant gaps until there are none. Appends index ranges."""
    stack = [(start, end)]
    while stack:
        start, end = stack.pop()
        width = distinct[end - 1] - distinct[start]
        if end - start < 2 or width < min_width:
            pieces.append((start, end))
            continue
        mean_gap = width / (end - start - 1)
        cuts = [i + 1 for i in range(start, end - 1) if distinct[i + 1] - distinct[i] > alpha * mean_gap]
        if not cuts:
            pieces.append((start, end))
            continue
        edges = [start, *cuts, end]
        stack.extend(pairwise(edges))


def _prune(intervals: list[Interval], max_queues: int) -> list[Interval]:
    """Merges the adjacent pair of lowest utility until at most ``max_queues`` are left. O(k log k)."""
    alive: list[Interval | None] = list(intervals)
    following = [*range(1, len(intervals)), -1]
    preceding = list(range(-1, len(intervals) - 1))
    heap = [(utility(a, b), i, i + 1, a, b) for i, (a, b) in enumerate(pairwise(intervals))]
    heapify(heap)
    left_over = len(intervals)
    while left_over > max_queues:
        _, i, j, a, b = heappop(heap)
        if alive[i] is not a or alive[j] is not b:
            continue  # one of them has merged since
        merged = a.merge(b)
        alive[i], alive[j] = merged, None
        left_over -= 1
        after, before = following[j], preceding[i]
        following[i] = after
        if after >= 0:
            preceding[after] = i
            neighbour = alive[after]
            assert neighbour is not None
            heappush(heap, (utility(merged, neighbour), i, after, merged, neighbour))
        if before >= 0:
            neighbour = alive[before]
            assert neighbour is not None
            heappush(heap, (utility(neighbour, merged), before, i, neighbour, merged))
    return [interval for interval in alive if interval is not None]


def parse_partition(text: str) -> tuple[Interval, ...]:
    """A partition from a policy's parameter: "32-256,1024-4096", bounds inclusive [tokens]. Empty text: no interval.

    Raises ``ValueError`` naming the part that is wrong.
    """
    intervals: list[Interval] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        low, dash, high = part.partition("-")
        if not dash or not low.strip().isdigit() or not high.strip().isdigit():
            raise ValueError(f"partition: {part!r} is not LOW-HIGH in whole tokens")
        interval = Interval(int(low), int(high), 0, (int(low) + int(high)) / 2)
        if interval.low > interval.high or (intervals and interval.low <= intervals[-1].high):
            raise ValueError(f"partition: {part!r} must rise and not touch the one before")
        intervals.append(interval)
    return tuple(intervals)
