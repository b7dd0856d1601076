"""Simulates a pool as it is served live: one queue in front of all replicas, decided by the live scheduler.

:class:`scheduling.core.scheduler.loop.Scheduler` grants a request a place on a replica by what is free there (slots, KV
cache, prefill credit, its entitlement's concurrency, the pool's headroom), and the replica batches continuously. (In a
:class:`scheduling.simulator.cluster.Cluster` every replica has a queue of its own instead, as with a policy inside
vLLM.)

What a grant took is returned ``signal_s`` after its end: prefill credit after the first token, slot and KV cache after
the last one. Live that is the way from an engine over a gateway to the leader's next grant. The first token of a whole
answer cannot be seen: its credit is returned, as live, with that of a stream granted later to the same replica, when
the engine's queue shows that it no longer waits, or at its end. What is predicted to be prefilled when the next grant
reaches the engine does not count (:class:`scheduling.core.capacity.prefill_pace.PrefillPace`, as live).

With an :class:`scheduling.simulator.admission.Admission` a request is admitted when it arrives, as live: it runs at
once, waits up to its tier's longest wait, or is refused, and may evict preemptible ones. Clients come back after their
Retry-After up to ``returns`` times. Without one every request is admitted and waits.

With replicas of different phases, a prefill replica computes the prompt of a request on a decode replica first
(:class:`scheduling.simulator.legs.Legs`); its credit is returned when that is done, also for whole answers.

With an ``estimator`` a request is estimated when it arrives, and its end is learned from.

Every replica has a prefix cache: blocks of a prompt that it finds there are not computed. Requests without blocks share
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduling.core.admission.entitlement import TICK_S
from scheduling.core.admission.rule import AdmissionAnswer
from scheduling.core.engine.token_pace import TokenPace
from scheduling.core.inside_engine.order import EngineOrder, HasDue, arrival_s
from scheduling.core.outcomes import Reason
from scheduling.core.placement.cached_prompts import counted_on
from scheduling.core.placement.rule import read_points
from scheduling.core.policies.compose import Composed
from scheduling.core.policies.contracts import OrderingPolicy, RoutingPolicy, Served
from scheduling.core.scheduler.evictions import entitled_to_room
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.prefill_preemption import interrupted
from scheduling.core.scheduler.stuck import stuck
from scheduling.core.types import Grant, Phase, PoolView, QueuedRequest, oldest_waits
from scheduling.simulator import room
from scheduling.simulator.admission import Admission, under
from scheduling.simulator.engine import Estimator
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.engine_queue import Stay
from scheduling.simulator.engine_wakes import EngineWakes
from scheduling.simulator.engine_watch import EVERY_S, EngineWatch, Watched
from scheduling.simulator.held_credit import HeldCredit
from scheduling.simulator.interruptions import Interruptions
from scheduling.simulator.kernel import NEVER, Kernel, to_fs, to_s
from scheduling.simulator.legs import Legs
from scheduling.simulator.prompt_caches import PromptCaches
from scheduling.simulator.replay_events import (
    ARRIVED,
    DECIDE,
    EXPIRED,
    FIRST,
    HANDED_OVER,
    LOOK,
    SECOND,
    TAKEN_BACK,
    WAKE,
)
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome, outcome_of, refused_outcome
from scheduling.simulator.returning_clients import ReturningClients
from scheduling.simulator.workload import SimRequest

Setting = Callable[[PoolView], Admission]  # makes a pool's admission from the view of its replicas

Looker = Callable[[float, Sequence[Life], Mapping[str, float]], OrderingPolicy | None]


class Replay:
    """One run over requests in order of arrival, with unique ids. ``headroom``: free slots kept for baselines.
    ``signal_s``: from an engine's token to the grant that follows from it [s].

    Raises ValueError for a request that no replica could ever hold.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        ordering: OrderingPolicy,
        routing: RoutingPolicy,
        *,
        headroom: int = 0,
        signal_s: float = 0.0,
        admission: Setting | None = None,
        returns: int = 0,
        seed: int = 1,
        estimator: Estimator | None = None,
    ) -> None:
        self._estimator = estimator
        self.engines = [replica.engine() for replica in replicas]
        self.stays: list[Stay] = []  # of all that has ended, in its engine's queue
        self._legs = Legs(replicas, self.engines)
        self._phases = [replica.phase for replica in replicas]
        self._view = PoolView({_name(n): replicas[n].view(_name(n)) for n in self._legs.answering})
        self._scheduler = Scheduler(ordering, routing, max_grants=1000, rights=True)
        self._scheduler.headroom = headroom
        self._admission = admission(self._view) if admission is not None else None
        if self._admission is not None:
            self._scheduler.headroom = self._admission.headroom
            self._scheduler.unreserved = self._admission.unreserved
        self._clients = ReturningClients(returns, seed)
        self._running: dict[str, Life] = {}  # what was granted and has not ended
        self._begun: set[str] = set()  # of those: the ones whose first token has come
        self._refused: list[Outcome] = []
        self._counted = 0  # seconds
        self._signal_fs = to_fs(signal_s)
        self._kernel = Kernel()
        self._caches = PromptCaches(replicas, self._view)
        self._by_priority = [replica.order == "priority" for replica in replicas]
        self._engine_order = _order_of(ordering)
        self._ranks: set[int] = set()
        self._watch = EngineWatch(
            {
                _name(n): Watched(self.engines[n], replica.token_budget, replica.prefill_tokens, replica.phase)
                for n, replica in enumerate(replicas)
            },
            self._view,
            signal_s,
        )
        self._wakes = EngineWakes(self._kernel, self.engines, self._phases, self._legs, self._signal_fs)
        self._requests: dict[str, SimRequest] = {}
        self._lives: list[Life] = []
        self._granted = 0
        self._credit = HeldCredit(replicas, self._view, signal_s)
        self._token_pace = TokenPace()
        self._next_decision_fs = NEVER  # when the next decision is due if nothing happens before
        self._interruptions = Interruptions(self._view)

    def run(
        self, requests: Sequence[SimRequest], look: Looker | None = None, *, every_s: float = 10.0
    ) -> list[Outcome]:
        """Serves all requests. Returns outcomes in order of arrival, refused ones included; waits end at the grant.

        ``look`` is called every ``every_s`` while requests arrive, with the time [s], what has ended so far and how
        long the oldest request waits [s]; the policy that it returns, if any, serves from then on.
        """
        if look is not None and requests:
            last_s = to_s(requests[-1].arrival_fs)
            for number in range(1, int(last_s / every_s) + 1):
                self._kernel.post(to_fs(number * every_s), LOOK, look)
        self._ranks = {request.queued.rank for request in requests}
        self._engine_order = _order_of(self._scheduler.policy, self._ranks)
        if requests:
            self._kernel.post(requests[0].arrival_fs + to_fs(EVERY_S), SECOND, None)
        for request in requests:
            if request.queued.kv_tokens > max(backend.kv_tokens for backend in self._view.backends.values()):
                raise ValueError(f"{request.queued.id} needs {request.queued.kv_tokens} KV tokens; no replica has them")
            self._kernel.post(request.arrival_fs, ARRIVED, request)
        while len(self._kernel):
            _, rank, _, what = self._kernel.pop()
            if rank == WAKE:
                self._wakes.wake(what)
            elif rank == ARRIVED:
                self._arrive(what)
            elif rank == EXPIRED:
                self._end_waits()
            elif rank == HANDED_OVER:
                self._handed_over(what)
            elif rank == TAKEN_BACK:
                self._take_back(*what)
            elif rank == LOOK:
                self._look(what)
            elif rank == SECOND:
                self._each_second()
            elif rank == DECIDE:
                if self._kernel.now_fs == self._next_decision_fs:
                    self._next_decision_fs = NEVER
                    self._grant()
            else:
                (self._first_token if rank == FIRST else self._ended)(what)
                if not self._kernel.more_now(before=ARRIVED):  # what one step freed is granted in one decision
                    self._grant()
        return sorted([*map(outcome_of, self._lives), *self._refused], key=lambda outcome: outcome.index)

    def give_room(self, headroom: int, headroom_most: int, credits: Sequence[int | None]) -> None:
        """Changes headroom and prefill credits, as a change of the pool does; to be called from ``look``."""
        if self._admission is not None:
            self._admission.keep(headroom, headroom_most)
        self._scheduler.headroom = headroom
        for number, credit in enumerate(credits):
            self._watch.give(_name(number), credit)
        self._credit.bound(any(credit != 0 for credit in credits))

    @property
    def view(self) -> PoolView:
        """The replicas as the scheduler sees them. Read only."""
        return self._view

    @property
    def cached_tokens(self) -> int:
        """Of prompts: found in the caches."""
        return self._caches.found_tokens

    @property
    def interruptions(self) -> int:
        """How often the prefill of a long prompt was interrupted."""
        return self._interruptions.count

    @property
    def headroom(self) -> int:
        """Free slots kept for baselines."""
        return self._scheduler.headroom

    @property
    def _uncounted_s(self) -> float:
        """How much of what is cached of prompts in flight need not count [seconds of prefill]."""
        return 0.0 if Phase.DECODE in self._phases else getattr(self._scheduler.routing, "uncounted_s", 0.0)

    @property
    def _now_s(self) -> float:
        return to_s(self._kernel.now_fs)

    @property
    def _now_ms(self) -> int:
        """As shared state counts: whole milliseconds that have passed."""
        return int(self._now_s * 1000.0)

    # --- arrivals

    def _arrive(self, request: SimRequest) -> None:
        if self._estimator is not None:
            request = replace(request, queued=self._estimator.estimate(request))
        if (warmth := self._scheduler.warmth(request.queued)) is not None:
            self._caches.expect(request.queued.id, warmth)
        if self._admission is None:
            self._requests[request.queued.id] = request
            self._scheduler.offer(request.queued, self._now_s)
            self._grant()
            return
        self._admit(request, self._admission)

    def _admit(self, request: SimRequest, admission: Admission) -> None:
        queued = under(request.queued, admission.specs.get(request.queued.entitlement))
        request = replace(request, queued=queued)
        self._credit.predict(self._now_s)
        decision = admission.decide(queued, self._now_ms)
        if decision.verdict is AdmissionAnswer.REFUSE:
            assert decision.reason is not None
            self._refuse(request, decision.reason, None if decision.retry_ms is None else decision.retry_ms / 1000)
            return
        for evicted in decision.evict:
            self._evict(evicted, admission)
        if decision.verdict is AdmissionAnswer.GRANT:
            queued = self._counted_on(queued, decision.backend)
        admission.admitted(queued, decision, self._now_ms)
        self._requests[queued.id] = request
        if decision.verdict is AdmissionAnswer.GRANT:
            self._run_at_once(queued, decision.backend, "at once")
            return
        if decision.supersedes:
            assert decision.retry_ms is not None
            self._end_wait(decision.supersedes, Reason.SUPERSEDED, decision.retry_ms / 1000, admission)
        self._wait(queued)

    def _wait(self, queued: QueuedRequest) -> None:
        if queued.expires_s is not None:
            self._kernel.post(max(self._kernel.now_fs, to_fs(queued.expires_s)), EXPIRED, None)
        self._scheduler.offer(queued, self._now_s)
        self._grant()

    def _counted_on(self, queued: QueuedRequest, backend: str) -> QueuedRequest:
        return counted_on(self._view.backends[backend], queued, self._scheduler.warmth(queued))

    def _run_at_once(self, queued: QueuedRequest, backend: str, why: str) -> None:
        """Runs a request that the scheduler has not chosen."""
        room.take(self._view, queued, backend)
        if queued.prefixes and self._scheduler.learns_places:
            self._scheduler.learn({name: backend for name, _ in read_points(queued.prefixes)[1]})
        self._start(Grant(queued, backend, why))

    def _refuse(self, request: SimRequest, reason: Reason, retry_s: float | None) -> None:
        """Refuses a request: its client comes back later, or gives up."""
        back = self._clients.back(request, reason, retry_s, self._kernel.now_fs)
        if back is None:
            waited_s = to_s(self._kernel.now_fs - request.arrival_fs)
            self._refused.append(refused_outcome(request, reason.value, waited_s))
            return
        self._kernel.post(back[0], ARRIVED, back[1])

    def _end_waits(self) -> None:
        """Refuses requests that have waited as long as their tier allows."""
        admission = self._admission
        if admission is None:
            return
        for queued in self._scheduler.expire(self._now_s):
            self._end_wait(queued.id, Reason.QUEUE_TIMEOUT, None, admission)

    def _end_wait(self, request_id: str, reason: Reason, retry_s: float | None, admission: Admission) -> None:
        """Refuses a request that waits."""
        self._scheduler.withdraw(request_id)
        request = self._requests.pop(request_id)
        admission.left(request_id, self._now_ms)
        admission.refused(request.queued, reason, waited=True)
        self._refuse(request, reason, retry_s)

    def _evict(self, request_id: str, admission: Admission) -> None:
        """Evicts a preemptible request, which is charged for what it has generated."""
        life = self._running.pop(request_id)
        number, queued = life.replica, life.sim.queued
        if request_id not in self._begun:
            self._credit.give_back(life)
        self._begun.discard(request_id)
        leg = self._legs.end(request_id)
        in_leg = leg is not None and leg.life is life
        self.engines[leg.at if leg is not None and in_leg else number].cancel(life)
        room.end(self._view, queued, _name(number))
        generated = 0 if in_leg else life.generated if life.end_fs < 0 else life.sim.output_tokens
        admission.evicted(request_id, queued.input_tokens + generated, self._now_ms)
        request = self._requests.pop(request_id)
        self._count_served(queued, queued.input_tokens, generated)
        self._refuse(request, Reason.EVICTED, admission.turn_s())

    def _make_room(self, admission: Admission) -> None:
        """Evicts preemptible requests for owners' requests that fit on no replica."""
        for queued in entitled_to_room(self._scheduler.waits_for_any, self._view):
            room = admission.make_room(queued)
            if room is None:
                continue
            for evicted in room[1]:
                self._evict(evicted, admission)
            self._scheduler.withdraw(queued.id)
            queued = self._counted_on(queued, room[0])
            admission.granted(queued, room[0], self._now_ms)
            self._run_at_once(queued, room[0], "a preemptible request made room")

    # --- decisions and engines

    def _look(self, look: Looker) -> None:
        policy = look(self._now_s, self._lives, oldest_waits(self._scheduler, self._now_s))
        if policy is not None:
            self._scheduler.swap(policy, self._scheduler.routing, self._now_s)
            self._engine_order = _order_of(policy, self._ranks)
            self._grant()

    def _each_second(self) -> None:
        """Once a second, while anything is left: credits and speeds follow what the engines did."""
        promised = [life.sim.slo.tbt_s for life in self._running.values() if life.sim.slo.tbt_s is not None]
        self._watch.look(self._now_s, self._running_by_entitlement(), min(promised, default=None))
        self._caches.trust(self._uncounted_s)
        self._read_engine_queues()
        if self._admission is not None:
            self._counted += 1
            self._admission.look(self._now_ms)
            if self._counted % TICK_S == 0:
                self._admission.tick(self._now_ms)
            self._scheduler.headroom = self._admission.headroom
        self._grant()
        if len(self._kernel):
            self._kernel.post(self._kernel.now_fs + to_fs(EVERY_S), SECOND, None)

    def _running_by_entitlement(self) -> dict[str, tuple[int, int]]:
        """By entitlement: how many requests run, and the KV tokens that they reserve."""
        running: dict[str, tuple[int, int]] = {}
        for life in self._running.values():
            queued = life.sim.queued
            n, tokens = running.get(queued.entitlement, (0, 0))
            running[queued.entitlement] = n + 1, tokens + queued.kv_tokens
        return running

    def _grant(self) -> None:
        admission = self._admission
        if admission is not None:
            self._end_waits()
        self._credit.predict(self._now_s)
        grants: list[Grant] = []
        if any(backend.running < backend.slots for backend in self._view.backends.values()):
            grants = self._scheduler.step(self._view, self._now_s)
        for grant in grants:
            if admission is not None:
                admission.granted(grant.request, grant.backend, self._now_ms)
            self._start(grant)
        if admission is not None:
            if not grants and admission.has_preemptible:
                self._make_room(admission)
            admission.stuck = stuck(self._scheduler, self._view)
        if self._scheduler.credit_holds or self._scheduler.waits_for_replica:
            self._decide_again_soon()
        self._preempt_prefills(grants)
        self._watch.decided(len(self._scheduler) > 0, [grant.request.prefill_tokens for grant in grants])

    def _preempt_prefills(self, grants: Sequence[Grant]) -> None:
        """Takes long prompts back from their engines for requests that would wait for them."""
        claims = self._interruptions.claims(grants, self._scheduler.lacks_credit, self._now_s)
        if not claims:
            return
        found, again_s = self._interruptions.found(
            claims, self._running, self._begun, self._requests, self._now_s, self._scheduler.goes_before
        )
        if again_s:
            self._decide_at(self._kernel.now_fs + to_fs(again_s))
        for one in found:
            self._kernel.post(self._kernel.now_fs + self._signal_fs, TAKEN_BACK, one)

    def _take_back(self, life: Life, computed: int) -> None:
        """Its gateway hangs up, and the request waits again. ``computed``: predicted tokens of the prompt that are."""
        name, number = life.sim.queued.id, life.replica
        self._interruptions.answered(name)
        seen = name in self._begun or (life.first_fs >= 0 and not life.sim.whole)
        if self._running.get(name) is not life or seen or not self.engines[number].cancel(life):
            return  # its client has a first token, or it has ended
        del self._running[name]
        self._credit.give_back(life)
        room.end(self._view, life.sim.queued, _name(number))
        self._interruptions.happened(name, life.prefilled)
        request = self._requests[name]
        self._caches.forget_from(request, number, life.prefilled)
        queued = interrupted(request.queued, _name(number), computed)
        self._watch.taken_back(_name(number), queued.input_tokens)
        if self._admission is not None:
            queued = self._admission.interrupted(queued, self._now_s)
        self._requests[name] = replace(request, queued=queued)
        self._wait(queued)

    def _decide_again_soon(self) -> None:
        """A request waits for credit or for a cache: the next decision is due when less credit is predicted to count,
        or when the first one stops waiting for its cache."""
        waited_for = self._scheduler.credit_holds
        falls = [b.falls_s for b in self._view.backends.values() if b.id in waited_for and b.falls_s > 0]
        falls += [until_s - self._now_s for until_s in self._scheduler.waits_for_replica.values()]
        self._decide_at(self._kernel.now_fs + to_fs(min(falls)) if falls else NEVER)

    def _decide_at(self, at: int) -> None:
        """Makes the next decision due at ``at`` [fs], unless one is due before; never at this instant, when nothing
        has changed: a time in seconds may be less than a femtosecond away."""
        at = max(at, self._kernel.now_fs + 1)
        if at < self._next_decision_fs or self._next_decision_fs <= self._kernel.now_fs:
            self._next_decision_fs = at
            if at != NEVER:
                self._kernel.post(at, DECIDE, None)

    def _start(self, grant: Grant) -> None:
        number = int(grant.backend)
        request = self._requests[grant.request.id]
        # The engine knows the order in which requests reach it, not that in which clients sent them.
        self._granted += 1
        as_reached = replace(grant.request, arrival_s=self._now_s, seq=self._granted)
        if self._by_priority[number]:  # lower is sooner: all that such an engine knows of the order
            as_reached = replace(as_reached, rank=self._engine_order.priority(grant.request))
        sent, at = replace(request, arrival_fs=self._kernel.now_fs, queued=as_reached), number
        apart = self._phases[number] is Phase.DECODE
        if apart:
            leg = self._legs.begin(sent, number)
            life, at = leg.life, leg.at
        else:
            life = self.engines[number].offer(sent)
            life.replica = number
        self._running[grant.request.id] = life
        computed = self._interruptions.resumed(grant.request.id)
        if grant.request.resumes_at == grant.backend:
            life.prefilled = min(computed, request.input_tokens - 1)
        life.prefilled = max(life.prefilled, self._caches.find(request, at, grant.backend))
        self._credit.granted(number, grant.request, request.whole, self._now_s)
        if request.whole and not apart:
            self._credit.unseen(number, life, request.queued.rank)
        self._wakes.schedule(at)

    def _handed_over(self, life: Life) -> None:
        """The KV cache of a prompt has arrived at its decode replica."""
        if self._legs.of(life) is None:
            return  # it was evicted meanwhile
        number, request_id = life.replica, life.sim.queued.id
        request = replace(self._requests[request_id], arrival_fs=self._kernel.now_fs, queued=life.sim.queued)
        writes = self.engines[number].offer(request)
        writes.replica, writes.prefilled = number, request.input_tokens - 1
        self._running[request_id] = writes
        self._wakes.schedule(number)

    def _first_token(self, life: Life) -> None:
        if self._legs.of(life) is not None:  # its gateway sees the prompt's end, whatever the answer comes as
            self._first_tokens_came(life.replica, [life])
            return
        request_id = life.sim.queued.id
        if self._running.get(request_id) is not life:
            return  # it was evicted meanwhile
        if life.sim.whole:
            return
        rank = self._requests[request_id].queued.rank
        self._first_tokens_came(life.replica, [life, *self._credit.unseen_before(life, rank)])

    def _read_engine_queues(self) -> None:
        """Reads the engines' queues. An engine in which nothing waits although requests wait here is faster than was
        believed (``scheduling/state/scripts/prefilled.lua``)."""
        for number, backend in enumerate(self._view.backends.values()):
            waiting = self._watch.waiting(backend.id)
            arrived = self._credit.arrived(number, self._kernel.now_fs)
            prefilled, begun = self._credit.prefilled(number, arrived, waiting)
            if prefilled:
                self._first_tokens_came(number, prefilled, begun)
            if not waiting and arrived and len(self._scheduler) > 0:
                self._credit.idle(number, self._watch.hurry(backend.id), self._now_s)

    def _first_tokens_came(self, number: int, lives: Sequence[Life], begun: int | None = None) -> None:
        """First tokens came on one replica; ``begun`` as in :meth:`HeldCredit.first_tokens`."""
        for life in lives:
            request_id = life.sim.queued.id
            self._begun.add(request_id)
            self._credit.give_back(life)
            if self._admission is not None:
                self._admission.first_token(request_id)
        self._credit.first_tokens(number, lives, begun, self._now_s)

    def _ended(self, life: Life) -> None:
        request_id = life.sim.queued.id
        if self._running.get(request_id) is not life:
            return  # it was evicted meanwhile
        del self._running[request_id]
        if request_id not in self._begun:
            self._credit.give_back(life)  # its first token was not seen
        self._begun.discard(request_id)
        request = self._requests.pop(request_id)
        leg, sent_fs = self._legs.end(request_id), life.sim.arrival_fs
        granted_fs = sent_fs if leg is None else leg.life.sim.arrival_fs
        room.end(self._view, request.queued, _name(life.replica))
        self._count_served(request.queued, request.input_tokens, request.output_tokens)
        self._watch.kv_use.ended(
            request.queued.entitlement, request.queued.kv_tokens, request.input_tokens, request.output_tokens,
            to_s(life.end_fs - granted_fs),
        )  # fmt: skip
        if self._admission is not None:
            self._admission.ended(request_id, request.input_tokens + request.output_tokens, self._now_ms)
        self._token_pace.add(request.output_tokens, to_s(life.end_fs - life.first_fs))
        self._view.token_s = self._token_pace.token_s
        self.stays.append(Stay(life.replica, sent_fs, life.start_fs))
        life.sim, life.start_fs = request, granted_fs
        self._lives.append(life)
        if self._estimator is not None:
            self._estimator.observe(request)

    def _count_served(self, queued: QueuedRequest, input_tokens: int, output_tokens: int) -> None:
        """Counts what a request used, for queues with shares."""
        if self._admission is None:
            self._scheduler.settle(queued.id, input_tokens, output_tokens)
            return
        service_class, weight = queued.service_class, queued.weight
        self._scheduler.served(
            Served(queued.id, queued.entitlement, service_class, weight, input_tokens, output_tokens, queued.sequences)
        )


def _order_of(policy: OrderingPolicy, ranks: Iterable[int] = ()) -> EngineOrder:
    """The order that engines are told of a policy; its modifiers do not count."""
    inner = policy.policy if isinstance(policy, Composed) else policy
    return EngineOrder(inner.due_s if isinstance(inner, HasDue) else arrival_s, ranks)


def _name(number: int) -> str:
    return str(number)
