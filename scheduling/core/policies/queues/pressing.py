"""Pressing requests of owners go first; owners that have time take turns with others.

Question: does the request of an owner of reserved capacity go before those of others?
Formula: it does once it is pressing: from ``MARGIN_S + BACKLOGS * backlog`` before the last moment at which its prefill
can begin on. That moment is when it is due, or may wait no longer, less what its prefill takes one replica; ``backlog``
is what the prompts of all owners that wait here take the pool. All of an entitlement's requests are pressing while
those that wait take more than :data:`CROWDED` of its queue, since its next ones would be refused because of them. So
they always are where a tier lets none wait beyond the concurrency, and so is a request without a deadline. Until then a
request is in one order with others'.
Inputs: deadlines, prompt tokens, limits of queues, the measured speed of replicas and how many are ready.
Cost: O(log n) a request on top of the order's; O(n) when replicas prove faster or slower than was believed. Where many
become pressing at once, a round moves :data:`MAX_MOVES`, the most pressing first.
Who starves: nobody that the order does not starve. Owners are in time either way.
Source: ours. Least slack first, for those only to whom capacity is reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from math import inf

from scheduling.core.policies.contracts import QueuePart, RequestQueue, Shares, counts_service, parts_of, shares_of
from scheduling.core.policies.queues.bands import BAND_OF, BANDS
from scheduling.core.policies.rounds import Round
from scheduling.core.types import PREFILL_PER_S, PoolView, QueuedRequest, ServiceClass

MARGIN_S = 2.0
BACKLOGS = 2.0
CROWDED = 0.5
MAX_MOVES = 512  # in one round: each is taken out of one order and put into another
STEADY = 1.1  # a measurement that differs by no more than this factor changes nothing
RESERVED, OTHERS = BAND_OF[ServiceClass.GUARANTEED], BAND_OF[ServiceClass.ELASTIC]

_Begin = tuple[float, str]  # the last moment at which a request's prefill can begin [s], and its id


class _Owner:
    """An entitlement whose requests wait."""

    __slots__ = ("fills", "patient", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.fills = 0.0  # the part of its queue that is taken
        self.patient: dict[str, None] = {}  # ids of those that have time, in order of arrival; none once it is crowded


class PressingQueue:
    """A :class:`scheduling.core.policies.contracts.RequestQueue` of two in the same order: owners' pressing requests,
    and all others with a baseline. ``due_s``: when a request's prefill has to be done [s]; ``inf`` without a deadline.
    """

    def __init__(self, pressing: RequestQueue, others: RequestQueue, due_s: Callable[[QueuedRequest], float]) -> None:
        self._pressing = pressing
        self._others = others
        self._due_s = due_s
        self._owned: dict[str, QueuedRequest] = {}  # owners' requests, by id
        self._tokens = 0  # of their prompts
        self._owners: dict[str, _Owner] = {}  # by entitlement
        self._patient: dict[str, _Begin] = {}  # of those among the others, by id
        self._begins: list[_Begin] = []  # a heap; an entry is alive while it is the one in ``_patient``
        self._last = ""  # the id selected last, if it had time left
        self._round: Round | None = None  # it was asked in last
        self._moved = 0  # in it
        self._speed = PREFILL_PER_S  # of one replica, by which the heap was made [prompt tokens/s]
        self._pace_s = self._order_pace_s = 0.0  # likewise of answers, and what the order goes by now [s/token]

    def __len__(self) -> int:
        return len(self._pressing) + len(self._others)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return chain(self._pressing, self._others)

    def parts(self, now_s: float) -> Iterator[QueuePart]:
        for band, queue in ((RESERVED, self._pressing), (OTHERS, self._others)):
            yield QueuePart(f"{BANDS[band]} band", "band", len(queue))
            yield from parts_of(queue, BANDS[band], now_s)

    def explain(self, request: QueuedRequest) -> str:
        if BAND_OF[request.service_class] != RESERVED:
            return f"{BANDS[OTHERS]} band, {self._others.explain(request)}"
        if request.id in self._patient or request.id == self._last:
            return f"{BANDS[OTHERS]} band while it has time, {self._others.explain(request)}"
        return f"{BANDS[RESERVED]} band, {self._pressing.explain(request)}"

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self.discard(request.id)
        if request.id == self._last:
            self._last = ""
        if BAND_OF[request.service_class] != RESERVED:
            self._others.push(request, now_s)
            return
        owner = self._count(request)
        crowded, begin_s = owner.fills > CROWDED, self._begin_s(request)
        if crowded:
            self._hasten(owner)
        if crowded or begin_s - now_s <= MARGIN_S or request.prefilled or request.generated:
            self._pressing.push(request, now_s)
            return
        entry = self._patient[request.id] = begin_s, request.id
        owner.patient[request.id] = None
        heappush(self._begins, entry)
        if len(self._begins) > 2 * len(self._patient) + 64:
            self._begins = list(self._patient.values())
            heapify(self._begins)
        self._others.push(request, now_s)

    def discard(self, request_id: str) -> bool:
        self._forget(request_id)
        return self._pressing.discard(request_id) or self._others.discard(request_id)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        if round_ is not self._round:
            self._round, self._moved = round_, 0
        if self._patient:
            self._look(round_.view, now_s)
        chosen = self._pressing.select(round_, now_s)
        if chosen is None and not round_.pressing:
            chosen = self._others.select(round_, now_s)
        if chosen is not None:
            self._last = chosen.id if chosen.id in self._patient else ""
            self._forget(chosen.id)
        return chosen

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        both = (self._pressing, self._others)
        return any(counts_service(q) and q.settle(request_id, input_tokens, output_tokens) for q in both)

    def shares(self, service_class: ServiceClass) -> Iterator[Shares]:
        for queue in (self._pressing, self._others):
            yield from shares_of(queue, service_class)

    def _begin_s(self, request: QueuedRequest) -> float:
        due_s = self._due_s(request)
        if due_s == inf:
            return -inf
        if request.expires_s is not None:
            due_s = min(due_s, request.expires_s)
        return due_s - request.input_tokens / self._speed

    def _look(self, view: PoolView, now_s: float) -> None:
        speed = view.prefill_per_s(PREFILL_PER_S)
        if _differs(speed, self._speed) or _differs(self._order_pace_s, self._pace_s):
            self._speed, self._pace_s = speed, self._order_pace_s
            self._patient = {
                name: entry if entry[0] == -inf else (self._begin_s(self._owned[name]), name)
                for name, entry in self._patient.items()
            }
            self._begins = list(self._patient.values())
            heapify(self._begins)
        self._order_pace_s = view.token_s  # it sees it when it is asked, after this
        ready = sum([backend.ready for backend in view.backends.values()])
        ahead_s = MARGIN_S + BACKLOGS * self._tokens / (speed * max(1, ready))
        while self._begins and self._begins[0][0] - now_s <= ahead_s and self._moved < MAX_MOVES:
            entry = heappop(self._begins)
            if self._patient.get(entry[1]) is entry:
                self._move(entry[1], now_s)
                self._moved += 1

    def _hasten(self, owner: _Owner) -> None:
        """None of them has time from now on."""
        for name in owner.patient:
            entry = self._patient[name] = -inf, name
            heappush(self._begins, entry)
        owner.patient.clear()

    def _move(self, request_id: str, now_s: float) -> None:
        request = self._owned[request_id]
        del self._patient[request_id]
        self._owners[request.entitlement].patient.pop(request_id, None)
        self._others.discard(request_id)
        self._pressing.push(request, now_s)

    def _count(self, request: QueuedRequest) -> _Owner:
        self._owned[request.id] = request
        self._tokens += request.input_tokens - request.prefilled
        owner = self._owners.setdefault(request.entitlement, _Owner())
        owner.waiting += 1
        owner.fills += request.fills
        return owner

    def _forget(self, request_id: str) -> None:
        request = self._owned.pop(request_id, None)
        if request is None:
            return
        self._tokens -= request.input_tokens - request.prefilled
        owner = self._owners[request.entitlement]
        owner.waiting -= 1
        owner.fills -= request.fills
        if self._patient.pop(request_id, None) is not None:
            owner.patient.pop(request_id, None)
        if not owner.waiting:
            del self._owners[request.entitlement]


def _differs(measured: float, known: float) -> bool:
    return not known / STEADY <= measured <= known * STEADY
