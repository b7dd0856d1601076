"""DriftSched's experiment: its two phases of load and its estimator that learns.

Two phases: a light one that calibrates and, once the queue is empty and 15 s have passed, a heavy one. Budgets are
estimated in words of the prompt and corrected by a moving average of actual over base, per category.

Read from the public load generator: gaps, mixes, caps, batch of 32. Assumed: 93 % of generations reach their cap (80
to 100 % moves P50 and P99 by less than 3 %), the rest ends anywhere from 30 % of it; prompts of the sizes below; 0.82
words per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from random import Random

from scheduling.core.estimate.drift import Drift
from scheduling.core.types import QueuedRequest
from scheduling.simulator.engine import Engine
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import rng, to_s
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request, uniform_gaps

CAPS = {"short_qa": 64, "summary": 256, "technical": 384, "report": 512}
PROMPT_TOKENS = {"short_qa": 14, "summary": 45, "technical": 20, "report": 40}
CALIBRATION = (1000, (0.05, 0.15), (40, 25, 25, 10))
STRESS = (2000, (0.005, 0.03), (10, 20, 40, 30))
PAUSE_S = 15.0
REACH_CAP = 0.93
WORDS_PER_TOKEN = 0.82
TIERS = (
    Tier("premium", rank=0, weight=5.0),
    Tier("standard", rank=1, weight=3.0),
    Tier("batch", rank=2, weight=2.0),
)
SAFETY = {"premium": 1.2, "standard": 1.0, "batch": 0.8}


class DriftEstimator:
    """The experiment's use of :class:`scheduling.core.estimate.drift.Drift`: a tier's ``S`` scales what ordering sees.

    ``words``: lengths are counted in words (the paper's whitespace mode); otherwise in tokens.
    """

    def __init__(self, *, words: bool = True) -> None:
        self._drift = Drift()
        self._per_token = WORDS_PER_TOKEN if words else 1.0

    @property
    def bias(self) -> dict[str, float]:
        return {category: self._drift.bias(category) for category in CAPS}

    def estimate(self, request: SimRequest) -> QueuedRequest:
        size = max(1, round(request.input_tokens * self._per_token))
        output = self._drift.expected(request.label, size, base=request.base_tokens, safety=SAFETY[request.tier])
        return replace(request.queued, input_tokens=size, output_tokens=output)

    def observe(self, request: SimRequest) -> None:
        self._drift.learn(request.label, request.output_tokens * self._per_token, base=request.base_tokens)


def phase(
    first_index: int,
    start_s: float,
    shape: tuple[int, tuple[float, float], tuple[int, ...]],
    arrivals: Random,
    lengths: Random,
) -> list[SimRequest]:
    """One phase of requests: ``shape`` is count, gap interval [s] and mix of categories [%]."""
    count, (low, high), mix = shape
    requests = []
    for number, at in enumerate(islice(uniform_gaps(arrivals, low, high, start_s), count)):
        category = lengths.choices(list(CAPS), mix)[0]
        cap = CAPS[category]
        out = cap if lengths.random() < REACH_CAP else max(1, round(cap * lengths.uniform(0.3, 1.0)))
        tier = TIERS[lengths.randrange(len(TIERS))]
        belief = Belief(float(cap), cap)
        given = PROMPT_TOKENS[category]
        requests.append(
            make_request(first_index + number, at, given, out, tier, belief, label=category, base_tokens=float(cap))
        )
    return requests


def run_phases(
    engine: Engine, seed: int, shapes: Sequence[tuple[int, tuple[float, float], tuple[int, ...]]]
) -> list[Life]:
    """Runs the phases one after the other: each begins ``PAUSE_S`` after the last request of the one before ended."""
    arrivals, lengths = rng(seed, "arrivals"), rng(seed, "lengths")
    start_s, sent = 0.0, 0
    for shape in shapes:
        engine.run(phase(sent, start_s, shape, arrivals, lengths))
        sent += shape[0]
        start_s = to_s(engine.clock) + PAUSE_S
    return engine.finished
