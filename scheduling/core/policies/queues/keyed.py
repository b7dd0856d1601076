"""A queue whose order is one flat key per request, fixed when it is pushed.

Question: among thousands of waiting requests, which has the smallest key and may run?

Every entitlement has a lane, a heap of its own; the lanes' heads meet in one small heap. A lane whose entitlement runs
as many requests as it may leaves that heap as a whole, so it neither blocks the others nor costs anything per decision,
and is looked at again once per round (``core/policies/rounds.py``). Push, discard and select are
O(log n). Removal is lazy: an entry is alive while it is the one in ``_items``, and a lane is rebuilt when more than
half of it is dead.

A request for which the replicas have no room is set aside for the rest of the round and the next one is tried, but at
most ``LOOK_PAST`` times a round: the cost stays bounded when many large requests wait for KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from scheduling.core.policies.contracts import Key
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest

LOOK_PAST = 32  # requests without room that one round looks past

Entry = tuple[float | int | str, ...]  # (*key, seq, id): keys of one queue have one length, so ids never meet floats


class _Lane:
    """Waiting requests of one entitlement."""

    __slots__ = ("concurrency", "heap", "live", "parked", "shift", "top", "under")

    def __init__(self, shift: float) -> None:
        self.heap: list[Entry] = []  # unless parked, the first one is alive and is ``top``
        self.live = 0  # requests of this entitlement that wait, those set aside included
        self.top: Entry | None = None  # what this lane shows in the queue's heap of heads
        self.under: list[Entry] = []  # stand among the heads as well, after ``top`` and the least last; some are dead
        self.shift = shift  # by how much its entries go earlier
        self.parked = False  # shows nothing in this round: its entitlement is kept out
        self.concurrency = 0


class KeyedQueue:
    """A :class:`scheduling.core.policies.contracts.RequestQueue` ordered by ``key``, then arrival number, then id.

    ``key`` gives a tuple of floats of constant length; ``describe`` one short line about it.
    """

    def __init__(self, key: Callable[[QueuedRequest], Key], describe: Callable[[QueuedRequest], str]) -> None:
        self._key = key
        self._describe = describe
        self._items: dict[str, tuple[Entry, QueuedRequest]] = {}
        self._lanes: dict[str, _Lane] = {}
        # (place among the lanes, entitlement, entry); alive while the entry is its lane's ``top``
        self._heads: list[tuple[Entry, str, Entry]] = []
        self._parked: dict[str, int] = {}  # entitlements whose lanes are, with their concurrency
        self._aside: list[Entry] = []
        self._round: Round | None = None

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (request for _, request in self._items.values())

    def explain(self, request: QueuedRequest) -> str:
        return self._describe(request)

    def push(self, request: QueuedRequest, now_s: float) -> None:
        if request.id in self._items:
            self.discard(request.id)
        self._put((*self._key(request), request.seq, request.id), request)

    def discard(self, request_id: str) -> bool:
        item = self._items.pop(request_id, None)
        if item is None:
            return False
        entry, request = item
        lane = self._lanes[request.entitlement]
        lane.live -= 1
        if lane.live == 0:
            del self._lanes[request.entitlement]
            self._parked.pop(request.entitlement, None)
        elif lane.top is entry:
            self._show_first(request.entitlement, lane)
        elif len(lane.heap) > 2 * lane.live + 16:
            lane.heap = [entry for entry in lane.heap if self._alive(entry)]
            heapify(lane.heap)
        return True

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        request = self.peek(round_)
        if request is not None:
            heappop(self._heads)  # its own
            self.discard(request.id)
        return request

    def peek(self, round_: Round) -> QueuedRequest | None:
        """What ``select`` would return, left in its place."""
        if round_ is not self._round:
            self._round = round_
            if self._aside or self._parked:
                self._begin(round_)
        heads, lanes, items, fits = self._heads, self._lanes, self._items, round_.fits
        while heads:
            _, entitlement, entry = heads[0]
            lane = lanes.get(entitlement)
            if lane is None or lane.top is not entry:
                heappop(heads)  # an earlier head of this lane
                if lane is not None:
                    lane.under.clear()  # it may have been one of those
                continue
            request = items[entry[-1]][1]  # type: ignore[index]  # the last element is the id
            if fits(request):
                return request
            if round_.keeps_out(entitlement, request.concurrency):
                heappop(heads)
                lane.top, lane.parked = None, True
                lane.under.clear()
                self._parked[entitlement] = lane.concurrency
            elif len(self._aside) < LOOK_PAST:
                heappop(heads)
                self._aside.append(heappop(lane.heap))
                self._show_first(entitlement, lane)
                heads = self._heads  # showing it may have made them anew
            else:
                return None
        return None

    def goes_before(self, request: QueuedRequest, round_: Round) -> bool:
        """A :class:`scheduling.core.policies.contracts.Contest`."""
        first = self.peek(round_)
        if first is None:
            return False
        entry: Entry = (*self._key(request), request.seq, request.id)
        mine = _place(entry, self.shift(request.entitlement))
        return _place(self._items[first.id][0], self.shift(first.entitlement)) < mine

    def shift(self, entitlement: str) -> float:
        """By how much its requests go earlier, in the first component of the key."""
        return 0.0

    def _put(self, entry: Entry, request: QueuedRequest) -> None:
        self._items[request.id] = (entry, request)
        lane = self._lanes.get(request.entitlement)
        if lane is None:
            lane = self._lanes[request.entitlement] = _Lane(self.shift(request.entitlement))
        lane.concurrency = request.concurrency
        if lane.parked:
            self._parked[request.entitlement] = request.concurrency
        lane.live += 1
        self._enter(request.entitlement, lane, entry)

    def _begin(self, round_: Round) -> None:
        """What did not fit in the last round may fit now."""
        for entry in self._aside:
            item = self._items.get(_id(entry))
            if item is not None and item[0] is entry:
                entitlement = item[1].entitlement
                self._enter(entitlement, self._lanes[entitlement], entry)
        self._aside.clear()
        for entitlement in round_.lets_in(self._parked):
            del self._parked[entitlement]
            lane = self._lanes[entitlement]
            lane.parked = False
            self._show_first(entitlement, lane)

    def _alive(self, entry: Entry) -> bool:
        item = self._items.get(_id(entry))
        return item is not None and item[0] is entry

    def _enter(self, entitlement: str, lane: _Lane, entry: Entry) -> None:
        heappush(lane.heap, entry)
        if lane.parked:
            return
        if lane.top is None:
            self._show(entitlement, lane, entry)
        elif entry < lane.top:
            lane.under.append(lane.top)
            self._show(entitlement, lane, entry)

    def _show_first(self, entitlement: str, lane: _Lane) -> None:
        """Shows the lane's first live entry, or nothing when all it has is set aside."""
        heap, under, items = lane.heap, lane.under, self._items
        while heap:
            entry = heap[0]
            item = items.get(_id(entry))
            if item is not None and item[0] is entry:
                while under:
                    if under[-1] is entry:  # it stands there still
                        lane.top = under.pop()
                        return
                    if self._alive(under[-1]):
                        break
                    under.pop()
                self._show(entitlement, lane, entry)
                return
            heappop(heap)
        lane.top = None
        under.clear()

    def _show(self, entitlement: str, lane: _Lane, entry: Entry) -> None:
        lane.top = entry
        heappush(self._heads, (_place(entry, lane.shift), entitlement, entry))
        if len(self._heads) > 2 * len(self._lanes) + 64:
            self._rebuild_heads()

    def _rebuild_heads(self) -> None:
        heads: list[tuple[Entry, str, Entry]] = []
        for name, lane in self._lanes.items():
            lane.under.clear()
            if lane.top is not None:
                heads.append((_place(lane.top, lane.shift), name, lane.top))
        heapify(heads)
        self._heads = heads


def _id(entry: Entry) -> str:
    return entry[-1]  # type: ignore[return-value]  # the last element is the id


def _place(entry: Entry, shift: float) -> Entry:
    """Where an entry stands among those of other lanes."""
    return (entry[0] - shift, *entry[1:]) if shift else entry  # type: ignore[operator]
