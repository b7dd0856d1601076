"""Whether a replica fails what others do: by the share of its attempts, as gateways report them. Pure.

Outlier ejection as Envoy has it (failure percentage over a sliding window, a minimum volume, an ejection time that
grows with each ejection), with one addition: a replica comes back to one slot, and gets more as it answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from scheduling.state.types import Attempts

WINDOW_S = 10.0
REFUSALS_S = 30.0  # a replica that admits nothing is paused, and so asked rarely
FEWEST = 5  # failures in the window that say anything
SHARE = 0.5  # of its attempts
BACK_FIRST_S = 5.0  # out for at least so long after the first ejection, twice as long after each further one
BACK_LAST_S = 300.0
FORGIVEN_S = 120.0  # of answers without an ejection: the next one is a first one again
GROW_S = 5.0  # without a failure: twice the slots, also where nothing was asked of it


@dataclass(slots=True)
class Outlier:
    """One replica's attempts, what it is offered less than it has, and until when. Seconds of one monotonic clock."""

    why: str = ""  # of the last failure or refusal
    paused_until_s: float = 0.0
    back_from_s: float = 0.0  # not probed before
    _allowed: int | None = None  # slots; None: all
    _grown_s: float = 0.0
    _ejections: int = 0
    _ejected_s: float = 0.0
    _seen: deque[tuple[float, Attempts]] = field(default_factory=deque)

    def report(self, attempts: Attempts, now_s: float) -> str:
        """One gateway's figures. Why it is to be ejected; "" where it is not."""
        seen = self._seen
        seen.append((now_s, attempts))
        while seen and seen[0][0] <= now_s - REFUSALS_S:
            seen.popleft()
        self.why = attempts.why or self.why
        if attempts.failed or attempts.refused:
            self._grown_s = now_s
        elif attempts.succeeded:
            self._grow(now_s)
        recent = [a for at_s, a in seen if at_s > now_s - WINDOW_S]
        failed = sum(a.failed for a in recent)
        tried = max(failed, sum(a.tried for a in recent))  # a stream may have begun before the window
        if failed >= FEWEST and failed >= SHARE * tried:
            return f"{failed} of {tried} attempts failed in {WINDOW_S:.0f} s{self._last}"
        refused, good = sum(a.refused for _, a in seen), sum(a.succeeded for _, a in seen)
        if refused >= FEWEST and not good:
            return f"{refused} attempts in {REFUSALS_S:.0f} s, none admitted{self._last}"
        return ""

    def failed(self, why: str) -> None:
        """A gateway says that an attempt failed, and why, beside the figures of :meth:`report`."""
        self.why = why or self.why

    @property
    def doubt(self) -> str:
        """Why a generation is asked of it, for people."""
        return f"requests failed there{self._last}"

    @property
    def _last(self) -> str:
        """What its last failure was; nothing where no gateway has said."""
        return f" ({self.why})" if self.why else ""

    def moved(self, now_s: float, within_s: float) -> bool:
        """Whether pieces of answers arrived from it lately."""
        return any(a.moved for at_s, a in self._seen if at_s > now_s - within_s)

    def pause(self, pause_s: float, running: int, why: str, now_s: float) -> None:
        """It gets nothing for so long, and then one more than it runs."""
        self.paused_until_s = max(self.paused_until_s, now_s + pause_s)
        self._allowed = running + 1
        self._grown_s = self.paused_until_s
        self.failed(why)

    def ejected(self, now_s: float) -> None:
        """It is out for a while, and comes back to one slot."""
        if now_s - self._ejected_s > BACK_LAST_S + FORGIVEN_S:
            self._ejections = 0
        self.back_from_s = now_s + min(BACK_LAST_S, BACK_FIRST_S * 2.0 ** min(self._ejections, 10))
        self._ejections += 1
        self._ejected_s = now_s
        self._allowed = 1
        self._seen.clear()

    def returned(self, now_s: float) -> None:
        """A probe went well."""
        self._grown_s = now_s

    def offered(self, slots: int, now_s: float) -> int:
        """How many of its slots may be used now."""
        if now_s < self.paused_until_s:
            return 0
        if self._allowed is not None and now_s - self._grown_s >= GROW_S:
            self._grow(now_s)
        if self._allowed is None or self._allowed >= slots:
            self._allowed = None
            return slots
        return self._allowed

    def says(self, now_s: float) -> str:
        """For people: that it is offered less than it has, and why; "" where it is not."""
        if now_s < self.paused_until_s:
            return f"paused for {self.paused_until_s - now_s:.0f} s{self._last}"
        if self._allowed is not None:
            slots = "1 slot" if self._allowed == 1 else f"{self._allowed} slots"
            return f"{slots} for now: it was out, and gets more as it answers"
        return ""

    def _grow(self, now_s: float) -> None:
        self._grown_s = now_s
        if self._allowed is not None and now_s >= self.paused_until_s:
            self._allowed *= 2
