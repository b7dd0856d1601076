"""Refused clients that come back after their Retry-After, as SDKs do."""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.outcomes import Reason
from scheduling.core.types import QueuedRequest
from scheduling.simulator.kernel import rng, to_fs, to_s
from scheduling.simulator.workload import SimRequest

NEVER_BACK_S = 120.0  # told to wait for so long, the OpenAI SDK does not come back
JITTER = 0.25  # of a Retry-After, up and down
RETRYABLE = frozenset(reason for reason in Reason if reason.ending.retry)


class ReturningClients:
    """Of one run. Each comes back up to ``returns`` times."""

    def __init__(self, returns: int, seed: int) -> None:
        self._returns = returns
        self._random = rng(seed, "returns")
        self._tries: dict[int, int] = {}  # how often a request was sent, by its index; where more than once

    def back(
        self, request: SimRequest, reason: Reason, retry_s: float | None, now_fs: int
    ) -> tuple[int, SimRequest] | None:
        """When [fs] the client of a refused request sends it again, and as what; None where it does not."""
        tries = self._tries.get(request.index, 1)
        if retry_s is None or retry_s >= NEVER_BACK_S or tries > self._returns or reason not in RETRYABLE:
            return None
        self._tries[request.index] = tries + 1
        wait_s = retry_s * (1.0 + JITTER * (2.0 * self._random.random() - 1.0))
        at_fs = now_fs + to_fs(wait_s)
        return at_fs, replace(request, queued=_again(request.queued, to_s(at_fs), tries + 1))


def _again(queued: QueuedRequest, at_s: float, tries: int) -> QueuedRequest:
    """The same request, sent once more: for the pool it is a new one, with deadlines of its own."""
    later = at_s - queued.arrival_s

    def moved(deadline_s: float | None) -> float | None:
        return None if deadline_s is None else deadline_s + later

    return replace(
        queued,
        id=f"{queued.id.partition('~')[0]}~{tries}",
        arrival_s=at_s,
        ttft_deadline_s=moved(queued.ttft_deadline_s),
        ttlt_deadline_s=moved(queued.ttlt_deadline_s),
    )
