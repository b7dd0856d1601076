"""How many function calls of Python some work takes: a cost that no clock and no neighbour changes.

Comprehensions count up to Python 3.11 and no more from 3.12 on, so a bound that 3.11 keeps, later versions keep.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def calls_each(work: Callable[[T], object], things: Sequence[T]) -> float:
    """Calls of Python functions by ``work``, the mean over the things; it is called once more, uncounted, before."""
    work(things[0])
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for thing in things:
            work(thing)
    finally:
        sys.setprofile(before)
    return calls / len(things) - 1  # ``work`` itself
