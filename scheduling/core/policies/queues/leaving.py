"""How fast prompts leave a queue.

Question: how long does what waits take, at the speed at which the pool takes it?
Formula: an exponential average of the prompt tokens selected a second, over times in which something waited all the
time; until then what the ready replicas prefill. So it is what engines do, whatever bounds them: prefill, slots or KV.
Cost: O(1).
Source: ours.
"""

from __future__ import annotations

from math import exp

from scheduling.core.types import PoolView

MEMORY_S = 10.0  # time constant


class LeavingRate:
    """Of one queue. ``per_s``: prompt tokens/s that leave; 0: nothing is known yet."""

    __slots__ = ("_left", "_pending", "_since_s", "per_s")

    def __init__(self) -> None:
        self.per_s = 0.0
        self._since_s = 0.0
        self._left = 0  # prompt tokens selected since then
        self._pending = False  # something waited all the time since then

    def look(self, view: PoolView, now_s: float, speed: float) -> None:
        """To be called once a round. ``speed``: of one replica [prompt tokens/s], which counts until it is measured."""
        if not self.per_s:
            self.per_s = speed * max(1, sum(b.ready for b in view.backends.values()))
            self._since_s = now_s
        passed = now_s - self._since_s
        if passed <= 0:
            return
        if self._pending:
            kept = exp(-passed / MEMORY_S)
            self.per_s = kept * self.per_s + (1 - kept) * self._left / passed
        self._since_s, self._left = now_s, 0

    def selected(self, input_tokens: int, pending: bool) -> None:
        """``input_tokens`` of a request that left, 0: none did; ``pending``: something still waits."""
        self._left += input_tokens
        self._pending = pending
