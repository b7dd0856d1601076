"""What one step of the scheduler knows, and what it leaves to the next.

Question: which replicas still have room for whom, and for whom is one kept free?
A request that lacks only KV cache is passed by smaller ones for ``patience_s``; then one replica takes nothing that
comes after it in the policy's order until it fits. One that lacks only prefill credit is passed by nobody on the
replica where it fits soonest. One whose prompt another replica has cached may wait for that one
(:mod:`scheduling.core.placement.cache_wait`), and one that was promised a time between tokens for a replica that keeps
it (:mod:`scheduling.core.placement.pace_wait`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from scheduling.core.placement.cache_wait import PATIENCE, before_expiry_s, cache_wait
from scheduling.core.placement.cached_prompts import counted_of, counted_on
from scheduling.core.placement.pace_wait import pace_wait_until_s
from scheduling.core.placement.room import Need, at_pace, has_credit, keeping_pace, with_room
from scheduling.core.placement.rule import Warmth
from scheduling.core.rights import RIGHTS
from scheduling.core.scheduler.prefill_preemption import waits_for
from scheduling.core.types import PREFILL_PER_S, BackendView, PoolView, QueuedRequest

RESERVED = frozenset(c for c, r in RIGHTS.items() if r.reserved)
BASELINE = frozenset(c for c, r in RIGHTS.items() if r.baseline)
BURSTS = frozenset(c for c, r in RIGHTS.items() if r.bursts)
EXCEEDS = BASELINE & BURSTS  # a baseline and more


def work_of(request: QueuedRequest) -> int:
    """Outstanding work that a request adds to its replica [tokens]: input and expected output."""
    return math.ceil(request.input_tokens + request.output_tokens)


@dataclass(slots=True)
class Hold:
    """A request that had no room although others had."""

    request_id: str
    since_s: float
    backend: str = ""  # kept free for it once its patience has ended


@dataclass(slots=True)
class Holds:
    """For whom room is kept: what one step leaves to the next."""

    kv: Hold | None = None  # the first, in the policy's order, for which no replica had enough free KV cache
    credit: Hold | None = None  # the first that lacked prefill credit while another one had room
    by_replica: dict[str, str] = field(default_factory=dict)  # kept in the last step, and for whom: it lacked credit
    idle_s: float = 0.0  # for how long a replica has idled while requests waited for a cache
    idle_before_s: dict[str, float] = field(default_factory=dict)  # that, when one of them could first have gone there
    idle_from_s: float | None = None  # the last step left one idle, at this time
    # who waited for one in the last step, for which replica, and until when [s]
    for_cache: dict[str, tuple[str, float]] = field(default_factory=dict)
    for_pace: dict[str, float] = field(default_factory=dict)  # likewise for one that is fast enough, and until when [s]

    def release(self, request_id: str) -> None:
        """It waits no longer, or is being granted."""
        if self.kv is not None and self.kv.request_id == request_id:
            self.kv = None
        if self.credit is not None and self.credit.request_id == request_id:
            self.credit = None
        self.idle_before_s.pop(request_id, None)
        self.for_cache.pop(request_id, None)
        self.for_pace.pop(request_id, None)


class SchedulerStep:
    """One step's view of replicas and limits. Books in ``view`` and in ``holds``.

    ``waiting``: what waits, by id. ``headroom``: so many of the free slots are only for requests within a baseline.
    ``unreserved``: entitlements whose promise the pool cannot keep now. ``rights``: whether service classes count.
    ``warmth``: what replicas are believed to have cached of a request's prompt. ``cache_patience``: how long it waits
    for that (:mod:`scheduling.core.placement.cache_wait`).
    """

    def __init__(
        self,
        view: PoolView,
        now_s: float,
        holds: Holds,
        waiting: Mapping[str, QueuedRequest],
        *,
        patience_s: float,
        headroom: int,
        unreserved: frozenset[str],
        rights: bool,
        warmth: Callable[[QueuedRequest], Warmth | None],
        cache_patience: float = PATIENCE,
    ) -> None:
        self.view = view
        self._warmth = warmth
        self._cache_patience = cache_patience
        self._running = view.running_by_entitlement
        self._now_s = now_s
        self._holds = holds
        self._patience_s = patience_s
        self._unreserved = unreserved
        self._rights = rights
        self._ready = [backend for backend in view.backends.values() if backend.ready]
        self._trusts = max([backend.cache_trust for backend in self._ready], default=0) > 0
        self.headroom = headroom
        self.open = [backend for backend in self._ready if backend.running < backend.slots]
        self._free = sum([backend.slots - backend.running for backend in self.open])
        self._lends = 0  # slots that nobody within its concurrency can use
        self._of_others = 0  # slots that are counted for those within their concurrency who have no baseline, and left
        self.owners_first = True
        self._lent_enough: set[str] = set()  # entitlements of which one was asked about for whom that is too little
        self._look_at_kv()
        self._closed = ""  # replica that requests after the held one may not take; set when its turn has passed
        self._pending = False  # whether a request was asked about that fits and is not booked yet
        self._has_its_own = ""  # an owner's that was noted for want of credit, and has it while owners go first
        self._waited = holds.for_cache
        holds.by_replica, holds.for_cache, holds.for_pace = {}, {}, {}
        self._slow = any(backend.token_us for backend in self._ready)
        self._idles = holds.idle_from_s is not None  # a replica has idled since the last step
        if holds.idle_from_s is not None:
            holds.idle_s += max(0.0, now_s - holds.idle_from_s)
        if holds.kv is not None and self._entitlement_full(waiting[holds.kv.request_id]):
            holds.kv = None  # something else than KV cache stops it now
        if holds.credit is not None and now_s - holds.credit.since_s >= patience_s:
            first = waiting[holds.credit.request_id]
            if self._beyond_limits(first):
                holds.credit = None
            elif not self._with_credit(first, able := self._able_in_time(first)):
                self._wants_credit_only(first, able)
            elif self._owns(first):
                self._has_its_own = first.id

    def end(self) -> None:
        """Nothing more is granted in this step: notes whether a replica idles while requests wait for a cache."""
        idle = bool(self._holds.for_cache) and any(_idles(backend) for backend in self.open)
        self._holds.idle_from_s = self._now_s if idle else None

    def fits(self, request: QueuedRequest) -> bool:
        """Whether the request's entitlement and at least one replica have room. Within a step it changes from true to
        false only."""
        # asked of up to a thousand requests a step, so what _beyond_limits says is written out
        if 0 < request.concurrency <= self._running.get(request.entitlement, 0):
            return False
        if self._free <= self.headroom > 0 and request.service_class not in BASELINE:
            return False
        if request.kv_tokens > self._most_kv and not self._holds.by_replica and not self._goes_over(request):
            # no replica needs to be asked
            self._keep_room_for(request)
            return False
        return self._fits_somewhere(request)

    @property
    def free(self) -> int:
        """Free slots."""
        return self._free

    @property
    def usable_at_once(self) -> int:
        """Free slots that are counted for those without a baseline in this step. A replica with a prefill credit takes
        about one prompt at a time, unless prompts are short: so a backlog as large as the pool, which waits for credit,
        does not show that slots are short."""
        return sum([1 if backend.prefill_credit else backend.slots - backend.running for backend in self.open])

    @property
    def lends(self) -> bool:
        """Whether there is a slot for who exceeds its concurrency, and one for everybody who waits within it and can
        use one."""
        return self._lends > 0

    def lends_to(self, entitlement: str) -> bool:
        """Whether an entitlement may have such a slot."""
        return self._lends > 0 and entitlement not in self._lent_enough

    def lend(self, left: int, of_others: int) -> None:
        """``left``: free slots beyond those of all who wait within a baseline. ``of_others``: how many of them those
        within their concurrency can use who have none."""
        self._lends, self._of_others = left - self.headroom - of_others, of_others

    def fits_lent(self, request: QueuedRequest) -> bool:
        """Whether a replica has room for the request, and its entitlement, which may exceed its baseline while slots
        are left for all within theirs."""
        if not self._entitlement_full(request):
            return self.fits(request)
        if request.service_class not in EXCEEDS or not self.lends_to(request.entitlement):
            return False
        if request.sequences <= self._lends and self._fits_somewhere(request):
            return True
        if request.sequences > self._lends or request.kv_tokens > self._most_kv:
            # a queue looks past so many only, and those within their concurrency wait behind it
            self._lent_enough.add(request.entitlement)
        return False

    def fits_reserved(self, request: QueuedRequest) -> bool:
        """Whether the request is an owner's within its reserved capacity, and fits."""
        return self._owns(request) and self.fits(request)

    def end_precedence(self) -> None:
        """Owners had their turn: for the rest of the step a replica has no more room for them than for others."""
        self.owners_first = False
        hold = self._holds.credit
        if hold is not None and hold.request_id == self._has_its_own:
            self._holds.credit = None  # its turn is after others' now: they may be noted as well

    def fits_bursting(self, request: QueuedRequest) -> bool:
        """Whether the request's entitlement may exceed its baseline, and a replica has room."""
        return not self.keeps_headroom() and request.service_class in BURSTS and self._fits_somewhere(request)

    def keeps_headroom(self) -> bool:
        """Whether all free slots are kept for entitlements within their baselines."""
        return self._free <= self.headroom > 0

    def candidates(self, request: QueuedRequest) -> list[BackendView]:
        """The replicas that may run the request now."""
        excluded = self._excluded(request)
        able = [b for b in self.open if b.id != excluded and b.id != self._closed and b.serves(request.adapter)]
        if request.resumes_at:
            able = self._where_it_resumes(request, able)
        need = self._need_of(request, self.warmth_of(request))
        if self._slow and request.pace_us:
            waits = self._pace_wait_until_s(request) > self._now_s
            able = keeping_pace(able, need) if waits else at_pace(able, need)
        return with_room(able, need, self._serving(request) if need.owner and need.warmth is not None else None)

    def has_room(self, request: QueuedRequest) -> bool:
        """Whether there is any such replica. Unlike :meth:`fits` it keeps nothing for the request."""
        return bool(self.candidates(request))

    def as_routed(self, request: QueuedRequest) -> QueuedRequest:
        """The request with the excluded replica that holds now."""
        excluded = self._excluded(request)
        return request if request.exclude_backend == excluded else replace(request, exclude_backend=excluded)

    def book(self, request: QueuedRequest, backend: BackendView, warmth: Warmth | None) -> QueuedRequest:
        """Books the request on a replica; returns it with what of its prompt does not count against the prefill
        credit."""
        request = counted_on(backend, request, warmth)
        running, slots = self._running, min(request.sequences, backend.slots - backend.running)
        ran = running.get(request.entitlement, 0)
        within = max(0, request.concurrency - ran) if request.concurrency else slots
        self._lends -= max(0, slots - within)  # a wide one may start within its concurrency and exceed it
        if request.service_class not in BASELINE:  # short prompts take more slots than are counted for them
            self._of_others -= min(slots, within)
            self._lends, self._of_others = self._lends + min(0, self._of_others), max(0, self._of_others)
        self._free -= slots
        backend.running += request.sequences
        self._pending = False
        backend.kv_used += request.kv_tokens
        backend.take_prefill(request, request.service_class in RESERVED)
        backend.work_tokens += work_of(request)
        running[request.entitlement] = ran + request.sequences
        if backend.running >= backend.slots:
            self.open.remove(backend)
        self._look_at_kv()
        return request

    def warmth_of(self, request: QueuedRequest) -> Warmth | None:
        """What replicas are believed to have cached of the request's prompt, where that need not count."""
        return self._warmth(request) if self._trusts and request.prefixes else None

    def _need_of(self, request: QueuedRequest, warmth: Warmth | None) -> Need:
        owner, pace_us = self._owns(request), request.pace_us
        return Need(request.kv_tokens, request.prefill_tokens, owner, warmth=warmth, pace_us=pace_us)

    def _look_at_kv(self) -> None:
        """Notes the most KV cache that any open replica has free [tokens], and whether more is reserved of one than it
        offers. Both only fall within a step."""
        free = [backend.kv_tokens - backend.kv_used for backend in self.open]
        self._most_kv, self._over = max(free, default=0), min(free, default=0) < 0

    def _goes_over(self, request: QueuedRequest) -> bool:
        """Whether the request is an owner's and some replica has more KV cache reserved than it offers."""
        return self._over and self._owns(request)

    def _owns(self, request: QueuedRequest) -> bool:
        """Whether the request is an owner's within its reserved capacity, while those have precedence."""
        owns = self.owners_first and self._rights and request.service_class in RESERVED
        owns = owns and request.entitlement not in self._unreserved
        return owns and self._running.get(request.entitlement, 0) < request.concurrency

    def _entitlement_full(self, request: QueuedRequest) -> bool:
        return 0 < request.concurrency <= self._running.get(request.entitlement, 0)

    def _beyond_limits(self, request: QueuedRequest) -> bool:
        """Whether its entitlement's limit or the headroom stops the request, whatever room the replicas have."""
        return self._entitlement_full(request) or (self.keeps_headroom() and request.service_class not in BASELINE)

    def _fits_somewhere(self, request: QueuedRequest) -> bool:
        able, hold = self._able_in_time(request), self._holds.kv
        if not able and request.id in self._holds.for_pace:
            return False  # it passes over what is free
        if not able and not self._holds.by_replica:  # asked of hundreds a step: credit is not what it lacks
            self._keep_room_for(request)
            return False
        if self._with_credit(request, able):
            if self._trusts and request.prefixes and self._waits_for_cache(request, able):
                return False
            self._pending = True
            return True
        if not self._wants_credit_only(request, able) or (hold is not None and hold.request_id == request.id):
            self._keep_room_for(request)
        return False

    def _able(self, request: QueuedRequest) -> list[BackendView]:
        """Open replicas with a slot and KV cache for the request, whatever their prefill credit."""
        excluded = request.exclude_backend and self._excluded(request)
        kv, closed, adapter = request.kv_tokens, self._closed, request.adapter
        owner = self._owns(request)
        able = [b for b in self.open if b.has_slot_and_kv(kv, owner) and b.id != excluded and b.id != closed]
        if adapter:
            able = [b for b in able if adapter in b.adapters]
        return self._where_it_resumes(request, able) if request.resumes_at else able

    def _able_in_time(self, request: QueuedRequest) -> list[BackendView]:
        """Of these, only those that are fast enough for it, as long as it waits for one: notes that it does where it
        passes over a slower one."""
        able = self._able(request)
        if not self._slow or not request.pace_us:
            return able
        keeping = [b for b in able if b.keeps(request.pace_us)]
        if len(keeping) == len(able):
            return able
        holds = self._holds
        if request.id not in holds.for_pace:  # else it waits, whatever others change in this step
            if (until_s := self._pace_wait_until_s(request)) <= self._now_s:
                return able
            holds.for_pace[request.id] = until_s
        return keeping

    def _where_it_resumes(self, request: QueuedRequest, able: list[BackendView]) -> list[BackendView]:
        """Of ``able``, only the replica that has computed part of the prompt, while it can go on with it."""
        at = waits_for(request, self._ready)
        return [b for b in able if b.id == at] if at else able

    def _with_credit(self, request: QueuedRequest, able: list[BackendView]) -> bool:
        if not able:  # most answers of a step whose replicas are kept for one that lacks credit
            return False
        prefill, owner = request.prefill_tokens, self._owns(request)
        # Here and below loops, not any(): a generator costs as much as what it asks.
        for backend in able:
            if backend.has_credit(prefill, owner):
                return True
        if not self._trusts or not request.prefixes:
            return False
        need = None
        for backend in able:
            if backend.cache_trust and backend.has_credit(1, owner):  # else nothing of it fits
                need = need or self._need_of(request, self._warmth(request))
                if has_credit(backend, need):
                    return True
        return False

    def _pace_wait_until_s(self, request: QueuedRequest) -> float:
        """Until when it runs on no replica that is too slow for it; 0: it does not wait, as none is fast enough."""
        if request.resumes_at or not any(b.keeps(request.pace_us) for b in self._serving(request)):
            return 0.0
        return pace_wait_until_s(request, self.view.prefill_per_s(PREFILL_PER_S))

    def _waits_for_cache(self, request: QueuedRequest, able: list[BackendView]) -> bool:
        """Whether it waits for the replica that has its prompt cached, although one of ``able`` has room. Where that
        one lacks only prefill credit it takes nothing else in this step, as for who lacks it everywhere."""
        holds, now_s = self._holds, self._now_s
        if request.id in holds.for_cache:
            return True  # whatever others change in this step
        if request.resumes_at:
            return False
        if self._still_waits(request):
            return True
        need, serving = self._need_of(request, self._warmth(request)), self._serving(request)
        fit = with_room(able, need, serving)
        if self._slow and request.pace_us and (keeping := keeping_pace(fit, need)):
            fit, serving = keeping, keeping_pace(serving, need)
        wait = cache_wait(serving, fit, need.prefill, need.warmth)
        if wait is None:
            return False
        idle_s = holds.idle_s - holds.idle_before_s.setdefault(request.id, holds.idle_s)
        until_s = wait.until_s(now_s, idle_s, request.ttft_deadline_s, self._cache_patience)
        if until_s <= now_s and not self._idles:
            until_s = wait.until_s(now_s, idle_s, None, self._cache_patience)
        until_s = min(until_s, before_expiry_s(request.expires_s))
        if until_s <= now_s:
            return False
        self._wait_at(wait.replica, request, until_s)
        return True

    def _still_waits(self, request: QueuedRequest) -> bool:
        """Whether it waited in the last step for a replica that takes nothing now either: hundreds are asked in each
        step, and the rule is not applied again to all of them."""
        at, until_s = self._waited.get(request.id, ("", 0.0))
        own = self.view.backends.get(at)
        if own is None or until_s <= self._now_s or at == self._excluded(request):
            return False
        runs = own.ready and own.cache_trust > 0 and own.serves(request.adapter) and own.takes(request.kv_tokens)
        if not runs or (own.running < own.slots and own.has_credit(1, self._owns(request))):
            return False
        self._wait_at(own, request, until_s)
        return True

    def _wait_at(self, own: BackendView, request: QueuedRequest, until_s: float) -> None:
        holds, owner = self._holds, self._owns(request)
        holds.for_cache[request.id] = own.id, until_s
        if self._pending or own.id == self._closed:
            return  # it is not its turn, or that one is kept for another already
        if own in self.open and own.has_slot_and_kv(request.kv_tokens, owner):
            holds.by_replica[own.id] = request.id
            self.open.remove(own)

    def _serving(self, request: QueuedRequest) -> list[BackendView]:
        """Replicas that could run it if they had room."""
        excluded, kv, adapter = self._excluded(request), request.kv_tokens, request.adapter
        return [b for b in self._ready if b.id != excluded and b.serves(adapter) and b.takes(kv)]

    def _wants_credit_only(self, request: QueuedRequest, able: list[BackendView]) -> bool:
        """Whether a replica has room but for its prefill credit: one of ``able``, or one that is kept. The one where
        credit for it is there soonest takes nothing else in this step: what has its first token there makes room for
        this request and no other, so that the least that any replica has to wait for falls from step to step, and at
        the latest it runs alone.

        Queues that compare several requests ask about some whose turn it is not. So who is asked while another one has
        room keeps nothing in this step, and after ``patience_s`` the first of them comes before all in the next ones.
        """
        holds = self._holds
        kept = holds.by_replica
        if kept and request.id in kept.values():
            return True
        if not able:
            kv, adapter, excluded = request.kv_tokens, request.adapter, self._excluded(request)
            owns = self._owns(request)
            ready = self._where_it_resumes(request, self._ready) if request.resumes_at else self._ready
            for backend in ready:
                if backend.id not in kept or backend.id == excluded:
                    continue
                if backend.has_slot_and_kv(kv, owns) and backend.serves(adapter):
                    return True
            return False
        if self._pending:
            if holds.credit is None and not self._entitlement_full(request):
                holds.credit = Hold(request.id, self._now_s)
            return True
        owner, warmth = self._owns(request), self.warmth_of(request)

        def lacks(b: BackendView) -> int:
            used, need = b.prefill_seen(owner), counted_of(b, request.prefill_tokens, warmth)
            return used + need - b.prefill_credit if need <= b.prefill_credit else used

        nearest = min(able, key=lambda b: (lacks(b), b.id))
        holds.by_replica[nearest.id] = request.id
        self.open.remove(nearest)
        return True

    def _excluded(self, request: QueuedRequest) -> str:
        """The replica where the request failed before; empty if no other is ready, since that one has been probed
        again."""
        former, adapter = request.exclude_backend, request.adapter
        if former and any(b.id != former and b.serves(adapter) for b in self._ready):
            return request.exclude_backend
        return ""

    def _keep_room_for(self, request: QueuedRequest) -> None:
        hold = self._holds.kv
        if hold is None:
            if self._entitlement_full(request):
                return  # the next step forgets it, and nobody within its concurrency would come to be held
            if any(b.takes(request.kv_tokens) and b.serves(request.adapter) for b in self._ready):
                self._holds.kv = Hold(request.id, self._now_s)
            return
        if hold.request_id != request.id or self._now_s - hold.since_s < self._patience_s:
            return
        excluded = self._excluded(request)
        able = [b for b in self._ready if b.takes(request.kv_tokens) and b.id != excluded]
        able = self._where_it_resumes(request, [b for b in able if b.serves(request.adapter)])
        if not any(backend.id == hold.backend for backend in able):
            nearest = min(able, key=lambda b: (b.kv_used - b.kv_tokens, b.id), default=None)
            hold.backend = nearest.id if nearest is not None else ""
        self._closed = hold.backend


def _idles(backend: BackendView) -> bool:
    """Whether an open replica has room and no prompt to prefill; without a prefill credit, whether it has room."""
    return backend.has_slot_and_kv(1) and not (backend.prefill_credit and backend.prefill_used)
