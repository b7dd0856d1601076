"""A pool's recorded requests through its own scheduler: one queue before all replicas, as it is served live.

The live loop grants a request a slot of a replica and the replica, which batches continuously, works on what was
granted in order of arrival; :class:`scheduling.core.scheduler.Scheduler` decides here as it does there. (A
:class:`scheduling.simulator.cluster.Cluster` has a queue in every replica instead, as a policy inside vLLM has.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduling.core.contracts import OrderingPolicy, RoutingPolicy
from scheduling.core.registry import make_ordering
from scheduling.core.scheduler import Scheduler, work_of
from scheduling.core.step_time import StepTime
from scheduling.core.types import BackendView, Grant, PoolView
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import NEVER, Kernel, to_fs, to_s
from scheduling.simulator.result import Outcome, outcomes_of
from scheduling.simulator.workload import SimRequest

ENDED, ARRIVED, WAKE, LOOK = range(4)  # ranks of events at one instant

Looker = Callable[[float, Sequence[Life], float], OrderingPolicy | None]


@dataclass(frozen=True, slots=True)
class Replica:
    """One backend: what its engine is, and how much the books say it holds."""

    step_time: StepTime
    slots: int
    kv_tokens: int
    token_budget: int = 2048

    def engine(self) -> ContinuousEngine:
        config = EngineConfig(
            self.step_time, token_budget=self.token_budget, max_seqs=self.slots, kv_tokens=self.kv_tokens
        )
        return ContinuousEngine(config, make_ordering("fifo"))


class Replay:
    """One run. ``requests`` in order of arrival, with ids of their own.

    Raises ValueError for a request that no replica could ever hold.
    """

    def __init__(self, replicas: Sequence[Replica], ordering: OrderingPolicy, routing: RoutingPolicy) -> None:
        self._engines = [replica.engine() for replica in replicas]
        self._view = PoolView(
            {_name(n): BackendView(_name(n), replica.slots, replica.kv_tokens) for n, replica in enumerate(replicas)}
        )
        self._scheduler = Scheduler(ordering, routing, max_grants=1000, rights=True)
        self._kernel = Kernel()
        self._wakes = [NEVER] * len(self._engines)
        self._seen = [0] * len(self._engines)
        self._requests: dict[str, SimRequest] = {}
        self._lives: list[Life] = []
        self._granted = 0

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
            else:
                self._ended(what)
                self._grant()
        return outcomes_of(self._lives)

    @property
    def _now_s(self) -> float:
        return to_s(self._kernel.now_fs)

    def _look(self, look: Looker) -> None:
        oldest_s = min((request.arrival_s for request in self._scheduler), default=self._now_s)
        policy = look(self._now_s, self._lives, self._now_s - oldest_s)
        if policy is not None:
            self._scheduler.swap(policy, self._scheduler.routing, self._now_s)
            self._grant()

    def _grant(self) -> None:
        if not any(backend.running < backend.slots for backend in self._view.backends.values()):
            return
        for grant in self._scheduler.step(self._view, self._now_s):
            self._start(grant)

    def _start(self, grant: Grant) -> None:
        number = int(grant.backend)
        request = self._requests[grant.request.id]
        # The engine knows the order in which requests reach it, not that in which clients sent them.
        self._granted += 1
        as_reached = replace(grant.request, arrival_s=self._now_s, seq=self._granted)
        life = self._engines[number].offer(replace(request, arrival_fs=self._kernel.now_fs, queued=as_reached))
        life.replica = number
        self._rouse(number)

    def _ended(self, life: Life) -> None:
        request = self._requests.pop(life.sim.queued.id)
        granted_fs = life.sim.arrival_fs
        view = self._view.backends[_name(life.replica)]
        view.running -= 1
        view.kv_used -= request.queued.kv_tokens
        view.work_tokens -= work_of(request.queued)
        self._view.running_by_entitlement[request.queued.entitlement] -= 1
        self._scheduler.settle(request.queued.id, request.input_tokens, request.output_tokens)
        life.sim, life.start_fs = request, granted_fs
        self._lives.append(life)

    def _rouse(self, number: int) -> None:
        at = max(self._kernel.now_fs, self._engines[number].clock)
        if at < self._wakes[number]:
            self._wakes[number] = at
            self._kernel.post(at, WAKE, number)

    def _wake(self, number: int) -> None:
        if self._kernel.now_fs != self._wakes[number]:
            return  # it was woken earlier instead
        self._wakes[number] = NEVER
        engine = self._engines[number]
        goes_on = engine.stretch(self._kernel.next_fs())
        for life in engine.finished[self._seen[number] :]:
            self._kernel.post(life.end_fs, ENDED, life)
        self._seen[number] = len(engine.finished)
        if goes_on:
            self._rouse(number)


def _name(number: int) -> str:
    return str(number)
