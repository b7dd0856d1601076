"""How many prompt tokens may join the next step?

Dynamic chunking (QoServe 3.3, algorithm 1): the largest prefill whose predicted step, times a margin, ends before the
first decoding sequence's next token is due. Large chunks use the GPU well, small ones keep tokens flowing; slack that
sequences have gathered buys large ones.

An answer that has fallen behind limits steps as long as it can still be in time with its last token, by least chunks
with no other answer beside it: small steps speed it up, and begin fewer answers than end, of which too many are what
makes steps long. One that cannot, or whose first token came late, has lost its promise: small steps save nothing there
and cost everybody throughput, so it does not count until it has caught up (ours; the paper does not say). Beyond
capacity sooner or later there is always such a one, and with the least chunk for its sake an engine serves a fraction
of what it could.

Slack is kept without touching every sequence: all of one pace advance by one token per step, so the difference of two
deadlines of one pace never changes. Sequence ``i`` that has ``n_i`` tokens at step ``j`` must have its next one by
``start_i + pace * n_i``, and at step ``s`` by ``(start_i + pace * (n_i - j)) + pace * s``: the part in brackets is
fixed, and one sorted list per pace gives the smallest that is not below a bound. Those below it are looked at one by
one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from math import ceil, inf

from scheduling.core.engine.step_time import StepTime
from scheduling.core.types import QueuedRequest

MARGIN = 1.2  # QoServe's artifact: predictions may be 20 % short
MOST_TOKENS = 2500  # tokens; throughput saturates there (QoServe 4.1.4)
LEAST_TOKENS = 128  # tokens; a token that is due at once must not stop all prefill


def prefill_budget(
    planner: StepTime,
    decodes: int,
    kv_dec: float,
    context: float,
    time_left: Callable[[float, float], float],
    *,
    margin: float = MARGIN,
    most: int = MOST_TOKENS,
    least: int = LEAST_TOKENS,
) -> int:
    """Prompt tokens for the next step, between ``least`` and ``most``; fewer than ``most`` only where that helps an
    answer to be in time.

    ``decodes`` sequences with ``kv_dec`` tokens of context run along, ``context`` tokens of the prompt are cached.
    ``time_left(step_s, alone_s)`` is the least of what they leave for it (:func:`time_left_s`).
    """
    pp = least * (context + least / 2)
    left_s = time_left(planner.step(least, decodes, kv_dec, pp), planner.step(least, min(1, decodes), 0, pp))
    if left_s == inf:
        return most
    return max(least, planner.max_prefill(decodes, kv_dec, context, left_s, margin, most))


def time_left_s(slack_s: float, pace_s: float, tokens: int, step_s: float, alone_s: float) -> float:
    """How long the next step may take for an answer whose next token is due in ``slack_s``, each later one ``pace_s``
    after it; inf where it does not limit the step.

    ``step_s`` is the shortest there is now. Where that is too long, what counts is that its last token is in time,
    which is ``tokens`` from now at most (0: its promise is lost already): it leaves an equal share of that time for
    each, and does not count where not even steps with no other answer, which take ``alone_s``, would do it in time.
    """
    if slack_s >= step_s:
        return slack_s
    if tokens <= 0:
        return inf
    share_s = pace_s + (slack_s - pace_s) / tokens
    return share_s if share_s >= alone_s else inf


def next_token_due_s(due_s: float, pace_s: float, generated: int) -> float:
    """When the next token of a decoding sequence is due that has ``generated`` of them [s], its first one by ``due_s``,
    whenever that came (QoServe eq. 2); inf without a pace."""
    return inf if pace_s == inf else due_s + pace_s * generated


def tokens_to_catch_up(request: QueuedRequest, first_s: float, generated: int) -> int:
    """Within how many more tokens an answer has to catch up that has ``generated`` of them, the first at ``first_s``:
    up to its bound, or up to the length that its deadline for the last one counts with; 0 where the first one came
    later than it was promised: that promise is broken whatever follows."""
    if request.ttft_deadline_s is None:
        return max(1, ceil(request.output_tokens) - generated)
    return 0 if first_s > request.ttft_deadline_s else max(1, request.output_bound - generated)


class DecodeSlack:
    """The time until tokens of decoding sequences are due."""

    def __init__(self) -> None:
        self._paces: dict[float, list[tuple[float, int]]] = {}  # fixed part and sequence, sorted
        self._alive: dict[int, tuple[float, float, int]] = {}  # sequence -> pace, fixed part, last step (-1: lost)

    def join(self, sequence: int, next_due_s: float, pace_s: float, step: int, tokens: int) -> None:
        """A sequence decodes from ``step`` on; the token made there is due at ``next_due_s``, each next one ``pace_s``
        [s] later; inf: never. ``tokens``: :func:`tokens_to_catch_up`. One that is there already is replaced."""
        self.leave(sequence)
        if next_due_s == inf or pace_s == inf:
            return
        fixed = next_due_s - pace_s * step
        self._alive[sequence] = (pace_s, fixed, step + tokens if tokens > 0 else -1)
        insort(self._paces.setdefault(pace_s, []), (fixed, sequence))

    def leave(self, sequence: int) -> None:
        """The sequence has ended or was preempted."""
        known = self._alive.pop(sequence, None)
        if known is None:
            return
        pace, fixed, _ = known
        rows = self._paces[pace]
        del rows[bisect_left(rows, (fixed, sequence))]
        if not rows:
            del self._paces[pace]

    def slack_s(self, step: int, now_s: float) -> float:
        """Seconds until the first token of ``step`` is due: negative when one is late, inf when there is none."""
        return min((rows[0][0] + pace * step for pace, rows in self._paces.items()), default=inf) - now_s

    def time_left_s(self, step: int, now_s: float, step_s: float, alone_s: float) -> float:
        """The least of what sequences leave for ``step`` (:func:`time_left_s`)."""
        least = inf
        for pace, rows in self._paces.items():
            paced_s = pace * step - now_s
            at = bisect_left(rows, (step_s - paced_s, -1))
            if at < len(rows):
                least = min(least, rows[at][0] + paced_s)
            for fixed, sequence in rows[:at]:
                last = self._alive[sequence][2]
                tokens = 0 if last < 0 else max(1, last - step)
                least = min(least, time_left_s(fixed + paced_s, pace, tokens, step_s, alone_s))
        return least
