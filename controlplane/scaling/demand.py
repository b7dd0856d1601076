"""What a pool was asked for over the last seconds, from its samples and its ended requests.

Question: how much room do those with a right to it use, wait for, and miss? Pure; one owner, no locks.

A refusal for want of capacity is counted as the slots it would have taken for as long as that entitlement's requests
usually take (Little's law), and never beyond the entitlement's own baseline: clients that try again and again, or ask
for more than they were promised, do not call replicas.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.core.capacity.planner import ENTITLED, Demand, keeps_awake, one_replica, promised
from scheduling.core.capacity.pool import Amounts
from scheduling.core.capacity.prefill_credit import USUAL_BUDGET
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import NO_ROOM, Outcome, unmet
from scheduling.core.types import EntitlementSpec
from scheduling.dispatch.ports import Sample

EXTERNAL = "external"  # the driver of whoever reads what is wanted and carries it out
UNKNOWN_OCCUPATION_S = 2.0  # before any request has ended


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    slots: dict[str, int]  # by entitlement
    waiting: dict[str, int]  # places that what waits will take
    kv_used: int


class DemandWindow:
    """The last ``window_s`` seconds of one pool."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._looks: deque[_Look] = deque()
        self._ended: deque[LedgerRecord] = deque()
        self._busy_s: float | None = None  # when anybody last ran, waited or was refused

    def add(self, records: Sequence[LedgerRecord]) -> None:
        self._ended.extend(records)
        if self._busy_s is not None:
            asked = (r.done_s for r in records if r.granted_s is not None or r.reason in NO_ROOM)
            self._busy_s = max(asked, default=self._busy_s)

    def look(self, sample: Sample) -> None:
        """Once a second."""
        kv_used = sum(b.kv_used for b in sample.view.backends.values())
        slots = {name: n for name, n in sample.view.running_by_entitlement.items() if n}
        if self._busy_s is None or slots or sample.wanted or any(sample.waiting.values()):
            self._busy_s = sample.at_s
        waiting = {name: sample.waiting_sequences.get(name, n) for name, n in sample.waiting.items()}
        self._looks.append(_Look(sample.at_s, slots, waiting, kv_used))
        horizon_s = sample.at_s - self.window_s
        while self._looks and self._looks[0].at_s <= horizon_s:
            self._looks.popleft()
        while self._ended and self._ended[0].done_s <= horizon_s:
            self._ended.popleft()

    def demand(self, sample: Sample, entitlements: Mapping[str, EntitlementSpec]) -> Demand:
        """What the planner is asked about. ``entitlements`` are all there are, by id."""
        mine = {name: e for name, e in entitlements.items() if e.pool == sample.pool.id}
        entitled = {name for name, e in mine.items() if e.tier.service_class in ENTITLED}
        looks = max(1, len(self._looks))
        used = sum(n for look in self._looks for name, n in look.slots.items() if name in entitled) / looks
        waiting = sum(n for look in self._looks for name, n in look.waiting.items() if name in entitled) / looks
        running = sum(n for look in self._looks for n in look.slots.values()) / looks
        kv_each = sum(look.kv_used for look in self._looks) / looks / running if running else 0.0
        span_s = min(self.window_s, max(1.0, sample.at_s - self._looks[0].at_s)) if self._looks else self.window_s
        tokens = sum(
            r.input_tokens + r.output_tokens
            for r in self._ended
            if r.entitlement in entitled and r.outcome != Outcome.REFUSED
        )
        refused = self._refused({name: mine[name] for name in entitled}, span_s)
        judged = [r.slo_met for r in self._ended if r.entitlement in entitled and r.slo_met is not None]
        there = [b for b in sample.pool.backends if not b.draining]
        return Demand(
            at_s=sample.at_s,
            window_s=self.window_s,
            replicas=len(there),
            replica=self._replica(sample),
            entitled=promised(mine.values()),
            used=Amounts(used, used * kv_each, tokens / span_s),
            waiting=Amounts(waiting, waiting * kv_each),
            refused=Amounts(refused, refused * kv_each),
            slo_met=sum(judged),
            slo_total=len(judged),
            idle_s=0.0 if self._busy_s is None else max(0.0, sample.at_s - self._busy_s),
            wanted=sample.wanted or (not there and any(sample.waiting.values())),
            fixed=sum(not b.managed for b in there) if sample.pool.scaling.driver != EXTERNAL else 0,
            awake_for=keeps_awake(mine.values(), sample.pool.wakes_in_s),
        )

    def _replica(self, sample: Sample) -> Amounts:
        """What one more adds. Tokens/s that nobody configured are what the steps logged inside the engines say of
        requests as they were lately, by the slowest of them; else they are not planned by."""
        one = one_replica(sample.pool.scaling, sample.pool.backends)
        served = [r for r in self._ended if r.outcome == Outcome.COMPLETED and r.output_tokens > 0]
        if 0 < one.tokens_per_s < math.inf or not served:
            return one
        prompt, output = (sum(getattr(r, n) for r in served) / len(served) for n in ("input_tokens", "output_tokens"))
        paces = [
            b.steps.fit.step_time.tokens_per_s(prompt, output, b.slots, b.engine_facts.step_tokens or USUAL_BUDGET)
            for b in sample.backends
            if b.steps is not None and b.steps.fit is not None and b.steps.believed and b.slots > 0
        ]
        return replace(one, tokens_per_s=min(paces)) if paces else one

    def _refused(self, entitled: Mapping[str, EntitlementSpec], span_s: float) -> float:
        """Slots that refused requests would have taken; what waited before was counted while it did."""
        times: dict[str, list[float]] = {}
        counts: dict[str, int] = {}  # places
        for r in self._ended:
            if r.granted_s is not None and r.outcome == Outcome.COMPLETED:
                times.setdefault(r.entitlement, []).append(r.done_s - r.granted_s)
            elif unmet(r.reason, waited=r.queued_s is not None) and r.entitlement in entitled:
                counts[r.entitlement] = counts.get(r.entitlement, 0) + r.sequences
        every = [t for seconds in times.values() for t in seconds]
        usual_s = sum(every) / len(every) if every else UNKNOWN_OCCUPATION_S
        total = 0.0
        for name, count in counts.items():
            own = times.get(name)
            each_s = sum(own) / len(own) if own else usual_s
            total += min(count / span_s * each_s, float(entitled[name].concurrency))
        return total
