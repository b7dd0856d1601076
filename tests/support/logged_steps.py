"""Steps as the scheduler inside an engine logs them, drawn from a known model."""

from __future__ import annotations

import random
from collections.abc import Iterator

from scheduling.core.engine.calibration import LoggedStep
from scheduling.core.engine.step_time import StepTime

TRUTH = StepTime(t0=0.008, a=6e-5, b=2e-5, c=4e-9, e=1e-9, knee=0.0, a2=0.0)


def steps(
    count: int, truth: StepTime = TRUTH, *, noise: float = 0.02, strays: float = 0.0, seed: int = 1
) -> Iterator[LoggedStep]:
    """Steps as an engine of ``truth`` takes them; some take several times as long because of something else."""
    draw = random.Random(seed)
    for _ in range(count):
        prefill, decodes = draw.choice((0, 0, 200, 1500)), draw.randint(1, 60)
        kv, pp = decodes * draw.randint(100, 3000), prefill * draw.randint(100, 2000)
        seconds = truth.step(prefill, decodes, kv, pp) * (1 + draw.uniform(-noise, noise))
        yield LoggedStep(prefill, decodes, kv, float(pp), seconds * (6 if draw.random() < strays else 1))
