"""What to try next: Bayesian optimisation of a policy's knobs by ask and tell (EWSJF 4.4.2).

A Gaussian process over the knobs' scales (0..1 each), scikit-optimize's. The first trial is what serves now, the next
few are spread evenly, after that the process proposes; in between a trial is made close to the best one so far, which
the process, busy with what it does not know yet, comes to late. The same seed and the same answers give the same
proposals, and told trials are all the state there is: a loop that was stopped goes on by telling them again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from random import Random

from scheduling.tuning.space import Knob, Values

SPREAD = 3  # trials at evenly spread points before the process knows anything
NEAR_EVERY = 3  # of the trials after those, one in so many is close to the best one
NEAR = 0.1  # how close: standard deviation on every knob's scale


class Optimizer:
    """``ask`` and ``tell`` in turn; larger rewards are better."""

    def __init__(self, space: Sequence[Knob], seed: int, start: Values | None = None) -> None:
        from skopt import Optimizer as GaussianProcess  # a second of a core: only who tunes pays
        from skopt.space import Real

        self._space = tuple(space)
        self._start: dict[str, float] | None = dict(start) if start is not None else None
        self._seed = seed
        self._trials: list[tuple[float, list[float]]] = []
        self._process = GaussianProcess(
            [Real(0.0, 1.0, name=knob.name) for knob in self._space],
            base_estimator="GP",
            n_initial_points=SPREAD,
            initial_point_generator="halton",  # reached 95 % of 60 random trials sooner than lhs and sobol, EI, LCB
            acq_func="gp_hedge",
            random_state=seed,
        )

    def ask(self) -> dict[str, float]:
        """The values to try next."""
        if self._start is not None:
            return dict(self._start)
        with _without_warnings():
            shares = self._process.ask()
        after = len(self._trials) - SPREAD - 1
        if after > 0 and after % NEAR_EVERY == 0:
            shares = self._near()
        return {knob.name: knob.at(float(share)) for knob, share in zip(self._space, shares, strict=True)}

    def tell(self, values: Values, reward: float) -> None:
        """What trying them came to."""
        self._start = None
        shares = [min(1.0, max(0.0, knob.share(values[knob.name]))) for knob in self._space]
        self._trials.append((reward, shares))
        with _without_warnings():
            self._process.tell(shares, -reward)

    def _near(self) -> list[float]:
        random = Random(f"near {self._seed} {len(self._trials)}")
        _, best = max(self._trials, key=lambda trial: trial[0])
        return [min(1.0, max(0.0, random.gauss(share, NEAR))) for share in best]


class _without_warnings(warnings.catch_warnings):
    """The process warns where it would try a point again; whole numbers make that harmless."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
