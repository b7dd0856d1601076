"""What ended in the last minute, in bounded memory.

Question: how many requests of each entitlement ended how, and how long did they take, over a sliding window?
Counts are exact. Percentiles come from histograms whose buckets grow by 2 % (DDSketch, Masson et al. 2019), so each is
within 1 % of the exact value whatever the load; memory depends on entitlements and buckets, not on requests.
Pure: the caller hands in the time. One owner, no locks.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.ledger.slo import Kept, left_unjudged, turned_away
from scheduling.core.outcomes import Outcome, Reason

WINDOW_S = 60
PERCENTILES = ((50, "p50"), (95, "p95"), (99, "p99"))
MEASURES = ("ttft_ms", "ttlt_ms", "tbt_ms", "queue_ms")
TTFT, TTLT, TBT, QUEUE = range(4)

_GROWTH = 1.02
_LOG_GROWTH = math.log(_GROWTH)
_MIDDLE = 2 / (1 + _GROWTH)  # of a bucket: the value whose relative error is the same at both ends
_MIN_MS = 0.1  # everything below is one bucket
_MAX_MS = 4 * 3600 * 1000.0  # and everything above
LOST_S = 900  # for which requests that a replica lost are remembered
_OF_REPLICA = frozenset({Reason.BACKEND_ERROR, Reason.BACKEND_LOST, Reason.BACKEND_STALLED, Reason.LEASE_LOST})
# As plain text: members of an enumeration are compared by a call of Python, several times for each request that ends.
_COMPLETED, _REFUSED, _FAILED, _CANCELLED = (
    outcome.value for outcome in (Outcome.COMPLETED, Outcome.REFUSED, Outcome.FAILED, Outcome.CANCELLED)
)
_REPLAYED, _GATEWAY_LOST = Reason.REPLAYED.value, Reason.GATEWAY_LOST.value
_STRIDE = 4096  # histogram keys are measure * _STRIDE + bucket: one dictionary per cell
_REMEMBERED_IDS = 20_000  # a batch written again after a database error is not counted twice

_Who = tuple[str, str, str]  # tenant, tier, entitlement
_Key = TypeVar("_Key", int, str)


def bucket_of(value_ms: float) -> int:
    """The histogram bucket of a duration [ms]; 0 is everything up to 0.1 ms."""
    if value_ms <= _MIN_MS:
        return 0
    return math.ceil(math.log(min(value_ms, _MAX_MS) / _MIN_MS) / _LOG_GROWTH)


def value_of(bucket: int) -> float:
    """The duration [ms] that stands for a bucket, within 1 % of everything in it."""
    if bucket == 0:
        return 0.0
    return _MIN_MS * _GROWTH**bucket * _MIDDLE


def durations_ms(record: LedgerRecord) -> list[tuple[int, float]]:
    """The measures of one ended request, as indices into :data:`MEASURES`; what it did not come to is missing.

    Time to first token and total time count from arrival (QoServe 3.2); time between tokens is the mean over the
    request; the queue's share is what it waited for a slot, also when it gave up.
    """
    durations: list[tuple[int, float]] = []
    first_s, done_s, received_s = record.first_token_s, record.done_s, record.received_s
    if first_s is not None:
        durations.append((TTFT, (first_s - received_s) * 1000))
    if record.outcome == _COMPLETED and record.reason != _REPLAYED:
        durations.append((TTLT, (done_s - received_s) * 1000))
        if first_s is not None and record.output_tokens > 1:
            durations.append((TBT, (done_s - first_s) * 1000 / (record.output_tokens - 1)))
    if (waited_s := record.waited_s) is not None:
        durations.append((QUEUE, waited_s * 1000))
    return durations


@dataclass(slots=True)
class Cell:
    """Sums over some ended requests; cells can be added and taken away."""

    completed: int = 0
    refused: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    slo_met: int = 0
    slo_missed: int = 0
    turned_away: int = 0  # refused although an SLO applied to it
    left: int = 0  # given up by its client before its SLO could be judged
    retries: int = 0  # of those judged and turned away, what their clients had sent before
    retries_kept: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    histogram: dict[int, int] = field(default_factory=dict)

    def merge(self, other: Cell, sign: int = 1) -> None:
        """Adds (``sign`` 1) or takes away (-1) another cell's sums."""
        self.completed += sign * other.completed
        self.refused += sign * other.refused
        self.failed += sign * other.failed
        self.cancelled += sign * other.cancelled
        self.input_tokens += sign * other.input_tokens
        self.output_tokens += sign * other.output_tokens
        self.slo_met += sign * other.slo_met
        self.slo_missed += sign * other.slo_missed
        self.turned_away += sign * other.turned_away
        self.left += sign * other.left
        self.retries += sign * other.retries
        self.retries_kept += sign * other.retries_kept
        _merge_counts(self.refusals, other.refusals, sign)
        _merge_counts(self.histogram, other.histogram, sign)

    @property
    def empty(self) -> bool:
        return not (self.completed or self.refused or self.failed or self.cancelled)

    @property
    def slo(self) -> Kept:
        return Kept(self.slo_met, self.slo_missed, self.turned_away, self.left, self.retries, self.retries_kept)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """``{measure: {p50, p95, p99}}`` [ms], nearest rank; measures without samples are missing."""
        by_measure: dict[int, list[tuple[int, int]]] = {}
        for key in sorted(self.histogram):
            measure, bucket = divmod(key, _STRIDE)
            by_measure.setdefault(measure, []).append((bucket, self.histogram[key]))
        return {MEASURES[measure]: _nearest_rank(buckets) for measure, buckets in by_measure.items()}


def _merge_counts(into: dict[_Key, int], other: dict[_Key, int], sign: int) -> None:
    for key, count in other.items():
        total = into.get(key, 0) + sign * count
        if total:
            into[key] = total
        else:
            del into[key]


def _nearest_rank(buckets: list[tuple[int, int]]) -> dict[str, float]:
    total = sum(count for _, count in buckets)
    ranks = [(math.ceil(total * percent / 100), name) for percent, name in PERCENTILES]
    values: dict[str, float] = {}
    seen = 0
    for bucket, count in buckets:
        seen += count
        while ranks and seen >= ranks[0][0]:
            values[ranks.pop(0)[1]] = round(value_of(bucket), 1)
    return values


def _count(cell: Cell, record: LedgerRecord) -> None:
    """Adds one ended request."""
    outcome = record.outcome
    if outcome == _REFUSED:  # what was refused consumed nothing, whatever was estimated of it
        cell.refused += 1
        cell.refusals[record.reason] = cell.refusals.get(record.reason, 0) + 1
    else:
        cell.input_tokens += record.input_tokens
        cell.output_tokens += record.output_tokens
        if outcome == _COMPLETED:
            cell.completed += 1
        elif outcome == _FAILED:
            cell.failed += 1
        else:
            cell.cancelled += 1
    met = record.slo_met
    if met is not None:
        cell.slo_met += met
        cell.slo_missed += not met
    away = outcome == _REFUSED and turned_away(record)
    cell.turned_away += away
    cell.left += outcome == _CANCELLED and left_unjudged(record)
    if record.client_retry:
        cell.retries += away or met is not None
        cell.retries_kept += bool(met)
    histogram = cell.histogram
    for measure, value_ms in durations_ms(record):
        key = measure * _STRIDE + bucket_of(value_ms)
        histogram[key] = histogram.get(key, 0) + 1


_Lost = tuple[int, _Who, Cell]  # lost with its gateway: in which second it is counted, of whom, and as what


class Window:
    """The last ``WINDOW_S`` seconds of one pool's ended requests."""

    def __init__(self) -> None:
        self.pool = Cell()
        self.tenants: dict[str, Cell] = {}
        self.tiers: dict[str, Cell] = {}
        self.entitlements: dict[str, Cell] = {}
        # second -> (tenant, tier, entitlement) -> what ended in it; seconds in arrival order, mostly ascending
        self._seconds: dict[int, dict[_Who, Cell]] = {}
        self._ids: OrderedDict[str, _Lost | None] = OrderedDict()
        self._in_flight: deque[tuple[float, int, int]] = deque()  # (at, requests in flight, ended before it)
        self._lost: deque[tuple[int, str, str]] = deque(maxlen=_REMEMBERED_IDS)  # (second, backend, tenant)
        self._ended = 0
        self._since_s: float | None = None  # what ended earlier was never seen here

    def add(self, records: Iterable[LedgerRecord], now_s: float) -> int:
        """Counts ended requests; how many, without those that were counted before or ended before the window.

        They are added up first: what a sum costs does not depend on how many requests are in it.
        """
        ids, counted = self._ids, 0
        sums: dict[tuple[int, _Who], Cell] = {}
        for record in records:
            gone = record.reason == _GATEWAY_LOST
            was = ids.get(record.request_id)
            if was is not None and not gone:
                self._take_back(was)
                del ids[record.request_id]
            if record.request_id in ids or record.done_s <= now_s - WINDOW_S:
                continue
            who = (record.tenant, record.tier, record.entitlement)
            # A clock of another machine may run ahead: nothing ends in the future.
            second = math.floor(min(record.done_s, now_s))
            if gone:  # may have to be taken back, by itself
                cell = Cell()
                _count(cell, record)
                self._merge(second, who, cell)
                ids[record.request_id] = (second, who, cell)
            else:
                cell = sums.get((second, who)) or sums.setdefault((second, who), Cell())
                _count(cell, record)
                ids[record.request_id] = None
            counted += 1
            if len(ids) > _REMEMBERED_IDS:
                ids.popitem(last=False)
            if record.outcome == _FAILED and record.reason in _OF_REPLICA and record.backend:
                self._lost.append((second, record.backend, record.tenant))
        for (second, who), cell in sums.items():
            self._merge(second, who, cell)
        self._ended += counted
        return counted

    def _merge(self, second: int, who: _Who, cell: Cell) -> None:
        self._seconds.setdefault(second, {}).setdefault(who, Cell()).merge(cell)
        self._apply(who, cell, 1)
        if self._since_s is None or second < self._since_s:
            self._since_s = second

    def _take_back(self, was: _Lost) -> None:
        """Its gateway was only cut off, and says now how it ended."""
        second, who, cell = was
        self._ended -= 1
        if second in self._seconds:
            self._seconds[second][who].merge(cell, -1)
            self._apply(who, cell, -1)

    def knows_since(self, at_s: float) -> None:
        """All that ended from then on was added."""
        if self._since_s is None or at_s < self._since_s:
            self._since_s = at_s

    def expire(self, now_s: float) -> None:
        """Forgets what ended before the window. Call before reading."""
        if self._since_s is None:
            self._since_s = now_s
        while self._lost and self._lost[0][0] < now_s - LOST_S:
            self._lost.popleft()
        # By the middle of each second, so that the window is 60 s on average.
        for second in [s for s in self._seconds if s + 0.5 <= now_s - WINDOW_S]:
            for who, cell in self._seconds.pop(second).items():
                self._apply(who, cell, -1)
        for cells in (self.tenants, self.tiers, self.entitlements):
            for name in [n for n, cell in cells.items() if cell.empty]:
                del cells[name]

    def lost(self, backend: str, since_s: float) -> dict[str, int]:
        """Requests by tenant that failed because of a replica since a moment, as far as the last quarter of an hour."""
        counts: dict[str, int] = {}
        for second, name, tenant in self._lost:
            if name == backend and second >= since_s:
                counts[tenant] = counts.get(tenant, 0) + 1
        return counts

    def span_s(self, now_s: float) -> float:
        """How much of the window has been watched [s]: a new leader's rates are not those of a quiet pool."""
        since_s = now_s if self._since_s is None else self._since_s
        return min(max(now_s - since_s, 1.0), float(WINDOW_S))

    def arrived(self, in_flight: int, now_s: float) -> tuple[int, float]:
        """Requests that arrived, and over how many seconds, by conservation.

        The ledger knows a request only once it ended, so: arrived = ended + growth of what is in flight. Call once a
        second with the requests now waiting and running.
        """
        log = self._in_flight
        log.append((now_s, in_flight, self._ended))
        while len(log) > 2 and log[0][0] < now_s - WINDOW_S:
            log.popleft()
        then_s, then_in_flight, then_ended = log[0]
        return max(0, self._ended - then_ended + in_flight - then_in_flight), now_s - then_s

    def _apply(self, who: _Who, cell: Cell, sign: int) -> None:
        tenant, tier, entitlement = who
        self.pool.merge(cell, sign)
        self.tenants.setdefault(tenant, Cell()).merge(cell, sign)
        self.tiers.setdefault(tier, Cell()).merge(cell, sign)
        self.entitlements.setdefault(entitlement, Cell()).merge(cell, sign)
