"""Clients order their own requests, and nobody else's.

Question: an entitlement's turn has come: which of its requests takes it?

The queue inside decides whose turn it is. The request of that entitlement with the smallest ``(client_priority, key)``
takes the turn (the key is its arrival, unless another is given), and the one that owned it gets the place of the one
that went: an exchange, so a client's priorities permute its own turns but never win it one more, nor push one of its
requests before another tenant's.
O(log n) per call; where no request has a priority it is the queue inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from scheduling.core.contracts import Fits, Key
from scheduling.core.queues.keyed import KeyedQueue
from scheduling.core.types import PoolView, QueuedRequest

_Wish = tuple[int, Key, int, str]


class ClientTurns:
    """A :class:`scheduling.core.contracts.RequestQueue` around a :class:`KeyedQueue`."""

    def __init__(
        self, turns: KeyedQueue, key: Callable[[QueuedRequest], Key] = lambda request: (request.arrival_s,)
    ) -> None:
        self._turns = turns
        self._key = key
        self._wishes: dict[str, list[_Wish]] = {}  # entitlement -> heap; an entry is alive while its request waits
        self._waiting: dict[str, tuple[QueuedRequest, _Wish]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._turns)

    def explain(self, request: QueuedRequest) -> str:
        return self._turns.explain(request)

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self.discard(request.id)
        wish = (request.client_priority, self._key(request), request.seq, request.id)
        self._waiting[request.id] = (request, wish)
        heappush(self._wishes.setdefault(request.entitlement, []), wish)
        self._turns.push(request, now_s)

    def discard(self, request_id: str) -> bool:
        self._forget(request_id)
        return self._turns.discard(request_id)

    def peek(self, view: PoolView, fits: Fits) -> QueuedRequest | None:
        """Whose turn it is, left in its place; ``select`` may give the turn to another of the entitlement."""
        return self._turns.peek(view, fits)

    def select(self, view: PoolView, now_s: float, fits: Fits) -> QueuedRequest | None:
        while True:
            owner = self._turns.peek(view, fits)
            if owner is None:
                return None
            first = self._waiting[self._wishes[owner.entitlement][0][-1]][0]
            if first.id != owner.id and fits(first):
                self._turns.exchange(first.id, owner)
                self._forget(first.id)
                return first
            # Asking for ``first`` may have made the scheduler keep room for it, which ``owner`` must then not take.
            if first.id == owner.id or fits(owner):
                self.discard(owner.id)
                return owner

    def _alive(self, wish: _Wish) -> bool:
        item = self._waiting.get(wish[-1])
        return item is not None and item[1] is wish

    def _forget(self, request_id: str) -> None:
        """Takes a request out of the wishes; the first of a heap is always alive, an empty heap is not kept."""
        item = self._waiting.pop(request_id, None)
        if item is None:
            return
        entitlement = item[0].entitlement
        heap = self._wishes[entitlement]
        if len(heap) > 2 * self._turns.waiting_of(entitlement) + 16:
            heap[:] = [wish for wish in heap if self._alive(wish)]
            heapify(heap)
        while heap and not self._alive(heap[0]):
            heappop(heap)
        if not heap:
            del self._wishes[entitlement]
