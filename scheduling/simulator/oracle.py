"""What could be had if true lengths were known: the limit that policies are judged against.

Only the simulator can know them. :class:`Truth` stands where a predictor would, so any policy can be run with the truth
for its estimate; with ``mean_cost`` (remaining) that is shortest remaining processing time. What no scheduler whatever
can exceed is :mod:`scheduling.simulator.bound`.
"""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.types import QueuedRequest
from scheduling.simulator.workload import SimRequest


def clairvoyant(request: SimRequest) -> QueuedRequest:
    """What a policy is told of a request, with its true length for an estimate."""
    out = float(request.output_tokens)
    return replace(request.queued, output_tokens=out, output_lengths=(out,), output_probabilities=(1.0,))


class Truth:
    """An :class:`scheduling.simulator.engine.Estimator` that tells what will happen."""

    def estimate(self, request: SimRequest) -> QueuedRequest:
        return clairvoyant(request)

    def observe(self, request: SimRequest) -> None:
        """There is nothing to learn."""
