"""The step-time model in whole femtoseconds, so that closed forms and single steps agree to the last digit.

The coefficients of a :class:`scheduling.core.engine.step_time.StepTime` are rounded once, to 1 fs per unit (``e`` to
0.5 fs: ``pp2`` is twice the model's ``pp`` and so a whole number). Steps in a row whose durations grow by a constant,
which are decode-only steps and equal chunks of one prompt, have the closed form ``k*first + growth*k*(k-1)/2``.
"""

from __future__ import annotations

from math import sqrt

from scheduling.core.engine.step_time import StepTime
from scheduling.simulator.kernel import FS


class ExactStep:
    """Durations in femtoseconds. Fields are plain integers: the engine's inner loop reads them."""

    __slots__ = ("a", "a2", "b", "c", "e2", "knee", "t0")

    def __init__(self, model: StepTime) -> None:
        self.t0 = max(1, round(model.t0 * FS))
        self.a = round(model.a * FS)
        self.b = round(model.b * FS)
        self.c = round(model.c * FS)
        self.e2 = round(model.e * FS / 2)
        self.knee = int(min(model.knee, 1 << 40))
        self.a2 = round(model.a2 * FS)

    def step(self, prefill: int, decodes: int, kv_dec: int, pp2: int) -> int:
        """One step; ``pp2`` is the sum of ``P_i * (2*ctx_i + P_i)`` over the prompt chunks."""
        over = prefill + decodes - self.knee
        return (
            self.t0
            + self.a * prefill
            + self.b * decodes
            + self.c * kv_dec
            + self.e2 * pp2
            + (self.a2 * over if over > 0 else 0)
        )


def run(first: int, growth: int, steps: int) -> int:
    """Duration of ``steps`` steps of which the first takes ``first`` and each next one ``growth`` more."""
    return steps * first + growth * (steps * (steps - 1) // 2)


def steps_to(first: int, growth: int, duration: int, most: int) -> int:
    """The fewest steps, at least 1 and at most ``most``, that together last ``duration`` or longer."""
    if most <= 1 or duration <= first:
        return 1
    if run(first, growth, most) < duration:
        return most
    linear = first - growth / 2
    k = int(2 * duration / (linear + sqrt(linear * linear + 2.0 * growth * duration)))
    k = min(max(k, 1), most)
    while k > 1 and run(first, growth, k - 1) >= duration:
        k -= 1
    while k < most and run(first, growth, k) < duration:
        k += 1
    return k
