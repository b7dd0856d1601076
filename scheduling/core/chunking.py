"""How many prompt tokens may join the next step?

Dynamic chunking (QoServe 3.3, algorithm 1): the largest prefill whose predicted step, times a margin, ends before the
first decoding sequence's next token is due. Large chunks use the GPU well, small ones keep tokens flowing; slack that
sequences have gathered buys large ones.

Slack is kept without touching every sequence: all of one pace advance by one token per step, so the difference of two
deadlines of one pace never changes. Sequence ``i`` that has ``n_i`` tokens at step ``j`` must have its next one by
``start_i + pace * n_i``, and at step ``s`` by ``(start_i + pace * (n_i - j)) + pace * s``: the part in brackets is
fixed, and one heap per pace gives the smallest.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from scheduling.core.step_time import StepTime

MARGIN = 1.2  # QoServe's artifact: predictions may be 20 % short
MOST = 2500  # tokens; throughput saturates there (QoServe 4.1.4)
LEAST = 128  # tokens; a sequence that is late already must not stop all prefill


def prefill_budget(
    planner: StepTime,
    decodes: int,
    kv_dec: float,
    context: float,
    slack_s: float,
    *,
    margin: float = MARGIN,
    most: int = MOST,
    least: int = LEAST,
) -> int:
    """Prompt tokens for the next step, between ``least`` and ``most``.

    ``decodes`` sequences with ``kv_dec`` tokens of context run along, ``context`` tokens of the prompt are cached,
    ``slack_s`` [s] is left until the first token is due (inf: nothing decodes).
    """
    if slack_s == inf:
        return most
    return max(least, planner.max_prefill(decodes, kv_dec, context, slack_s, margin, most))


def next_token_due_s(due_s: float, first_s: float, pace_s: float, generated: int) -> float:
    """When the next token of a decoding sequence is due that has ``generated`` of them [s]; inf without a pace.

    ``due_s``: of its first token, which came at ``first_s``. One that came late moves the later ones; one that came
    early is slack for them (QoServe eq. 2).
    """
    return inf if pace_s == inf else max(due_s, first_s) + pace_s * generated


class DecodeSlack:
    """The time until the first decoding sequence's next token is due. All operations O(log n)."""

    def __init__(self) -> None:
        self._paces: dict[float, list[tuple[float, int]]] = {}
        self._alive: dict[int, tuple[float, float]] = {}  # sequence -> (pace, fixed part)

    def join(self, sequence: int, next_due_s: float, pace_s: float, step: int) -> None:
        """A sequence decodes from ``step`` on; the token made there is due at ``next_due_s``, each next one ``pace_s``
        [s] later. One that is there already is replaced."""
        fixed = next_due_s - pace_s * step
        self._alive[sequence] = (pace_s, fixed)
        heappush(self._paces.setdefault(pace_s, []), (fixed, sequence))

    def leave(self, sequence: int) -> None:
        """The sequence has ended or was preempted."""
        self._alive.pop(sequence, None)

    def slack_s(self, step: int, now_s: float) -> float:
        """Seconds until the first token of ``step`` is due: negative when one is late, inf when nothing decodes."""
        least = inf
        for pace, heap in self._paces.items():
            while heap and self._alive.get(heap[0][1]) != (pace, heap[0][0]):
                heappop(heap)
            if heap:
                least = min(least, heap[0][0] + pace * step)
        return least - now_s
