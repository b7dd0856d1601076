"""One round of a step: who may go in it.

A step asks its queue in up to four rounds (``Scheduler.step``): in each, some service classes have a turn, and some
may exceed their concurrency. A queue is handed the :class:`Round` and recognises it by the object, so it may keep what
it learned for as long as it is handed the same one. Nothing of a round outlives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from scheduling.core.types import PoolView, QueuedRequest

Fits = Callable[[QueuedRequest], bool]
Cached = Callable[[QueuedRequest], int]
R = TypeVar("R", bound="Round")


def _nothing_cached(request: QueuedRequest) -> int:
    return 0


def _anything(request: QueuedRequest) -> bool:
    return True


class Round:
    """``fits``: whether a request's entitlement and at least one replica have room for it; within a round it only ever
    turns from true to false. ``has_turn``: whether requests of an entitlement may go in this round at all; None: all
    may. ``may_burst``: whether an entitlement may run more than its concurrency; None: none may. ``view``: the pool as
    the step sees it. ``cached``: how many tokens of a prompt a replica is believed to have computed already.
    ``has_room``: whether a replica has room for a request now; unlike ``fits`` it may be asked of one whose turn it is
    not: nothing is kept for it. ``timely``: none goes that its queue has put back because it cannot be in time.
    ``pressing``: none goes that has time left.
    """

    __slots__ = ("_has_turn", "_may_burst", "_running", "cached", "fits", "has_room", "pressing", "timely", "view")

    def __init__(
        self,
        view: PoolView,
        fits: Fits,
        has_turn: Callable[[str], bool] | None = None,
        *,
        may_burst: Callable[[str], bool] | None = None,
        cached: Cached = _nothing_cached,
        has_room: Fits = _anything,
        timely: bool = False,
        pressing: bool = False,
    ) -> None:
        self.view = view
        self.timely = timely
        self.pressing = pressing
        self.fits = fits
        self.has_room = has_room
        self.cached = cached
        self._has_turn = has_turn
        self._may_burst = may_burst
        self._running = view.running_by_entitlement

    def __deepcopy__(self, memo: dict[int, object]) -> Round:
        """A queue that is copied gets rounds of its own: the one it was asked in last is not copied with it."""
        return self

    def has_turn(self, entitlement: str) -> bool:
        """Whether requests of this entitlement may go in this round."""
        return self._has_turn is None or self._has_turn(entitlement)

    def keeps_out(self, entitlement: str, concurrency: int) -> bool:
        """Whether none of its requests fits: it has no turn, or it runs as many as its ``concurrency`` (0: no limit)
        and may not burst. A queue need not ask for each of them."""
        if self._has_turn is not None and not self._has_turn(entitlement):
            return True
        return self.bursts(entitlement, concurrency) and (self._may_burst is None or not self._may_burst(entitlement))

    def bursts(self, entitlement: str, concurrency: int) -> bool:
        """Whether it runs as many as its ``concurrency``, so that one more exceeds it."""
        return 0 < concurrency <= self._running.get(entitlement, 0)

    def lets_in(self, concurrency: Mapping[str, int]) -> list[str]:
        """Those entitlements, each given with its concurrency, that are not kept out. Asked once a round of all that
        were kept out before: thousands."""
        has_turn, may_burst, running = self._has_turn, self._may_burst, self._running.get
        able = [
            name
            for name, most in concurrency.items()
            if not 0 < most <= running(name, 0) or (may_burst is not None and may_burst(name))
        ]
        return able if has_turn is None else [name for name in able if has_turn(name)]

    def asking(self, fits: Fits) -> Round:
        """The same turns and limits with another answer to what fits: a round of its own."""
        return self._again(Round, fits)

    def counting_misses(self) -> CountingRound:
        """The same, counting what did not fit: a round of its own."""
        return self._again(CountingRound, self.fits)

    def _again(self, kind: type[R], fits: Fits) -> R:
        turns, may_burst, cached = self._has_turn, self._may_burst, self.cached
        timely, pressing = self.timely, self.pressing
        return kind(self.view, fits, turns, may_burst=may_burst, cached=cached, timely=timely, pressing=pressing)


class CountingRound(Round):
    """A round that knows how many requests were asked about in it that did not fit."""

    __slots__ = ("misses",)

    def __init__(
        self,
        view: PoolView,
        fits: Fits,
        has_turn: Callable[[str], bool] | None = None,
        *,
        may_burst: Callable[[str], bool] | None = None,
        cached: Cached = _nothing_cached,
        timely: bool = False,
        pressing: bool = False,
    ) -> None:
        def counted(request: QueuedRequest) -> bool:
            if fits(request):
                return True
            self.misses += 1
            return False

        super().__init__(view, counted, has_turn, may_burst=may_burst, cached=cached, timely=timely, pressing=pressing)
        self.misses = 0
