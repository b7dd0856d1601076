"""How much of the prompts granted to a replica is left to prefill: the one place that predicts it.

Question: may the next prompt be granted now, so that it is in the engine when its next step begins?
A first token reaches the gateway when a step is over; a grant that follows from it comes a turnaround later, when the
engine has already begun a step without it. So what a prompt takes of a prefill credit counts only until it is predicted
to be prefilled one turnaround from now, at the rate that first tokens have shown. Engines give nothing back between two
steps, so the prediction moves by whole steps.
First tokens correct it: what is left then is what is granted without one, less at most a step that began meanwhile.
Only what was there at the last first token may be predicted away, so an engine that stands still gets no more than
twice its credit; and what is held is still given back once, at the real first token or at the end.
Same in Lua: ``pace_of`` in ``scheduling/state/scripts/shared/credit.lua``. Source: ours. Measured:
``docs/results/front.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

KEPT = 0.9  # of what is known of a replica's rate, at each further first token
TURNAROUND_MS = 5.0  # from a decision to the engine, until it was measured
TOLD_AFTER_S = 0.002  # a gateway tells of first tokens of so long together
LONGEST_STEP_MS = 500  # of an engine, where its rate is not known well
WHOLE_AT_ONCE = 20  # whole answers that one first token shows to be prefilled, at most
FASTER = 0.95  # of a time per token, where an engine's queue is empty and requests wait here, and it counts no steps


def shows(stream_rank: int, answer_rank: int) -> bool:
    """Whether a stream's first token shows that a whole answer granted before it was prefilled. Engines take prompts in
    the order in which they come, or those of a higher tier (a lower rank) before others that wait."""
    return answer_rank <= stream_rank


@dataclass(slots=True)
class PrefillPace:
    """One replica. Times in ms of one clock, lengths in prompt tokens; rounded as shared state keeps them."""

    left: float = 0.0  # predicted to be left to prefill at ``at_ms``
    at_ms: float = 0.0
    sure: int = 0  # of what is held: was there at the last first token, may be predicted to be over
    ms: float = 0.0  # of prefill, and the tokens prefilled in them: both fade
    tokens: float = 0.0
    last_ms: float = 0.0  # the last first token

    @property
    def per_ms(self) -> float:
        """The rate at which it prefills [tokens/ms]; 0: not known."""
        return self.tokens / self.ms if self.ms > 0 else 0.0

    def granted(self, used: int, need: int, whole: bool, now_ms: float) -> None:
        """A prompt of ``need`` tokens was granted beside ``used`` that are held. ``whole``: nobody sees its first
        token, so it may be predicted to be over before anything is heard of it."""
        if used == 0:
            self.sure = need
        elif whole:
            self.sure += need
        self.left = _kept(min(self._left(now_ms), used) + need)
        self.at_ms = now_ms

    def unseen_ms(self, age_ms: float, step: int) -> float:
        """Of which grants an engine's word about its queue says nothing: those of the last ``age_ms`` and of the step
        before. It counts its queue as a step begins and tells of it during all of that step."""
        return age_ms + (min(LONGEST_STEP_MS, math.ceil(step / self.per_ms)) if self.per_ms > 0 else 0)

    def faster(self, hurry: float = FASTER) -> None:
        """Nothing waited in its engine while requests waited here. ``hurry``: :attr:`PrefillCredit.hurry`."""
        self.ms = _kept(hurry * self.ms)

    def first_token(self, used: int, given: int, granted_ms: float, begun: int, now_ms: float) -> None:
        """First tokens came: of prompts with ``given`` tokens, the oldest granted at ``granted_ms``; ``used`` tokens
        are still held, and at most ``begun`` of them are prefilled: a step of the engine, and a whole answer's prompt
        that left its queue and may be in the middle."""
        self.left = _kept(min(max(self._left(now_ms), used - begun), used))
        self.at_ms, self.sure = now_ms, used
        self.ms = _kept(KEPT * self.ms + max(1, now_ms - max(self.last_ms, granted_ms)))
        self.tokens = _kept(KEPT * self.tokens + given)
        self.last_ms = now_ms

    def ahead(self, used: int, step: int, turnaround_ms: float, now_ms: float) -> int:
        """Tokens of the ``used`` that count: not predicted to be prefilled when a grant made now reaches the engine."""
        return self._look(used, step, turnaround_ms, now_ms)[0]

    def falls_in_ms(self, used: int, step: int, turnaround_ms: float, now_ms: float) -> int:
        """How long until :meth:`ahead` falls if no first token comes; 0: not before one does."""
        return self._look(used, step, turnaround_ms, now_ms)[1]

    def _look(self, used: int, step: int, turnaround_ms: float, now_ms: float) -> tuple[int, int]:
        rate = self.per_ms
        least = max(0, used - self.sure)
        if used <= 0 or rate <= 0 or least >= used:
            return max(0, used), 0
        left = min(self.left, used)
        done = rate * max(0.0, now_ms + turnaround_ms - self.at_ms)
        if done >= left:
            return least, 0
        steps = math.floor(done / step)
        ahead = max(least, math.ceil(left - step * steps))
        if ahead <= least:
            return ahead, 0
        return ahead, max(1, math.ceil((min(left, step * (steps + 1)) - done) / rate))

    def _left(self, now_ms: float) -> float:
        return max(0.0, self.left - self.per_ms * max(0.0, now_ms - self.at_ms))


def _kept(value: float) -> float:
    return float(f"{value:.3f}")
