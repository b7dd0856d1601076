"""A pool's keys in memory: what the scripts share (``scripts/shared``) is to Redis, in Python.

Leases and waiting entries change only together with their totals, here as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.core.admission.rule import (
    SUPERSEDABLE,
    MissedDeadline,
    PreemptibleLease,
    first_weight,
    learned_service_ms,
    missed_deadline,
    refill,
    stored_level,
)
from scheduling.core.capacity.prefill_credit import USUAL_BUDGET
from scheduling.core.capacity.prefill_pace import TURNAROUND_MS, PrefillPace
from scheduling.core.capacity.uncounted import NO_BEGINNINGS, Beginnings
from scheduling.core.outcomes import Reason
from scheduling.core.placement.cache_wait import LEAST_AGAIN
from scheduling.core.placement.cached_prompts import uncounted_of
from scheduling.core.placement.rule import PrefixIndex, Warmth
from scheduling.core.rights import RIGHTS, able_to_run, baseline_slots, cap_of
from scheduling.core.types import LONG_TOKENS, BackendView, EntitlementSpec, PoolSpec, ServiceClass, Standing
from scheduling.state import codec
from scheduling.state.codec import Entry
from scheduling.state.standing import standing_words
from scheduling.state.types import BATCH, ENDED_MS, LEASE_MS, RESTORE_MS, Fenced, Offer, SweptRequest
from tests.reference.limits import LimitMemory, shown


@dataclass(slots=True)
class Bucket:
    level: float
    at: int
    rate: float
    depth: float


@dataclass(frozen=True, slots=True)
class Dump:
    """Every key of a pool, as plain values."""

    meta: Mapping[str, str]
    ready: Mapping[str, str]
    adapters: Mapping[str, str]
    leases: Mapping[str, int]
    held: Mapping[str, bytes]
    waiting: Mapping[str, int]
    queue: Mapping[str, bytes]
    order: Sequence[str]
    totals: Mapping[str, int]
    standing: Mapping[str, str]
    weights: Mapping[str, float]
    meter: Mapping[str, int]
    preemptible: Mapping[str, int]
    prefills: Mapping[str, int]
    long: Mapping[str, int]
    paces: Mapping[str, str]
    evicted: Mapping[str, bytes]
    leaving: Mapping[str, int]
    warm: Mapping[str, str]
    warm_before: Mapping[str, str]
    buckets: Mapping[str, float]
    limits: Mapping[str, Mapping[str, float]]
    users: Mapping[str, Mapping[str, int]]
    using: Mapping[str, int]
    uncounted: Mapping[str, str]
    expected: Mapping[str, int]
    events: Sequence[tuple[str, bytes]]
    ledger: Sequence[tuple[bytes, ...]]
    ended: Mapping[str, str]


class PoolMemory(LimitMemory):
    """The keys of one pool and the moves that scripts make on them. ``clock_ms`` plays Redis ``TIME``."""

    def __init__(self, pool_id: str, clock_ms: Callable[[], int]) -> None:
        self.pool_id = pool_id
        self.long_tokens = LONG_TOKENS
        self.least_again = LEAST_AGAIN
        super().__init__(clock_ms)

    def flush(self) -> None:
        """What FLUSHALL does."""
        super().flush()
        self.meta: dict[str, int | float | str] = {}
        self.ready: dict[str, tuple[int, int, int, int, int]] = {}
        self.adapters: dict[str, tuple[bool, frozenset[str]]] = {}  # whether they may be loaded, and who has them
        self.leases: dict[str, int] = {}
        self.held: dict[str, Entry] = {}
        self.waiting: dict[str, int] = {}
        self.queue: dict[str, Entry] = {}
        self.order: set[str] = set()  # requests that wait, in the order of arrival within each entitlement
        self.totals: dict[str, int] = {}
        self.standings: dict[str, Standing] = {}
        self.weights: dict[str, float] = {}  # of the entitlements in flight
        self.meter: dict[str, int] = {}
        self.preemptible: dict[str, int] = {}  # preemptible leases, by the time of their grant
        self.prefills: dict[str, int] = {}  # whole answers that hold prefill credit, by the time of their grant
        self.long: dict[str, int] = {}  # long prompts that do, likewise
        self.tokens_us: dict[str, int] = {}  # between two tokens of replicas that are slower than others
        self.resuming: set[str] = set()  # replicas that keep what they have computed of a prompt
        self.paces: dict[str, PrefillPace] = {}  # of replicas
        self.steps: dict[str, int] = {}  # their step budgets, where they say them
        self.caches: dict[str, tuple[int, int]] = {}  # how far expectations of theirs are believed, and of how much
        self.uncounted: dict[str, Beginnings] = {}  # beginnings in flight there that do not count
        self.expected: dict[str, int] = {}
        self.turnaround: int | None = None
        self.prefill: dict[str, int] = {}  # prefill replicas that are ready: their slots
        self.legs: dict[str, tuple[int, str, int]] = {}  # of leases: attempt, prefill replica, prompt tokens
        self.evicted: dict[str, Entry] = {}
        self.leaving: dict[str, int] = {}
        self.buckets: dict[str, Bucket] = {}
        self.service: dict[str, float] = {}
        self.stays: dict[str, float] = {}
        self.told: dict[str, int] = {}  # until when refused clients were told to come back
        self.places = PrefixIndex()  # where prompts ran
        self.events: list[tuple[str, bytes]] = []
        self.ledger: list[tuple[bytes, ...]] = []
        self._ended: dict[str, tuple[Reason, float]] = {}  # and until when that is remembered

    def ended(self, request_id: str) -> Reason | None:
        """How a request ended, while that is remembered."""
        known = self._ended.get(request_id)
        if known is None:
            return None
        if known[1] <= self._now():
            del self._ended[request_id]
            return None
        return known[0]

    def dump(self) -> Dump:
        """Every key, as Redis would show it."""
        buckets: dict[str, float] = {}
        for ent, b in self.buckets.items():
            buckets |= {f"{ent}:level": b.level, f"{ent}:at": b.at, f"{ent}:rate": b.rate, f"{ent}:depth": b.depth}
        buckets |= {f"{ent}:service_ms": ms for ent, ms in self.service.items()}
        buckets |= {f"{ent}:stay_ms": ms for ent, ms in self.stays.items()}
        buckets |= {f"{ent}:told": ms for ent, ms in self.told.items()}
        return Dump(
            meta={k: f"{v:.3f}" if k == "service_ms" else str(v) for k, v in self.meta.items()},
            ready={name: codec.encode_offer(self._offer(name)) for name in self.ready},
            adapters={name: codec.encode_homes(*homes) for name, homes in self.adapters.items()},
            leases=dict(self.leases),
            held={k: codec.encode_entry(e) for k, e in self.held.items()},
            waiting=dict(self.waiting),
            queue={k: codec.encode_entry(e) for k, e in self.queue.items()},
            order=sorted(codec.place_of(k, self.queue[k]) for k in self.order),
            totals=dict(self.totals),
            standing={k: standing_words(s) for k, s in self.standings.items()},
            weights=dict(self.weights),
            meter=dict(self.meter),
            preemptible=dict(self.preemptible),
            prefills=dict(self.prefills),
            long=dict(self.long),
            paces=self._paces(),
            evicted={k: codec.encode_entry(e) for k, e in self.evicted.items()},
            leaving=dict(self.leaving),
            warm=dict(self.places.now),
            warm_before=dict(self.places.before),
            buckets=buckets,
            limits={name: shown(kept) for name, kept in self._kept().items()},
            users={ent: dict(known) for ent, known in self.users.items() if self.users_until[ent] > self._now()},
            using=dict(self.using),
            uncounted={
                f"{name} {point}": f"{prompts} {tokens}"
                for name, there in self.uncounted.items()
                for point, (prompts, tokens) in there.held.items()
            },
            expected=dict(self.expected),
            events=list(self.events),
            ledger=list(self.ledger),
            ended={k: r.value for k in list(self._ended) if (r := self.ended(k)) is not None},
        )

    # --- the moves

    def _total(self, name: str) -> int:
        return self.totals.get(name, 0)

    def _inflight(self, ent: str) -> int:
        return self._total(f"e:{ent}:run") + self._total(f"e:{ent}:wait")

    def _backends(self) -> tuple[BackendView, ...]:
        return tuple(
            BackendView(
                name, slots, kv, self._total(f"b:{name}:run"), self._total(f"b:{name}:kv"),
                self._total(f"b:{name}:work"), prefill_credit=credit, prefill_used=self._ahead(name)[0],
                prefill_owned=min(self._total(f"b:{name}:own"), self._ahead(name)[0]),
                adapters=frozenset(adapter for adapter, (_, homes) in self.adapters.items() if name in homes),
                longest=longest, speed=speed, cache_trust=max(0, self._offer(name).cache_trust),
                uncounted_most=self._offer(name).uncounted_most, uncounted=self._beginnings(name),
                resumes=name in self.resuming, token_us=self.tokens_us.get(name, 0),
            )
            for name, (slots, kv, credit, longest, speed) in self.ready.items()
        )  # fmt: skip

    def _ahead(self, backend: str) -> tuple[int, int]:
        """What counts of a replica's prefill credit, and in how many ms that falls."""
        used = self._total(f"b:{backend}:pre")
        if not self.ready[backend][2]:
            return used, 0
        pace, now = self.paces.get(backend, PrefillPace()), self._now()
        step = self.steps.get(backend, USUAL_BUDGET)
        turnaround = self._turnaround()
        return pace.ahead(used, step, turnaround, now), pace.falls_in_ms(used, step, turnaround, now)

    def _turnaround(self) -> float:
        return TURNAROUND_MS if self.turnaround is None else self.turnaround

    def _paces(self) -> dict[str, str]:
        shown = {
            f"{name} pace": f"{p.left:.3f} {p.at_ms:.0f} {p.sure} {p.ms:.3f} {p.tokens:.3f} {p.last_ms:.0f}"
            for name, p in self.paces.items()
        }
        shown |= {f"{name} step": str(step) for name, step in self.steps.items()}
        shown |= {f"{name} resumes": "1" for name in self.resuming}
        shown |= {f"{name} cached": f"{trust} {most}" for name, (trust, most) in self.caches.items()}
        return shown if self.turnaround is None else shown | {" turnaround": str(self.turnaround)}

    def _shift(self, name: str, delta: int) -> None:
        new = self._total(name) + delta
        if new:
            self.totals[name] = new
        else:
            self.totals.pop(name, None)

    def _cap(self, ent: str) -> int | None:
        return self.totals.get(f"e:{ent}:cap")

    def _able(self, ent: str) -> int:
        return able_to_run(self._total(f"e:{ent}:wait"), self._total(f"e:{ent}:run"), self._cap(ent))

    def _due_of(self, ent: str) -> int:
        base = self.totals.get(f"e:{ent}:base", 0)
        return able_to_run(self._total(f"e:{ent}:wait"), self._total(f"e:{ent}:run"), base)

    def _count(self, e: Entry, run: int, wait: int, *, staying: bool = False) -> None:
        ent, b = f"e:{e.entitlement}", f"b:{e.backend}"
        able, due = self._able(e.entitlement), self._due_of(e.entitlement)
        for name, delta in (
            ("run", run), ("wait", wait), ("bytes", wait * e.body_bytes), (f"{ent}:run", run * e.sequences),
            (f"{ent}:wait", wait), (f"{ent}:kv", (run + wait) * e.kv), (f"{b}:kv", run * e.kv),
            (f"{b}:work", run * e.work), (f"{b}:run", run * e.sequences), (f"{b}:pre", run * e.prefill),
            (f"{b}:own", run * _owned(e)),
        ):  # fmt: skip
            if delta:
                self._shift(name, delta)
        self._shift("able", self._able(e.entitlement) - able)
        self._shift("due", self._due_of(e.entitlement) - due)
        if run + wait:
            for scope in self._limited(e).scopes:
                if scope.limits.concurrency:
                    self.using[scope.name] = self.using.get(scope.name, 0) + run + wait
                    if self.using[scope.name] <= 0:
                        del self.using[scope.name]
        if not staying and not self._inflight(e.entitlement):
            self.totals.pop(f"{ent}:cap", None)
            self.totals.pop(f"{ent}:base", None)
            self.weights.pop(e.entitlement, None)

    def _join(self, spec: EntitlementSpec, pool: PoolSpec) -> None:
        """An entitlement begins to have something in flight, or its cap or baseline is another now."""
        ent, service_class = spec.id, spec.tier.service_class
        able, due = self._able(ent), self._due_of(ent)
        for name, limit in (
            (f"e:{ent}:cap", cap_of(service_class, spec.concurrency)),
            (f"e:{ent}:base", baseline_slots(service_class, spec.concurrency) or None),
        ):
            if limit is not None:
                self.totals[name] = limit
            else:
                self.totals.pop(name, None)
        self._shift("able", self._able(ent) - able)
        self._shift("due", self._due_of(ent) - due)
        if not self._inflight(ent):
            self.weights[ent] = self._weight(ent, first_weight(spec, pool))

    def _weight(self, ent: str, first: float) -> float:
        known = self.standings.get(ent)
        return first if known is None else known.weight

    def _warmth(self, record: bytes) -> Warmth | None:
        """What is believed to be cached where of the prompt of a record."""
        return self.places.warmth(codec.decode_request(record).request.prefixes)

    def _offer(self, backend: str) -> Offer:
        return Offer(*self.ready[backend], *self.caches.get(backend, (-1, 0)), self.tokens_us.get(backend, 0))

    def _beginnings(self, backend: str) -> Beginnings:
        return self.uncounted.get(backend, NO_BEGINNINGS)

    def _uncounted(self, backend: str, e: Entry) -> tuple[str, int]:
        """What of its prompt would not count there, by the index."""
        view = next(b for b in self._backends() if b.id == backend)
        return uncounted_of(view, e.prefill, self._warmth(e.record))

    def _keep_lease(self, request_id: str, e: Entry, expiry: int) -> None:
        request = codec.decode_request(e.record).request
        prefixes = request.prefixes
        warmth = self.places.warmth(prefixes) if e.prefill and e.backend in self.caches else None
        if warmth is not None:
            for name, tokens in (("tokens", warmth.cached(e.backend)), ("prompts", request.input_tokens)):
                if tokens:
                    self.expected[f"{e.backend} {name}"] = self.expected.get(f"{e.backend} {name}", 0) + tokens
        self.places.ran(prefixes, e.backend)
        self.leases[request_id], self.held[request_id] = expiry, e
        if e.service_class == ServiceClass.PREEMPTIBLE:
            self.preemptible[request_id] = e.granted_ms

    def _charged(self, request_id: str, e: Entry, credit: int, point: str = "", tokens: int = 0) -> Entry:
        """A lease takes of the prefill credit of its replica, if that has one; ``tokens`` of it, up to a ``point``, do
        not count. Of whole answers its engine tells. Before the sums are changed."""
        e = e if credit else replace(e, prefill=0)
        if e.prefill:
            if tokens:
                self._now_uncounted(e.backend, self._beginnings(e.backend).with_one(point, tokens))
                e = replace(e, prefill=e.prefill - tokens, record=codec.with_uncounted(e.record, point))
            whole = not codec.decode_request(e.record).facts.streamed
            if whole:
                self.prefills[request_id] = self._now()
            if e.prefill >= self.long_tokens:
                self.long[request_id] = self._now()
            pace = self.paces.setdefault(e.backend, PrefillPace())
            pace.granted(self._total(f"b:{e.backend}:pre"), e.prefill, whole, self._now())
        return e

    def _credit(self, backend: str) -> int:
        return self.ready[backend][2]

    def _give_back(self, request_id: str) -> int:
        """What a lease holds of a prefill credit is given back; how much that is."""
        e = self.held.get(request_id)
        if e is None or not e.prefill:
            return 0
        self.held[request_id] = replace(e, prefill=0)
        self.prefills.pop(request_id, None)
        self.long.pop(request_id, None)
        self._leave(e)
        self._shift(f"b:{e.backend}:pre", -e.prefill)
        self._shift(f"b:{e.backend}:own", -_owned(e))
        return e.prefill

    def _open_legs(self) -> dict[str, tuple[int, int]]:
        """Legs and their prompt tokens, by prefill replica. A leg whose lease has ended ends here."""
        self.legs = {name: leg for name, leg in self.legs.items() if name in self.leases}
        found: dict[str, tuple[int, int]] = {}
        for _, replica, tokens in self.legs.values():
            count, before = found.get(replica, (0, 0))
            found[replica] = (count + 1, before + tokens)
        return found

    def _whole_answers(self, backend: str, by: int, most: int) -> list[str]:
        """Those that hold prefill credit there and were granted by then, the first first; of ``most`` of all."""
        older = [name for at, name in sorted((at, name) for name, at in self.prefills.items()) if at <= by][:most]
        return [name for name in older if name in self.held and self.held[name].backend == backend]

    def _told(self, backend: str, given: int, granted: int, now: int, begun: int = 0) -> None:
        pace = self.paces.setdefault(backend, PrefillPace())
        used = self._total(f"b:{backend}:pre")
        pace.first_token(used, given, granted, self.steps.get(backend, USUAL_BUDGET) + begun, now)

    def _put_lease(self, request_id: str, e: Entry, expiry: int) -> None:
        self._keep_lease(request_id, e, expiry)
        self._count(e, 1, 0)

    def _drop_lease(self, request_id: str, *, staying: bool = False) -> Entry:
        e = self.held.pop(request_id)
        del self.leases[request_id]
        self.preemptible.pop(request_id, None)
        self.prefills.pop(request_id, None)
        self.long.pop(request_id, None)
        self._leave(e)
        self._count(e, -1, 0, staying=staying)
        return e

    def _leave(self, e: Entry) -> None:
        """The beginning of a lease that gives back what it holds of a credit is in flight with it no more."""
        point = codec.uncounted_point(e.record)
        if e.prefill and point:
            self._now_uncounted(e.backend, self._beginnings(e.backend).without_one(point))

    def _now_uncounted(self, backend: str, there: Beginnings) -> None:
        self._shift(f"b:{backend}:unc", there.tokens - self._beginnings(backend).tokens)
        self.uncounted[backend] = there

    def _put_waiting(self, request_id: str, e: Entry, now: int) -> None:
        self.waiting[request_id], self.queue[request_id] = now + LEASE_MS, e
        self.order.add(request_id)
        self._count(e, 0, 1)
        self.events.append(("q", request_id.encode() + b" " + codec.encode_entry(e)))

    def _drop_waiting(self, request_id: str) -> Entry:
        e = self.queue.pop(request_id)
        self.order.discard(request_id)
        del self.waiting[request_id]
        self._count(e, 0, -1)
        return e

    def _missed_deadline(self, entitlement: str, now: int) -> MissedDeadline | None:
        waiting = sorted((self.queue[i].seq, i) for i in self.order if self.queue[i].entitlement == entitlement)
        for _, request_id in waiting[:SUPERSEDABLE]:
            e = self.queue[request_id]
            if e.attempt == 1:
                late = missed_deadline(e.queued_request().ttft_deadline_s, now)
                return MissedDeadline(request_id, e.kv, e.body_bytes) if late else None
        return None

    def _promote(self, request_id: str, backend: str, now: int, note: str, point: str = "", tokens: int = 0) -> Entry:
        """Waiting -> lease. It ends when the waiting entry would have ended."""
        e = replace(self.queue.pop(request_id), backend=backend, granted_ms=now, note=note)
        e = self._charged(request_id, e, self._credit(backend), point, tokens)
        self.order.discard(request_id)
        self._keep_lease(request_id, e, self.waiting.pop(request_id))
        self._count(e, 1, -1)
        return e

    def _preemptible_leases(self) -> list[PreemptibleLease]:
        """Preemptible requests that run, newest first."""
        newest = sorted(((at, name) for name, at in self.preemptible.items()), reverse=True)[:BATCH]
        rows = ((n, self.held[n]) for _, n in newest)
        return [PreemptibleLease(n, e.backend, e.kv, e.prefill, e.sequences) for n, e in rows]

    def _served(self, ent: str, tokens: int) -> None:
        if tokens:
            self._meter(f"{ent}:served", tokens)

    def _meter(self, name: str, by: int) -> None:
        self.meter[name] = self.meter.get(name, 0) + by

    def _notify(self, kind: str, value: str) -> None:
        self.events.append((kind, value.encode()))

    def _ring_free(self, backend: str) -> None:
        if self._total("wait"):
            self._notify("f", backend)

    def _mark_ended(self, request_id: str, reason: Reason, for_ms: float = ENDED_MS) -> None:
        self._ended[request_id] = (reason, self._now() + for_ms)

    def _level(self, ent: str, rate: float, depth: float, now: int) -> float:
        b = self.buckets.get(ent)
        return depth if b is None else refill(b.level, b.at, rate, depth, now)

    def _set_level(self, ent: str, level: float, now: int, rate: float, depth: float) -> None:
        self.buckets[ent] = Bucket(stored_level(level), now, rate, depth)

    def _settle(self, e: Entry, actual: int, now: int) -> None:
        b = self.buckets.get(e.entitlement)
        if e.charge == 0 or b is None:
            return
        level = refill(b.level, b.at, b.rate, b.depth, now)
        self._set_level(e.entitlement, min(b.depth, level + e.charge - actual), now, b.rate, b.depth)

    def _settle_forgotten(self, entitlement: str, used: int, now: int) -> None:
        """What ended without an entry pays what it used, unless all data was lost a moment ago."""
        b, lost = self.buckets.get(entitlement), self.meta.get("lost")
        if used == 0 or b is None or (lost is not None and now - lost <= RESTORE_MS):
            return
        level = refill(b.level, b.at, b.rate, b.depth, now)
        self._set_level(entitlement, level - used, now, b.rate, b.depth)

    def _learn_service(self, ent: str, ms: int) -> None:
        old = self.meta.get("service_ms")
        self.meta["service_ms"] = learned_service_ms(None if old is None else float(old), ms)
        self.service[ent] = learned_service_ms(self.service.get(ent), ms)

    def _learn_stay(self, ent: str, ms: int) -> None:
        self.stays[ent] = learned_service_ms(self.stays.get(ent), ms)

    def _fence(self, epoch: int) -> None:
        if self.meta.get("epoch") != epoch:
            raise Fenced

    def _due(self, expiries: Mapping[str, int], now: int) -> list[str]:
        return [name for at, name in sorted((at, name) for name, at in expiries.items()) if at <= now][:BATCH]

    def _bury(self, request_id: str, e: Entry, now: int, reason: Reason) -> SweptRequest:
        self._mark_ended(request_id, reason)
        self.ledger.append((b"swept", codec.encode_entry(e), b"at", str(now).encode(), b"as", reason.value.encode()))
        return SweptRequest(request_id, e.attempt, e.entitlement, e.backend, e.gateway)


def _owned(e: Entry) -> int:
    """What a lease holds of its replica's prefill credit as an owner of reserved capacity."""
    return e.prefill if RIGHTS[ServiceClass(e.service_class)].reserved else 0
