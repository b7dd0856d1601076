"""How long does a prompt take beside its own prefill: on its way into an engine's step, and its first token on the way
back?

A grant has to be made so much earlier that the engine does not run dry (:mod:`scheduling.core.prefill_pace`): its
gateway sends it, the engine's server reads it, the step in progress ends, and an engine that schedules ahead has
decided the next one already. On an H100 with vLLM 0.32 two or three steps of 7 ms passed without a prompt between one
prompt of 2,000 tokens (50 ms) and the next, as long as this was taken to be 2 ms (``docs/results/gpu.md``).

Formula: the time from a grant to the first token is at least ``lag + prompt / rate``, and comes near it where nothing
is in the way. Of the latest :data:`KEPT` streams in each octave of prompt lengths the quickest is taken; the straight
line through these points that has the least squares meets zero tokens at the lag.
Inputs: of streams that ended well at the first attempt: prompt tokens that were computed, and that time [s], both as
their gateway saw them.
Bounds: 0 to :data:`MOST_S`; not known before :data:`OCTAVES` octaves have :data:`ENOUGH` streams each.
Source: ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduling.core.ledger import LedgerRecord
from scheduling.core.outcomes import Outcome

KEPT = 32  # streams of an octave
ENOUGH = 6
OCTAVES = 2
LONGEST = 24  # octaves
MOST_S = 0.04


class EngineLag:
    """Of one pool's engines, in which alike prompts take about as long."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[float, int]]] = {}  # time and length, by octave

    def add(self, prompt_tokens: int, first_s: float) -> None:
        """A stream's first token came ``first_s`` after its grant; ``prompt_tokens`` of it had to be computed."""
        if prompt_tokens < 1 or first_s <= 0:
            return  # its gateway's clock was set
        octave = min(LONGEST, prompt_tokens.bit_length())
        self._seen.setdefault(octave, deque(maxlen=KEPT)).append((first_s, prompt_tokens))

    def read(self, records: Iterable[LedgerRecord]) -> None:
        """Requests that ended."""
        for r in records:
            if r.streamed and r.attempts == 1 and r.outcome == Outcome.COMPLETED and r.granted_s and r.first_token_s:
                self.add(r.input_tokens - r.cached_tokens, r.first_token_s - r.granted_s)

    @property
    def lag_s(self) -> float | None:
        """None: too little was seen."""
        quickest = [min(seen) for seen in self._seen.values() if len(seen) >= ENOUGH]
        if len(quickest) < OCTAVES:
            return None
        mean_s = sum(first_s for first_s, _ in quickest) / len(quickest)
        mean_tokens = sum(tokens for _, tokens in quickest) / len(quickest)
        spread = sum((tokens - mean_tokens) ** 2 for _, tokens in quickest)
        slope = sum((tokens - mean_tokens) * (first_s - mean_s) for first_s, tokens in quickest) / spread
        return min(MOST_S, max(0.0, mean_s - max(0.0, slope) * mean_tokens))
