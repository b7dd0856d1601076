"""Who may enter a simulated pool: what the product's admission looks at, kept on virtual time.

The decisions are the product's: :func:`scheduling.core.admission.rule.decide_admission`. What it looks at (buckets,
what runs and waits of each entitlement, weights, who was told to come back when) lives in Redis in the product and here
in this object, which every simulated pool asks. ``tests/property/test_lab_admission.py`` holds it to the reference
model of the scripts, decision by decision.

Time is handed in: whole milliseconds, as the scripts count. Not simulated: storms of one key, quotas, and leases that
gateways lose. Tokens count as served when their request ends; live they also do with every renewal (3 s).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from scheduling.core.admission import entitlement as standing
from scheduling.core.admission.rule import (
    NO_BACKEND_RETRY_MS,
    SERVICE_MS,
    SUPERSEDABLE,
    AdmissionAnswer,
    AdmissionDecision,
    AdmissionView,
    Ask,
    MissedDeadline,
    PreemptibleLease,
    choose_victims,
    decide_admission,
    first_weight,
    learned_service_ms,
    limited,
    missed_deadline,
    not_entitled,
    refill,
    stored_level,
)
from scheduling.core.capacity.headroom import Headroom, use_of_baselines
from scheduling.core.capacity.pool import baselines_of
from scheduling.core.estimate.tokens import BYTES_PER_TOKEN
from scheduling.core.outcomes import Reason, unmet
from scheduling.core.placement.room import Need, any_with_slot_and_kv, choose_backend
from scheduling.core.placement.rule import PrefixIndex
from scheduling.core.rights import RIGHTS, able_to_run, baseline_slots, cap_of
from scheduling.core.types import (
    BackendView,
    EntitlementSpec,
    EntitlementState,
    PoolSpec,
    PoolView,
    QueuedRequest,
    ServiceClass,
    Standing,
)

EVICTABLE_AT_ONCE: Final = 100  # preemptible requests that one decision looks at, as the scripts do
NEVER_OVER_S: Final = -math.inf  # lab time is not the calendar's: an entitlement's state is that of when it was read
LET_IN: Final = AdmissionDecision(AdmissionAnswer.QUEUE)


@dataclass(slots=True)
class Share:
    """An entitlement's part of the pool. ``spec`` None: the pool has no such entitlement, so nothing limits it."""

    spec: EntitlementSpec | None
    running: int = 0
    waiting: int = 0
    kv: int = 0  # of both
    level: float = 0.0  # tokens in its bucket at ``level_ms``
    level_ms: int | None = None  # None: the bucket is full, nothing was taken yet
    told_ms: int = 0  # until when refused clients were told to come back
    service_ms: float | None = None  # moving average of a slot's occupation
    stay_ms: float | None = None  # and of how long a request was in flight, its wait included
    weight: float = 0.0  # while it has something in flight
    # since the last tick
    looks: standing.Looks = field(default_factory=standing.Looks)
    served_tokens: int = 0
    refused_tokens: int = 0
    refusals: int = 0

    @property
    def inflight(self) -> int:
        return self.running + self.waiting

    @property
    def able(self) -> int:
        spec = self.spec
        cap = None if spec is None else cap_of(spec.tier.service_class, spec.concurrency)
        return able_to_run(self.waiting, self.running, cap)

    @property
    def due(self) -> int:
        spec = self.spec
        base = 0 if spec is None else baseline_slots(spec.tier.service_class, spec.concurrency)
        return able_to_run(self.waiting, self.running, base)


@dataclass(slots=True)
class _Entry:
    """A request that was admitted and has not ended."""

    request: QueuedRequest
    charge: int
    body_bytes: int
    backend: str = ""  # empty while it waits
    granted_ms: int = 0
    admitted_ms: int = 0
    prefill: int = 0  # what it holds of its replica's prefill credit


def body_bytes_of(request: QueuedRequest) -> int:
    """How large its body is taken to be: recordings do not say."""
    return math.ceil(BYTES_PER_TOKEN * request.input_tokens)


class Admission:
    """One pool's. ``specs``: its entitlements. ``view``: its replicas, as the scheduler books them; standings and
    coefficients are put there."""

    def __init__(self, pool: PoolSpec, specs: Iterable[EntitlementSpec], view: PoolView) -> None:
        self.pool = pool
        self.specs = {spec.id: spec for spec in specs}
        self.view = view
        self.waiting = 0
        self.stuck = 0  # as the leader last said
        self._waiting_bytes = 0
        self._able = 0
        self._due = 0
        self._service_ms: float | None = None
        self._shares: dict[str, Share] = {}
        self._entries: dict[str, _Entry] = {}
        self._preemptible: dict[str, int] = {}  # preemptible requests that run: when they were granted
        self._places = PrefixIndex()
        self._headroom = Headroom()
        self._all_baselines = baselines_of(self.specs.values())
        self._kept = pool.headroom_slots
        self._looks = 0
        self._ticked_ms = 0
        self._queues: dict[str, dict[str, None]] = {}  # by entitlement: what waits, in order of arrival
        self._queued_tokens: dict[str, float] = {}
        self._queued_kv: dict[str, int] = {}
        view.coefficients = pool.coefficients
        self._baselines = {
            spec.id: standing.baseline_of(spec)
            for spec in self.specs.values()
            if spec.state in (EntitlementState.BOUND, EntitlementState.DEGRADED)
        }

    @property
    def unreserved(self) -> frozenset[str]:
        """Entitlements whose promise the pool cannot keep now."""
        return frozenset(s.id for s in self.specs.values() if s.state is not EntitlementState.BOUND)

    @property
    def headroom(self) -> int:
        """The last free slots that are kept for baselines now."""
        return self._kept

    def keep(self, slots: int, most: int) -> None:
        """Another headroom from now on. ``most``: how far it may be raised by itself."""
        self.pool = replace(self.pool, headroom_slots=slots, headroom_most=most)
        self._kept = slots

    @property
    def has_preemptible(self) -> bool:
        """Whether any preemptible request runs."""
        return bool(self._preemptible)

    def share(self, entitlement: str) -> Share:
        """What an entitlement has now."""
        share = self._shares.get(entitlement)
        if share is None:
            share = self._shares[entitlement] = Share(self.specs.get(entitlement))
        return share

    # --- a request comes, runs and ends

    def decide(self, request: QueuedRequest, now_ms: int) -> AdmissionDecision:
        """May it enter? Changes nothing but what the next refused client of its entitlement is told."""
        spec = self.specs.get(request.entitlement)
        if spec is None:
            return LET_IN
        reason = not_entitled(spec, NEVER_OVER_S)
        if reason is not None:
            return AdmissionDecision(AdmissionAnswer.REFUSE, reason=reason)
        share = self.share(spec.id)
        weights = [s.weight for s in self._shares.values() if s.inflight and s.spec is not None]
        seen = AdmissionView(
            rebuilding_ms=0,
            backends=self._backends(),
            waiting=self.waiting,
            able=self._able,
            due=self._due,
            stuck=self.stuck,
            waiting_bytes=self._waiting_bytes,
            ent_running=share.running,
            ent_waiting=share.waiting,
            ent_kv=share.kv,
            level=self._level(share, now_ms),
            service_ms=SERVICE_MS if self._service_ms is None else self._service_ms,
            ent_service_ms=SERVICE_MS if share.service_ms is None else share.service_ms,
            ent_stay_ms=SERVICE_MS if share.stay_ms is None else share.stay_ms,
            weight=self._weight(spec),
            lightest=min(weights, default=None),
            heaviest=max(weights, default=None),
            preemptible=self._newest_preemptible(),
            kept=self._kept,
            told_ms=max(0, share.told_ms - now_ms),
            warmth=self._places.warmth(request.prefixes),
            missed=self._missed_deadline(spec.id, now_ms),
        )
        charge = _cost(request) if spec.tokens_per_s > 0 else 0
        ask = Ask(
            request.kv_tokens, charge, body_bytes_of(request), request.exclude_backend, request.prefill_tokens,
            sequences=request.sequences, pace_us=request.pace_us,
        )  # fmt: skip
        decision = decide_admission(spec, self.pool, ask, seen, NO_BACKEND_RETRY_MS)
        if decision.told_ms is not None:
            share.told_ms = now_ms + decision.told_ms
        if decision.verdict is AdmissionAnswer.REFUSE:
            self.refused(request, decision.reason)
        return decision

    def refused(self, request: QueuedRequest, reason: Reason | None, *, waited: bool = False) -> None:
        """Counts what it wanted, where there was no room for it."""
        if reason is not None and unmet(reason, waited):
            share = self.share(request.entitlement)
            share.refused_tokens += _cost(request)
            share.refusals += 1

    def admitted(self, request: QueuedRequest, decision: AdmissionDecision, now_ms: int) -> None:
        """It was let in; with a grant it runs there from now on."""
        share = self.share(request.entitlement)
        spec = share.spec
        if spec is not None and not share.inflight:
            share.weight = self._weight(spec)
        if spec is not None and spec.tokens_per_s > 0:
            share.level, share.level_ms = stored_level(self._level(share, now_ms) - decision.charge), now_ms
        entry = _Entry(request, decision.charge, body_bytes_of(request), admitted_ms=now_ms)
        self._entries[request.id] = entry
        if decision.verdict is AdmissionAnswer.GRANT:
            self._run(entry, decision.backend, now_ms)
            self._count(entry, share, 1, 0)
        else:
            self._count(entry, share, 0, 1)

    def granted(self, request: QueuedRequest, backend: str, now_ms: int) -> None:
        """It waited and runs now."""
        entry = self._entries[request.id]
        entry.request = request
        self._run(entry, backend, now_ms)
        self._count(entry, self.share(entry.request.entitlement), 1, -1)

    def interrupted(self, request: QueuedRequest, now_s: float) -> QueuedRequest:
        """It ran, and waits again, for as long as one that comes now may: its prefill was interrupted."""
        entry, share = self._entries[request.id], self.share(request.entitlement)
        if share.spec is not None:
            request = replace(request, expires_s=now_s + share.spec.tier.max_wait_s)
        entry.request, entry.backend, entry.prefill = request, "", 0
        self._preemptible.pop(request.id, None)
        self._count(entry, share, -1, 1)
        return request

    def first_token(self, request_id: str) -> None:
        """Its prompt is prefilled."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry.prefill = 0

    def ended(self, request_id: str, used_tokens: int, now_ms: int) -> None:
        """It ran to its end, having used so many tokens, prompt included."""
        entry = self._entries[request_id]
        share = self._close(request_id, used_tokens, now_ms)
        took_ms = max(0, now_ms - entry.granted_ms)
        self._service_ms = learned_service_ms(self._service_ms, took_ms)
        share.service_ms = learned_service_ms(share.service_ms, took_ms)
        share.stay_ms = learned_service_ms(share.stay_ms, max(0, now_ms - entry.admitted_ms))

    def left(self, request_id: str, now_ms: int) -> None:
        """It waited and waits no longer: nothing of it ran."""
        self._close(request_id, 0, now_ms)

    def evicted(self, request_id: str, used_tokens: int, now_ms: int) -> None:
        """It made room for another one."""
        self._close(request_id, used_tokens, now_ms)

    def make_room(self, request: QueuedRequest) -> tuple[str, tuple[str, ...]] | None:
        """Where a request that waits may run now at the cost of which preemptible ones; None: nowhere."""
        share = self.share(request.entitlement)
        if 0 < request.concurrency <= share.running or not self._preemptible:
            return None
        backends = self._backends()
        exclude = request.exclude_backend if len(backends) > 1 else ""
        base = 0 if share.spec is None else baseline_slots(share.spec.tier.service_class, share.spec.concurrency)
        owner = share.running < base and RIGHTS[request.service_class].reserved
        warmth = self._places.warmth(request.prefixes)
        need = Need(request.kv_tokens, request.prefill_tokens, owner, exclude=exclude, warmth=warmth)
        backend = choose_backend(backends, need)
        if backend is not None:
            return backend, ()
        if any_with_slot_and_kv(backends, need):
            return None
        return choose_victims(self._newest_preemptible(), backends, need)

    def turn_s(self) -> float:
        """About when a slot will be free for one more [s]: when an evicted request's client is told to come back."""
        slots = sum(b.slots for b in self._backends())
        service_ms = SERVICE_MS if self._service_ms is None else self._service_ms
        return (self.waiting + 1) * service_ms / 1000 / max(1, slots)

    # --- what the leader does

    def look(self, now_ms: int) -> None:
        """Once a second: what everyone has, and how much stays free for baselines."""
        self._looks += 1
        for name, share in self._shares.items():
            share.looks.running += share.running
            share.looks.waiting += share.waiting
            share.looks.kv_tokens += max(0, share.kv - self._queued_kv.get(name, 0))
        if self.pool.headroom_most:
            flying = [(s.spec, s.running, s.waiting) for s in self._shares.values() if s.spec is not None]
            service_ms = SERVICE_MS if self._service_ms is None else self._service_ms
            self._headroom.seen(now_ms / 1000, *use_of_baselines(flying), service_ms / 1000, self._all_baselines)
            self._kept = self._headroom.slots(self.pool.headroom_slots, self.pool.headroom_most)

    def tick(self, now_ms: int) -> None:
        """Every five seconds: where that leaves everyone (token pools, eq. 1-3)."""
        elapsed_s = (now_ms - self._ticked_ms) / 1000
        usage = {}
        for name in self._baselines:
            share = self._shares.get(name)
            if share is not None and elapsed_s > 0:
                usage[name] = self._usage(name, share, elapsed_s)
        standings = standing.tick(
            self._baselines, usage, self.view.standings, self.pool.coefficients, self.pool.slo_mean_s, elapsed_s
        )
        self.stand(standings)
        self._ticked_ms, self._looks = now_ms, 0
        for share in self._shares.values():
            share.looks = standing.Looks()
            share.served_tokens = share.refused_tokens = share.refusals = 0

    def stand(self, standings: dict[str, Standing]) -> None:
        """Where everyone stands from now on."""
        self.view.standings = standings
        for name, share in self._shares.items():
            if share.inflight and name in standings:
                share.weight = standings[name].weight

    def _usage(self, name: str, share: Share, elapsed_s: float) -> standing.Usage:
        return standing.usage_of(
            share.looks,
            self._looks,
            elapsed_s,
            served_tokens=share.served_tokens,
            refused_tokens=share.refused_tokens,
            refusals=share.refusals,
            backlog_tokens=self._queued_tokens.get(name, 0.0),
            service_s=(share.service_ms or self._service_ms or SERVICE_MS) / 1000,
        )

    # --- accounts

    def _missed_deadline(self, entitlement: str, now_ms: int) -> MissedDeadline | None:
        """The first of its waiting requests, in order of arrival, that no replica has worked on, if it waits in
        vain."""
        for name in islice(self._queues.get(entitlement, ()), SUPERSEDABLE):
            entry = self._entries[name]
            if entry.request.attempt + entry.request.preempted > 1:  # live, each is an attempt of its own
                continue
            late = missed_deadline(entry.request.ttft_deadline_s, now_ms)
            return MissedDeadline(name, entry.request.kv_tokens, entry.body_bytes) if late else None
        return None

    def _backends(self) -> tuple[BackendView, ...]:
        return tuple(b for b in self.view.backends.values() if b.ready)

    def _weight(self, spec: EntitlementSpec) -> float:
        standing = self.view.standings.get(spec.id)
        return first_weight(spec, self.pool) if standing is None else standing.weight

    def _level(self, share: Share, now_ms: int) -> float:
        spec = share.spec
        if spec is None or share.level_ms is None:
            return 0.0 if spec is None else spec.burst_tokens
        return refill(share.level, share.level_ms, spec.tokens_per_s, spec.burst_tokens, now_ms)

    def _newest_preemptible(self) -> list[PreemptibleLease]:
        newest = sorted(((at, name) for name, at in self._preemptible.items()), reverse=True)[:EVICTABLE_AT_ONCE]
        rows = ((name, self._entries[name]) for _, name in newest)
        return [
            PreemptibleLease(name, e.backend, e.request.kv_tokens, e.prefill, e.request.sequences) for name, e in rows
        ]

    def _run(self, entry: _Entry, backend: str, now_ms: int) -> None:
        request = entry.request
        entry.backend, entry.granted_ms = backend, now_ms
        entry.prefill = request.prefill_tokens if self.view.backends[backend].prefill_credit else 0
        self._places.ran(request.prefixes, backend)
        if request.service_class is ServiceClass.PREEMPTIBLE:
            self._preemptible[request.id] = now_ms

    def _count(self, entry: _Entry, share: Share, run: int, wait: int) -> None:
        request, able, due = entry.request, share.able, share.due
        name = request.entitlement
        share.running += run * request.sequences
        share.waiting += wait
        share.kv += (run + wait) * request.kv_tokens
        self.waiting += wait
        self._waiting_bytes += wait * entry.body_bytes
        if wait:
            waits = self._queues.setdefault(name, {})
            if wait > 0:
                waits[request.id] = None
            else:
                del waits[request.id]
            tokens = wait * (request.input_tokens + request.output_tokens)
            self._queued_tokens[name] = self._queued_tokens.get(name, 0.0) + tokens
            self._queued_kv[name] = self._queued_kv.get(name, 0) + wait * request.kv_tokens
        self._able += share.able - able
        self._due += share.due - due

    def _close(self, request_id: str, used_tokens: int, now_ms: int) -> Share:
        entry = self._entries.pop(request_id)
        share = self.share(entry.request.entitlement)
        self._preemptible.pop(request_id, None)
        runs = bool(entry.backend)
        self._count(entry, share, -1 if runs else 0, 0 if runs else -1)
        if share.spec is not None and entry.charge:
            level = self._level(share, now_ms) + entry.charge - used_tokens
            share.level, share.level_ms = stored_level(min(share.spec.burst_tokens, level)), now_ms
        if runs:
            share.served_tokens += used_tokens
        return share


def _cost(request: QueuedRequest) -> int:
    """What its bucket pays before it has ended: input and output bound."""
    return request.input_tokens + request.output_bound


def under(request: QueuedRequest, spec: EntitlementSpec | None) -> QueuedRequest:
    """The request with what its entitlement says of it: its limits, and how long it may wait."""
    if spec is None:
        return request
    tier = spec.tier
    ranked = replace(
        request,
        rank=tier.rank,
        weight=tier.weight,
        service_class=tier.service_class,
        expires_s=request.arrival_s + tier.max_wait_s,
    )
    return limited(ranked, spec)
