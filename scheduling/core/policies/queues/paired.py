"""Two orders of the same requests, of which one is asked.

Question: how does a queue change its order while thousands wait, without keeping both up to date all the time?
What comes is put into the order that is asked; the other one gets it when its turn comes. An order changes where little
waits (at the load where it should), so there is little to order then, however much waits at other times.
Cost: O(log n); O(m log n) at a change, of the m requests that came since the last one and still wait.
Source: QoServe 3.6 asks for another order under load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest

Q = TypeVar("Q", bound=KeyedQueue)


class PairedQueue(Generic[Q]):
    """A :class:`scheduling.core.policies.contracts.RequestQueue`; ``calm`` is asked first, ``busy`` from ``turn(True)``
    on."""

    def __init__(self, calm: Q, busy: Q) -> None:
        self._asked = calm
        self._other = busy
        self._behind: dict[str, QueuedRequest] = {}  # what the other one does not hold yet
        self.busy = False

    def __len__(self) -> int:
        return len(self._asked)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._asked)

    def explain(self, request: QueuedRequest) -> str:
        return self._asked.explain(request)

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self.discard(request.id)
        self._asked.push(request, now_s)
        self._behind[request.id] = request

    def discard(self, request_id: str) -> bool:
        if not self._asked.discard(request_id):
            return False
        self._forget(request_id)
        return True

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        request = self._asked.select(round_, now_s)
        if request is not None:
            self._forget(request.id)
        return request

    def peek(self, round_: Round) -> QueuedRequest | None:
        """What ``select`` would return, left in its place."""
        return self._asked.peek(round_)

    def goes_before(self, request: QueuedRequest, round_: Round) -> bool:
        """A :class:`scheduling.core.policies.contracts.Contest`."""
        return self._asked.goes_before(request, round_)

    def turn(self, busy: bool) -> None:
        """Asks the order for this load from now on."""
        if busy is self.busy:
            return
        self.busy = busy
        for request in self._behind.values():
            self._other.push(request, request.arrival_s)
        self._behind.clear()
        self._asked, self._other = self._other, self._asked

    def _forget(self, request_id: str) -> None:
        if self._behind.pop(request_id, None) is None:
            self._other.discard(request_id)
