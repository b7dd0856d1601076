"""A queue that minds where entitlements stand: one that is owed goes earlier, one that burst or had more than its share
later.

Question: whose request goes first, when what they ask for is alike?
Formula: an entitlement's requests keep their order among themselves; against those of others the first component of
their key is less by ``shift = unit * ln(f)``, ``f = (1 + a_debt * debt) / (1 + a_burst * burst) / share``: the two
factors of token pools eq. 1 that change while requests wait, and what it had of the tokens of its class, as a multiple
of its part by concurrency. ``unit`` is what a weight e times as high is worth in the key. Where the key is a time, and
those that wait are promised different ones, it is less by how much shorter the shortest promise is than the longest, of
which ``unit`` counts at most: seconds that a promise of five bears would break one of a second.
Inputs: ``PoolView.standings`` and the pool's ``coefficients``, as last seen; an entitlement without a standing is owed
nothing.
Cost: O(log n); O(entitlements that wait) in a step in which standings, coefficients or promises are others.
Source: token pools 3.3, eq. 1; the share is ours: in an overload within everybody's limits there is neither debt nor
burst, and who sends most would get most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, log

from scheduling.core.admission.entitlement import Coefficients, factors
from scheduling.core.policies.contracts import Key
from scheduling.core.policies.queues.keyed import KeyedQueue
from scheduling.core.policies.rounds import Round
from scheduling.core.types import COEFFICIENTS, QueuedRequest, ServiceClass, Standing

MAX_BURST = 4.0  # what counts of a burst: with debt within 1 the default coefficients shift by at most ln(5) units
MAX_SHARE = 8.0  # times its part: what counts of a share; of a small one an eighth


def standing_factor(standing: Standing, coefficients: Coefficients = COEFFICIENTS) -> float:
    """The factor by which debt raises and burst lowers an entitlement's weight, bounded either way by that of a full
    debt or of the largest burst that counts (5 with the default coefficients); less for who had more than its share of
    what its class had, and more for who had less."""
    debt, burst = max(-1.0, min(1.0, standing.debt)), max(0.0, min(MAX_BURST, standing.burst))
    parts = factors(ServiceClass.ELASTIC, 1.0, debt, burst, coefficients)
    most = 1.0 + max(coefficients.debt, coefficients.burst * MAX_BURST)
    owed = max(1.0 / most, min(most, parts.debt * parts.burst))
    return owed / max(1.0 / MAX_SHARE, min(MAX_SHARE, standing.share))


class StandingQueue(KeyedQueue):
    """A :class:`KeyedQueue` whose first key component is shifted by the entitlement's standing."""

    def __init__(
        self,
        key: Callable[[QueuedRequest], Key],
        describe: Callable[[QueuedRequest], str],
        unit: float,
        promised_s: Callable[[QueuedRequest], float] | None = None,
    ) -> None:
        """``promised_s``: what a request is promised, where the key and ``unit`` are seconds."""
        super().__init__(key, describe)
        self._unit = unit
        self._promised_s = promised_s
        self._promised = (inf, 0.0)  # the shortest, and the longest up to the unit, since the queue was empty [s]
        self._standings: Mapping[str, Standing] = {}
        self._coefficients = COEFFICIENTS
        self._shifts: dict[str, tuple[Standing, float]] = {}  # of the standings that were asked for

    def push(self, request: QueuedRequest, now_s: float) -> None:
        if self._promised_s is not None:
            self._note(self._promised_s(request))
        super().push(request, now_s)

    def peek(self, round_: Round) -> QueuedRequest | None:
        view = round_.view
        others = view.standings is not self._standings or view.coefficients is not self._coefficients
        if round_ is not self._round and others:
            self._learn(view.standings, view.coefficients)
        return super().peek(round_)

    def explain(self, request: QueuedRequest) -> str:
        standing = self._standings.get(request.entitlement)
        note = "" if standing is None else f", standing x {standing_factor(standing, self._coefficients):.2g}"
        return super().explain(request) + note

    def shift(self, entitlement: str) -> float:
        """By how much its requests go earlier."""
        standing = self._standings.get(entitlement)
        if standing is None:
            return 0.0
        shift = self._shifts.get(entitlement)
        if shift is None or shift[0] is not standing:
            worth = self._worth * log(standing_factor(standing, self._coefficients))
            shift = self._shifts[entitlement] = (standing, worth)
        return shift[1]

    @property
    def _worth(self) -> float:
        shortest_s, longest_s = self._promised
        return self._unit if shortest_s >= longest_s else self._unit * shortest_s / longest_s

    def _note(self, promise_s: float) -> None:
        shortest_s, longest_s = self._promised if self else (inf, 0.0)
        promised = min(shortest_s, promise_s), max(longest_s, min(self._unit, promise_s))
        if promised != self._promised:
            self._promised = promised
            self._shifts.clear()
            self._place_lanes()

    def _learn(self, standings: Mapping[str, Standing], coefficients: Coefficients) -> None:
        before = self._standings
        self._standings = standings
        if coefficients != self._coefficients:
            self._shifts.clear()
            before = {}
        self._coefficients = coefficients
        if any(before.get(name) is not standings.get(name) for name in self._lanes):
            self._shifts = {name: kept for name, kept in self._shifts.items() if name in self._lanes}
            self._place_lanes()

    def _place_lanes(self) -> None:
        for name, lane in self._lanes.items():
            lane.shift = self.shift(name)
        self._rebuild_heads()
