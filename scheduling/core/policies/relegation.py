"""Who is put back because its deadline cannot be met, and who may be interrupted?

Eager relegation (QoServe 3.4): a request that is late, or would be even if it were served at once and alone, gives way
to those that can still be saved. It is never forgotten: relegated requests run whenever nothing else waits. Where the
pool is overloaded, low tiers are relegated before any other: theirs is the backlog of the others as well, so that they
go while there is still something to be saved.

Selective preemption: only a request that is still in prefill may be interrupted, and only if its own deadline holds.
"""

from __future__ import annotations

from enum import Enum

RATE_DECAY = 0.995  # of the moving average of prefill throughput (QoServe's artifact)


class Relegation(Enum):
    SERVE = "serve"
    RELEGATE = "relegate"
    RELEGATE_LOW_FIRST = "relegate low first"  # low tiers that wait go now; it is served, late


def will_miss(due_s: float, now_s: float, tokens_left: float, rate: float) -> bool:
    """Whether ``tokens_left`` prompt tokens at ``rate`` [tokens/s], begun now, end after ``due_s``."""
    return now_s + tokens_left / rate > due_s


def judge(
    due_s: float,
    now_s: float,
    tokens_left: float,
    rate: float,
    *,
    low: bool,
    low_waiting: bool,
    backlog_tokens: float,
) -> Relegation:
    """What becomes of the request that the policy would serve next.

    ``due_s``: when its prefill has to be done; ``low``: it belongs to a tier that is relegated first; ``low_waiting``:
    other such requests wait; ``backlog_tokens``: prompt tokens of the important requests that wait.
    """
    if low:
        late = will_miss(due_s, now_s, tokens_left + backlog_tokens, rate)
        return Relegation.RELEGATE if late else Relegation.SERVE
    if not will_miss(due_s, now_s, tokens_left, rate):
        return Relegation.SERVE
    return Relegation.RELEGATE_LOW_FIRST if low_waiting else Relegation.RELEGATE


def may_interrupt(due_s: float, now_s: float, tokens_left: float, rate: float, pause_s: float) -> bool:
    """Whether a prefill may pause for ``pause_s`` [s] (selective preemption).

    Yes while its deadline still holds afterwards; a request that is late either way has nothing to lose.
    """
    return not will_miss(due_s, now_s + pause_s, tokens_left, rate) or will_miss(due_s, now_s, tokens_left, rate)


def smoothed_rate(rate: float, tokens: int, seconds: float, decay: float = RATE_DECAY) -> float:
    """The moving average of prefill throughput [tokens/s] after a step with ``tokens`` prompt tokens."""
    return decay * rate + (1.0 - decay) * (tokens / seconds)
