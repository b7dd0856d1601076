"""The one decision loop: live dispatch and simulator both drive this object.

Question: which waiting requests may run now, and where?

The policy says which request is next, the routing says where. This module ensures what must hold whatever they say:

* Nothing past its expiry is granted, and no replica or entitlement gets more than it has room for.
* An attempt does not return to the replica where it failed while another one is ready.
* A request too large for what is free is not passed over for ever. One that lacks only prefill credit is not passed at
  all, because credit comes back within moments: its replica is kept for it.
* What clients wish for their requests changes turns within their entitlement only (``queues/turns.py``).
* With ``rights``, those of the service classes (token pools, Table 1): an owner that runs less than its reserved
  capacity goes before everyone; what is idle after everyone within their limits goes to those who may burst. While
  there is a slot for everyone who waits within a baseline, slots are not what is short: owners then go first with
  pressing requests only, and with late ones for their part, if the policy relegates them (``relegates_owners``,
  :mod:`scheduling.core.policies.queues.pressing`, :mod:`scheduling.core.scheduler.late_owners`). Elastic and dedicated
  entitlements beyond their concurrency compete with the others then, if it minds what each has had
  (``weighs_bursts``) and slots are left for who has no baseline, too.
  The last ``headroom`` free slots are only for requests within a baseline. ``unreserved`` names entitlements whose
  promise the pool cannot keep now; they have no such precedence.

Pure: time is handed in, effects are the caller's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from heapq import heappop, heappush

from scheduling.core.inside_engine.step import place_among_running
from scheduling.core.placement.rule import Warmth
from scheduling.core.policies.compose import Composed
from scheduling.core.policies.contracts import (
    KnowsCaches,
    LearnsPlaces,
    OrderingPolicy,
    RequestQueue,
    RoutingPolicy,
    Served,
    relegates_owners,
    shares_of,
    weighs_bursts,
)
from scheduling.core.policies.queues.turns import HintedTurns
from scheduling.core.policies.rounds import Round
from scheduling.core.scheduler.late_owners import LateOwners
from scheduling.core.scheduler.prefill_preemption import to_compute
from scheduling.core.scheduler.step import BASELINE, BURSTS, EXCEEDS, RESERVED, Holds, SchedulerStep
from scheduling.core.types import Grant, PoolView, QueuedRequest, ServiceClass

COUNTED_KEPT = 32_768  # ended requests that are not counted again
_NOBODY = (0, 0)  # of an entitlement of which nothing waits
EXPIRE_PER_CALL = 1000  # bounds one call when a whole queue expires at once


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
        # by entitlement: sequences that wait, and its concurrency; apart, since a step looks at few of the others
        self._baselines_wait: dict[str, tuple[int, int]] = {}
        self._others_wait: dict[str, tuple[int, int]] = {}
        self._promised = 0  # sum of the concurrency of the first
        self._late_owners = LateOwners()
        self.owners_first = True  # to the end of the last step, whether in time or late
        self._queue = HintedTurns(policy.queue())
        self._count_in(self._queue)
        self._counted: OrderedDict[str, None] = OrderedDict()  # requests whose end is counted in shares
        self._route_by(routing)
        self._waiting: dict[str, QueuedRequest] = {}
        self._expiries: list[tuple[float, str]] = []
        self._holds = Holds()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self._waiting.values())

    @property
    def kv_hold(self) -> str | None:
        """The id of the request for which a replica is kept free until it has enough KV cache, if any."""
        hold = self._holds.kv
        return hold.request_id if hold is not None and hold.backend else None

    @property
    def credit_holds(self) -> Mapping[str, str]:
        """Replicas that the last step kept for a request that lacked only their prefill credit, and its id."""
        return self._holds.by_replica

    def goes_before(self, request: QueuedRequest, other: QueuedRequest) -> bool:
        """Whether the policy puts a request before another one, which may be running."""
        policy = self.policy
        place = place_among_running(policy.policy if isinstance(policy, Composed) else policy)
        return place(request) < place(other)

    @property
    def lacks_credit(self) -> list[QueuedRequest]:
        """The requests for which those replicas were kept, without those that could run elsewhere."""
        holds, waiting = self._holds, self._waiting
        return [waiting[n] for n in holds.by_replica.values() if n in waiting and n not in holds.for_cache]

    @property
    def waits_for_replica(self) -> Mapping[str, float]:
        """Requests that waited in the last step for a replica that is fast enough for them or has their prompt cached,
        although another one may have had room, and until when [s]."""
        return {name: until_s for name, (_, until_s) in self._holds.for_cache.items()} | self._holds.for_pace

    @property
    def waits_for_any(self) -> list[QueuedRequest]:
        """What waits, without :attr:`waits_for_replica`."""
        waits_for_one = self.waits_for_replica
        return [request for request in self if request.id not in waits_for_one]

    @property
    def queue(self) -> RequestQueue:
        """What waits, in the policy's order. To look at, not to change."""
        return self._queue

    def explain(self, request: QueuedRequest) -> str:
        """The terms that put a waiting request where it is."""
        return self._queue.explain(request)

    def empty(self) -> Scheduler:
        """A scheduler with the same policy and rules, and nothing waiting or remembered."""
        scheduler = Scheduler(
            self.policy, self.routing, max_grants=self._max_grants, patience_s=self._patience_s, rights=self._rights
        )
        scheduler.headroom, scheduler.unreserved = self.headroom, self.unreserved
        return scheduler

    def copied(self, shared: dict[int, object]) -> Scheduler:
        """A copy whose router remembers nothing. ``shared``: objects by id that both may hold."""
        keep = shared | {id(self.policy): self.policy, id(self.routing): self.routing}
        keep[id(self._router)] = self.routing.router()
        keep[id(self._counted)] = OrderedDict()
        return deepcopy(self, keep)

    def offer(self, request: QueuedRequest, now_s: float) -> None:
        """Adds a waiting request; one with the same id is replaced."""
        self._forget(request.id)
        self._waiting[request.id] = request
        self._of_class[request.service_class] += 1
        entitlement = request.entitlement
        waits, promised = self._baselines_wait.pop(entitlement, _NOBODY)
        self._promised -= promised
        waits_now = waits + self._others_wait.pop(entitlement, _NOBODY)[0] + request.sequences, request.concurrency
        if request.service_class in BASELINE:
            self._baselines_wait[entitlement] = waits_now
            self._promised += request.concurrency
        else:
            self._others_wait[entitlement] = waits_now
        self._class_of[entitlement] = request.service_class
        self._queue.push(request, now_s)
        if request.expires_s is not None:
            heappush(self._expiries, (request.expires_s, request.id))

    def withdraw(self, request_id: str) -> bool:
        """Takes a request out; False when it does not wait here."""
        if not self._forget(request_id):
            return False
        self._queue.discard(request_id)
        self._holds.release(request_id)
        return True

    def _forget(self, request_id: str) -> bool:
        request = self._waiting.pop(request_id, None)
        if request is None:
            return False
        self._of_class[request.service_class] -= 1
        has_baseline = request.entitlement in self._baselines_wait
        of_class = self._baselines_wait if has_baseline else self._others_wait
        waits, concurrency = of_class[request.entitlement]
        if waits > request.sequences:
            of_class[request.entitlement] = waits - request.sequences, concurrency
        else:
            del of_class[request.entitlement]
            self._promised -= concurrency if has_baseline else 0
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
        """What a granted request really used, for queues that count it; 0 if the grant came to nothing."""
        self._queue.settle(request_id, input_tokens, output_tokens)

    def served(self, served: Served) -> None:
        """Counts a request that has ended, wherever it was granted. Calling it again for the same request has no
        effect."""
        if not self._shares:
            self._queue.settle(served.request_id, served.input_tokens, served.output_tokens)
            return
        if served.request_id in self._counted:
            return
        self._counted[served.request_id] = None
        if len(self._counted) > COUNTED_KEPT:
            self._counted.popitem(last=False)
        if not self._queue.settle(served.request_id, served.input_tokens, served.output_tokens):
            for shares in self._shares_of[served.service_class]:
                shares.serve(served)

    def watch(self, running: Iterable[tuple[str, ServiceClass, float, int]]) -> None:
        """Counts what runs, wherever it was granted. ``running``: entitlement, class, weight, number of sequences."""
        if not self._shares:
            return
        by_shares: dict[str, dict[str, tuple[int, float]]] = {shares.group: {} for shares in self._shares}
        for name, service_class, weight, count in running:
            for shares in self._shares_of[service_class]:
                by_shares[shares.group][name] = (count, weight)
        for shares in self._shares:
            shares.watch(by_shares[shares.group])

    def kept_shares(self) -> dict[str, dict[str, float]]:
        """The share counters by group, for the next leader's scheduler; empty where the policy counts none."""
        return {shares.group: shares.kept() for shares in self._shares}

    def resume_shares(self, kept: Mapping[str, Mapping[str, float]]) -> None:
        """Goes on from another scheduler's share counters. Call it before anything waits."""
        for shares in self._shares:
            if shares.group in kept:
                shares.resume(kept[shares.group])

    def _count_in(self, queue: RequestQueue) -> None:
        """Finds out once in which shares each class is counted: thousands of entitlements are, once a second."""
        self._weighs_bursts = weighs_bursts(self.policy)
        self._relegates_owners = relegates_owners(self.policy)
        self._shares_of = {c: tuple({s.group: s for s in shares_of(queue, c)}.values()) for c in ServiceClass}
        self._shares = tuple({s.group: s for shares in self._shares_of.values() for s in shares}.values())

    @property
    def learns_places(self) -> bool:
        """Whether the routing goes by where prompts ran."""
        return isinstance(self._router, LearnsPlaces)

    def learn(self, places: Mapping[str, str]) -> None:
        """Where prompts ran that were granted elsewhere, for routing by prefix."""
        if isinstance(self._router, LearnsPlaces):
            self._router.learn(places)

    def swap(self, policy: OrderingPolicy, routing: RoutingPolicy, now_s: float) -> None:
        """Changes the policy; everything that waits moves into the new order. What is known of where prefixes ran is
        kept unless the routing changes."""
        if routing != self.routing:
            self._route_by(routing)
        self.policy, self.routing = policy, routing
        kept, inside = self.kept_shares(), policy.queue()
        self._count_in(inside)
        self.resume_shares(kept)
        self._queue.refill(inside, now_s)
        self._holds = Holds()

    def step(self, view: PoolView, now_s: float) -> list[Grant]:
        """Decides which requests run now, best first, and books them in ``view``. Drops requests that have expired."""
        self.expire(now_s)
        grants: list[Grant] = []
        self.owners_first = True
        if not self._waiting:
            self._holds.by_replica, self._holds.for_cache, self._holds.for_pace = {}, {}, {}
            self._holds.idle_from_s = None
            return grants
        step = SchedulerStep(
            view,
            now_s,
            self._holds,
            self._waiting,
            patience_s=self._patience_s,
            headroom=self.headroom if self._rights else 0,
            unreserved=self.unreserved,
            rights=self._rights,
            warmth=self.warmth,
            cache_patience=getattr(self.routing, "cache_patience", 0.0),
        )
        for round_ in self._rounds(step, now_s):
            while step.open and len(grants) < self._max_grants:
                request = self._queue.select(round_, now_s)
                if request is None:
                    break
                self._forget(request.id)
                self._holds.release(request.id)
                if request.expires_s is not None and request.expires_s <= now_s:
                    self.settle(request.id, 0, 0)
                    continue
                candidates = step.candidates(request)
                warmth = step.warmth_of(request)  # before the router learns that it runs there
                backend = self._router.choose(step.as_routed(request), candidates)
                if backend is None:
                    raise RuntimeError(
                        f"policy {self.policy.name!r} selected request {request.id}, for which no replica has room"
                    )
                why = self._reason(request, now_s, len(candidates))
                booked = step.book(request, backend, warmth)
                grants.append(Grant(booked, backend.id, why))
                if request.service_class in BASELINE:
                    owner, tokens = request.service_class in RESERVED, to_compute(booked, backend.id)
                    self._late_owners.granted(request.entitlement, tokens, owner, now_s)
        step.end()
        self.owners_first = step.owners_first
        return grants

    def _rounds(self, step: SchedulerStep, now_s: float) -> Iterator[Round]:
        """The rounds of a step, in order: owners within their reserved capacity, where slots are left for all in two,
        for pressing requests and then for late ones within their part; everyone within limits (only those with a
        baseline while the headroom is kept), and beyond them while slots are left; those that may burst."""
        made = partial(Round, step.view, cached=self._cached, has_room=step.has_room)
        left, of_others = self._slots_left(step)
        step.lend(left, of_others)
        if self._rights and self._any_wait(RESERVED):
            reserved, gives_way = self._turn_of(RESERVED), left > 0 and self._relegates_owners
            yield made(step.fits_reserved, reserved, timely=gives_way, pressing=gives_way)
            if gives_way:
                if self._any_wait(RESERVED):
                    within = self._late_owners.within(self._promised, now_s)
                    yield made(
                        lambda request: (
                            within(request.entitlement, request.concurrency) and step.fits_reserved(request)
                        ),
                        lambda name: reserved(name) and within(name, self._baselines_wait.get(name, _NOBODY)[1]),
                        pressing=True,
                    )
                step.end_precedence()
        if step.lends and self._weighs_bursts and self._any_wait(EXCEEDS):
            exceeds = self._turn_of(EXCEEDS)
            yield made(
                step.fits_lent, may_burst=lambda entitlement: step.lends_to(entitlement) and exceeds(entitlement)
            )
        else:
            yield made(step.fits, self._turn_of(BASELINE) if step.keeps_headroom() else None)
        if self._rights and step.open and self._any_wait(BURSTS):
            bursts = self._turn_of(BURSTS)
            yield made(step.fits_bursting, bursts, may_burst=bursts)

    def _slots_left(self, step: SchedulerStep) -> tuple[int, int]:
        """Free slots that are left in this step when everyone who waits within a baseline has one, and how many of them
        those within their concurrency can use who have no baseline. The first is 0 or less where slots are short, or
        where the policy makes no difference of it."""
        left, others = step.free, 0
        if not self._rights or not (self._weighs_bursts or self._relegates_owners):
            return 0, 0
        if not self._any_wait(EXCEEDS) and not (self._relegates_owners and self._any_wait(RESERVED)):
            return 0, 0
        running = step.view.running_by_entitlement.get
        for name, (waits, concurrency) in self._baselines_wait.items():
            if left <= 0:
                return 0, 0
            left -= min(waits, max(0, concurrency - running(name, 0))) if concurrency else waits
        usable = step.usable_at_once if self._others_wait else 0
        for name, (waits, concurrency) in self._others_wait.items():
            if others >= usable:
                return left, usable
            others += min(waits, max(0, concurrency - running(name, 0))) if concurrency else waits
        return left, min(others, usable)

    def _cached(self, request: QueuedRequest) -> int:
        """Tokens of its prompt that a replica is believed to have computed already."""
        warmth = self.warmth(request)
        return 0 if warmth is None else min(request.input_tokens - 1, warmth.most_cached)

    def warmth(self, request: QueuedRequest) -> Warmth | None:
        """What replicas are believed to have cached of its prompt, where the routing goes by that."""
        return self._caches.warmth(request) if self._caches is not None and request.prefixes else None

    def _route_by(self, routing: RoutingPolicy) -> None:
        self._router = routing.router()
        # asked of every request that is compared: a protocol is looked up once
        self._caches = self._router if isinstance(self._router, KnowsCaches) else None

    def _any_wait(self, classes: frozenset[ServiceClass]) -> bool:
        return any(self._of_class[c] for c in classes)

    def _turn_of(self, classes: frozenset[ServiceClass]) -> Callable[[str], bool]:
        class_of = self._class_of
        return lambda entitlement: class_of.get(entitlement) in classes

    def _reason(self, request: QueuedRequest, now_s: float, candidates: int) -> str:
        waited = max(0.0, now_s - request.arrival_s)
        return (
            f"{self._queue.explain(request)}; waited {waited:.2f} s, {len(self._waiting)} still wait; "
            f"{self.routing.name} of {candidates}"
        )
