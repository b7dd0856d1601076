"""How much time decoding sequences leave for a step, for tests of ``core/inside_engine/chunking.py``."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from scheduling.core.inside_engine.chunking import time_left_s


def due_in(*seconds: float) -> Callable[[float, float], float]:
    """Sequences whose next tokens are due in so many seconds, as ``prefill_budget`` asks for them; what is late already
    has lost its promise."""
    return answers(*((each, 1.0, 0) for each in seconds))


def answers(*each: tuple[float, float, int]) -> Callable[[float, float], float]:
    """Sequences: when the next token is due, pace [s], tokens within which it has to catch up."""
    return lambda step_s, alone_s: min((time_left_s(*one, step_s, alone_s) for one in each), default=inf)
