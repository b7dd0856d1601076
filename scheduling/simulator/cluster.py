"""Several replicas: requests dealt out beforehand, routed by what is known when they arrive, or sent by clients that
wait for their answers.

Dealing out (round robin, silos) needs no common clock: every replica runs its share by itself, which is fast.
Everything else goes through the kernel: the routing policy sees, at each arrival, exactly what was outstanding at that
instant, although the engines jump ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduling.core.policies.contracts import RoutingPolicy
from scheduling.core.scheduler.step import work_of
from scheduling.core.types import BackendView
from scheduling.simulator.engine import Engine
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import NEVER, Kernel
from scheduling.simulator.workload import ClosedLoop, SimRequest

ENDED, ARRIVED, WAKE = range(3)  # ranks of events at one instant
UNLIMITED = 1 << 60  # a replica's queue takes all: routing here is about where, not whether


def deal(requests: Iterable[SimRequest], replicas: int) -> list[list[SimRequest]]:
    """Round robin: one workload per replica."""
    hands: list[list[SimRequest]] = [[] for _ in range(replicas)]
    for number, request in enumerate(requests):
        hands[number % replicas].append(request)
    return hands


def deal_silos(requests: Iterable[SimRequest], replicas: Mapping[str, int]) -> dict[str, list[list[SimRequest]]]:
    """Each tier to replicas of its own, round robin among them. Raises ValueError for a tier that has none."""
    tiers: dict[str, list[SimRequest]] = {tier: [] for tier in replicas}
    for request in requests:
        if replicas.get(request.tier, 0) < 1:
            raise ValueError(f"no replica serves tier {request.tier!r}")
        tiers[request.tier].append(request)
    return {tier: deal(rows, replicas[tier]) for tier, rows in tiers.items()}


class Cluster:
    """Replicas behind a routing policy, on one clock. ``cached``: how many tokens of a prompt a replica, by its number,
    need not compute; asked once, when a request is sent there."""

    def __init__(
        self,
        engines: Sequence[Engine],
        routing: RoutingPolicy,
        *,
        cached: Callable[[int, SimRequest], int] | None = None,
    ) -> None:
        if not engines:
            raise ValueError("a cluster needs an engine")
        self.engines = list(engines)
        self.routing = routing
        self._router = routing.router()
        self._cached = cached
        self.kernel = Kernel()
        self._views = {
            f"replica-{number:03d}": BackendView(f"replica-{number:03d}", UNLIMITED, UNLIMITED)
            for number in range(len(self.engines))
        }
        self._names = {name: number for number, name in enumerate(self._views)}
        self._wakes = [NEVER] * len(self.engines)  # when each will be woken next
        self._seen = [0] * len(self.engines)  # of each engine's finished requests
        self._lives: list[Life] = []

    def run(self, work: Iterable[SimRequest] | ClosedLoop) -> list[Life]:
        """Runs a workload, or clients until they have sent all, to the end."""
        loop = work if isinstance(work, ClosedLoop) else None
        for request in loop.first() if loop else work:  # type: ignore[union-attr]
            self.kernel.post(request.arrival_fs, ARRIVED, request)
        while len(self.kernel):
            _, rank, _, what = self.kernel.pop()
            if rank == WAKE:
                self._wake(what)
            elif rank == ARRIVED:
                self._arrive(what)
            else:
                self._ended(what)
                following = loop.after(what.sim, self.kernel.now_fs) if loop else None
                if following is not None:
                    self.kernel.post(following.arrival_fs, ARRIVED, following)
        return self._lives

    def _arrive(self, request: SimRequest) -> None:
        view = self._router.choose(request.queued, self._views.values())
        if view is None:
            raise RuntimeError(f"routing {self.routing.name!r} found no replica for {request.queued.id}")
        number = self._names[view.id]
        view.running += request.queued.sequences
        view.work_tokens += work_of(request.queued)
        life = self.engines[number].offer(request)
        life.replica = number
        if self._cached is not None:
            life.prefilled = self._cached(number, request)
        self._schedule_wake(number)

    def _ended(self, life: Life) -> None:
        view = self._views[f"replica-{life.replica:03d}"]
        view.running -= life.sim.queued.sequences
        view.work_tokens -= work_of(life.sim.queued)
        self._lives.append(life)

    def _schedule_wake(self, number: int) -> None:
        at = max(self.kernel.now_fs, self.engines[number].clock)
        if at < self._wakes[number]:
            self._wakes[number] = at
            self.kernel.post(at, WAKE, number)

    def _wake(self, number: int) -> None:
        """One stretch. What it ends is announced at the instant it ends, and so is when it has to go on."""
        engine = self.engines[number]
        if self.kernel.now_fs != self._wakes[number]:
            return  # it was woken earlier instead
        self._wakes[number] = NEVER
        goes_on = engine.stretch(self.kernel.next_fs())
        finished = engine.finished
        for life in finished[self._seen[number] :]:
            self.kernel.post(life.end_fs, ENDED, life)
        self._seen[number] = len(finished)
        if goes_on:
            self._schedule_wake(number)
