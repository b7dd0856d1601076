"""The engine's waiting requests in a policy's order, behind the interface of vLLM's own queue.

Nothing is ever lost to an error of ours: requests are kept apart from their order, and where the policy fails they go
on as they came (:meth:`PolicyOrder.give_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scheduling.core.policies.contracts import RequestQueue
from scheduling.core.policies.rounds import Round
from scheduling.core.types import PoolView, QueuedRequest

EngineRequest = Any  # vllm.v1.request.Request


class PolicyOrder:
    """vLLM's ``RequestQueue`` over one of ours. ``look`` says what policies are told of a request, ``failed`` is told
    of an error; afterwards vLLM's own order holds, in the queue that ``own`` makes."""

    def __init__(
        self,
        queue: RequestQueue,
        look: Callable[[EngineRequest], QueuedRequest],
        own: Callable[[], Any],
        failed: Callable[[str, Exception], None],
        clock: Callable[[], float],
        view: PoolView,
    ) -> None:
        self._queue = queue
        self._look = look
        self._own_queue = own
        self._failed = failed
        self._clock = clock
        self._view = view
        self._requests: dict[str, EngineRequest] = {}
        self._head: EngineRequest | None = None  # selected already, and not yet taken
        self._own: Any = None  # vLLM's queue, once ours has failed
        self._round = Round(view, _everything)
        self.arrived = False  # since somebody looked

    # --- what the plugin asks

    def new_step(self) -> None:
        """Policies may keep what they learned within a step."""
        self._round = Round(self._view, _everything)

    def ordered(self) -> tuple[RequestQueue, Round]:
        """The policy's queue with everything that waits in it."""
        if self._head is not None:
            head, self._head = self._head, None
            self._queue.push(self._look(head), self._clock())
        return self._queue, self._round

    def as_it_is(self) -> tuple[RequestQueue, Round]:
        """The same, for who will not ask: what was selected may be missing."""
        return self._queue, self._round

    def give_up(self) -> None:
        """From now on in vLLM's order."""
        if self._own is None:
            self._own, self._head = self._own_queue(), None
            for request in sorted(self._requests.values(), key=lambda request: request.arrival_time):
                self._own.add_request(request)
            self._requests.clear()

    # --- what vLLM asks

    def add_request(self, request: EngineRequest) -> None:
        self.arrived = True
        self._add(request)

    def prepend_request(self, request: EngineRequest) -> None:
        """One that was preempted or skipped: it stands where the policy says, with what has been done of it."""
        if self._own is not None:
            self._own.prepend_request(request)
        else:
            self._add(request)

    def prepend_requests(self, requests: Iterable[EngineRequest]) -> None:
        if self._own is not None:
            self._own.prepend_requests(requests)
            return
        for request in requests:
            self._add(request)

    def peek_request(self) -> EngineRequest:
        if self._own is None and self._head is None:
            self._select()
        if self._own is not None:
            return self._own.peek_request()
        return self._head

    def pop_request(self) -> EngineRequest:
        request = self.peek_request()
        if self._own is not None:
            return self._own.pop_request()
        del self._requests[request.request_id]
        self._head = None
        return request

    def remove_request(self, request: EngineRequest) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[EngineRequest]) -> None:
        if self._own is not None:
            self._own.remove_requests(requests)
            return
        for request in requests:
            if self._requests.pop(request.request_id, None) is None:
                continue
            if request is self._head:
                self._head = None
                continue
            try:
                self._queue.discard(request.request_id)
            except Exception as error:
                self._fail("order", error)

    def __bool__(self) -> bool:
        return bool(self._requests if self._own is None else self._own)

    def __len__(self) -> int:
        return len(self._requests if self._own is None else self._own)

    def __iter__(self) -> Iterator[EngineRequest]:
        """All of them. In no order that would have to be found by asking the policy for each."""
        return iter(list(self._requests.values() if self._own is None else self._own))

    def _add(self, request: EngineRequest) -> None:
        if self._own is not None:
            self._own.add_request(request)
            return
        self._requests[request.request_id] = request
        try:
            self.ordered()
            self._queue.push(self._look(request), self._clock())
        except Exception as error:
            self._fail("order", error)

    def _select(self) -> None:
        if not self._requests:
            raise IndexError("nothing waits")
        try:
            chosen = self._queue.select(self._round, self._clock())
            if chosen is None:
                raise LookupError(f"the policy chose none of {len(self._requests)} requests that wait")
            self._head = self._requests[chosen.id]
        except Exception as error:
            self._fail("order", error)

    def _fail(self, where: str, error: Exception) -> None:
        self._failed(where, error)
        self.give_up()


def _everything(request: QueuedRequest) -> bool:
    """The engine looks for room after the order has been asked."""
    return True
