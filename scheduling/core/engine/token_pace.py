"""How long does an answer take for each of its tokens, once the first has come?

Orders by deadline and relegation ask it of requests for which only the last token has a deadline: their prefill has to
be done so much earlier (:func:`scheduling.core.deadline.prefill_due_s`). It is one figure of the pool, as its engines
are now, and ranges from 6 ms on an H100 without load to 0.1 s and more on a slow engine with long steps.

Formula: of the latest :data:`KEPT` answers with :data:`MANY_TOKENS` tokens or more, the time from the first to the
last token by their number less one; :data:`SHARE` of these means are at most as long as what is taken.
Inputs: of answers that ended well: tokens, and the time from the first to the last [s].
Bounds: :data:`LEAST_S` to :data:`MOST_S`; not known before there are :data:`ENOUGH`.
Source: ours; QoServe 3.4 takes a constant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome
from scheduling.core.percentiles import nearest_rank

KEPT = 128
ENOUGH = 16
MANY_TOKENS = 8  # output tokens
SHARE = 0.9
LEAST_S, MOST_S = 0.001, 1.0


class TokenPace:
    """Of one pool."""

    def __init__(self) -> None:
        self._means: deque[float] = deque(maxlen=KEPT)
        self.token_s = 0.0  # 0: not known

    def read(self, records: Iterable[LedgerRecord]) -> None:
        """Requests that ended."""
        for r in records:
            if r.streamed and r.outcome == Outcome.COMPLETED and r.first_token_s:
                self.add(r.output_tokens, r.done_s - r.first_token_s)

    def add(self, output_tokens: int, seconds: float) -> None:
        """An answer of so many tokens took ``seconds`` from the first to the last."""
        if output_tokens < MANY_TOKENS or seconds <= 0:
            return
        self._means.append(seconds / (output_tokens - 1))
        if len(self._means) >= ENOUGH:
            taken = nearest_rank(list(self._means), SHARE)
            self.token_s = min(MOST_S, max(LEAST_S, taken or 0.0))
