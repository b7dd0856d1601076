"""How many tokens did an engine generate of an answer that came to nobody?

An answer that is not streamed shows nothing before it is complete. A client that leaves just before has used what it
would have used by staying; charged for its prompt alone, it would have its bucket, quota and budget back.

Formula: ``answers * elapsed / token_s``, at most ``bound``; ``token_s`` is the time that answers took by the tokens
that each of them had, over the latest of them (a sum of both that forgets :data:`FORGOTTEN` with each answer).
Inputs: of answers that ended well, and of one that did not: tokens, answers at once, time from the grant [s].
Bounds: 0 to ``bound``; before there was an answer, :data:`UNKNOWN_S` a token.
Source: ours.
"""

from __future__ import annotations

FORGOTTEN = 0.02  # so the latest fifty count
UNKNOWN_S = 0.02  # fifty tokens a second, as one answer of many has them on most engines


class AnswerPace:
    """Of one pool. The prompt's time is in it, as it is in that of an answer that is judged by it."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, answers: int, seconds: float) -> None:
        """So many tokens in so many answers at once took ``seconds``."""
        if tokens <= 0 or seconds <= 0:
            return
        self._tokens = self._tokens * (1 - FORGOTTEN) + tokens / max(1, answers)
        self._seconds = self._seconds * (1 - FORGOTTEN) + seconds

    @property
    def token_s(self) -> float:
        """For each token of an answer."""
        return self._seconds / self._tokens if self._tokens else UNKNOWN_S

    def tokens(self, answers: int, seconds: float, bound: int) -> int:
        """What ``answers`` at once had after so long, each of them at this pace."""
        return min(bound, max(0, round(max(1, answers) * seconds / self.token_s)))
