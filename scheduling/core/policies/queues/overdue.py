"""Some turns go to who has waited longest past what could be asked of him, whatever the order inside says.

Question: how is it made sure that nobody waits for ever?
Formula: a request is overdue ``patience_s`` after its deadline (first token's if interactive, else the last's; its
arrival where it has none). At the latest every ``every``-th turn goes to the one that has been overdue longest.
Inputs: deadlines, arrival.
Cost: O(log n) on top of the queue inside.
Who starves: nobody. What arrives after a request's deadline stands behind it here, so once it is overdue it waits for
at most ``2 * every`` turns for each of the finitely many before it, of those turns at which it has room.
Source: the bound that EWSJF 4.1 asks of a scheduler ("starvation freedom"), here without touching the order until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.core.policies.contracts import Key, QueuePart, RequestQueue, Shares, counts_service, parts_of, shares_of
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest, ServiceClass


def asked_for_s(request: QueuedRequest) -> float:
    """When a request has the right to become impatient."""
    if request.ttft_deadline_s is not None:
        return request.ttft_deadline_s
    return request.arrival_s if request.ttlt_deadline_s is None else request.ttlt_deadline_s


class OverdueTurns:
    """A :class:`scheduling.core.policies.contracts.RequestQueue` around another."""

    def __init__(self, inside: RequestQueue, patience_s: float, every: int) -> None:
        self._inside = inside
        self._patience_s = patience_s
        self._every = every
        self._oldest = KeyedQueue(_key, lambda request: "")
        self._turns = 0  # since the oldest was last looked at
        self._why = ("", "")  # request selected last out of order, and the reason

    def __len__(self) -> int:
        return len(self._inside)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._inside)

    def parts(self, now_s: float) -> Iterator[QueuePart]:
        return parts_of(self._inside, "", now_s)

    def explain(self, request: QueuedRequest) -> str:
        return self._why[1] if request.id == self._why[0] else self._inside.explain(request)

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self._inside.push(request, now_s)
        self._oldest.push(request, now_s)

    def discard(self, request_id: str) -> bool:
        self._oldest.discard(request_id)
        return self._inside.discard(request_id)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        self._why = ("", "")
        if self._turns >= self._every - 1:
            self._turns = 0
            oldest = self._oldest.peek(round_)
            if oldest is not None and (over_s := now_s - asked_for_s(oldest)) > self._patience_s:
                self._why = (oldest.id, f"overdue by {over_s:.0f} s: one turn in {self._every} goes to the oldest")
                self.discard(oldest.id)
                return oldest
        request = self._inside.select(round_, now_s)
        if request is not None:
            self._turns += 1
            self._oldest.discard(request.id)
        return request

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        return counts_service(self._inside) and self._inside.settle(request_id, input_tokens, output_tokens)

    def shares(self, service_class: ServiceClass) -> Iterator[Shares]:
        yield from shares_of(self._inside, service_class)


def _key(request: QueuedRequest) -> Key:
    return (asked_for_s(request),)
