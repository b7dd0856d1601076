"""The step-time model of this very engine, fitted to its own steps while it serves.

Every :data:`EVERY` steps a thread fits the last :data:`KEPT` (``core/engine/calibration.py: fit_steps``); the scheduler
goes on meanwhile with what it has. A fit that predicts badly is not used: without a model steps have vLLM's budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Thread

from scheduling.core.engine.calibration import LoggedStep, StepFit, fit_steps
from scheduling.core.engine.step_time import StepTime

KEPT = 1024
EVERY = 256
FIRST = 128  # steps until the first fit
WORST = 0.5  # median relative error of a model that is used

Runner = Callable[[Callable[[], None]], None]


def in_a_thread(work: Callable[[], None]) -> None:
    Thread(target=work, name="quartermaster-fit", daemon=True).start()


class Learning:
    """``planner`` is what is believed now; None: nothing."""

    def __init__(self, first: StepTime | None, learn: bool, run: Runner = in_a_thread) -> None:
        self.planner = first
        self.error: float | None = None  # over held-out steps
        self.fits = 0
        self.failed: Exception | None = None  # of a fit; the model before it stays
        self._learn = learn
        self._run = run
        self._steps: deque[LoggedStep] = deque(maxlen=KEPT)
        self._until = FIRST
        self._busy = False

    def saw(self, step: LoggedStep) -> None:
        if not self._learn:
            return
        self._steps.append(step)
        self._until -= 1
        if self._until <= 0 and not self._busy:
            self._until, self._busy = EVERY, True
            steps = tuple(self._steps)
            self._run(lambda: self._fit(steps))

    def _fit(self, steps: tuple[LoggedStep, ...]) -> None:
        try:
            fit: StepFit | None = fit_steps(steps)
            if fit is not None and fit.error <= WORST:
                self.planner, self.error = fit.step_time, fit.error
                self.fits += 1
        except Exception as error:
            self.failed = error
        finally:
            self._busy = False
