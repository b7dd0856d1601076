"""May this request enter, and if so, at once, through the queue, or in the place of another?

The rules of token pools 4.3 in their order, with the rights of its five classes (``core/rights.py``); the first that
fails ends it. Output bound and the entitlement's own state are checked before (by the gateway, which needs no shared
state for them). This is the meaning of ``scheduling/state/scripts/admit.lua``: the reference model and the simulator
call this function, and the model-based test holds the script to it. All times are whole milliseconds so that both
compute the same numbers.

**Contended** is a pool that has no room for this request, or no more free slots than there are waiting requests that go
first: for an owner of reserved capacity those within their baselines (``due``), for others all that may run (``able``:
one whose entitlement already runs as many as it may does not count, nor one that the leader found to lack KV cache,
until a replica is kept free for it). The pool's headroom is no room for who is beyond its baseline or has none.
Otherwise the capacity is idle and belongs to whoever asks. In a contended pool a request that is not reserved must
weigh more than the lightest entitlement in flight. Who is the lightest itself is refused only where somebody weighs
more: equals, and a tenant alone with its pool, wait for each other in the queue (``docs/reference/admission.md``).

Whoever is over its own limit of requests in flight, or of its queue, takes the place of the oldest of its own that
wait, if its first token is late already. That one is refused instead, and told what the newer one would have been.
So what cannot be in time keeps nobody out who can.

Where **no replica serves** and one can be woken, there is no room and everything else holds: what may wait waits,
and is told how long that is expected to take; without one to be woken nobody waits.

**Prefill credit** is no part of that: it comes back within moments. Who lacks nothing else waits and is never refused,
and evicts nobody; and where a replica has a credit nobody takes of it while others wait who go first. To owners
of reserved capacity, within it, only what owners hold of it counts, so that a neighbour who fills it is not in their
way. Likewise who finds room, but not where its prompt is cached, may wait for that replica while somebody leads
(:mod:`scheduling.core.placement.cache_wait`); where it may not wait, it runs elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from scheduling.core.admission import entitlement as standing
from scheduling.core.outcomes import Reason
from scheduling.core.placement.cache_wait import LEAST_AGAIN, cache_wait
from scheduling.core.placement.room import (
    Need,
    able_to_serve,
    any_with_slot_and_kv,
    any_without_adapter,
    at_pace,
    choose_backend,
    keeping_pace,
    with_room,
)
from scheduling.core.placement.rule import Warmth
from scheduling.core.rights import Rights, rights_of
from scheduling.core.types import BackendView, EntitlementSpec, EntitlementState, OverLimit, PoolSpec, QueuedRequest

MIN_RETRY_MS: Final = 1_000  # a client that comes back sooner finds what it found before
KV_FILLS: Final = 2  # so many times a waiting request's part of the KV budget counts: what runs takes of it, too
MAX_TOLD_MS: Final = 120_000  # the OpenAI SDK does not come back at all when told to wait for longer
SUPERSEDABLE: Final = 8  # of an entitlement's waiting requests, the first ones, are looked at for one to supersede
EXTRA_PLACES: Final = 8  # within a baseline, this part (an eighth) more of the pool's queue: others cannot fill that
SERVED_PER_RETURN: Final = 3  # as many of an entitlement's requests are served while one refused client comes back
SERVICE_MS: Final = 2_000  # slot occupation assumed before one was seen, for retry times only
NO_BACKEND_RETRY_MS: Final = 5_000  # a replica is probed every second and needs a real generation to come back


class AdmissionAnswer(StrEnum):
    GRANT = "grant"
    QUEUE = "queue"
    REFUSE = "refuse"


def first_weight(spec: EntitlementSpec, pool: PoolSpec) -> float:
    """Eq. 1 before the first tick has given a standing: no debt, no burst, and the pool's mean SLO where it is set."""
    ratio, mean = 1.0, pool.slo_mean_s
    if mean is not None:
        ratio = standing.slo_ratio(standing.slo_target(spec.tier.slo), mean)
    c = pool.coefficients  # burst and debt count for nothing: their factors are 1
    return c.class_weights[spec.tier.service_class] / (1.0 + c.slo * ratio)


def limited(request: QueuedRequest, spec: EntitlementSpec | None) -> QueuedRequest:
    """A waiting request with the limits of its entitlement: how many may run, and what part it takes of what may wait
    before the next ones are refused for it. The same object where it has them already."""
    if spec is None:
        return request
    fills = 1.0  # it takes a place of those that may run
    if spec.tier.over_limit is OverLimit.WAIT:
        kv_part = KV_FILLS * request.kv_tokens / spec.kv_tokens if spec.kv_tokens else 0.0
        fills = min(1.0, max(1 / max(1, spec.tier.queue_limit), kv_part))
    if (request.concurrency, request.fills) == (spec.concurrency, fills):
        return request
    return replace(request, concurrency=spec.concurrency, fills=fills)


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """``backend`` goes with a grant; ``evict`` names the preemptible requests that end for it; ``supersedes`` the
    waiting request of its entitlement that is refused in its place; ``charge`` is what the bucket pays; ``reason`` and
    ``retry_ms`` go with a refusal (None: waiting will not help)."""

    verdict: AdmissionAnswer
    backend: str = ""
    evict: tuple[str, ...] = ()
    supersedes: str = ""
    charge: int = 0
    reason: Reason | None = None
    retry_ms: int | None = None
    told_ms: int | None = None  # with a refusal that others must know of: :func:`come_back`


@dataclass(frozen=True, slots=True)
class PreemptibleLease:
    """A preemptible request that runs, and may be evicted."""

    id: str
    backend: str
    kv: int
    prefill: int = 0  # what it still holds of its replica's prefill credit [prompt tokens]
    sequences: int = 1


@dataclass(frozen=True, slots=True)
class MissedDeadline:
    """A request that waits although its promised first token is late already."""

    id: str
    kv: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Over:
    """The limit of a key or user that refuses a request (:mod:`scheduling.core.admission.key_limits`), and when it
    should come back (None: it never fits)."""

    scope: int  # which of its scopes
    what: str  # requests | tokens | concurrency
    reason: Reason
    retry_ms: int | None
    told_ms: int | None  # until when the scope's refused clients are told to come back then [ms from now]


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What is true of the pool and of the entitlement at the moment of the decision."""

    rebuilding_ms: int  # until new work is admitted after a loss of state; 0 normally
    backends: tuple[BackendView, ...]  # the ready ones
    waiting: int
    able: int  # of those that wait: how many could run if slots were free
    due: int  # of those: how many within the baselines of their entitlements
    stuck: int  # of those: how many wait beside free slots all the same, for want of KV cache
    waiting_bytes: int
    ent_running: int
    ent_waiting: int
    ent_kv: int  # of running and waiting requests
    level: float  # tokens in the bucket now
    service_ms: float  # moving average of a slot's occupation, over the pool
    ent_service_ms: float  # and over this entitlement
    ent_stay_ms: float  # likewise of how long its requests are in flight, their wait included
    weight: float  # of this entitlement, eq. 1
    lightest: float | None = None  # weight of the lightest entitlement in flight; None: nobody is
    heaviest: float | None = None
    preemptible: Sequence[PreemptibleLease] = ()  # preemptible requests that run, newest first
    kept: int | None = None  # free slots that the leader keeps for baselines now; None: the pool's headroom
    told_ms: int = 0  # from now on, for how long clients of this entitlement were told to come back already
    warmth: Warmth | None = None  # what replicas have of its prompt; None: not known
    over: Over | None = None  # the limit of its key or user that it would exceed
    missed: MissedDeadline | None = None  # its entitlement's waiting request that :func:`missed_deadline`, if any
    waking_ms: int = 0  # how long it takes until a replica serves that is woken for who waits; 0: none would be
    loads: bool = False  # a replica that lacks the adapter may be asked to load it
    decides: bool = True  # somebody leads, who can have a request wait for a cache
    least_again: int = LEAST_AGAIN  # prompt tokens to compute again that are worth waiting for


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants."""

    kv: int
    charge: int  # tokens; 0 where no budget is enforced
    body_bytes: int
    exclude_backend: str = ""
    prefill: int = 0  # what it takes of a replica's prefill credit [prompt tokens]
    adapter: str = ""  # that it is for; empty: the base model
    sequences: int = 1  # places of its entitlement that it takes
    pace_us: int = 0  # most that a replica may take between tokens; 0: none was promised
    avoid: frozenset[str] = frozenset()  # replicas that it leaves to others (``core/admission/batch_account.py``)


def missed_deadline(ttft_deadline_s: float | None, now_ms: int) -> bool:
    """Whether a waiting request may be refused in the place of a newer one of its entitlement: its first token was
    promised for an earlier time [epoch s]. Only one is asked about, as every refusal looks for it: of the
    entitlement's first :data:`SUPERSEDABLE` waiting requests, in order of arrival, the first one that is in its first
    attempt. No replica has worked on it, and those behind it are due later."""
    return ttft_deadline_s is not None and ttft_deadline_s < now_ms / 1000


def refill(level: float, at_ms: float, rate: float, depth: float, now_ms: int) -> float:
    """A bucket's level now [tokens]; nothing is added where the clock went back."""
    return min(depth, level + rate * max(0, now_ms - at_ms) / 1000)


def stored_level(level: float) -> float:
    """A bucket's level [tokens] as shared state keeps it: six decimals."""
    return float(f"{level:.6f}")


def learned_service_ms(old: float | None, new_ms: int) -> float:
    """The moving average of a slot's occupation [ms] after one more request, as shared state keeps it: three decimals.
    ``old`` None: this is the first."""
    mean = float(new_ms) if old is None else 0.9 * old + 0.1 * new_ms
    return float(f"{mean:.3f}")


def state_at(spec: EntitlementSpec, now_s: float) -> EntitlementState:
    """An entitlement's state at ``now_s`` [epoch s], also where it has expired and the catalog has not said so yet."""
    over = spec.valid_until_s is not None and spec.valid_until_s <= now_s
    return EntitlementState.EXPIRED if over else spec.state


def not_entitled(spec: EntitlementSpec, now_s: float) -> Reason | None:
    """Why nothing new of an entitlement is admitted, whatever room there is; None where it is. Needs no shared
    state."""
    if state_at(spec, now_s) in (EntitlementState.PENDING, EntitlementState.EXPIRED):
        return Reason.NOT_ENTITLED
    return Reason.TENANT_PAUSED if spec.paused else None


def served_every_ms(inflight: int, stay_ms: float, sequences: int = 1) -> float:
    """Mean time in which an entitlement's requests leave as many places as one of so many ``sequences`` takes [ms], by
    Little's law: from how many places are in flight, and how long a request is, its wait included. With none in flight,
    as if one were.

    Not from what runs alone: when many come at the same moment, none or few of them run yet, and those behind them
    would be told to come back as if they were served one by one.
    """
    return min(stay_ms, stay_ms / max(1, inflight) * sequences)


def come_back(first_ms: float, served_ms: float, told_ms: int) -> tuple[int, int]:
    """When a refused client should come back, and until when those of its entitlement are told then [ms from now].

    ``first_ms``: until there is room for the next one, were there nobody else. ``served_ms``: one of the entitlement's
    requests ends each so often. ``told_ms``: the return of those refused before it.

    Each refused client is told a time of its own, one after the other, ``SERVED_PER_RETURN`` services apart. So however
    many are refused, they return at a third of the rate at which the entitlement is served, and room is left for those
    who come for the first time. While all are served in the end, a request is sent 1 + 1/3 times on average: returns
    are as many as refusals, and a third of what is served. Where refusals are rarer than returns, nobody is told more
    than ``first_ms``; where they are more frequent, the time grows with each of them, up to ``MAX_TOLD_MS``.
    """
    told_ms = min(MAX_TOLD_MS, told_ms)  # more only where a clock went back
    retry_ms = max(MIN_RETRY_MS, math.ceil(first_ms + told_ms))
    return retry_ms, min(MAX_TOLD_MS, told_ms + math.ceil(served_ms * SERVED_PER_RETURN))


def waits_for_replica(backends: Iterable[BackendView], need: Need) -> bool:
    """Whether a request that finds room waits all the same, for a replica that is fast enough for it or has its prompt
    cached."""
    able = able_to_serve(backends, need)
    if (keeping := keeping_pace(able, need)) and not with_room(keeping, need):
        return True
    able = at_pace(able, need)
    return cache_wait(able, with_room(able, need), need.prefill, need.warmth, need.least_again) is not None


def goes_at_once(backends: Iterable[BackendView], chosen: str | None, first: int, prefill: int) -> bool:
    """Whether a request may take the room of ``chosen`` with ``first`` waiting requests before it. Free slots are known
    to be enough for those as well; for how many of them a prefill credit is, is not known. An owner's prompt that would
    go beside a long one waits for the leader, who may interrupt that."""
    replica = next((b for b in backends if b.id == chosen), None)
    if replica is None or (replica.computes_long and not replica.has_credit(prefill)):
        return False
    return first == 0 or replica.prefill_credit == 0


def choose_victims(
    preemptible: Iterable[PreemptibleLease], backends: Iterable[BackendView], need: Need
) -> tuple[str, tuple[str, ...]] | None:
    """The replica and the requests to evict there. Evicts newest first, so that the least work is lost, on the first
    replica where that makes enough room. ``preemptible``: newest first. None where evicting all would not do."""
    by_name = {b.id: b for b in backends if b.id != need.exclude and b.serves(need.adapter)}
    taken: dict[str, list[PreemptibleLease]] = {}
    for p in preemptible:
        b = by_name.get(p.backend)
        if b is None:
            continue
        out = taken.setdefault(b.id, [])
        out.append(p)
        used = max(0, b.prefill_used - sum(x.prefill for x in out))
        left = replace(
            b,
            running=b.running - sum(x.sequences for x in out),
            kv_used=b.kv_used - sum(x.kv for x in out),
            prefill_used=used,
            prefill_owned=min(b.prefill_owned, used),
        )
        if left.room_for(need.kv, need.prefill, need.owner):
            return b.id, tuple(x.id for x in out)
    return None


def decide_admission(
    spec: EntitlementSpec, pool: PoolSpec, ask: Ask, view: AdmissionView, no_backend_retry_ms: int
) -> AdmissionDecision:
    """Pure: the same facts give the same decision. The checks are in the order of ``docs/reference/admission.md``.
    Source: token pools 4.3 and Table 1."""
    return _unable(ask, view, no_backend_retry_ms) or _Case(spec, pool, ask, view).decide()


class _Case:
    """One request on its way through the checks."""

    __slots__ = (
        "ask", "charge", "may_burst", "missed", "pool", "protected", "refused", "rights", "room", "served_ms", "spec",
        "view", "waits_over", "within",
    )  # fmt: skip

    def __init__(self, spec: EntitlementSpec, pool: PoolSpec, ask: Ask, view: AdmissionView) -> None:
        self.spec, self.pool, self.ask, self.view = spec, pool, ask, view
        self.rights = rights_of(spec)
        inflight = view.ent_running + view.ent_waiting
        self.served_ms = served_every_ms(inflight, view.ent_stay_ms, ask.sequences)
        self.within = inflight < spec.concurrency
        self.protected = self.rights.reserved and self.within
        self.room = _room_for(pool, ask, view, self.rights, within=self.within)
        self.may_burst = self.rights.bursts and not self.room.contended
        self.waits_over = spec.tier.over_limit is OverLimit.WAIT
        self.charge = ask.charge  # what it pays if it is admitted
        self.missed: MissedDeadline | None = None  # whose place it takes
        self.refused: AdmissionDecision | None = None  # and what it would have been told without that

    def decide(self) -> AdmissionDecision:
        """The first check that it does not pass refuses it."""
        refusal = self._over_concurrency() or self._over_tokens() or self._over_kv() or self._outranked()
        return refusal or self._at_once() or self._evicting() or self._queue_full() or self._queued()

    def _over_concurrency(self) -> AdmissionDecision | None:
        if self.within or self.may_burst or self.waits_over:
            return None
        refusal = self._concurrency()
        if not self._supersedes(refusal):
            return refusal
        self.protected = self.rights.reserved
        return None

    def _over_tokens(self) -> AdmissionDecision | None:
        if self.charge <= self.view.level:
            return None
        if self.room.contended or not self.room.slot_left or not self.rights.over_budget:
            return self._refuse(Reason.TOKEN_BUDGET, *self._bucket_covers())
        self.charge = 0
        return None

    def _over_kv(self) -> AdmissionDecision | None:
        most, others = self.spec.kv_tokens, self.view.ent_kv - (0 if self.missed is None else self.missed.kv)
        if most <= 0 or others + self.ask.kv <= most or self.may_burst:
            return None
        return self._refuse(Reason.KV_BUDGET, self.served_ms if self.ask.kv <= most else None)

    def _outranked(self) -> AdmissionDecision | None:
        if not self.room.contended or self.protected or self.waits_over or not _outranked(self.pool, self.view):
            return None
        return self._refuse(Reason.LOW_PRIORITY, self.view.service_ms / max(1, self.room.slots))

    def _at_once(self) -> AdmissionDecision | None:
        """Granted, if there is room that is left to it, on a replica for which it would not rather wait."""
        room, view = self.room, self.view
        if room.contended or not room.slot_left or not (self.within or self.rights.bursts):
            return None
        if not goes_at_once(view.backends, room.backend, room.first, self.ask.prefill):
            return None
        may_wait = view.decides and (self.protected or not (self._has_no_place() or self._pool_has_no_place()))
        if may_wait and waits_for_replica(room.replicas, room.need):
            return None
        assert room.backend is not None
        return AdmissionDecision(AdmissionAnswer.GRANT, backend=room.backend, charge=self.charge)

    def _evicting(self) -> AdmissionDecision | None:
        """Granted in the place of preemptible requests."""
        rights, room = self.rights, self.room
        if room.roomy or not self.within or not rights.evicts or not (rights.reserved or self.view.able == 0):
            return None
        victims = choose_victims(self.view.preemptible, room.replicas, room.need)
        if victims is None:
            return None
        return AdmissionDecision(AdmissionAnswer.GRANT, backend=victims[0], evict=victims[1], charge=self.charge)

    def _queue_full(self) -> AdmissionDecision | None:
        if self.protected:
            return None
        spec, view, slots = self.spec, self.view, max(1, self.room.slots)
        if self._has_no_place():
            # The time its own waiting requests take to get through the slots it may use.
            each_ms = served_every_ms(max(1, min(spec.concurrency, slots)), view.ent_service_ms, self.ask.sequences)
            refusal = self._refuse(Reason.QUEUE_FULL, max(1, view.ent_waiting) * each_ms)
            if not self._supersedes(refusal):
                return refusal
        if self._pool_has_no_place():
            return self._refuse(Reason.QUEUE_FULL, max(1, view.waiting) * view.service_ms / slots)
        return None

    def _queued(self) -> AdmissionDecision:
        if not self.within and not self.waits_over:
            self._supersedes(self._concurrency())  # it keeps no more waiting than can be in time
        if self.refused is None or self.missed is None:
            return AdmissionDecision(AdmissionAnswer.QUEUE, charge=self.charge)
        return replace(
            self.refused, verdict=AdmissionAnswer.QUEUE, charge=self.charge, supersedes=self.missed.id,
            reason=Reason.SUPERSEDED,
        )  # fmt: skip

    # --- what the checks share

    def _supersedes(self, refusal: AdmissionDecision) -> bool:
        """Whether it takes the place of a late request of its entitlement instead of this refusal. It does so once."""
        if self.missed is not None or self.view.missed is None:
            return False
        self.missed, self.refused = self.view.missed, refusal
        return True

    def _refuse(self, reason: Reason, first_ms: float | None, every_ms: float | None = None) -> AdmissionDecision:
        """``first_ms``: until there is room for it, were there nobody else (None: never). ``every_ms``: how often there
        is room for one more; None: as often as its entitlement's requests are served."""
        if first_ms is None:
            return AdmissionDecision(AdmissionAnswer.REFUSE, reason=reason)
        every_ms = self.served_ms if every_ms is None else every_ms
        retry_ms, told_ms = come_back(first_ms, every_ms, self.view.told_ms)
        return AdmissionDecision(AdmissionAnswer.REFUSE, reason=reason, retry_ms=retry_ms, told_ms=told_ms)

    def _concurrency(self) -> AdmissionDecision:
        spec, ask = self.spec, self.ask
        first_ms = served_every_ms(spec.concurrency, self.view.ent_service_ms, ask.sequences)
        return self._refuse(Reason.CONCURRENCY, first_ms)

    def _bucket_covers(self) -> tuple[float | None, float]:
        """When the token bucket covers its charge [ms from now; None: never, it is deeper than the bucket], and how
        often it covers one more [ms]."""
        spec, view, charge = self.spec, self.view, self.charge
        covered_ms = (charge - view.level) / spec.tokens_per_s * 1000 if charge <= spec.burst_tokens else None
        # What runs uses less than its charge, and says more; nothing: one charge after the other.
        return covered_ms, self.served_ms if view.ent_running > 0 else charge / spec.tokens_per_s * 1000

    def _has_no_place(self) -> bool:
        """Whether its entitlement's queue is full, without the request that is superseded."""
        return self.view.ent_waiting - (self.missed is not None) >= self.spec.tier.queue_limit

    def _pool_has_no_place(self) -> bool:
        """Likewise the pool's."""
        view, missed = self.view, self.missed
        waiting, waiting_bytes = view.waiting, view.waiting_bytes
        if missed is not None:
            waiting, waiting_bytes = waiting - 1, waiting_bytes - missed.body_bytes
        places, room = self.pool.queue_limit, self.pool.queue_bytes
        if self.rights.baseline and self.within:
            places, room = places + places // EXTRA_PLACES, room + room // EXTRA_PLACES
        return waiting >= places or waiting_bytes + self.ask.body_bytes > room


def _unable(ask: Ask, view: AdmissionView, no_backend_retry_ms: int) -> AdmissionDecision | None:
    """The refusal where the pool cannot serve the request at all, or a limit of its key or user is reached."""

    def wait(reason: Reason, ms: int) -> AdmissionDecision:
        return AdmissionDecision(AdmissionAnswer.REFUSE, reason=reason, retry_ms=max(MIN_RETRY_MS, ms))

    if view.rebuilding_ms > 0:
        return wait(Reason.REBUILDING, view.rebuilding_ms)
    if not view.backends and not view.waking_ms:
        return wait(Reason.NO_BACKEND, no_backend_retry_ms)
    if ask.adapter and not view.loads and not any(b.serves(ask.adapter) for b in view.backends):
        return wait(Reason.NO_ADAPTER, no_backend_retry_ms)
    if view.over is not None:
        return AdmissionDecision(AdmissionAnswer.REFUSE, reason=view.over.reason, retry_ms=view.over.retry_ms)
    return None


@dataclass(frozen=True, slots=True)
class _Room:
    """What the pool has for one request."""

    replicas: Sequence[BackendView]  # on which it may run
    need: Need
    slots: int  # of the pool
    backend: str | None  # the replica that it would take
    roomy: bool  # some replica has a slot and KV cache for it
    first: int  # waiting requests that go before it
    slot_left: bool  # there is a free slot for each of those and for it
    contended: bool


def _room_for(pool: PoolSpec, ask: Ask, view: AdmissionView, rights: Rights, *, within: bool) -> _Room:
    """``within``: its entitlement has fewer in flight than its concurrency."""
    protected, based = rights.reserved and within, rights.baseline and within
    replicas = [b for b in view.backends if b.id not in ask.avoid] if ask.avoid else view.backends
    need = Need(
        ask.kv, ask.prefill, protected, ask.adapter, ask.exclude_backend, view.warmth, view.least_again, ask.pace_us
    )
    slots = sum(b.slots for b in view.backends)
    free = sum(max(0, b.slots - b.running) for b in view.backends)
    # one that would have room once it has loaded the adapter counts: the request waits for that
    roomy = any_with_slot_and_kv(replicas, need) or (view.loads and any_without_adapter(replicas, need))
    headroom = pool.headroom_slots if view.kept is None else view.kept
    # who waits for what headroom denies it takes nothing from those it is kept for
    able = max(0, view.able - view.stuck)
    first = view.due if protected or (based and headroom > 0) else able
    left = free - (0 if based else headroom)
    # who has a baseline is refused for the sake of others within theirs only: the rest may wait for credit, not slots
    contended = not roomy or left <= (view.due if rights.baseline else able)
    return _Room(replicas, need, slots, choose_backend(replicas, need), roomy, first, left > first, contended)


def _outranked(pool: PoolSpec, view: AdmissionView) -> bool:
    """Whether others go first: under the pool's own threshold, or the lightest of several."""
    if view.weight <= pool.threshold:
        return True
    if view.lightest is None or view.heaviest is None:
        return False
    return view.weight <= view.lightest and view.weight < view.heaviest
