"""A pool under overload, in simulated time: the Python model of shared state, a terse leader, and clients that honour
``Retry-After`` the way the OpenAI SDK does, with the very headers that the gateway would send."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from scheduling.core.outcomes import Reason
from scheduling.core.types import EntitlementSpec, PoolSpec
from scheduling.gateway.errors import Refusal, render
from scheduling.state.types import AdmissionStatus, GrantItem
from tests.reference.pool import ReferencePool
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request, tier

MAX_HONOURED_S = 120.0  # the SDK does not send again at all where it is told to wait for longer
CAP = 2**31 - 1


@dataclass(slots=True)
class Job:
    """One request of a client, however often it is sent."""

    spec: EntitlementSpec
    first_s: float
    retries: int  # how often the client sends it again at most
    then: Callable[[], None] | None = None  # a client in a closed loop goes on
    obeys: bool = True  # waits as it is told; else it comes back at once
    attempts: int = 0
    served_s: float | None = None
    given_up: bool = False


@dataclass
class Overload:
    """``slots`` of one replica; a request takes 0.5 to 1.5 x ``service_s``. Everything random comes from ``seed``."""

    slots: int = 16
    service_s: float = 1.0
    sequences: int = 1  # of each request
    seed: int = 1
    now_s: float = 0.0
    jobs: list[Job] = field(default_factory=list)
    told_s: list[tuple[float, float]] = field(default_factory=list)  # (when, Retry-After) of each refusal
    served: list[tuple[float, str]] = field(default_factory=list)  # (when, entitlement) of each end
    reasons: dict[Reason, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.reference = ReferencePool("p", lambda: 1_700_000_000_000 + round(self.now_s * 1000))
        self.pool: PoolSpec = pool_spec(backends=(backend("b1", self.slots, 10**9),), queue_limit=1000)
        self.epoch = self.reference.elect("leader", 0, True).epoch
        self.reference.set_stuck(self.epoch, 0)  # it decides,
        self.reference.meta["leader_until"] = str(10**14)  # ... and leads as long as this lasts
        self.reference.set_ready(self.epoch, "b1", self.pool.backends[0])
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._open: dict[str, Job] = {}

    @property
    def capacity(self) -> float:
        """Requests per second."""
        return self.slots / self.service_s

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_s, next(self._count), what))

    def run(self, until_s: float) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._heap)
            what()

    # --- clients

    def arrivals(
        self, spec: EntitlementSpec, per_s: float, begin_s: float, end_s: float, retries: int = 2, *, obeys: bool = True
    ) -> None:
        """Open loop: new requests at random, whatever became of those before."""

        def arrive() -> None:
            self.send(Job(spec, self.now_s, retries, obeys=obeys))
            later = self.now_s + self.random.expovariate(per_s)
            if later < end_s:
                self.at(later, arrive)

        self.at(begin_s + self.random.expovariate(per_s), arrive)

    def crowd(self, spec: EntitlementSpec, clients: int, end_s: float, retries: int = 1000) -> None:
        """Closed loop: each client sends its next request when it has its answer."""

        def begin() -> None:
            if self.now_s < end_s:
                self.send(Job(spec, self.now_s, retries, then=begin))

        for _ in range(clients):
            self.at(self.random.random(), begin)

    def send(self, job: Job) -> None:
        if job.attempts == 0:
            self.jobs.append(job)
        job.attempts += 1
        name = f"r{next(self._count)}"
        est = estimate()
        queued = request(name, job.spec, est, sequences=self.sequences)
        answer = self.reference.admit(job.spec, self.pool, queued, est, 300, FACTS)
        if answer.status is AdmissionStatus.REFUSED:
            assert answer.reason is not None
            self.reasons[answer.reason] = self.reasons.get(answer.reason, 0) + 1
            self._refused(job, Refusal(answer.reason, retry_s=answer.retry_s, inflight=0, limit=0, need=0))
            return
        self._open[name] = job
        if answer.status is AdmissionStatus.GRANTED:
            self._start(name)

    def _refused(self, job: Job, refusal: Refusal) -> None:
        random.seed(self.random.getrandbits(32))  # the headers' jitter comes from the common source
        headers = dict(render(refusal).headers)
        wait_ms = headers.get(b"retry-after-ms")
        if wait_ms is not None:
            self.told_s.append((self.now_s, int(wait_ms) / 1000))
        if not job.obeys and job.attempts <= job.retries:
            self.at(self.now_s + 0.05, lambda: self.send(job))
            return
        never = wait_ms is None or headers.get(b"x-should-retry") == b"false"
        if never or job.attempts > job.retries or int(wait_ms) / 1000 > MAX_HONOURED_S:
            job.given_up = True
            if job.then is not None:
                self.at(self.now_s + 120.0, job.then)
            return
        self.at(self.now_s + int(wait_ms) / 1000, lambda: self.send(job))

    def _start(self, name: str) -> None:
        self.at(self.now_s + self.service_s * (0.5 + self.random.random()), lambda: self._end(name))

    def _end(self, name: str) -> None:
        job = self._open.pop(name)
        job.served_s = self.now_s
        self.served.append((self.now_s, job.spec.id))
        self.reference.finish(name, 1, Reason.STOP, 140, True, ledger(name))
        waiting = sorted(self.reference.queue, key=lambda n: self.reference.queue[n].seq)
        for first in waiting[:1]:
            if self.reference.grant(self.epoch, [GrantItem(first, 1, "b1", CAP, "fifo@1", "next")])[0].value == "ok":
                self._start(first)
        if job.then is not None:
            job.then()

    # --- figures

    def attempts_each(self) -> float:
        return sum(j.attempts for j in self.jobs) / len(self.jobs)

    def served_share(self) -> float:
        """Of all requests, those that were served in the end, at whatever attempt."""
        return sum(j.served_s is not None for j in self.jobs) / len(self.jobs)

    def refused_at_least(self, load_ends_s: float) -> float:
        """Of all requests, those that could not be served while the load lasted: each is refused once at least, by
        whatever rule. Who had begun by then has ended after one and a half services."""
        by_s = load_ends_s + 1.5 * self.service_s
        return sum(j.served_s is None or j.served_s > by_s for j in self.jobs) / len(self.jobs)

    def told_p50(self, begin_s: float = 0.0, end_s: float = float("inf")) -> float:
        """The least that anybody is told where nobody was refused."""
        return median([wait for at, wait in self.told_s if begin_s <= at < end_s] or [1.0])

    def goodput(self, begin_s: float, end_s: float, name: str = "") -> float:
        """Requests served per second."""
        return sum(begin_s <= at < end_s and name in ("", ent) for at, ent in self.served) / (end_s - begin_s)


def team(name: str = "acme", **changes: object) -> EntitlementSpec:
    """An elastic team that may use the whole pool and is refused beyond a short queue."""
    given: dict[str, object] = {"concurrency": 16, "tier": tier(queue_limit=10)}
    return entitlement(name, **(given | changes))
