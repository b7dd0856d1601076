"""Runs the engine's steps on the event loop's clock: one timer per step, not per sequence.

What the GPU does is told twice, as DCGM tells it of a real one. *Busy* (``DCGM_FI_DEV_GPU_UTIL``) is the share of time
in which any kernel ran: 1 as soon as one sequence decodes without a pause, however much more would fit. *Active*
(``DCGM_FI_PROF_SM_ACTIVE``) is modelled as ``1 - t0 / t`` of each step: the part of a step that its sequences need over
the ``t0`` that every step costs (reading the weights once, launching kernels). With the linear step-time model that is
the speed as a share of the limit that an endless batch of this mix would approach: about 0.01 for one sequence of
Llama-3-8B on an A100, 0.3 for 32, 0.8 for 128.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque

from scheduling.core.engine.step_time import StepTime
from scheduling.engines.simulated.engine import Engine, Sequence, State, Step

MAX_LAG_S = 0.1  # a runner that was late by less catches up, so that rates hold; by more, it lost that time
WINDOW_S = 1.0  # what busy and active are shares of
STRETCH_S = 0.05  # steps without a pause are kept as stretches of about so long
TURN_S = 0.005  # longest stretch of steps before sockets are served again


class Runner:
    """Owns an engine and its time. ``speed`` 2 runs twice as fast as the modelled hardware."""

    def __init__(self, engine: Engine, model: StepTime, speed: float, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.slow = 1.0
        self._model = model
        self._speed = speed
        self._loop = loop
        self._step: Step | None = None
        self._ends_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._stalled_until_s = 0.0
        self._stretches: deque[list[float]] = deque()  # [from, to, of these seconds active], without a pause
        self._closed = False

    @property
    def speed(self) -> float:
        return self._speed

    def submit(self, seq: Sequence) -> None:
        """Takes a sequence. Raises :class:`scheduling.engines.simulated.engine.QueueFull`."""
        self.engine.add(seq, self._loop.time())
        self._wake()

    def abort(self, seq: Sequence) -> None:
        self.engine.abort(seq)

    def stall(self, seconds: float) -> None:
        """Computes nothing for so long (``math.inf``: until told otherwise, 0: no longer)."""
        self._stalled_until_s = self._loop.time() + seconds if seconds > 0 else 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake(force=True)

    @property
    def stalled(self) -> bool:
        return self._loop.time() < self._stalled_until_s

    def utilization(self) -> tuple[float, float]:
        """Busy and active shares of the last second (see the module), each 0 to 1."""
        now = self._loop.time()
        since = now - WINDOW_S
        while self._stretches and self._stretches[0][1] < since:
            self._stretches.popleft()
        busy = active = 0.0
        for start, end, used in self._stretches:
            seen = max(0.0, min(end, now) - max(start, since))
            busy += seen
            active += used * seen / (end - start)
        return min(1.0, busy / WINDOW_S), min(1.0, active / WINDOW_S)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self, force: bool = False) -> None:
        if self._timer is None and (force or self._step is None) and not self._closed:
            self._timer = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Completes every step whose time has come and begins the next."""
        self._timer = None
        now = self._loop.time()
        if now < self._stalled_until_s:
            if math.isfinite(self._stalled_until_s):
                self._timer = self._loop.call_at(self._stalled_until_s, self._turn)
            return
        until = now + TURN_S
        while True:
            if self._step is not None:
                if self._ends_s > now:
                    self._timer = self._loop.call_at(self._ends_s, self._turn)
                    return
                if self._ends_s < now - MAX_LAG_S:
                    self._ends_s = now
                step, self._step = self._step, None
                self._deliver(self.engine.complete(step, self._ends_s))
            else:
                self._ends_s = now  # it was idle
            if self._closed or not self._begin(self._ends_s):
                return
            if self._ends_s <= now:
                now = self._loop.time()
                if now > until:
                    self._timer = self._loop.call_soon(self._turn)
                    return

    def _begin(self, at_s: float) -> bool:
        step = self.engine.plan(at_s)
        if step is None:
            return False  # idle until something arrives
        self._step = step
        seconds, scale = step.seconds(self._model), self.slow / self._speed
        self._ends_s = at_s + seconds * scale
        active = (seconds - self._model.t0) * scale
        last = self._stretches[-1] if self._stretches else None
        if last is not None and at_s - last[1] < 1e-6 and self._ends_s - last[0] < STRETCH_S:
            last[1] = self._ends_s
            last[2] += active
        elif self._ends_s > at_s:  # a step may be shorter than the clock can tell
            self._stretches.append([at_s, self._ends_s, active])
            if len(self._stretches) > 1000:  # nobody asked for the utilization in a long time
                self.utilization()
        return True

    @staticmethod
    def _deliver(emitted: list[Sequence]) -> None:
        for seq in emitted:
            if seq.state is State.FINISHED:
                if seq.on_end is not None:
                    seq.on_end(seq)
            elif seq.on_token is not None and seq.state is State.RUNNING:  # an owner may abort another on the way
                seq.on_token(seq)
