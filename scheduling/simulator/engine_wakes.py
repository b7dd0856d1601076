"""When a replayed pool's engines go on, and what their steps bring: first tokens, ends, and prompts handed over.

What an engine did is known ``signal_fs`` later: live that is the way from an engine over a gateway to the leader's next
grant.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.types import Phase
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.kernel import NEVER, Kernel
from scheduling.simulator.legs import Legs
from scheduling.simulator.replay_events import ENDED, FIRST, HANDED_OVER, WAKE


class EngineWakes:
    """Of all engines, by the numbers of their replicas."""

    def __init__(
        self, kernel: Kernel, engines: Sequence[ContinuousEngine], phases: Sequence[Phase], legs: Legs, signal_fs: int
    ) -> None:
        self._kernel = kernel
        self._engines = engines
        self._phases = phases
        self._legs = legs
        self._signal_fs = signal_fs
        self._due = [NEVER] * len(engines)
        self._firsts_seen = [0] * len(engines)
        self._ends_seen = [0] * len(engines)

    def schedule(self, number: int) -> None:
        """The engine has something to do."""
        at = max(self._kernel.now_fs, self._engines[number].clock)
        if at < self._due[number]:
            self._due[number] = at
            self._kernel.post(at, WAKE, number)

    def wake(self, number: int) -> None:
        """It goes on until the next event of the pool."""
        if self._kernel.now_fs != self._due[number]:
            return  # it was woken earlier instead
        self._due[number] = NEVER
        engine = self._engines[number]
        goes_on = engine.stretch(self._kernel.next_fs())
        for life in engine.prefilled[self._firsts_seen[number] :]:
            if self._phases[number] is not Phase.DECODE:  # there it was known before
                self._kernel.post(life.first_fs + self._signal_fs, FIRST, life)
        self._firsts_seen[number] = len(engine.prefilled)
        for life in engine.finished[self._ends_seen[number] :]:
            if self._phases[number] is not Phase.PREFILL:
                self._kernel.post(life.end_fs + self._signal_fs, ENDED, life)
            elif leg := self._legs.of(life):
                leg.over = True
                self._kernel.post(life.end_fs + self._legs.on_its_way_fs(leg), HANDED_OVER, life)
        self._ends_seen[number] = len(engine.finished)
        if goes_on:
            self.schedule(number)
