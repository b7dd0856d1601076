"""How long does a prompt take beside its own prefill: on its way into an engine's step, and its first token on the way
back?

A grant has to be made so much earlier that the engine does not run dry (:mod:`scheduling.core.capacity.prefill_pace`):
its gateway sends it, the engine's server reads it, the step in progress ends, and an engine that schedules ahead has
decided the next one already. On an H100 with vLLM 0.32 two or three steps of 7 ms passed without a prompt between one
prompt of 2,000 tokens (50 ms) and the next, as long as this was taken to be 2 ms (``docs/results/gpu.md``).

Formula: the time from a grant to the first token is at least ``lag + step + prompt / rate``, and comes near it where
nothing is in the way. Of the latest :data:`KEPT` streams in each octave of prompt lengths up to :data:`MOST_TOKENS` the
quickest is taken; the straight line through these points that has the least squares of relative errors meets zero
tokens at lag and step. A step, which any
prompt takes however short, is the shortest mean time between two tokens of the latest :data:`STEPS` streams.
In overload nothing finds its engine free and the line lies too high: a lower one counts at once, a higher one by and by
(:data:`SLOW` streams).
Inputs: of streams that ended well at the first attempt: prompt tokens that were computed, that time and the mean time
between tokens [s], as their gateway saw them.
Bounds: 0 to :data:`MOST_S`; not known before :data:`OCTAVES` octaves have :data:`ENOUGH` streams each, one of them
within :data:`NEAR_S`.
Source: ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome

KEPT = 32  # streams of an octave
ENOUGH = 6
OCTAVES = 2
MOST_TOKENS = 4_095  # of a prompt: attention takes a time that grows with the square, which tells in longer ones
NEAR_S = 0.1  # within which the quickest stream had its first token: a line from far away says nothing of so little
OLD = 512  # streams: an octave in which none of the latest is says what was
STEPS = 128
MANY_TOKENS = 8  # output tokens, of which the mean time between two is that of steps
MOST_S = 0.04
SLOW = 2_000.0


class EngineLag:
    """Of one pool's engines, in which alike prompts take about as long."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[float, int]]] = {}  # time and length, by octave
        self._latest: dict[int, int] = {}  # of an octave: which of all streams it was
        self._streams = 0
        self._steps: deque[float] = deque(maxlen=STEPS)
        self.lag_s: float | None = None  # None: too little was seen

    def add(self, prompt_tokens: int, first_s: float, step_s: float = 0.0) -> None:
        """A stream's first token came ``first_s`` after its grant; ``prompt_tokens`` of it had to be computed.
        ``step_s``: between two of its tokens; 0: it has too few."""
        if not 1 <= prompt_tokens <= MOST_TOKENS or first_s <= 0:
            return  # it is too long, or its gateway's clock was set
        octave = prompt_tokens.bit_length()
        if step_s > 0:
            self._steps.append(step_s)
        self._streams += 1
        self._latest[octave] = self._streams
        self._seen.setdefault(octave, deque(maxlen=KEPT)).append((first_s, prompt_tokens))

    def read(self, records: Iterable[LedgerRecord]) -> None:
        """Requests that ended."""
        count = 0
        for r in records:
            once = r.attempts == 1 and not r.interruptions  # else a part of the prompt was computed before
            if r.streamed and once and r.outcome == Outcome.COMPLETED and r.granted_s and r.first_token_s:
                gaps = r.output_tokens - 1
                step_s = (r.done_s - r.first_token_s) / gaps if gaps >= MANY_TOKENS else 0.0
                self.add(r.input_tokens - r.cached_tokens, r.first_token_s - r.granted_s, step_s)
                count += 1
        if count and (seen_s := self.line_s) is not None:
            known_s = seen_s if self.lag_s is None else self.lag_s
            self.lag_s = min(seen_s, known_s + min(1.0, count / SLOW) * (seen_s - known_s))

    @property
    def line_s(self) -> float | None:
        """Where the line lies now; None: too little was seen."""
        since = self._streams - OLD
        quickest = [min(seen) for o, seen in self._seen.items() if len(seen) >= ENOUGH and self._latest[o] > since]
        if len(quickest) < OCTAVES or min(quickest)[0] > NEAR_S:
            return None
        weights = [first_s**-2 for first_s, _ in quickest]  # errors count as shares: what is far is far off
        total = sum(weights)
        mean_s = sum(w * first_s for w, (first_s, _) in zip(weights, quickest, strict=True)) / total
        mean_tokens = sum(w * tokens for w, (_, tokens) in zip(weights, quickest, strict=True)) / total
        spread = sum(w * (tokens - mean_tokens) ** 2 for w, (_, tokens) in zip(weights, quickest, strict=True))
        slope = (
            sum(
                w * (tokens - mean_tokens) * (first_s - mean_s)
                for w, (first_s, tokens) in zip(weights, quickest, strict=True)
            )
            / spread
        )
        step_s = min(self._steps, default=0.0)
        return min(MOST_S, max(0.0, mean_s - max(0.0, slope) * mean_tokens - step_s))
