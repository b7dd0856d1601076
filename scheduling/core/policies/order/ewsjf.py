"""Effective workload-based shortest job first.

Question: which queue of similar prompts goes next, and who fills up what it leaves?
Formula: ``score = q_index/(b+1) * (w_base + w_urg * wait/C_prefill(b) + w_fair * log(b+1))`` for the oldest request of
each queue, ``b`` its prompt [tokens], ``wait`` [s], ``C_prefill(b) = t0 + a*b`` [s]; largest first. ``w`` is linear in
the queue's mean prompt: ``w_urg(m) = urgency + urgency_slope * m/1000``, ``w_fair`` alike. The best queue is emptied
greedily within one step, then its neighbours fill what room is left (backfill).
Inputs: prompt length, waiting time, and the partition, as learned.
Cost: O(number of queues) per step, O(log n) per request.
Who starves: none: the score of a waiting request grows without bound while those of fresh ones stay what they are.
Source: EWSJF 4.1-4.4, algorithms 1 and 2.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log

from scheduling.core.policies.contracts import Key, QueuePart, RequestQueue
from scheduling.core.policies.parameters import ANY_NUMBER, NO_UNIT, Form, above, at_least, parameter
from scheduling.core.policies.partition import Interval, bubble, parse_partition, place
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest


@ordering("ewsjf")
@dataclass(frozen=True, slots=True)
class Ewsjf:
    """Queues by prompt length, scored by their oldest request."""

    partition: str = parameter(
        "",
        "Prompt lengths that share a queue; a prompt far from all of them gets a queue on demand.",
        "tokens",
        Form("rising intervals that do not touch, such as 32-256,1024-4096, or empty", parse_partition),
    )
    base: float = parameter(1.0, "Weight of every queue, regardless of what waits in it.", NO_UNIT, at_least(0))
    urgency: float = parameter(1.0, "Weight of the time waited, as a multiple of the prefill time.", NO_UNIT, above(0))
    urgency_slope: float = parameter(
        0.0, "What the weight of waiting gains with longer prompts in a queue.", "per 1,000 tokens", ANY_NUMBER
    )
    fairness: float = parameter(0.1, "Weight of the logarithm of the prompt's length.", NO_UNIT, at_least(0))
    fairness_slope: float = parameter(
        0.0, "What the weight of length gains with longer prompts in a queue.", "per 1,000 tokens", ANY_NUMBER
    )
    prefill_t0_ms: float = parameter(15.0, "Time that every prefill takes, however short.", "ms", above(0))
    prefill_us: float = parameter(81.0, "Time that a prefill takes for each prompt token.", "µs/token", at_least(0))
    empty_steps: int = parameter(
        100, "Decisions after which an empty queue made on demand is removed.", "decisions", at_least(0)
    )

    def queue(self) -> RequestQueue:
        return _LengthQueues(self)

    def score(self, index: int, mean: float, length: int, wait_s: float) -> float:
        """Eq. 4 for the oldest request (``length`` tokens, waited ``wait_s``) of the ``index``-th queue (from 1).

        The meta-policy (4.4.1) is linear in the queue's mean prompt; a weight it would make negative counts as its
        smallest useful value, so that waiting always counts and nobody starves.
        """
        urgency = max(self.urgency + self.urgency_slope * mean / 1000.0, 1e-3)
        fairness = max(self.fairness + self.fairness_slope * mean / 1000.0, 0.0)
        prefill_s = self.prefill_t0_ms / 1e3 + self.prefill_us / 1e6 * length
        return index / (length + 1) * (self.base + urgency * wait_s / prefill_s + fairness * log(length + 1))


def _arrival(request: QueuedRequest) -> Key:
    return (request.arrival_s,)


@dataclass(slots=True, eq=False)
class _Queue:
    """One queue of similar prompts."""

    interval: Interval
    is_bubble: bool
    waiting: KeyedQueue
    empty_for: int = 0  # steps


@dataclass(slots=True)
class _LengthQueues:
    """Algorithm 1: score every queue, fill from the best, backfill from its neighbours."""

    policy: Ewsjf
    queues: list[_Queue] = field(init=False)
    _home: dict[str, _Queue] = field(default_factory=dict)
    _round: Round | None = None
    _primary: int = 0
    _why: str = ""

    def __post_init__(self) -> None:
        self.queues = [self._make(interval, False) for interval in parse_partition(self.policy.partition)]

    def _make(self, interval: Interval, is_bubble: bool) -> _Queue:
        return _Queue(interval, is_bubble, KeyedQueue(_arrival, self.explain))

    def __len__(self) -> int:
        return len(self._home)

    def __iter__(self) -> Iterator[QueuedRequest]:
        for queue in self.queues:
            yield from queue.waiting

    def parts(self, now_s: float) -> Iterator[QueuePart]:
        for at, queue in enumerate(self.queues):
            oldest = min(queue.waiting, key=lambda request: (request.arrival_s, request.seq), default=None)
            score = None
            if oldest is not None:
                wait_s = max(0.0, now_s - oldest.arrival_s)
                score = self.policy.score(at + 1, queue.interval.mean, oldest.input_tokens, wait_s)
            interval, kind = queue.interval, "bubble" if queue.is_bubble else "queue"
            yield QueuePart(f"{kind} {at + 1}", kind, len(queue.waiting), interval.low, interval.high, score)

    def push(self, request: QueuedRequest, now_s: float) -> None:
        self.discard(request.id)
        queue = self._queue_for(request.input_tokens)
        queue.empty_for = 0
        queue.waiting.push(request, now_s)
        self._home[request.id] = queue

    def discard(self, request_id: str) -> bool:
        queue = self._home.pop(request_id, None)
        return queue is not None and queue.waiting.discard(request_id)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        if round_ is not self._round:
            self._round = round_
            self._drop_empty_bubbles()
            self._primary = -1
        if self._primary < 0:
            self._primary = self._best(round_, now_s)
            if self._primary < 0:
                return None
        # greedy fill from the primary queue, then its neighbours, nearest first
        for at in sorted(range(len(self.queues)), key=lambda i: (abs(i - self._primary), i)):
            request = self.queues[at].waiting.peek(round_)
            if request is not None:
                self._why = self._explanation(at)
                self.discard(request.id)
                return request
        return None

    def explain(self, request: QueuedRequest) -> str:
        queue = self._home.get(request.id)
        if queue is None:  # it was just selected
            return self._why
        return self._explanation(self.queues.index(queue))

    def _explanation(self, at: int) -> str:
        interval = self.queues[at].interval
        kind = "bubble" if self.queues[at].is_bubble else "queue"
        role = "best score" if at == self._primary else "backfill"
        return f"{kind} {at + 1} of {len(self.queues)} ({interval.low}-{interval.high} tokens), {role}"

    def _best(self, round_: Round, now_s: float) -> int:
        best, best_score = -1, -1.0
        for at, queue in enumerate(self.queues):
            oldest = queue.waiting.peek(round_)
            if oldest is None:
                continue
            wait_s = max(0.0, now_s - oldest.arrival_s)
            score = self.policy.score(at + 1, queue.interval.mean, oldest.input_tokens, wait_s)
            if score > best_score:
                best, best_score = at, score
        return best

    def _queue_for(self, length: int) -> _Queue:
        intervals = [queue.interval for queue in self.queues]
        interval = place(length, intervals)
        if interval is not None:
            return self.queues[intervals.index(interval)]
        created = self._make(bubble(length, intervals), True)
        insort(self.queues, created, key=lambda queue: queue.interval.low)
        return created

    def _drop_empty_bubbles(self) -> None:
        for queue in self.queues:
            queue.empty_for = 0 if len(queue.waiting) else queue.empty_for + 1
        limit = self.policy.empty_steps
        if any(queue.is_bubble and queue.empty_for > limit for queue in self.queues):
            self.queues = [queue for queue in self.queues if not (queue.is_bubble and queue.empty_for > limit)]
