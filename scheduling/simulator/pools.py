"""A pool on virtual time: clients, admission, queue, slots, and what the leader's tick makes of them.

The decisions are not modelled, they are the product's: :func:`scheduling.core.admission.decide_admission` says who
enters, :class:`scheduling.core.scheduler.Scheduler` who goes next, :func:`scheduling.core.entitlement.tick` what
everybody weighs. Modelled are the slots (each request takes ``a * input + t0 * output`` seconds wherever it runs, the
first token comes with the first step) and clients that come at a pace of their own and heed ``Retry-After``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from scheduling.core import entitlement as standing
from scheduling.core.admission import (
    AdmissionAnswer,
    AdmissionDecision,
    AdmissionView,
    Ask,
    Prey,
    able_to_run,
    baseline_slots,
    cap_of,
    decide_admission,
    first_weight,
)
from scheduling.core.contracts import OrderingPolicy
from scheduling.core.headroom import Headroom, used_of_baselines
from scheduling.core.outcomes import Reason, unmet
from scheduling.core.registry import make_routing
from scheduling.core.scheduler import Scheduler
from scheduling.core.types import (
    BackendView,
    EntitlementSpec,
    PoolSpec,
    PoolView,
    QueuedRequest,
    ServiceClass,
    Standing,
)
from scheduling.simulator import room as booked
from scheduling.simulator.kernel import Kernel, rng, to_fs, to_s

RETRY_JITTER = 0.25  # of the gateway's Retry-After, up and down
NO_BACKEND_RETRY_MS = 1000
SMOOTHING = 0.2  # of a slot's occupation, the newest request's share


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
class _Share:
    """An entitlement's part of the pool."""

    running: int = 0
    waiting: int = 0
    kv: int = 0
    service_s: float = 0.0
    told_s: float = 0.0  # until when refused clients were told to come back
    # since the last tick, in slot seconds
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

    ``admission`` False: everybody is let in and waits; the baseline of token pools 5.1.
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
        seed: int = 1,
    ) -> None:
        self.pool = pool
        self.clients = clients
        self.story = Story()
        self._service = service
        self._admission = admission
        self._scheduler = Scheduler(ordering, make_routing("least_work"), rights=True)
        self._scheduler.headroom = pool.headroom_slots
        self._view = PoolView(
            {b.id: BackendView(b.id, b.slots, b.kv_tokens, prefill_credit=b.prefill_tokens) for b in pool.backends},
            coefficients=pool.coefficients,
        )
        self._credit = any(b.prefill_tokens for b in pool.backends)
        self._shares = {client.spec.id: _Share() for client in clients}
        self._leases: dict[str, _Lease] = {}
        self._asked: dict[str, Attempt] = {}  # those that wait
        self._kernel = Kernel()
        self._random = {client.spec.id: rng(seed, f"client/{client.spec.id}") for client in clients}
        self._numbers = count(1)
        self._service_s = 0.0
        self._headroom, self._headroom_least, self._headroom_most = Headroom(), pool.headroom_slots, pool.headroom_most
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

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        self._kernel.post(to_fs(when_s), 0, what)

    def _account(self) -> None:
        passed = self.now_s - self._seen_s
        self._seen_s = self.now_s
        for share in self._shares.values():
            share.ran += share.running * passed
            share.waited += share.waiting * passed

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
        wait = retry_s * (1 + RETRY_JITTER * (2 * self._random[attempt.client.spec.id].random() - 1))
        self._at(
            self.now_s + wait,
            lambda: self._try(Attempt(attempt.number + 1, attempt.client, attempt.output_tokens, self.now_s)),
        )

    # --- admission

    def _try(self, attempt: Attempt) -> None:
        self.story.attempts.append(attempt)
        spec = attempt.client.spec
        request = self._request(attempt)
        decision = self._decide(spec, request) if self._admission else AdmissionDecision(AdmissionAnswer.QUEUE)
        if decision.verdict is AdmissionAnswer.REFUSE:
            assert decision.reason is not None
            if decision.told_ms is not None:
                self._shares[spec.id].told_s = self.now_s + decision.told_ms / 1000
            self._refuse(attempt, decision.reason, decision.retry_ms)
            return
        for evicted in decision.evict:
            self._end_early(self._leases[evicted], "evicted")
        if decision.verdict is AdmissionAnswer.GRANT:
            self._start(attempt, request, decision.backend)
            booked.take(self._view, request, decision.backend)
            return
        self._asked[request.id] = attempt
        self._shares[spec.id].waiting += 1
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

    def _decide(self, spec: EntitlementSpec, request: QueuedRequest) -> AdmissionDecision:
        share = self._shares[spec.id]
        flying = [self._weight(name) for name, s in self._shares.items() if s.running + s.waiting > 0]
        prey = sorted(
            (lease for lease in self._leases.values() if lease.request.service_class is ServiceClass.PREEMPTIBLE),
            key=lambda lease: -lease.number,
        )
        view = AdmissionView(
            rebuilding_ms=0,
            backends=tuple(b for b in self._view.backends.values() if b.ready),
            waiting=len(self._scheduler),
            able=sum(self._able(client.spec) for client in self.clients),
            due=sum(self._due(client.spec) for client in self.clients),
            stuck=0,  # KV cache is not what these pools lack
            waiting_bytes=0,
            ent_running=share.running,
            ent_waiting=share.waiting,
            ent_kv=share.kv,
            level=0.0,
            service_ms=1000 * (self._service_s or self._service.whole_s(request.input_tokens, request.output_bound)),
            ent_service_ms=1000
            * (share.service_s or self._service.whole_s(request.input_tokens, request.output_bound)),
            weight=self._weight(spec.id),
            lightest=min(flying, default=None),
            heaviest=max(flying, default=None),
            prey=[
                Prey(r.id, lease.backend, r.kv_tokens, 0 if lease.prefilled else r.prefill_tokens)
                for lease in prey
                for r in (lease.request,)
            ],
            told_ms=max(0, round(1000 * (share.told_s - self.now_s))),
        )
        ask = Ask(request.kv_tokens, 0, 0, prefill=request.prefill_tokens)
        return decide_admission(spec, self.pool, ask, view, NO_BACKEND_RETRY_MS)

    def _able(self, spec: EntitlementSpec) -> int:
        share = self._shares[spec.id]
        return able_to_run(share.waiting, share.running, cap_of(spec.tier.service_class, spec.concurrency))

    def _due(self, spec: EntitlementSpec) -> int:
        share = self._shares[spec.id]
        return able_to_run(share.waiting, share.running, baseline_slots(spec.tier.service_class, spec.concurrency))

    def _weight(self, name: str) -> float:
        standing = self._view.standings.get(name)
        if standing is not None:
            return standing.weight
        return first_weight(next(c.spec for c in self.clients if c.spec.id == name), self.pool)

    def _refuse(self, attempt: Attempt, reason: Reason, retry_ms: int | None, waited: bool = False) -> None:
        attempt.refused = reason
        if unmet(reason, waited):
            room = self._service.whole_s(attempt.client.input_tokens, attempt.output_tokens)
            self._shares[attempt.client.spec.id].turned_away += room
        if retry_ms is None:
            attempt.given_up = True
        else:
            self._again(attempt, retry_ms / 1000)

    # --- slots

    def _pump(self) -> None:
        for over in self._scheduler.expire(self.now_s):
            attempt = self._asked.pop(over.id)
            self._shares[over.entitlement].waiting -= 1
            self._refuse(attempt, Reason.QUEUE_TIMEOUT, None, waited=True)
        for grant in self._scheduler.step(self._view, self.now_s):
            attempt = self._asked.pop(grant.request.id)
            self._shares[grant.request.entitlement].waiting -= 1
            self._start(attempt, grant.request, grant.backend)
        self.story.queue.append((self.now_s, len(self._scheduler)))

    def _start(self, attempt: Attempt, request: QueuedRequest, backend: str) -> None:
        share = self._shares[request.entitlement]
        share.running += 1
        share.kv += request.kv_tokens
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
            booked.first_token(self._view, lease.request, lease.backend)

    def _finish(self, lease: _Lease) -> None:
        if self._leases.get(lease.request.id) is not lease:
            return  # it was ended before
        lease.attempt.end_s = self.now_s
        assert lease.attempt.start_s is not None
        took = self.now_s - lease.attempt.start_s
        share = self._shares[lease.request.entitlement]
        share.service_s = _smoothed(share.service_s, took)
        self._service_s = _smoothed(self._service_s, took)
        self._free(lease)
        self._pump()

    def _end_early(self, lease: _Lease, why: str) -> None:
        lease.attempt.cut = why
        if lease.attempt.first_s is not None and lease.attempt.first_s > self.now_s:
            lease.attempt.first_s = None
        self._free(lease)
        self._again(lease.attempt, NO_BACKEND_RETRY_MS / 1000)

    def _free(self, lease: _Lease) -> None:
        request = lease.request
        del self._leases[request.id]
        share = self._shares[request.entitlement]
        share.running -= 1
        share.kv -= request.kv_tokens
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
        for name, share in self._shares.items():
            had = share.ran / elapsed
            wanted = (share.ran + share.waited + share.turned_away) / elapsed
            usage[name] = standing.Usage(concurrency=had, wanted_concurrency=wanted)
            share.ran = share.waited = share.turned_away = 0.0
        self._view.standings = standing.tick(
            {spec.id: standing.baseline_of(spec) for spec in present},
            usage,
            self._view.standings,
            self.pool.coefficients,
            self.pool.slo_mean_s,
            elapsed,
        )
        self.story.ticks.append(self._shot())

    def _look(self) -> None:
        self._keep_free()
        self.story.looks.append(self._shot())

    def _keep_free(self) -> None:
        """Automatic headroom follows what baselines use, as the leader lets it once a second."""
        if not self._headroom_most:
            return
        specs = {client.spec.id: client.spec for client in self.clients}
        used = used_of_baselines((specs[name], s.running, s.waiting) for name, s in self._shares.items())
        self._headroom.seen(self.now_s, used, self._service_s)
        kept = self._headroom.slots(self._headroom_least, self._headroom_most)
        if kept != self.pool.headroom_slots:
            self.pool = replace(self.pool, headroom_slots=kept)
            self._scheduler.headroom = kept
            self._pump()

    def _shot(self) -> Look:
        running = {name: share.running for name, share in self._shares.items()}
        slots = sum(b.slots for b in self._view.backends.values() if b.ready)
        return Look(self.now_s, len(self._scheduler), slots, running, dict(self._view.standings))


def _smoothed(old: float, new: float) -> float:
    return old + SMOOTHING * (new - old) if old else new
