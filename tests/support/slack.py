"""How much time decoding sequences have, for tests of ``core/chunking.py``."""

from __future__ import annotations

from collections.abc import Callable
from math import inf


def due_in(*seconds: float) -> Callable[[float], float]:
    """Sequences whose next tokens are due in so many seconds, as ``prefill_budget`` asks for them."""
    return lambda bound: min((each for each in seconds if each >= bound), default=inf)
