"""A pool on virtual time: clients, admission, queue, slots, and what the leader's tick makes of them.

The decisions are not modelled, they are the product's: :class:`scheduling.simulator.admission.Admission` says who
enters, :class:`scheduling.core.scheduler.loop.Scheduler` who goes next,
:func:`scheduling.core.admission.entitlement.tick` what everybody weighs. Modelled are the slots (each request takes
``a * input + t0 * output`` seconds wherever it runs, the first token comes with the first step) and clients that come
at a pace of their own and heed ``Retry-After``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from scheduling.core.admission import entitlement as standing
from scheduling.core.admission.rule import AdmissionAnswer
from scheduling.core.outcomes import Reason, unmet
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.policies.registry import make_routing
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import (
    BackendView,
    EntitlementSpec,
    PoolSpec,
    PoolView,
    QueuedRequest,
    Standing,
)
from scheduling.simulator import room as booked
from scheduling.simulator.admission import LET_IN, Admission
from scheduling.simulator.kernel import Kernel, rng, to_fs, to_s

RETRY_JITTER = 0.25  # of the gateway's Retry-After, up and down
CUT_RETRY_S = 1.0  # when the client of a request that was cut off comes back


@dataclass(frozen=True, slots=True)
class Service:
    """How long a slot takes [s]."""

    per_input: float
    per_output: float

    def first_s(self, input_tokens: int) -> float:
        return self.per_input * input_tokens + self.per_output

    def whole_s(self, input_tokens: int, output_tokens: int) -> float:
        return self.per_input * input_tokens + self.per_output * output_tokens


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends under an entitlement: open loop, so many slots' worth of requests, from ``begin_s`` to ``end_s``."""

    spec: EntitlementSpec
    begin_s: float
    end_s: float
    demand: float  # slots it would fill on average if nothing waited
    even: bool  # equal gaps; otherwise exponential ones
    input_tokens: int
    output_tokens: tuple[int, int]  # lowest and highest, uniform
    retries: int = 2  # of a refused request, after its Retry-After, as the OpenAI SDK does


@dataclass(slots=True)
class Attempt:
    """One request as it reached the gateway."""

    number: int  # 1 the first time
    client: Client
    output_tokens: int
    arrival_s: float
    start_s: float | None = None
    first_s: float | None = None
    end_s: float | None = None
    refused: Reason | None = None
    cut: str = ""  # why it ended before its time: "evicted", "replica lost"
    given_up: bool = False  # the client went away with nothing: it tries no more


@dataclass(frozen=True, slots=True)
class Look:
    """A pool at one moment."""

    at_s: float
    waiting: int
    slots: int
    running: dict[str, int]
    standings: dict[str, Standing]


@dataclass(slots=True)
class _Meter:
    """What an entitlement had and wanted since the last tick, in slot seconds."""

    ran: float = 0.0
    waited: float = 0.0
    turned_away: float = 0.0


@dataclass(slots=True)
class _Lease:
    attempt: Attempt
    request: QueuedRequest
    backend: str
    number: int
    prefilled: bool = False


@dataclass(slots=True)
class Story:
    """What happened: every attempt, and the pool at every tick and once a second."""

    attempts: list[Attempt] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    ticks: list[Look] = field(default_factory=list)
    queue: list[tuple[float, int]] = field(default_factory=list)  # (when, waiting) at every change


class PoolModel:
    """One pool. ``capacity``: (when, slots) from then on, spread over the pool's backends in their order.

    ``admission`` False: everybody is let in and waits; the baseline of token pools 5.1. ``retry_s``: refused clients
    come back after so long, whatever they are told; None: when they are told to.
    """

    def __init__(
        self,
        pool: PoolSpec,
        clients: Sequence[Client],
        service: Service,
        ordering: OrderingPolicy,
        *,
        capacity: Sequence[tuple[float, int]] = (),
        admission: bool = True,
        retry_s: float | None = None,
        seed: int = 1,
    ) -> None:
        self.pool = pool
        self.clients = clients
        self.story = Story()
        self._service = service
        self._admission = admission
        self._retry_s = retry_s
        self._scheduler = Scheduler(ordering, make_routing("least_work"), rights=True)
        self._scheduler.headroom = pool.headroom_slots
        self._view = PoolView(
            {b.id: BackendView(b.id, b.slots, b.kv_tokens, prefill_credit=b.prefill_tokens) for b in pool.backends},
            coefficients=pool.coefficients,
        )
        self._credit = any(b.prefill_tokens for b in pool.backends)
        self._entry = Admission(pool, (client.spec for client in clients), self._view)
        self._meters = {client.spec.id: _Meter() for client in clients}
        self._leases: dict[str, _Lease] = {}
        self._asked: dict[str, Attempt] = {}  # those that wait
        self._kernel = Kernel()
        self._random = {client.spec.id: rng(seed, f"client/{client.spec.id}") for client in clients}
        self._numbers = count(1)
        self._seen_s = 0.0
        self._ticked_s = 0.0
        for client in clients:
            self._at(client.begin_s + self._gap_s(client) / 2, partial(self._arrive, client))
        for when, slots in capacity:
            self._at(when, partial(self._resize, slots))

    def run(self, end_s: float) -> Story:
        """Runs until clients have ended and nothing runs or waits; looks are taken until ``end_s``."""
        for step in range(1, int(end_s) + 1):
            self._at(step, self._look)
        for step in range(1, int(end_s / standing.TICK_S) + 1):
            self._at(step * standing.TICK_S, self._tick)
        while len(self._kernel):
            event = self._kernel.pop()
            self._account()
            event.what()
        return self.story

    @property
    def now_s(self) -> float:
        return to_s(self._kernel.now_fs)

    @property
    def _now_ms(self) -> int:
        return int(self.now_s * 1000.0)

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        self._kernel.post(to_fs(when_s), 0, what)

    def _account(self) -> None:
        passed = self.now_s - self._seen_s
        self._seen_s = self.now_s
        for name, meter in self._meters.items():
            share = self._entry.share(name)
            meter.ran += share.running * passed
            meter.waited += share.waiting * passed

    # --- clients

    def _gap_s(self, client: Client) -> float:
        low, high = client.output_tokens
        return self._service.whole_s(client.input_tokens, 0) / client.demand + (
            self._service.per_output * (low + high) / 2 / client.demand
        )

    def _arrive(self, client: Client) -> None:
        draw = self._random[client.spec.id]
        self._try(Attempt(1, client, draw.randint(*client.output_tokens), self.now_s))
        gap = self._gap_s(client)
        later = self.now_s + (gap if client.even else draw.expovariate(1 / gap))
        if later < client.end_s:
            self._at(later, partial(self._arrive, client))

    def _again(self, attempt: Attempt, retry_s: float) -> None:
        if attempt.number > attempt.client.retries:
            attempt.given_up = True
            return
        retry_s = retry_s if self._retry_s is None else self._retry_s
        wait = retry_s * (1 + RETRY_JITTER * (2 * self._random[attempt.client.spec.id].random() - 1))
        self._at(
            self.now_s + wait,
            lambda: self._try(Attempt(attempt.number + 1, attempt.client, attempt.output_tokens, self.now_s)),
        )

    # --- admission

    def _try(self, attempt: Attempt) -> None:
        self.story.attempts.append(attempt)
        request = self._request(attempt)
        decision = self._entry.decide(request, self._now_ms) if self._admission else LET_IN
        if decision.verdict is AdmissionAnswer.REFUSE:
            assert decision.reason is not None
            self._refuse(attempt, decision.reason, decision.retry_ms)
            return
        for evicted in decision.evict:
            self._end_early(self._leases[evicted], "evicted")
        self._entry.admitted(request, decision, self._now_ms)
        if decision.verdict is AdmissionAnswer.GRANT:
            self._start(attempt, request, decision.backend)
            booked.take(self._view, request, decision.backend)
            return
        if decision.supersedes:
            self._scheduler.withdraw(decision.supersedes)
            self._end_wait(decision.supersedes, Reason.SUPERSEDED, decision.retry_ms)
        self._asked[request.id] = attempt
        self._scheduler.offer(request, self.now_s)
        self._pump()

    def _request(self, attempt: Attempt) -> QueuedRequest:
        spec = attempt.client.spec
        number = next(self._numbers)
        bound = attempt.client.output_tokens[1]
        expires_s = self.now_s + spec.tier.max_wait_s if self._admission else None
        return QueuedRequest(
            id=f"{number:08d}",
            seq=number,
            arrival_s=self.now_s,
            entitlement=spec.id,
            tenant=spec.tenant,
            tier=spec.tier.name,
            rank=spec.tier.rank,
            weight=spec.tier.weight,
            service_class=spec.tier.service_class,
            input_tokens=attempt.client.input_tokens,
            output_bound=bound,
            output_tokens=float(bound),
            kv_tokens=attempt.client.input_tokens + bound,
            ttft_deadline_s=None if spec.tier.slo.ttft_s is None else self.now_s + spec.tier.slo.ttft_s,
            ttlt_deadline_s=None if spec.tier.slo.ttlt_s is None else self.now_s + spec.tier.slo.ttlt_s,
            expires_s=expires_s,
            concurrency=spec.concurrency if self._admission else 0,
        )

    def _refuse(self, attempt: Attempt, reason: Reason, retry_ms: int | None, waited: bool = False) -> None:
        attempt.refused = reason
        if unmet(reason, waited):
            room = self._service.whole_s(attempt.client.input_tokens, attempt.output_tokens)
            self._meters[attempt.client.spec.id].turned_away += room
        if retry_ms is None:
            attempt.given_up = True
        else:
            self._again(attempt, retry_ms / 1000)

    def _end_wait(self, request_id: str, reason: Reason, retry_ms: int | None) -> None:
        """Refuses a request that waits no longer."""
        attempt = self._asked.pop(request_id)
        self._entry.left(request_id, self._now_ms)
        self._refuse(attempt, reason, retry_ms, waited=True)

    # --- slots

    def _pump(self) -> None:
        for over in self._scheduler.expire(self.now_s):
            self._end_wait(over.id, Reason.QUEUE_TIMEOUT, None)
        for grant in self._scheduler.step(self._view, self.now_s):
            attempt = self._asked.pop(grant.request.id)
            self._entry.granted(grant.request, grant.backend, self._now_ms)
            self._start(attempt, grant.request, grant.backend)
        self.story.queue.append((self.now_s, len(self._scheduler)))

    def _start(self, attempt: Attempt, request: QueuedRequest, backend: str) -> None:
        attempt.start_s = self.now_s
        attempt.first_s = self.now_s + self._service.first_s(request.input_tokens)
        lease = _Lease(attempt, request, backend, next(self._numbers))
        self._leases[request.id] = lease
        whole = self._service.whole_s(request.input_tokens, attempt.output_tokens)
        self._at(self.now_s + whole, partial(self._finish, lease))
        if self._credit:
            self._at(attempt.first_s, partial(self._prefilled, lease))

    def _prefilled(self, lease: _Lease) -> None:
        if self._leases.get(lease.request.id) is lease:
            self._give_credit_back(lease)
            self._pump()

    def _give_credit_back(self, lease: _Lease) -> None:
        if not lease.prefilled:
            lease.prefilled = True
            self._entry.first_token(lease.request.id)
            booked.first_token(self._view, lease.request, lease.backend)

    def _finish(self, lease: _Lease) -> None:
        if self._leases.get(lease.request.id) is not lease:
            return  # it was ended before
        lease.attempt.end_s = self.now_s
        request = lease.request
        self._entry.ended(request.id, request.input_tokens + lease.attempt.output_tokens, self._now_ms)
        self._free(lease)
        self._pump()

    def _end_early(self, lease: _Lease, why: str) -> None:
        lease.attempt.cut = why
        if lease.attempt.first_s is not None and lease.attempt.first_s > self.now_s:
            lease.attempt.first_s = None
        self._entry.evicted(lease.request.id, lease.request.input_tokens, self._now_ms)
        self._free(lease)
        self._again(lease.attempt, CUT_RETRY_S)

    def _free(self, lease: _Lease) -> None:
        request = lease.request
        del self._leases[request.id]
        self._give_credit_back(lease)
        booked.end(self._view, request, lease.backend)

    def _resize(self, slots: int) -> None:
        """Replicas die or return until the pool has this many slots; what ran on a dead one is lost."""
        for spec in self.pool.backends:
            view = self._view.backends[spec.id]
            view.ready = slots >= spec.slots
            slots -= spec.slots if view.ready else 0
        for lease in [each for each in self._leases.values() if not self._view.backends[each.backend].ready]:
            self._end_early(lease, "replica lost")
        self._pump()

    # --- the leader

    def _tick(self) -> None:
        present = [c.spec for c in self.clients if c.begin_s <= self.now_s <= c.end_s]
        elapsed = self.now_s - self._ticked_s
        self._ticked_s = self.now_s
        usage = {}
        for name, meter in self._meters.items():
            had = meter.ran / elapsed
            wanted = (meter.ran + meter.waited + meter.turned_away) / elapsed
            usage[name] = standing.Usage(concurrency=had, wanted_concurrency=wanted)
            self._meters[name] = _Meter()
        standings = standing.tick(
            {spec.id: standing.baseline_of(spec) for spec in present},
            usage,
            self._view.standings,
            self.pool.coefficients,
            self.pool.slo_mean_s,
            elapsed,
        )
        self._entry.stand(standings)
        self.story.ticks.append(self._shot())

    def _look(self) -> None:
        self._keep_free()
        self.story.looks.append(self._shot())

    def _keep_free(self) -> None:
        """Automatic headroom follows what baselines use, as the leader lets it once a second."""
        self._entry.look(self._now_ms)
        if self._entry.headroom != self._scheduler.headroom:
            self._scheduler.headroom = self._entry.headroom
            self._pump()

    def _shot(self) -> Look:
        running = {name: self._entry.share(name).running for name in self._meters}
        slots = sum(b.slots for b in self._view.backends.values() if b.ready)
        return Look(self.now_s, len(self._scheduler), slots, running, dict(self._view.standings))
