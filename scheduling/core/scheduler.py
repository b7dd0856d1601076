"""The one decision loop: live dispatch and simulator both drive this object.

Question: which waiting requests may run now, and where?

The policy says who goes next, the routing says where; this module keeps what must hold whatever they say: nothing past
its expiry is granted, no replica and no entitlement gets more than it has room for, an attempt does not return to the
replica where it failed while another is ready, and a request too large for what is free is not passed over for ever.
Prefill credit comes back within moments, so nobody passes who waits for nothing else: its replica is kept for it.
What clients wish for their requests changes turns within their entitlement only (``queues/turns.py``).
With ``rights`` it keeps those of the service classes as well (token pools, Table 1): an owner of reserved capacity who
runs less of it than it may goes before everyone, and what is idle after all within their limits goes to who may burst.
The last ``headroom`` free slots are then only for who is within a baseline, and ``unreserved`` names entitlements whose
promise the pool cannot keep now: they go with the others.
Pure: time is handed in, effects are the caller's.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from scheduling.core.admission import RIGHTS
from scheduling.core.contracts import (
    ANY_NUMBER,
    NOT_NOW,
    Fits,
    LearnsPlaces,
    OrderingPolicy,
    RequestQueue,
    RoutingPolicy,
    Served,
    Shares,
    shares_of,
)
from scheduling.core.queues.turns import HintedTurns
from scheduling.core.types import BackendView, Grant, PoolView, QueuedRequest, ServiceClass

RESERVED = frozenset(c for c, r in RIGHTS.items() if r.reserved)
BASELINE = frozenset(c for c, r in RIGHTS.items() if r.baseline)
BURSTS = frozenset(c for c, r in RIGHTS.items() if r.bursts)
COUNTED_KEPT = 32_768  # ended requests that are not counted again
EXPIRE_PER_CALL = 1000  # bounds one call when a whole queue expires at once


def work_of(request: QueuedRequest) -> int:
    """Outstanding work that a request adds to its replica [tokens]: input and expected output."""
    return math.ceil(request.input_tokens + request.output_tokens)


def _shares_in(queue: RequestQueue) -> tuple[Shares, ...]:
    """All in which a queue counts who had how much, by their groups."""
    return tuple({s.group: s for c in ServiceClass for s in shares_of(queue, c)}.values())


@dataclass(slots=True)
class _Hold:
    """The first request, in the policy's order, for which no replica had enough free KV cache; or that lacked prefill
    credit while another one had room."""

    request_id: str
    since_s: float
    backend: str = ""  # kept free for it once its patience has ended


class Scheduler:
    """Waiting requests of one pool, and the decisions about them. One owner, no locks.

    ``max_grants`` bounds one step. ``patience_s``: a request that lacks only KV cache is passed by smaller ones for
    this long; then one replica takes nothing that comes after it in the policy's order until it fits. One that lacks
    only prefill credit is passed by nobody on the replica where it fits soonest.
    """

    def __init__(
        self,
        policy: OrderingPolicy,
        routing: RoutingPolicy,
        *,
        max_grants: int = 100,
        patience_s: float = 2.0,
        rights: bool = False,
    ) -> None:
        self.policy = policy
        self.routing = routing
        self._max_grants = max_grants
        self._patience_s = patience_s
        self._rights = rights
        self.headroom = 0
        self.unreserved: frozenset[str] = frozenset()
        self._of_class: dict[ServiceClass, int] = dict.fromkeys(ServiceClass, 0)  # how many of each wait
        self._class_of: dict[str, ServiceClass] = {}  # of the entitlements that have ever waited here
        self._queue = HintedTurns(policy.queue())
        self._shares = _shares_in(self._queue)
        self._counted: OrderedDict[str, None] = OrderedDict()  # requests whose end is counted in shares
        self._router = routing.router()
        self._waiting: dict[str, QueuedRequest] = {}
        self._expiries: list[tuple[float, str]] = []
        self._hold: _Hold | None = None
        self._prefill_hold: _Hold | None = None
        self.kept: dict[str, str] = {}  # replica -> the request it was kept for in the last step: it lacked credit only

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._waiting.values())

    @property
    def held(self) -> str | None:
        """The request that a replica is kept free for until it has the KV cache, if any."""
        return self._hold.request_id if self._hold is not None and self._hold.backend else None

    @property
    def queue(self) -> RequestQueue:
        """What waits, in the policy's order. To look at, not to change."""
        return self._queue

    def explain(self, request: QueuedRequest) -> str:
        """The terms that put a waiting request where it is."""
        return self._queue.explain(request)

    def empty(self) -> Scheduler:
        """Another one by the same policy and rules, in which nothing waits and nothing is remembered."""
        made = Scheduler(
            self.policy, self.routing, max_grants=self._max_grants, patience_s=self._patience_s, rights=self._rights
        )
        made.headroom, made.unreserved = self.headroom, self.unreserved
        return made

    def copied(self, shared: dict[int, object]) -> Scheduler:
        """The same again, with a router that remembers nothing. ``shared``: objects by id that both may hold."""
        keep = shared | {id(self.policy): self.policy, id(self.routing): self.routing}
        keep[id(self._router)] = self.routing.router()
        keep[id(self._counted)] = OrderedDict()
        return deepcopy(self, keep)

    def offer(self, request: QueuedRequest, now_s: float) -> None:
        """Adds a waiting request; one with the same id is replaced."""
        self._forget(request.id)
        self._waiting[request.id] = request
        self._of_class[request.service_class] += 1
        self._class_of[request.entitlement] = request.service_class
        self._queue.push(request, now_s)
        if request.expires_s is not None:
            heappush(self._expiries, (request.expires_s, request.id))

    def withdraw(self, request_id: str) -> bool:
        """Takes a request out; False when it does not wait here."""
        if not self._forget(request_id):
            return False
        self._queue.discard(request_id)
        self._release_hold(request_id)
        return True

    def _forget(self, request_id: str) -> bool:
        request = self._waiting.pop(request_id, None)
        if request is None:
            return False
        self._of_class[request.service_class] -= 1
        return True

    def expire(self, now_s: float) -> list[QueuedRequest]:
        """Takes out and returns requests whose time is over, at most ``EXPIRE_PER_CALL``."""
        over: list[QueuedRequest] = []
        while self._expiries and self._expiries[0][0] <= now_s and len(over) < EXPIRE_PER_CALL:
            _, request_id = heappop(self._expiries)
            request = self._waiting.get(request_id)
            if request is not None and request.expires_s is not None and request.expires_s <= now_s:
                self.withdraw(request_id)
                over.append(request)
        return over

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> None:
        """What a granted request has really used, for queues that count it; 0 for a grant that came to nothing."""
        self._queue.settle(request_id, input_tokens, output_tokens)

    def served(self, served: Served) -> None:
        """A request has ended, wherever it was granted. Told again it changes nothing."""
        if not self._shares:
            self._queue.settle(served.request_id, served.input_tokens, served.output_tokens)
            return
        if served.request_id in self._counted:
            return
        self._counted[served.request_id] = None
        if len(self._counted) > COUNTED_KEPT:
            self._counted.popitem(last=False)
        if not self._queue.settle(served.request_id, served.input_tokens, served.output_tokens):
            for shares in self._shares_of(served.service_class):
                shares.serve(served)

    def watch(self, running: Iterable[tuple[str, ServiceClass, float, int]]) -> None:
        """What runs now, wherever it was granted: entitlement, class, weight and how many."""
        if not self._shares:
            return
        by_shares: dict[str, dict[str, tuple[int, float]]] = {shares.group: {} for shares in self._shares}
        for name, service_class, weight, count in running:
            for shares in self._shares_of(service_class):
                by_shares[shares.group][name] = (count, weight)
        for shares in self._shares:
            shares.watch(by_shares[shares.group])

    def kept_shares(self) -> dict[str, dict[str, float]]:
        """Who had how much, for the scheduler that goes on after this one; nothing where the policy counts none."""
        return {shares.group: shares.kept() for shares in self._shares}

    def resume_shares(self, kept: Mapping[str, Mapping[str, float]]) -> None:
        """Goes on from what another scheduler kept. Before anything waits."""
        for shares in self._shares:
            if shares.group in kept:
                shares.resume(kept[shares.group])

    def _shares_of(self, service_class: ServiceClass) -> Iterable[Shares]:
        return {shares.group: shares for shares in self._queue.shares(service_class)}.values()

    @property
    def learns_places(self) -> bool:
        """Whether the routing goes by where prompts ran."""
        return isinstance(self._router, LearnsPlaces)

    def learn(self, places: Mapping[str, str]) -> None:
        """Where prompts ran that were granted elsewhere, for routing that goes by it."""
        if isinstance(self._router, LearnsPlaces):
            self._router.learn(places)

    def swap(self, policy: OrderingPolicy, routing: RoutingPolicy, now_s: float) -> None:
        """Changes the policy; everything that waits moves into the new order. Where prefixes ran is forgotten only if
        the routing is another one."""
        if routing != self.routing:
            self._router = routing.router()
        self.policy, self.routing = policy, routing
        kept, inside = self.kept_shares(), policy.queue()
        self._shares = _shares_in(inside)
        self.resume_shares(kept)
        self._queue.refill(inside, now_s)
        self._hold = self._prefill_hold = None
        self.kept = {}

    def step(self, view: PoolView, now_s: float) -> list[Grant]:
        """Grants what may run now, best first, and books it in ``view``. Requests that have expired are dropped."""
        self.expire(now_s)
        grants: list[Grant] = []
        self.kept = {}
        if not self._waiting:
            return grants
        step = _Step(view, now_s, self)
        for fits, seen in self._rounds(step, view):
            while step.open and len(grants) < self._max_grants:
                request = self._queue.select(seen, now_s, fits)
                if request is None:
                    break
                self._forget(request.id)
                self._release_hold(request.id)
                if request.expires_s is not None and request.expires_s <= now_s:
                    self.settle(request.id, 0, 0)
                    continue
                candidates = step.candidates(request)
                backend = self._router.choose(step.as_routed(request), candidates)
                if backend is None:
                    raise RuntimeError(
                        f"policy {self.policy.name!r} selected request {request.id}, for which no replica has room"
                    )
                grants.append(Grant(request, backend.id, self._reason(request, now_s, len(candidates))))
                step.book(request, backend)
        return grants

    def _rounds(self, step: _Step, view: PoolView) -> Iterator[tuple[Fits, PoolView]]:
        """Who may be chosen, in turn, and the view that says so to queues: they look at no request of an entitlement
        that has no turn now. One ``fits`` for a whole round: queues recognise it by that."""
        classes = self._class_of
        if self._rights and any(self._of_class[c] for c in RESERVED):
            limits = _Limits(classes, RESERVED, view.running_by_entitlement)
            yield step.fits_reserved, replace(view, running_by_entitlement=limits)
        if step.spared():
            yield (
                step.fits,
                replace(view, running_by_entitlement=_Limits(classes, BASELINE, view.running_by_entitlement)),
            )
        else:
            yield step.fits, view
        if self._rights and step.open and any(self._of_class[c] for c in BURSTS):
            limits = _Limits(classes, BURSTS, None)
            yield step.fits_bursting, replace(view, running_by_entitlement=limits)

    def _reason(self, request: QueuedRequest, now_s: float, candidates: int) -> str:
        waited = max(0.0, now_s - request.arrival_s)
        return (
            f"{self._queue.explain(request)}; waited {waited:.2f} s, {len(self._waiting)} still wait; "
            f"{self.routing.name} of {candidates}"
        )

    def _release_hold(self, request_id: str) -> None:
        if self._hold is not None and self._hold.request_id == request_id:
            self._hold = None
        if self._prefill_hold is not None and self._prefill_hold.request_id == request_id:
            self._prefill_hold = None


class _Limits(dict[str, int]):
    """How many run, by entitlement, as one round counts: ``NOT_NOW`` for classes that have no turn in it.

    Only ``get`` is asked; nothing is copied, as there are several rounds to a step.
    """

    def __init__(
        self, classes: Mapping[str, ServiceClass], able: frozenset[ServiceClass], running: Mapping[str, int] | None
    ) -> None:
        super().__init__()
        self._classes, self._able, self._running = classes, able, running

    def get(self, name: str, default: int | None = None) -> int:  # type: ignore[override]
        if self._classes.get(name) not in self._able:
            return NOT_NOW
        return ANY_NUMBER if self._running is None else self._running.get(name, 0)


class _Step:
    """What one step knows: which replicas still have room, and for whom one is kept free."""

    def __init__(self, view: PoolView, now_s: float, scheduler: Scheduler) -> None:
        self._view = view
        self._now_s = now_s
        self._scheduler = scheduler
        self._ready = [backend for backend in view.backends.values() if backend.ready]
        self._kept = scheduler.headroom if scheduler._rights else 0
        self._free = view.free_slots()
        self.open = [backend for backend in self._ready if backend.running < backend.slots]
        self._reserved = ""  # replica that requests after the held one may not take; set when its turn has passed
        self._found = False  # whether a request was found to fit that is not booked yet
        hold = scheduler._hold
        if hold is not None:
            held = scheduler._waiting[hold.request_id]
            if self._entitlement_full(held):
                scheduler._hold = None  # something else than KV cache stops it now
        hold = scheduler._prefill_hold
        if hold is not None and now_s - hold.since_s >= scheduler._patience_s:
            held = scheduler._waiting[hold.request_id]
            if self._entitlement_full(held) or (self.spared() and held.service_class not in BASELINE):
                scheduler._prefill_hold = None
            elif not self._has_candidate(held):
                self._wants_credit_only(held)

    def fits(self, request: QueuedRequest) -> bool:
        """Whether entitlement and at least one replica have room. Within a step it only ever turns false."""
        if self._entitlement_full(request) or (self.spared() and request.service_class not in BASELINE):
            return False
        return self._fits_somewhere(request)

    def fits_reserved(self, request: QueuedRequest) -> bool:
        """Whether it is an owner's who runs less than is reserved for it, and fits."""
        owns = request.service_class in RESERVED and request.entitlement not in self._scheduler.unreserved
        return owns and request.concurrency > 0 and self.fits(request)

    def fits_bursting(self, request: QueuedRequest) -> bool:
        """Whether its entitlement may run more than its r_e, and a replica has room."""
        return not self.spared() and request.service_class in BURSTS and self._fits_somewhere(request)

    def spared(self) -> bool:
        """Whether what is free now is kept for those within their baselines."""
        return self._free <= self._kept > 0

    def candidates(self, request: QueuedRequest) -> list[BackendView]:
        """Replicas that may run it now."""
        excluded = self._excluded(request)
        kv, prefill = request.kv_tokens, request.prefill_tokens
        return [b for b in self.open if b.room_for(kv, prefill) and b.id != excluded and b.id != self._reserved]

    def as_routed(self, request: QueuedRequest) -> QueuedRequest:
        """The request with the exclusion that holds now."""
        excluded = self._excluded(request)
        return request if request.exclude_backend == excluded else replace(request, exclude_backend=excluded)

    def book(self, request: QueuedRequest, backend: BackendView) -> None:
        backend.running += 1
        self._free -= 1
        self._found = False
        backend.kv_used += request.kv_tokens
        backend.prefill_used += request.prefill_tokens
        backend.work_tokens += work_of(request)
        running = self._view.running_by_entitlement
        running[request.entitlement] = running.get(request.entitlement, 0) + 1
        if backend.running >= backend.slots:
            self.open.remove(backend)

    def _entitlement_full(self, request: QueuedRequest) -> bool:
        return 0 < request.concurrency <= self._view.running_by_entitlement.get(request.entitlement, 0)

    def _fits_somewhere(self, request: QueuedRequest) -> bool:
        if self._has_candidate(request):
            self._found = True
            return True
        hold = self._scheduler._hold
        if not self._wants_credit_only(request) or (hold is not None and hold.request_id == request.id):
            self._keep_room_for(request)
        return False

    def _has_candidate(self, request: QueuedRequest) -> bool:
        excluded = self._excluded(request)
        kv, prefill = request.kv_tokens, request.prefill_tokens
        for backend in self.open:
            if backend.room_for(kv, prefill) and backend.id != excluded and backend.id != self._reserved:
                return True
        return False

    def _wants_credit_only(self, request: QueuedRequest) -> bool:
        """Whether a replica has room but for its prefill credit. The one where credit for it is there soonest takes
        nothing else in this step: what has its first token there makes room for this request and no other, so that the
        least that any replica has to wait for falls from step to step, and at the latest it runs alone.

        Queues that compare several requests ask about some whose turn it is not. So who is asked while another one has
        room keeps nothing in this step, and after ``patience_s`` the first of them comes before all in the next ones.
        """
        scheduler, excluded = self._scheduler, self._excluded(request)
        if request.id in scheduler.kept.values():
            return True
        able = [b for b in self.open if b.roomy(request.kv_tokens) and b.id != excluded and b.id != self._reserved]
        if not able:
            return any(b.roomy(request.kv_tokens) and b.id != excluded for b in self._ready if b.id in scheduler.kept)
        if self._found:
            scheduler._prefill_hold = scheduler._prefill_hold or _Hold(request.id, self._now_s)
            return True
        need = request.prefill_tokens

        def lacks(b: BackendView) -> int:
            return b.prefill_used + need - b.prefill_credit if need <= b.prefill_credit else b.prefill_used

        nearest = min(able, key=lambda b: (lacks(b), b.id))
        scheduler.kept[nearest.id] = request.id
        self.open.remove(nearest)
        return True

    def _excluded(self, request: QueuedRequest) -> str:
        """Where it failed before, unless that is the only replica left: it is ready again, so it has been probed."""
        if request.exclude_backend and any(b.id != request.exclude_backend for b in self._ready):
            return request.exclude_backend
        return ""

    def _keep_room_for(self, request: QueuedRequest) -> None:
        scheduler, hold = self._scheduler, self._scheduler._hold
        if hold is None:
            if any(request.kv_tokens <= backend.kv_tokens for backend in self._ready):
                scheduler._hold = _Hold(request.id, self._now_s)
            return
        if hold.request_id != request.id or self._now_s - hold.since_s < scheduler._patience_s:
            return
        excluded = self._excluded(request)
        able = [b for b in self._ready if request.kv_tokens <= b.kv_tokens and b.id != excluded]
        if not any(backend.id == hold.backend for backend in able):
            nearest = min(able, key=lambda b: (b.kv_used - b.kv_tokens, b.id), default=None)
            hold.backend = nearest.id if nearest is not None else ""
        self._reserved = hold.backend
