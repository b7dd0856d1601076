"""How long clients wait that do not say so, by when they left.

An HTTP client has a fixed time limit: whose answer has not begun by then leaves, and mostly sends its request again. So
clients that left at nearly one age, while nobody is known to have waited longer, have a limit; people who close a page
leave at any age and have none.
"""

from __future__ import annotations

from collections import deque

DEPARTURES = 8  # that have to agree
AGREE_SHARE, AGREE_S = 0.05, 0.1  # so far they may lie apart, of the longest
RECENT_S = 120.0  # within which they happened
OUTLIVED_S = 600.0  # for so long a client that waited longer shows that there is no such limit


class ClientTimeout:
    """The time limit of one group of clients, such as those with the same key. Times are seconds on one clock."""

    __slots__ = ("_left", "_outlived_at_s", "_outlived_s")

    def __init__(self) -> None:
        self._left: deque[tuple[float, float]] = deque(maxlen=DEPARTURES)  # when, at which age
        self._outlived_s = 0.0  # the age at which a client was still there
        self._outlived_at_s = -OUTLIVED_S

    def left(self, age_s: float, now_s: float) -> None:
        """A client left at this age of its request, before anything of its answer came."""
        self._left.append((now_s, age_s))

    def waited(self, age_s: float, now_s: float) -> None:
        """A client was still waiting at this age of its request."""
        if age_s >= self._outlived_s or now_s - self._outlived_at_s >= OUTLIVED_S:
            self._outlived_s, self._outlived_at_s = age_s, now_s

    def limit_s(self, now_s: float) -> float | None:
        """After how long these clients leave; None: not known, or they have no fixed limit."""
        left = self._left
        if len(left) < DEPARTURES or now_s - left[0][0] > RECENT_S:
            return None
        longest = max(age_s for _, age_s in left)
        apart_s = AGREE_SHARE * longest + AGREE_S
        if longest - min(age_s for _, age_s in left) > apart_s:
            return None
        if self._outlived_s > longest + apart_s and now_s - self._outlived_at_s < OUTLIVED_S:
            return None
        return longest
