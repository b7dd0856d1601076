"""How fast is a replica beside the others of its pool, and how long does it take from one token of an answer to the
next?

Formula: the engine's own sum of the times between tokens / their number, a moving average with a time constant of
:data:`MEMORY_S` of time in which it made tokens; known from :data:`ENOUGH` of them on. A replica whose tokens take more
than 1 / :data:`ALIKE` as long as those of the fastest is slower than it by as much, until they take less than 1 /
:data:`ALIKE_AGAIN`: with long prompts, replicas of one kind differ by nearly as much for minutes, by what they happen
to compute. Of one that was measured to be slower under the same load (``manage.py calibrate``) less is enough,
:data:`MEASURED_ALIKE`, until :data:`MEASURED_ALIKE_AGAIN`. A step takes longer the more is in it, and who is slower
gets less, so the difference found is rather too small than too large. What is said moves by :data:`MOVES` at least,
since scripts are told of it. Of a replica that made no tokens for :data:`FORGOTTEN_S`, away or not, nothing is known:
it may be well again, and gets work that shows it; and what it was then is no measure for others.
Inputs: the engine's counters once a second.
Source: ours. Measured: ``docs/results/placement.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Final

from scheduling.core.types import FULL_SPEED

MEMORY_S: Final = 60.0
ENOUGH: Final = 96.0  # tokens
ALIKE, ALIKE_AGAIN = 0.45, 0.6
MEASURED_ALIKE, MEASURED_ALIKE_AGAIN = 0.85, 0.95  # where it was measured to be slower under the same load
SLOWEST: Final = 50  # per mille of the fastest that one is taken for at least
MOVES: Final = 0.05
FORGOTTEN_S: Final = 300.0
LONGEST_S: Final = 60.0  # between two tokens: more is no measurement


@dataclass(slots=True)
class TokenTime:
    """Of one replica. Fed about once a second with what its engine has counted."""

    mean_s: float = 0.0  # between two tokens; 0: not known
    speed: int = 0  # per mille of the fastest of its pool, as :func:`compare` last said; 0: not known
    token_us: int = 0  # time between two tokens of one that is slower than others, likewise; 0: it is not, or not known
    _at_s: float = 0.0
    _seconds: float = 0.0
    _tokens: float = -1.0  # nothing was counted yet
    _moved_s: float = 0.0  # when it last made tokens
    _sum_s: float = 0.0  # both fade
    _number: float = 0.0

    def seen(self, at_s: float, seconds: float | None, tokens: float) -> None:
        """Takes the engine's counters: the times between tokens added up (None: it does not count them), and their
        number."""
        before_s, made = self._seconds, tokens - self._tokens
        elapsed_s, first = at_s - self._at_s, self._tokens < 0
        if seconds is None or tokens < self._tokens or seconds < before_s:
            self.forget()
        if seconds is None:
            return
        self._at_s, self._seconds, self._tokens = at_s, seconds, tokens
        if first or not 0 < seconds - before_s <= LONGEST_S * made:
            return
        kept = exp(-min(elapsed_s, LONGEST_S) / MEMORY_S)
        self._moved_s = at_s
        self._sum_s = kept * self._sum_s + seconds - before_s
        self._number = kept * self._number + made
        if self._number >= ENOUGH or self.mean_s:
            self.mean_s = self._sum_s / self._number

    def age(self, at_s: float) -> None:
        """Forgets what is too old, also where nobody could ask."""
        if at_s - self._moved_s >= FORGOTTEN_S:
            self.mean_s = self._sum_s = self._number = 0.0

    def forget(self) -> None:
        """Another process stands there."""
        self.mean_s = self._at_s = self._seconds = self._moved_s = self._sum_s = self._number = 0.0
        self._tokens, self.speed, self.token_us = -1.0, 0, 0

    def beside(self, fastest_s: float, measured: int = FULL_SPEED) -> None:
        """Says ``speed`` and ``token_us`` anew. ``fastest_s``: of the fastest; 0: there is nothing to compare with.
        ``measured``: its speed as it was measured under the same load as others', per mille."""
        if not (fastest_s and self.mean_s):
            self.speed = self.token_us = 0
            return
        share = fastest_s / self.mean_s
        if measured > MEASURED_ALIKE * FULL_SPEED:
            limit = ALIKE_AGAIN if self.token_us else ALIKE
        else:
            limit = MEASURED_ALIKE_AGAIN if self.token_us else MEASURED_ALIKE
        if share >= limit:
            self.speed, self.token_us = FULL_SPEED, 0
            return
        speed, token_us = max(SLOWEST, round(FULL_SPEED * share)), round(1e6 * self.mean_s)
        if _moved(speed, self.speed) or _moved(token_us, self.token_us):
            self.speed, self.token_us = speed, token_us


def _moved(to: int, before: int) -> bool:
    return abs(to - before) > MOVES * before


def compare(at_s: float, replicas: Sequence[tuple[TokenTime, int]]) -> None:
    """Has each of a pool's replicas say how fast it is beside the others; with each goes how fast it was measured to
    be. Of one alone nothing is known."""
    for replica, _ in replicas:
        replica.age(at_s)
    known = [replica.mean_s for replica, _ in replicas if replica.mean_s]
    fastest_s = min(known) if len(known) > 1 else 0.0
    for replica, measured in replicas:
        replica.beside(fastest_s, measured)
