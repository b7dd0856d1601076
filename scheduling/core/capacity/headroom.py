"""How many free slots a pool keeps for baselines while it serves, where nobody has set how many.

Question: for how many arrivals within baselines must the free slots do, until lent ones come back?
A lent slot comes back when a request ends. So what is kept free is the most by which the use of baselines grew within
the time of one request, of the last :data:`MEMORY_S`; and never less than the configured share of the slots
(:func:`scheduling.core.capacity.pool.automatic_headroom`), nor more than half of them.
Use is what runs and waits within baselines, so what a full pool keeps waiting counts as well. Owners that run most of
their baselines cannot grow by more than the rest: beyond the configured share no more is kept than what was left at the
emptiest look within the time of one request, and of :data:`DIPS_S` at least, since who ends and comes back at once
leaves a slot for a moment.
Inputs: what runs and waits of baselines once a second, and their sum; how long a request takes on average. Cost:
O(:data:`LONGEST_S`) a look.
Source: ours. Measured: ``docs/reference/admission.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduling.core.capacity.pool import automatic_share
from scheduling.core.rights import able_to_run, baseline_slots
from scheduling.core.types import EntitlementSpec, EntitlementState

MEMORY_S = 300.0
LONGEST_S = 60.0  # of a request's time, as far as growth is looked at
DIPS_S = 10.0


def use_of_baselines(flying: Iterable[tuple[EntitlementSpec, int, int]]) -> tuple[int, int]:
    """Slots that run within baselines, and requests that wait within them. ``flying``: entitlement, how many of it run,
    how many wait."""
    running = waiting = 0
    for spec, runs, waits in flying:
        if spec.state in (EntitlementState.BOUND, EntitlementState.DEGRADED):
            base = baseline_slots(spec.tier.service_class, spec.concurrency)
            running += min(runs, base)
            waiting += able_to_run(waits, runs, base)
    return running, waiting


@dataclass(slots=True)
class Headroom:
    """Of one pool. Times in seconds of one clock."""

    _used: deque[tuple[float, int, int]] = field(default_factory=deque)  # when, used, and what runs of it
    _grown: deque[tuple[float, int]] = field(default_factory=deque)  # decreasing: what counts is the most
    _unused: int | None = None  # slots by which the use of baselines can grow; None: not looked at yet

    def resume(self, at_s: float, kept: int | None) -> None:
        """Goes on from what another one kept."""
        if kept:
            self._grown.append((at_s, kept))

    def seen(self, at_s: float, running: int, waiting: int, request_s: float, baselines: int) -> None:
        """Takes one look: ``running`` and ``waiting`` as :func:`use_of_baselines` says, ``request_s`` a slot's mean
        occupation, ``baselines`` the slots of all baselines."""
        while self._used and (self._used[-1][0] >= at_s or self._used[0][0] < at_s - LONGEST_S):
            self._used.popleft()
        used = running + waiting
        self._used.append((at_s, used, running))
        grown = used - min(n for s, n, _ in self._used if s >= at_s - max(0.0, request_s))
        self._unused = baselines - min(n for s, _, n in self._used if s >= at_s - max(DIPS_S, request_s))
        while self._grown and (self._grown[-1][1] <= grown or self._grown[-1][0] > at_s):
            self._grown.pop()
        self._grown.append((at_s, grown))
        while self._grown[0][0] < at_s - MEMORY_S:
            self._grown.popleft()

    def slots(self, least: int, most: int, in_force: int | None = None) -> int:
        """Free slots to keep, within ``least`` and ``most``, which are shares of the configured slots. ``in_force``:
        those that replicas offer, where that is known; of fewer than are configured the same shares are kept, as else
        nothing might be left for who has no baseline."""
        if in_force is not None:
            least, most = min(least, automatic_share(in_force)), min(most, in_force // 2)
        grown = self._grown[0][1] if self._grown else 0
        return max(least, min(most, grown if self._unused is None else min(grown, self._unused)))
