"""How long do this engine's steps take, and does what is believed of them still hold?

Fed with the steps that the engine's own scheduler logged, as they come. Every :data:`EVERY` of them the last
:data:`KEPT` are due to be fitted (``core/engine/calibration.py: fit_steps``), by whoever has the time:
:meth:`StepModel.due` gives the steps, :meth:`StepModel.took` takes the fit. Each batch of new steps is first predicted
with what is believed, which nothing of them was fitted to. Where their median error is more than :data:`DRIFT` times
that of the fit, and more than :data:`LEAST_DRIFT`, in :data:`LOOKS` batches in a row, the engine has changed (other
requests, other neighbours, a slower clock): what was seen before is forgotten, and the next fit is of the new steps
alone.
Source: ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.engine.calibration import LEAST_STEPS, LoggedStep, StepFit

KEPT = 1024  # steps that are fitted to: over minutes a shared machine's pace changes more than a longer log tells
EVERY = 256
BATCH = 64  # steps whose median error is one look
DRIFT, LEAST_DRIFT, LOOKS = 2.0, 0.15, 3
BELIEVED = 0.25  # error of held-out steps up to which others go by a fit


@dataclass(slots=True)
class StepModel:
    """The steps of one engine, and the fit to them."""

    fit: StepFit | None = None  # None: nothing is known
    recent_error: float | None = None  # of what is believed, over the last batch of steps that came after it
    drifts: int = 0  # how often it was found not to hold any more
    seen: int = 0  # steps in all
    _steps: deque[LoggedStep] = field(default_factory=lambda: deque(maxlen=KEPT))
    _batch: list[LoggedStep] = field(default_factory=list)
    _odd: int = 0  # looks in a row that found it wrong
    _until: int = LEAST_STEPS
    _out: bool = False  # somebody fits

    @property
    def believed(self) -> StepFit | None:
        """The fit, where it predicts well enough to go by."""
        return self.fit if self.fit is not None and self.fit.error <= BELIEVED else None

    def saw(self, steps: Sequence[LoggedStep]) -> None:
        """Takes further steps, in order."""
        self.seen += len(steps)
        self._until -= len(steps)
        for step in steps:
            self._steps.append(step)
            self._batch.append(step)
            if len(self._batch) >= BATCH:
                self._look()

    def restarted(self) -> None:
        """Another process stands there: what is believed stays until its own steps are known."""
        self._steps.clear()
        self._batch.clear()
        self._odd, self._until = 0, LEAST_STEPS

    def due(self) -> tuple[LoggedStep, ...]:
        """The steps to fit now; empty before it is time. The fit goes to :meth:`took`."""
        if self._out or self._until > 0 or len(self._steps) < LEAST_STEPS:
            return ()
        self._out, self._until = True, EVERY
        return tuple(self._steps)

    def took(self, fit: StepFit | None) -> None:
        """Of the steps of :meth:`due`; None: they did not tell."""
        self._out = False
        if fit is not None:
            self.fit, self._odd = fit, 0

    def _look(self) -> None:
        batch, self._batch = self._batch, []
        if self.fit is None:
            return
        model = self.fit.step_time
        errors = [abs(model.step(s.prefill, s.decodes, s.kv_dec, s.pp) / s.seconds - 1.0) for s in batch]
        self.recent_error = float(np.median(errors))
        if self.recent_error <= max(LEAST_DRIFT, DRIFT * self.fit.error):
            self._odd = 0
            return
        self._odd += 1
        if self._odd >= LOOKS:
            self.drifts, self._odd, self._until = self.drifts + 1, 0, 0
            while len(self._steps) > LOOKS * BATCH:
                self._steps.popleft()
