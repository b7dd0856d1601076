"""Hybrid of earliest deadline and shortest remaining work.

Question: which waiting request goes next?
Formula: ``P = arrival + TTFT + alpha * prefill_left`` (interactive, eq. 4),
``P = arrival + TTLT - pace_s * E[output] + alpha * (prefill_left + decode_left)`` (not interactive, eq. 5), smallest
first. The paper's eq. 5 has no ``pace_s``; its relegation has: with 0 the two judge by different times.
Inputs: deadlines [s]; prompt tokens left; ``decode_left``: output left [tokens], taken as mean + 2 sigma of the
predicted lengths, at most the bound; as the mean where only that is known.
Cost: O(log n) per decision; what waits is ordered anew when alpha changes, which is when little waits.
Who starves: long requests without a deadline, under lasting overload; relegation keeps that explicit.
Source: QoServe 3.4; alpha 8 ms/token, 1 ms/token at low load (3.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

from scheduling.core.deadline import PACE_S, due_by_deadline_s, prefill_due_s
from scheduling.core.policies.contracts import Key, RequestQueue
from scheduling.core.policies.parameters import at_least, parameter
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.queues.paired import PairedQueue
from scheduling.core.policies.registry import ordering
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest


def work_left(request: QueuedRequest) -> float:
    """What eq. 4 and 5 weigh [tokens]: prompt left, and for non-interactive requests the output left."""
    prefill = request.input_tokens - request.prefilled
    if request.ttft_deadline_s is not None:
        return float(prefill)
    return prefill + max(0.0, _cautious_output(request) - request.generated)


def _cautious_output(request: QueuedRequest) -> float:
    """Mean + 2 sigma [tokens] of the request's output (QoServe 3.4), at most its bound."""
    if not request.output_lengths:
        return request.output_tokens
    return min(float(request.output_bound), _mean_plus_two_sigma(request.output_lengths, request.output_probabilities))


@lru_cache(maxsize=4096)  # a request is ranked several times, and prompts of one family share their distribution
def _mean_plus_two_sigma(lengths: tuple[float, ...], probabilities: tuple[float, ...]) -> float:
    mean = sum(length * p for length, p in zip(lengths, probabilities, strict=True))
    return mean + 2.0 * sqrt(sum(p * (length - mean) ** 2 for length, p in zip(lengths, probabilities, strict=True)))


@ordering("hybrid")
@dataclass(frozen=True, slots=True)
class Hybrid:
    """Deadline plus weighted remaining work."""

    alpha_ms: float = parameter(
        8.0, "How much later a request is put for each token of work left, under load.", "ms/token", at_least(0)
    )
    alpha_low_ms: float = parameter(
        1.0, "The same while little waits: at most alpha_ms; equal to it, load has no effect.", "ms/token", at_least(0)
    )
    busy_tokens: float = parameter(
        20_000.0, "Waiting work from which on the pool counts as loaded.", "tokens", at_least(0)
    )
    pace_s: float = parameter(
        PACE_S,
        "Time that an output token is expected to take where only the last one has a deadline.",
        "s/token",
        at_least(0),
    )

    def __post_init__(self) -> None:
        if self.alpha_low_ms > self.alpha_ms:
            raise ValueError(f"alpha_low_ms must be at most alpha_ms, {self.alpha_ms:g}, not {self.alpha_low_ms:g}")

    def queue(self) -> RequestQueue:
        if self.alpha_low_ms == self.alpha_ms:
            return KeyedQueue(self.key, self.describe)
        return _AdaptiveQueue(self)

    def key(self, request: QueuedRequest) -> Key:
        return (self.priority(request, self.alpha_ms, self.pace_s),)

    def low_key(self, request: QueuedRequest) -> Key:
        return (self.priority(request, self.alpha_low_ms, self.pace_s),)

    @staticmethod
    def priority(request: QueuedRequest, alpha_ms: float, pace_s: float) -> float:
        """Eq. 4 and 5 [s]."""
        first = request.ttft_deadline_s
        if first is not None:
            return first + alpha_ms / 1000.0 * (request.input_tokens - request.prefilled)
        return prefill_due_s(request, pace_s) + alpha_ms / 1000.0 * work_left(request)

    def due_s(self, request: QueuedRequest) -> float:
        return due_by_deadline_s(request, self.pace_s, self.alpha_ms / 1000.0 * work_left(request))

    def describe(self, request: QueuedRequest) -> str:
        slack = prefill_due_s(request, self.pace_s) - request.arrival_s
        return f"deadline {slack:.2f} s after arrival + {self.alpha_ms:g} ms x {work_left(request):.0f} tokens left"

    def describe_low(self, request: QueuedRequest) -> str:
        slack = prefill_due_s(request, self.pace_s) - request.arrival_s
        return f"deadline {slack:.2f} s after arrival + {self.alpha_low_ms:g} ms x {work_left(request):.0f} tokens left"


class _AdaptiveQueue(PairedQueue[KeyedQueue]):
    """Both orders; the work that waits says which one is asked."""

    def __init__(self, policy: Hybrid) -> None:
        super().__init__(
            KeyedQueue(policy.low_key, policy.describe_low),
            KeyedQueue(policy.key, policy.describe),
        )
        self._limit = policy.busy_tokens
        self._work = 0.0
        self._work_of: dict[str, float] = {}

    def push(self, request: QueuedRequest, now_s: float) -> None:
        super().push(request, now_s)
        work = work_left(request)
        self._work_of[request.id] = work
        self._work += work
        self.turn(self._work >= self._limit)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        self.turn(self._work >= self._limit)
        return super().select(round_, now_s)

    def goes_before(self, request: QueuedRequest, round_: Round) -> bool:
        """A :class:`scheduling.core.policies.contracts.Contest`."""
        self.turn(self._work + work_left(request) >= self._limit)
        return super().goes_before(request, round_)

    def _forget(self, request_id: str) -> None:
        self._work -= self._work_of.pop(request_id)
        super()._forget(request_id)
