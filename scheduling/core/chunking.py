"""How many prompt tokens may join the next step?

Dynamic chunking (QoServe 3.3, algorithm 1): the largest prefill whose predicted step, times a margin, ends before the
first decoding sequence's next token is due. Large chunks use the GPU well, small ones keep tokens flowing; slack that
sequences have gathered buys large ones.

A token that comes late whatever the step takes saves nothing by a small chunk, and costs everybody throughput: such
sequences do not count (ours; the paper does not say). Beyond capacity sooner or later all of them are late, and with
the least chunk for their sake an engine serves a fraction of what it could. A sequence that has caught up counts again.

Slack is kept without touching every sequence: all of one pace advance by one token per step, so the difference of two
deadlines of one pace never changes. Sequence ``i`` that has ``n_i`` tokens at step ``j`` must have its next one by
``start_i + pace * n_i``, and at step ``s`` by ``(start_i + pace * (n_i - j)) + pace * s``: the part in brackets is
fixed, and one sorted list per pace gives the smallest that is not below a bound.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from math import inf

from scheduling.core.step_time import StepTime

MARGIN = 1.2  # QoServe's artifact: predictions may be 20 % short
MOST = 2500  # tokens; throughput saturates there (QoServe 4.1.4)
LEAST = 128  # tokens; a token that is due at once must not stop all prefill


def prefill_budget(
    planner: StepTime,
    decodes: int,
    kv_dec: float,
    context: float,
    slack_from: Callable[[float], float],
    *,
    margin: float = MARGIN,
    most: int = MOST,
    least: int = LEAST,
) -> int:
    """Prompt tokens for the next step, between ``least`` and ``most``; fewer than ``most`` only where that saves a
    token from being late.

    ``decodes`` sequences with ``kv_dec`` tokens of context run along, ``context`` tokens of the prompt are cached.
    ``slack_from(seconds)`` is the least time until a token is due that is not below ``seconds``; inf: there is none.
    """
    slack_s = slack_from(planner.step(least, decodes, kv_dec, least * (context + least / 2)))
    if slack_s == inf:
        return most
    return max(least, planner.max_prefill(decodes, kv_dec, context, slack_s, margin, most))


def next_token_due_s(due_s: float, pace_s: float, generated: int) -> float:
    """When the next token of a decoding sequence is due that has ``generated`` of them [s], its first one by ``due_s``,
    whenever that came (QoServe eq. 2); inf without a pace."""
    return inf if pace_s == inf else due_s + pace_s * generated


class DecodeSlack:
    """The time until tokens of decoding sequences are due."""

    def __init__(self) -> None:
        self._paces: dict[float, list[tuple[float, int]]] = {}  # fixed part and sequence, sorted
        self._alive: dict[int, tuple[float, float]] = {}  # sequence -> (pace, fixed part)

    def join(self, sequence: int, next_due_s: float, pace_s: float, step: int) -> None:
        """A sequence decodes from ``step`` on; the token made there is due at ``next_due_s``, each next one ``pace_s``
        [s] later; inf: never. One that is there already is replaced."""
        self.leave(sequence)
        if next_due_s == inf or pace_s == inf:
            return
        fixed = next_due_s - pace_s * step
        self._alive[sequence] = (pace_s, fixed)
        insort(self._paces.setdefault(pace_s, []), (fixed, sequence))

    def leave(self, sequence: int) -> None:
        """The sequence has ended or was preempted."""
        pace_and_due = self._alive.pop(sequence, None)
        if pace_and_due is None:
            return
        pace, fixed = pace_and_due
        rows = self._paces[pace]
        del rows[bisect_left(rows, (fixed, sequence))]
        if not rows:
            del self._paces[pace]

    def slack_s(self, step: int, now_s: float, from_s: float = -inf) -> float:
        """Seconds until the first token of ``step`` is due, of those that are due in ``from_s`` or later: negative when
        one is late, inf when there is none."""
        least = inf
        for pace, rows in self._paces.items():
            paced_s = pace * step
            at = bisect_left(rows, (now_s + from_s - paced_s, -1))
            if at < len(rows):
                least = min(least, rows[at][0] + paced_s)
        return least - now_s
