"""A pool's requests through its own scheduler: one queue in front of all replicas, as it is served live.

The live loop grants a request a place on a replica by what is free there (slots, KV cache, prefill credit, its
entitlement's concurrency, the pool's headroom), and the replica, which batches continuously, works on what it was
granted; :class:`scheduling.core.scheduler.Scheduler` decides here as it does there, by the same rule of room. (A
:class:`scheduling.simulator.cluster.Cluster` has a queue in every replica instead, as a policy inside vLLM has.)

What a grant took comes back ``signal_s`` after it was over: prefill credit after the first token, slot and KV cache
after the last one. Live that is the way from an engine over a gateway to the leader's next grant. What is predicted to
be prefilled by then counts no more (:class:`scheduling.core.prefill_pace.PrefillPace`, as live).

Every replica has a prefix cache: what it finds there of a prompt's blocks is not computed. Requests that say nothing of
their blocks share none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scheduling.core.compose import Composed
from scheduling.core.contracts import OrderingPolicy, RoutingPolicy
from scheduling.core.engine_order import EngineOrder, HasDue, arrival_s
from scheduling.core.prefill_pace import PrefillPace
from scheduling.core.registry import make_ordering
from scheduling.core.scheduler import Scheduler
from scheduling.core.step_time import StepTime
from scheduling.core.types import BackendView, Grant, PoolView
from scheduling.simulator import room
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.engine_queue import Stay
from scheduling.simulator.engine_watch import EVERY_S, EngineWatch, Watched
from scheduling.simulator.kernel import NEVER, Kernel, to_fs, to_s
from scheduling.simulator.prefix_cache import BLOCK_TOKENS, BlockCache
from scheduling.simulator.result import Outcome, outcomes_of
from scheduling.simulator.workload import SimRequest

FIRST, ENDED, ARRIVED, WAKE, LOOK, COUNT, PACED = range(7)  # ranks of events at one instant

Looker = Callable[[float, Sequence[Life], float], OrderingPolicy | None]


@dataclass(frozen=True, slots=True)
class Replica:
    """One backend: what its engine is, and how much is granted to it at once.

    ``prefill_tokens``: its prefill credit, prompt tokens granted whose first token has not come; 0 is no bound, None
    is found while it serves, as live. ``order``: how the engine takes what it was granted, an ordering policy by name:
    "fifo" as vLLM's fcfs does, "priority" as its priority scheduling by the number it is told
    (:mod:`scheduling.core.engine_order`). ``cache_tokens``: its prefix cache; 0: as large as its KV cache.
    """

    step_time: StepTime
    slots: int
    kv_tokens: int
    token_budget: int = 2048
    prefill_tokens: int | None = 0
    order: str = "fifo"
    cache_tokens: int = 0

    def engine(self) -> ContinuousEngine:
        config = EngineConfig(
            self.step_time,
            token_budget=self.token_budget,
            max_seqs=self.slots,
            kv_tokens=self.kv_tokens,
            victims="priority" if self.order == "priority" else "tail",
        )
        return ContinuousEngine(config, make_ordering(self.order))

    def view(self, name: str) -> BackendView:
        """The replica as the scheduler sees it, with nothing on it."""
        return BackendView(name, self.slots, self.kv_tokens, prefill_credit=self.prefill_tokens or 0)


class Replay:
    """One run. ``requests`` in order of arrival, with ids of their own. ``headroom``: the last free slots, kept for who
    is within a baseline. ``signal_s``: from an engine's token to the grant that follows from it [s].

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
    ) -> None:
        self.engines = [replica.engine() for replica in replicas]
        self.stays: list[Stay] = []  # of all that has ended, in its engine's queue
        self._view = PoolView({_name(n): replica.view(_name(n)) for n, replica in enumerate(replicas)})
        self._scheduler = Scheduler(ordering, routing, max_grants=1000, rights=True)
        self._scheduler.headroom = headroom
        self._signal_fs = to_fs(signal_s)
        self._kernel = Kernel()
        self._caches = [BlockCache((replica.cache_tokens or replica.kv_tokens) // BLOCK_TOKENS) for replica in replicas]
        self.cached_tokens = 0  # of prompts: found in the caches
        self._by_priority = [replica.order == "priority" for replica in replicas]
        self._engine_order = _order_of(ordering)
        self._ranks: set[int] = set()
        self._watch = EngineWatch(
            {
                _name(n): Watched(self.engines[n], replica.token_budget, replica.prefill_tokens)
                for n, replica in enumerate(replicas)
            },
            self._view,
        )
        self._wakes = [NEVER] * len(self.engines)
        self._ended_seen = [0] * len(self.engines)
        self._first_seen = [0] * len(self.engines)
        self._requests: dict[str, SimRequest] = {}
        self._lives: list[Life] = []
        self._granted = 0
        self._steps = [replica.token_budget for replica in replicas]
        self._paces = [PrefillPace() for _ in replicas]
        self._prefill_held = [0] * len(self.engines)  # of each one's prefill credit, by what has no first token
        self._bounded = any(replica.prefill_tokens != 0 for replica in replicas)
        self._paced = NEVER  # when the next prediction is to be looked at

    def run(
        self, requests: Sequence[SimRequest], look: Looker | None = None, *, every_s: float = 10.0
    ) -> list[Outcome]:
        """Serves them all; outcomes in order of arrival, waits counted until the grant.

        ``look`` is called every so often while requests arrive, with the time [s], what has ended so far and how long
        the oldest request waits [s]; the policy it returns, if any, serves from then on.
        """
        if look is not None and requests:
            last_s = to_s(requests[-1].arrival_fs)
            for number in range(1, int(last_s / every_s) + 1):
                self._kernel.post(to_fs(number * every_s), LOOK, look)
        self._ranks = {request.queued.rank for request in requests}
        self._engine_order = _order_of(self._scheduler.policy, self._ranks)
        if requests:
            self._kernel.post(requests[0].arrival_fs + to_fs(EVERY_S), COUNT, None)
        for request in requests:
            if request.queued.kv_tokens > max(backend.kv_tokens for backend in self._view.backends.values()):
                raise ValueError(f"{request.queued.id} needs {request.queued.kv_tokens} KV tokens; no replica has them")
            self._kernel.post(request.arrival_fs, ARRIVED, request)
        while len(self._kernel):
            _, rank, _, what = self._kernel.pop()
            if rank == WAKE:
                self._wake(what)
            elif rank == ARRIVED:
                self._requests[what.queued.id] = what
                self._scheduler.offer(what.queued, self._now_s)
                self._grant()
            elif rank == LOOK:
                self._look(what)
            elif rank == COUNT:
                self._count()
            elif rank == PACED:
                if self._kernel.now_fs == self._paced:
                    self._paced = NEVER
                    self._grant()
            else:
                (self._first_token if rank == FIRST else self._ended)(what)
                if not self._kernel.more_now(before=ARRIVED):  # what one step freed is granted in one decision
                    self._grant()
        return outcomes_of(self._lives)

    @property
    def view(self) -> PoolView:
        """What the scheduler believes of the replicas. To look at, not to change."""
        return self._view

    @property
    def headroom(self) -> int:
        """The last free slots, kept for who is within a baseline."""
        return self._scheduler.headroom

    @property
    def _now_s(self) -> float:
        return to_s(self._kernel.now_fs)

    def _look(self, look: Looker) -> None:
        oldest_s = min((request.arrival_s for request in self._scheduler), default=self._now_s)
        policy = look(self._now_s, self._lives, self._now_s - oldest_s)
        if policy is not None:
            self._scheduler.swap(policy, self._scheduler.routing, self._now_s)
            self._engine_order = _order_of(policy, self._ranks)
            self._grant()

    def _count(self) -> None:
        """A second has passed: credits and speeds follow what engines did, as long as anything is left."""
        self._watch.look(self._now_s)
        self._grant()
        if len(self._kernel):
            self._kernel.post(self._kernel.now_fs + to_fs(EVERY_S), COUNT, None)

    def _grant(self) -> None:
        if self._bounded:
            self._predict()
        grants = []
        if any(backend.running < backend.slots for backend in self._view.backends.values()):
            grants = self._scheduler.step(self._view, self._now_s)
        for grant in grants:
            self._start(grant)
        if self._scheduler.credit_holds:
            self._look_again()
        self._watch.decided(len(self._scheduler) > 0, [grant.request.prefill_tokens for grant in grants])

    def _predict(self) -> None:
        """What counts of each replica's prefill credit now."""
        now_ms, turnaround_ms = self._now_s * 1000.0, to_s(self._signal_fs) * 1000.0
        for number, backend in enumerate(self._view.backends.values()):
            used, step, pace = self._prefill_held[number], self._steps[number], self._paces[number]
            backend.prefill_used = pace.ahead(used, step, turnaround_ms, now_ms)
            backend.falls_s = pace.falls_in_ms(used, step, turnaround_ms, now_ms) / 1000.0

    def _look_again(self) -> None:
        """Somebody waits for credit: the next decision is due when less is predicted to count."""
        waited_for = self._scheduler.credit_holds
        falls = [b.falls_s for b in self._view.backends.values() if b.id in waited_for and b.falls_s > 0]
        at = self._kernel.now_fs + to_fs(min(falls)) if falls else NEVER
        if at < self._paced or self._paced <= self._kernel.now_fs:
            self._paced = at
            if at != NEVER:
                self._kernel.post(at, PACED, None)

    def _start(self, grant: Grant) -> None:
        number = int(grant.backend)
        request = self._requests[grant.request.id]
        # The engine knows the order in which requests reach it, not that in which clients sent them.
        self._granted += 1
        as_reached = replace(grant.request, arrival_s=self._now_s, seq=self._granted)
        if self._by_priority[number]:  # lower is sooner: all that such an engine knows of the order
            as_reached = replace(as_reached, rank=self._engine_order.priority(grant.request))
        life = self.engines[number].offer(replace(request, arrival_fs=self._kernel.now_fs, queued=as_reached))
        life.replica = number
        if request.blocks:
            cached = min(self._caches[number].take(request.blocks) * BLOCK_TOKENS, request.input_tokens - 1)
            life.prefilled = cached
            self.cached_tokens += cached
        need = grant.request.prefill_tokens
        self._paces[number].granted(self._prefill_held[number], need, False, self._now_s * 1000.0)
        self._prefill_held[number] += need
        self._rouse(number)

    def _first_token(self, life: Life) -> None:
        room.first_token(self._view, life.sim.queued, _name(life.replica))
        number, need = life.replica, life.sim.queued.prefill_tokens
        self._prefill_held[number] -= need
        granted_ms, now_ms = to_s(life.sim.arrival_fs) * 1000.0, self._now_s * 1000.0
        self._paces[number].first_token(self._prefill_held[number], need, granted_ms, self._steps[number], now_ms)

    def _ended(self, life: Life) -> None:
        request = self._requests.pop(life.sim.queued.id)
        granted_fs = life.sim.arrival_fs
        room.end(self._view, request.queued, _name(life.replica))
        self._scheduler.settle(request.queued.id, request.input_tokens, request.output_tokens)
        self.stays.append(Stay(life.replica, granted_fs, life.start_fs))
        life.sim, life.start_fs = request, granted_fs
        self._lives.append(life)

    def _rouse(self, number: int) -> None:
        at = max(self._kernel.now_fs, self.engines[number].clock)
        if at < self._wakes[number]:
            self._wakes[number] = at
            self._kernel.post(at, WAKE, number)

    def _wake(self, number: int) -> None:
        if self._kernel.now_fs != self._wakes[number]:
            return  # it was woken earlier instead
        self._wakes[number] = NEVER
        engine = self.engines[number]
        goes_on = engine.stretch(self._kernel.next_fs())
        for life in engine.prefilled[self._first_seen[number] :]:
            self._kernel.post(life.first_fs + self._signal_fs, FIRST, life)
        self._first_seen[number] = len(engine.prefilled)
        for life in engine.finished[self._ended_seen[number] :]:
            self._kernel.post(life.end_fs + self._signal_fs, ENDED, life)
        self._ended_seen[number] = len(engine.finished)
        if goes_on:
            self._rouse(number)


def _order_of(policy: OrderingPolicy, ranks: Iterable[int] = ()) -> EngineOrder:
    """What engines are told of a policy; of one with modifiers around it, the policy's own."""
    inner = policy.policy if isinstance(policy, Composed) else policy
    return EngineOrder(inner.due_s if isinstance(inner, HasDue) else arrival_s, ranks)


def _name(number: int) -> str:
    return str(number)
