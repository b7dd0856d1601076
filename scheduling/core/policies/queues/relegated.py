"""Eager relegation: what cannot be in time gives way to what can, and is not forgotten.

Question: is it still worth while to serve this request before the others?
Formula: due = first token's deadline, or that of the last less ``pace_s`` per expected output token; late when
``now + input / speed`` is after it. A low request is late as soon as the prompts of the important ones that wait
as well (at the rate at which prompts have been leaving) do not end before it is due. Where an important one is late and
low ones wait, these are relegated and it is served; else it is relegated. So is one whose client says that it will have
left by then (:func:`scheduling.core.deadline.client_due_s`). Relegated requests run, in the same order,
when nothing else that waits has room. Of a prompt counts what no replica is believed to have cached.
Inputs: deadlines; input and expected output tokens; where prompts with this beginning ran; the speed of the fastest
replica as it was measured (``prefill_rate`` until it is known); service class (``low_class`` and everything below is
low); the rate at which prompts leave the queue, measured here while requests wait.
Cost: O(1) on top of the policy's for each request looked at; at most 4 are relegated in one round, or 256 where only
those in time may go: one that is late and not relegated would go as one of them.
Who starves: relegated requests, as long as others that can be in time fill the pool; ``max_wait_s`` ends it.
Source: QoServe 3.4; ``prefill_rate`` of its artifact (8,500 tokens/s). Here in front of the replicas: time to wait is
judged by the pool's queue, not by one engine's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from scheduling.core.deadline import PACE_S, client_due_s, prefill_due_s
from scheduling.core.policies.contracts import (
    Maker,
    QueuePart,
    RequestQueue,
    Shares,
    counts_service,
    parts_of,
    shares_of,
)
from scheduling.core.policies.parameters import NO_UNIT, above, at_least, one_of, parameter
from scheduling.core.policies.queues.bands import BAND_OF
from scheduling.core.policies.queues.leaving import LeavingRate
from scheduling.core.policies.registry import modifier
from scheduling.core.policies.relegation import Relegation, judge, will_miss
from scheduling.core.policies.rounds import Round
from scheduling.core.types import PREFILL_PER_S, QueuedRequest, ServiceClass

MAX_PER_STEP = 4
MAX_PER_TIMELY = 256  # in a round of those in time only, which ends with the last
PAUSED_KEPT = 4096  # relegated requests that ran and may come back half done


@modifier("relegate")
@dataclass(frozen=True, slots=True)
class Relegate:
    """Requests that cannot be in time wait for room that no other request needs."""

    layer: ClassVar[int] = 0

    prefill_rate: float = parameter(
        PREFILL_PER_S, "Prefill speed of one replica, used until its own has been measured.", "tokens/s", above(0)
    )
    pace_s: float = parameter(
        PACE_S,
        "Time that an output token is expected to take where only the last one has a deadline, as in the order.",
        "s/token",
        at_least(0),
    )
    low_class: str = parameter(
        "spot",
        "The best service class that is relegated first.",
        NO_UNIT,
        one_of(*(each.value for each in ServiceClass)),
    )

    def around(self, make: Maker, due_s: Callable[[QueuedRequest], float] | None = None) -> Maker:
        """``due_s``: of an order that has a due time of its own."""
        return lambda group: RelegatingQueue(self, make(group), make(group), due_s or self.due_s)

    def due_s(self, request: QueuedRequest) -> float:
        """When its prefill has to be done [s]: the time that orders by deadline go by as well."""
        return prefill_due_s(request, self.pace_s)

    def is_low(self, request: QueuedRequest) -> bool:
        return BAND_OF[request.service_class] >= BAND_OF[ServiceClass(self.low_class)]


class RelegatingQueue:
    """A :class:`scheduling.core.policies.contracts.RequestQueue` of two in the same order: of those in time, and of the
    others.

    Low requests that are relegated all at once are only marked (their wave is over) and moved when their turn comes.
    """

    def __init__(
        self,
        policy: Relegate,
        timely: RequestQueue,
        relegated: RequestQueue,
        due_s: Callable[[QueuedRequest], float],
    ) -> None:
        self._policy = policy
        self._due_s = due_s
        self._timely = timely
        self._relegated = relegated
        self._late: set[str] = set()  # ids in ``relegated``
        self._waiting: dict[str, tuple[QueuedRequest, int]] = {}  # those in ``timely``, with the wave they came in
        self._wave = 0
        self._low_waiting = 0  # of this wave
        self._backlog = 0  # prompt tokens of the important ones in ``timely``
        self._ran: OrderedDict[str, None] = OrderedDict()  # were relegated when they were selected
        self._last = ""  # the id selected last
        self._round: Round | None = None  # it was asked in last
        self._moved = 0  # relegated in it
        self._speed = policy.prefill_rate  # of one replica [prompt tokens/s]
        self._rate = LeavingRate()

    def __len__(self) -> int:
        return len(self._timely) + len(self._relegated)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return chain(self._timely, self._relegated)

    def parts(self, now_s: float) -> Iterator[QueuePart]:
        yield from parts_of(self._timely, "", now_s)
        if len(self._relegated):
            yield QueuePart("relegated", "relegated", len(self._relegated))

    def explain(self, request: QueuedRequest) -> str:
        late = request.id in self._late or (request.id == self._last and request.id in self._ran)
        if late:
            return f"relegated, {self._relegated.explain(request)}"
        return self._timely.explain(request)

    def push(self, request: QueuedRequest, now_s: float) -> None:
        begun = request.prefilled > 0 or request.generated > 0
        if request.id in self._late or (begun and request.id in self._ran):
            self._late.add(request.id)
            self._relegated.push(request, now_s)
            return
        self._ran.pop(request.id, None)
        if request.id in self._waiting:
            self._book_out(request.id)
        self._waiting[request.id] = (request, self._wave)
        if not self._policy.is_low(request):
            self._backlog += request.input_tokens - request.prefilled
        elif not begun:
            self._low_waiting += 1
        self._timely.push(request, now_s)

    def discard(self, request_id: str) -> bool:
        if request_id in self._late:
            self._late.remove(request_id)
            return self._relegated.discard(request_id)
        if request_id not in self._waiting:
            return False
        self._book_out(request_id)
        return self._timely.discard(request_id)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        if round_ is not self._round:
            self._round, self._moved = round_, 0
            self._speed = round_.view.prefill_per_s(self._policy.prefill_rate)
            self._rate.look(round_.view, now_s, self._speed)
        chosen = self._in_time(round_, now_s)
        if chosen is None and self._late and not round_.timely:
            chosen = self._relegated.select(round_, now_s)
            if chosen is not None:
                self._late.remove(chosen.id)
                self._ran[chosen.id] = None
                if len(self._ran) > PAUSED_KEPT:
                    self._ran.popitem(last=False)
        if chosen is not None:
            self._last = chosen.id
        self._rate.selected(0 if chosen is None else chosen.input_tokens, pending=len(self) > 0)
        return chosen

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        both = (self._timely, self._relegated)
        return any(counts_service(q) and q.settle(request_id, input_tokens, output_tokens) for q in both)

    def shares(self, service_class: ServiceClass) -> Iterator[Shares]:
        for queue in (self._timely, self._relegated):
            yield from shares_of(queue, service_class)

    def _in_time(self, round_: Round, now_s: float) -> QueuedRequest | None:
        most = MAX_PER_TIMELY if round_.timely else MAX_PER_STEP
        while self._waiting and not (round_.timely and self._moved >= most):
            request = self._timely.select(round_, now_s)
            if request is None:
                break
            outdated = self._book_out(request.id) < self._wave
            if self._moved >= most or not self._gives_way(request, outdated, round_, now_s):
                return request
            self._moved += 1
            self._late.add(request.id)
            self._relegated.push(request, now_s)
        return None

    def _gives_way(self, request: QueuedRequest, outdated: bool, round_: Round, now_s: float) -> bool:
        if request.prefilled or request.generated:
            return False  # begun already: what it holds would be wasted
        policy = self._policy
        low = policy.is_low(request)
        if low and outdated:
            return True
        tokens = request.input_tokens - round_.cached(request)
        if will_miss(client_due_s(request, round_.view.token_s), now_s, tokens, self._speed):
            return True  # itself, and nobody for its sake: its client would be gone
        verdict = judge(
            self._due_s(request),
            now_s,
            tokens,
            self._speed,
            low=low,
            low_waiting=self._low_waiting > 0,
            # the pool's backlog as so much work of one replica
            backlog_tokens=self._backlog * self._speed / max(self._rate.per_s, 1.0),
        )
        if verdict is Relegation.RELEGATE_LOW_FIRST:
            self._wave += 1
            self._low_waiting = 0
        return verdict is Relegation.RELEGATE

    def _book_out(self, request_id: str) -> int:
        """Takes a request out of the catalog of those in time; the wave it came in."""
        request, came = self._waiting.pop(request_id)
        if not self._policy.is_low(request):
            self._backlog -= request.input_tokens - request.prefilled
        elif came == self._wave and not (request.prefilled or request.generated):
            self._low_waiting -= 1
        return came
