"""The scripts' meaning in Python: a pool's state in memory, with a clock that is handed in.

Driven by tests (``tests/property/test_state_model.py`` drives it and the real scripts through the same random walks and
compares every key). One method per script, same types as :class:`PoolStore`, not async: nothing
here waits. ``dump()`` shows the state the way Redis would.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from scheduling.core.admission.key_limits import Scope, first_over, read_limits
from scheduling.core.admission.key_limits import Standing as LimitStanding
from scheduling.core.admission.rule import (
    AdmissionAnswer,
    AdmissionView,
    Ask,
    Over,
    decide_admission,
    first_weight,
    goes_at_once,
)
from scheduling.core.capacity.prefill_pace import WHOLE_AT_ONCE, shows
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.core.placement.legs import PrefillReplica, choose_leg
from scheduling.core.placement.room import Need, choose_backend
from scheduling.core.rights import RIGHTS, baseline_slots, cap_of
from scheduling.core.types import EntitlementSpec, Estimate, PoolSpec, QueuedRequest, ServiceClass
from scheduling.state import codec
from scheduling.state.codec import Entry
from scheduling.state.types import (
    LEASE_MS,
    MAX_USED,
    NO_BACKEND_RETRY_MS,
    SERVICE_MS,
    Admission,
    AdmissionStatus,
    AnnounceResult,
    AnnounceStatus,
    Attempts,
    FinishResult,
    FinishStatus,
    LimitLeft,
    Renewal,
    RenewStatus,
    RequestFacts,
    StoredRequest,
    ran_for,
    unmet,
    work_of,
)
from tests.reference.leader import ReferenceLeader
from tests.reference.limits import with_limits


class ReferencePool(ReferenceLeader):
    """One pool. ``clock_ms`` plays Redis ``TIME``, ``publish`` its ``PUBLISH`` (channel, payload; whether anybody
    listens), ``listens`` asks after a channel. Without them everybody listens."""

    @property
    def _kept_slots(self) -> int | None:
        """What the leader keeps for baselines; None: as many as the pool is configured to."""
        return int(self.meta["kept"]) if "kept" in self.meta else None

    def admit(
        self,
        spec: EntitlementSpec,
        pool: PoolSpec,
        request: QueuedRequest,
        estimate: Estimate,
        body_bytes: int,
        facts: RequestFacts,
        *,
        sent_s: float = 0.0,
        avoid: Collection[str] = (),
        supersedes: bool = True,
    ) -> Admission:
        now = self._now()
        rate, depth = spec.tokens_per_s, spec.burst_tokens
        charge = estimate.cost_tokens if rate > 0 else 0
        level = self._level(spec.id, rate, depth, now)

        left: list[LimitStanding] = []
        limited = read_limits(facts.limits)

        def answer(status: AdmissionStatus, seq: int, attempt: int, **more: object) -> Admission:
            if left:
                more["limits"] = tuple(map(_left, limited.scopes, left))
            shown = float(f"{level:.6f}") if rate > 0 else None
            base = Admission(status, inflight=self._inflight(spec.id), level_tokens=shown, seq=seq, attempt=attempt)
            return replace(base, **more)  # type: ignore[arg-type]

        if (e := self.held.get(request.id) or self.queue.get(request.id)) is not None:
            limited = self._limited(e)
            left = [self._limit(scope) for scope in limited.scopes]
        if (e := self.held.get(request.id)) is not None:
            return answer(AdmissionStatus.GRANTED, e.seq, e.attempt, backend=e.backend, prefill=e.prefill)
        if (e := self.queue.get(request.id)) is not None:
            return answer(AdmissionStatus.QUEUED, e.seq, e.attempt, position=self._total("wait"))
        if (reason := self.ended(request.id)) is not None:
            return answer(AdmissionStatus.ENDED, 0, request.attempt, reason=reason)
        if self._total("wait"):
            self._hand_out(now)  # who waits goes first

        over: Over | None = None
        loads = self.adapters.get(request.adapter, (False, frozenset()))[0]
        served = loads or not request.adapter or any(b.serves(request.adapter) for b in self._backends())
        there = self.ready or "waking" in self.meta
        if not int(self.meta.get("rebuild_until", 0)) > now and there and served:
            limited = self._placed(limited)
            left = [self._limit(scope) for scope in limited.scopes]
            over = first_over(limited.scopes, left, limited.charge, self.service.get(spec.id, SERVICE_MS))

        view = AdmissionView(
            rebuilding_ms=max(0, int(self.meta.get("rebuild_until", 0)) - now),
            backends=self._backends(),
            waiting=self._total("wait"),
            able=self._total("able"),
            due=self._total("due"),
            stuck=int(self.meta.get("stuck", 0)),
            kept=self._kept_slots,
            waking_ms=int(self.meta.get("waking", 0)),
            waiting_bytes=self._total("bytes"),
            ent_running=self._total(f"e:{spec.id}:run"),
            ent_waiting=self._total(f"e:{spec.id}:wait"),
            ent_kv=self._total(f"e:{spec.id}:kv"),
            level=level,
            service_ms=float(self.meta.get("service_ms", SERVICE_MS)),
            ent_service_ms=self.service.get(spec.id, SERVICE_MS),
            ent_stay_ms=self.stays.get(spec.id, self.service.get(spec.id, SERVICE_MS)),
            weight=self._weight(spec.id, first_weight(spec, pool)),
            lightest=min(self.weights.values(), default=None),
            heaviest=max(self.weights.values(), default=None),
            preemptible=self._preemptible_leases(),
            told_ms=max(0, self.told.get(spec.id, 0) - now),
            warmth=self.places.warmth(request.prefixes),
            over=over,
            loads=loads,
            decides=self._decided(now),
            least_again=self.least_again,
            missed=self._missed_deadline(spec.id, now) if supersedes else None,
        )
        ask = Ask(
            estimate.kv_tokens, charge, body_bytes, request.exclude_backend, request.prefill_tokens, request.adapter,
            request.sequences, request.pace_us, frozenset(avoid),
        )  # fmt: skip
        decision = decide_admission(spec, pool, ask, view, NO_BACKEND_RETRY_MS)
        if decision.verdict is AdmissionAnswer.REFUSE:
            if decision.told_ms is not None:
                self.told[spec.id] = now + decision.told_ms
            retry_s = None if decision.retry_ms is None else decision.retry_ms / 1000
            more: dict[str, object] = {}
            if over is not None:
                more["over"] = over.scope, over.what
                if over.told_ms is not None:
                    self._tell_limit(limited.scopes[over.scope], over.told_ms)
            return answer(AdmissionStatus.REFUSED, 0, request.attempt, reason=decision.reason, retry_s=retry_s, **more)

        for evicted in decision.evict:
            self._evict(evicted, now)
        self._join(spec, pool)
        seq = int(self.meta.get("seq", 0)) + 1
        self.meta["seq"] = seq
        if rate > 0:
            level -= decision.charge
            self._set_level(spec.id, level, now, rate, depth)
        entry = Entry(
            attempt=request.attempt, entitlement=spec.id, service_class=spec.tier.service_class, backend="",
            kv=estimate.kv_tokens, charge=decision.charge, work=work_of(estimate), body_bytes=body_bytes, queued_ms=0,
            granted_ms=0, gateway=request.gateway, seq=seq, served=0, note="-",
            record=with_limits(codec.encode_request(StoredRequest(request, facts, sent_s)), limited),
            prefill=request.prefill_tokens,
        )  # fmt: skip
        left = self._take_limits(limited)
        if decision.verdict is AdmissionAnswer.GRANT:
            entry = replace(entry, backend=decision.backend, granted_ms=now, note=codec.DIRECT)
            uncounted = self._uncounted(decision.backend, entry)
            entry = self._charged(request.id, entry, self._credit(decision.backend), *uncounted)
            self._put_lease(request.id, entry, now + LEASE_MS)
            held = entry.prefill
            return answer(AdmissionStatus.GRANTED, seq, request.attempt, backend=decision.backend, prefill=held)
        self._put_waiting(request.id, replace(entry, queued_ms=now), now)
        if decision.supersedes:
            assert decision.told_ms is not None
            assert decision.retry_ms is not None
            self.told[spec.id] = now + decision.told_ms
            self._supersede(decision.supersedes, now, decision.retry_ms)
        self.meta["headroom"] = pool.headroom_slots if view.kept is None else view.kept
        wakes_s = view.waking_ms / 1000 if view.waking_ms and not self.ready else None
        return answer(AdmissionStatus.QUEUED, seq, request.attempt, position=self._total("wait"), wakes_s=wakes_s)

    def requeue(
        self,
        request: QueuedRequest,
        body_bytes: int,
        facts: RequestFacts,
        exclude_backend: str,
        headroom: int = 0,
        *,
        sent_s: float = 0.0,
        interrupted: bool = False,
    ) -> Admission:
        now, request_id, attempt = self._now(), request.id, request.attempt

        def answer(status: AdmissionStatus, e: Entry, backend: str = "", position: int = 0) -> Admission:
            inflight = self._inflight(e.entitlement)
            return Admission(
                status, backend=backend, position=position, inflight=inflight, attempt=e.attempt, seq=e.seq,
                prefill=e.prefill if backend else 0,
            )  # fmt: skip

        held, queued = self.held.get(request_id), self.queue.get(request_id)
        if held is not None and held.attempt == attempt + 1:
            return answer(AdmissionStatus.GRANTED, held, backend=held.backend)
        if queued is not None and queued.attempt == attempt + 1:
            return answer(AdmissionStatus.QUEUED, queued, position=self._total("wait"))
        if held is None and queued is None and (reason := self.ended(request_id)) is not None:
            return Admission(AdmissionStatus.ENDED, reason=reason, attempt=attempt)
        if held is None or held.attempt != attempt:
            return Admission(AdmissionStatus.STALE, attempt=attempt)

        self._drop_lease(request_id, staying=True)
        again = replace(request, attempt=attempt + 1, exclude_backend=exclude_backend)
        record = codec.encode_request(StoredRequest(again, facts, sent_s))
        record = with_limits(record, self._limited(held))  # it counts as who it was admitted as
        entry = replace(held, attempt=attempt + 1, body_bytes=body_bytes, record=record, note="-")
        entry = replace(entry, prefill=request.prefill_tokens)
        backends = self._backends()
        running = self._total(f"e:{held.entitlement}:run")
        within = running < baseline_slots(request.service_class, request.concurrency)
        owner = within and RIGHTS[ServiceClass(held.service_class)].reserved
        need = Need(
            held.kv, entry.prefill, owner, request.adapter, exclude_backend, self._warmth(record), self.least_again
        )
        backend = choose_backend(backends, need)
        kept = 0 if within else headroom if self._kept_slots is None else self._kept_slots
        idle = sum(max(0, b.slots - b.running) for b in backends) - kept > self._total("able")
        cap = cap_of(request.service_class, request.concurrency)
        may_run = cap is None or running < cap
        idle = idle and not interrupted
        at_once = goes_at_once(backends, backend, self._total("able"), entry.prefill)
        if idle and backend is not None and may_run and at_once:
            entry = replace(entry, backend=backend, granted_ms=now, note=codec.DIRECT)
            entry = self._charged(request_id, entry, self._credit(backend), *self._uncounted(backend, entry))
            self._put_lease(request_id, entry, now + LEASE_MS)
            return answer(AdmissionStatus.GRANTED, entry, backend=backend)
        entry = replace(entry, backend="", queued_ms=now, granted_ms=0)
        self._put_waiting(request_id, entry, now)
        queued_now = answer(AdmissionStatus.QUEUED, entry, position=self._total("wait"))
        self._offer_free(held.backend, now)
        return queued_now

    def finish(
        self, request_id: str, attempt: int, reason: Reason, actual_tokens: int, ran: bool, ledger: LedgerRecord
    ) -> FinishResult:
        now = self._now()
        told = 0 if not ran else actual_tokens if 0 <= actual_tokens <= MAX_USED else None

        def used(e: Entry) -> int:
            return e.charge if told is None else told

        freed = ""
        if (e := self.held.get(request_id)) is not None:
            if e.attempt > attempt:
                return FinishResult(FinishStatus.STALE)
            self._drop_lease(request_id)
            if e.prefill and ran and reason is Reason.STOP and not codec.decode_request(e.record).request.output_bound:
                self._told(e.backend, e.prefill, e.granted_ms, now)
            self._settle(e, used(e), now)
            self._settle_limits(e, told, ran)
            self._served(e.entitlement, used(e) - e.served)
            if ran:
                self._learn_service(e.entitlement, max(0, now - e.granted_ms))
                self._learn_stay(e.entitlement, max(0, now - (e.queued_ms or e.granted_ms)))
            freed = e.backend
        elif (e := self.queue.get(request_id)) is not None:
            if e.attempt > attempt:
                return FinishResult(FinishStatus.STALE)
            self._drop_waiting(request_id)
            self._settle(e, used(e), now)
            self._settle_limits(e, told, ran)
            self._notify("x", request_id)
        elif (before := self.ended(request_id)) in (Reason.EVICTED, Reason.SUPERSEDED) and request_id in self.evicted:
            e = self.evicted[request_id]
            if e.attempt > attempt:
                return FinishResult(FinishStatus.STALE)
            del self.evicted[request_id], self.leaving[request_id]
            self._settle(e, used(e), now)
            self._settle_limits(e, told, ran)
            self._served(e.entitlement, used(e) - e.served)
        elif before is Reason.GATEWAY_LOST is not reason:
            self._put_right(ledger, reason)
            return FinishResult(FinishStatus.OK)
        elif before is not None:
            return FinishResult(FinishStatus.ENDED, before)
        else:
            self._settle_forgotten(ledger.entitlement, told or 0, now)
        self._mark_ended(request_id, reason)
        self.ledger.append((b"r", codec.encode_ledger(ledger)))
        if freed:
            self._offer_free(freed, now)
        return FinishResult(FinishStatus.OK)

    def renew(self, gateway: str, items: Sequence[tuple[str, int, int]]) -> list[Renewal]:
        now = self._now()
        expiry = now + LEASE_MS
        renewals = []
        waits = set()
        for request_id, attempt, served in items:
            held = self.held.get(request_id)
            e = held or self.queue.get(request_id)
            if e is None:
                reason = self.ended(request_id)
                status = RenewStatus.UNKNOWN if reason is None else RenewStatus.ENDED
                renewals.append(Renewal(request_id, attempt, status, reason=reason))
            elif e.attempt < attempt:
                renewals.append(Renewal(request_id, attempt, RenewStatus.UNKNOWN))
            elif e.attempt > attempt or e.gateway != gateway:
                renewals.append(Renewal(request_id, attempt, RenewStatus.STALE))
            elif held is not None:
                self.leases[request_id] = expiry
                if served > e.served:
                    self._served(e.entitlement, served - e.served)
                    self.held[request_id] = replace(e, served=served)
                policy, why = codec.decode_note(e.note)
                renewals.append(
                    Renewal(
                        request_id, attempt, RenewStatus.HOLDS, backend=e.backend, policy=policy, why=why,
                        prefill=e.prefill,
                    )
                )  # fmt: skip
            else:
                self.waiting[request_id] = expiry
                waits.add(request_id)
                renewals.append(Renewal(request_id, attempt, RenewStatus.WAITS))
        if waits and not self._decided(now):
            self.order |= waits
            self._hand_out(now)
        return renewals

    def announce(
        self,
        spec: EntitlementSpec,
        pool: PoolSpec,
        request: QueuedRequest,
        estimate: Estimate,
        body_bytes: int,
        facts: RequestFacts,
        backend: str,
        served: int = 0,
        *,
        prefill: int = 0,
        sent_s: float = 0.0,
    ) -> AnnounceResult:
        now, rate, depth = self._now(), spec.tokens_per_s, spec.burst_tokens
        held, queued = self.held.get(request.id), self.queue.get(request.id)
        if before := held or queued:
            waited = held is None and bool(backend)
            if not (before.attempt < request.attempt or (before.attempt == request.attempt and waited)):
                return AnnounceResult(AnnounceStatus.KNOWN)
            if held is not None:
                self._drop_lease(request.id)
            else:
                self._drop_waiting(request.id)
                self._notify("x", request.id)
            self._settle(before, 0, now)
            self._settle_limits(before, 0, False)
        elif (reason := self.ended(request.id)) is not None:
            return AnnounceResult(AnnounceStatus.ENDED, reason)
        charge = estimate.cost_tokens if rate > 0 else 0
        if request.seq > int(self.meta.get("seq", 0)):
            self.meta["seq"] = request.seq
        self._join(spec, pool)
        if rate > 0:
            self._set_level(spec.id, self._level(spec.id, rate, depth, now) - charge, now, rate, depth)
        limited = self._placed(read_limits(facts.limits))
        self._take_limits(limited)
        entry = Entry(
            attempt=request.attempt, entitlement=spec.id, service_class=spec.tier.service_class, backend=backend,
            kv=estimate.kv_tokens, charge=charge, work=work_of(estimate), body_bytes=body_bytes, queued_ms=0,
            granted_ms=0, gateway=request.gateway, seq=request.seq, served=served, note="-",
            record=with_limits(codec.encode_request(StoredRequest(request, facts, sent_s)), limited),
            prefill=prefill if backend else request.prefill_tokens,
        )  # fmt: skip
        if backend:
            entry = self._charged(request.id, replace(entry, granted_ms=now), prefill)
            self._put_lease(request.id, entry, now + LEASE_MS)
        else:
            self._put_waiting(request.id, replace(entry, queued_ms=now), now)
        return AnnounceResult(AnnounceStatus.OK)

    def first_tokens(self, items: Sequence[tuple[str, int]]) -> int:
        now, told, freed = self._now(), 0, ""
        places: dict[str, list[Entry]] = {}
        for request_id, attempt in items:
            e = self.held.get(request_id)
            if e is not None and e.attempt == attempt and self._give_back(request_id):
                places.setdefault(e.backend, []).append(e)
                told, freed = told + 1, e.backend
        for backend, firsts in places.items():
            granted = [e.granted_ms for e in firsts]
            older = self._whole_answers(backend, max(granted), len(firsts) * WHOLE_AT_ONCE)
            older = [name for name in older if any(self._shown(name, e) for e in firsts)]
            tokens = sum(e.prefill for e in firsts) + sum(self._give_back(name) for name in older)
            self._told(backend, tokens, min(granted), now)
        if freed:
            self._offer_free(freed, now)
        return told

    def _shown(self, answer: str, stream: Entry) -> bool:
        whole = self.held[answer]
        ranks = [codec.decode_request(e.record).request.rank for e in (stream, whole)]
        return whole.granted_ms <= stream.granted_ms and shows(*ranks)

    def take_leg(self, request_id: str, attempt: int, tokens: int, exclude: str = "") -> str | None:
        e = self.held.get(request_id)
        if e is None or e.attempt != attempt:
            return None
        if (leg := self.legs.get(request_id)) is not None:
            if leg[0] == attempt:
                return leg[1]
            del self.legs[request_id]
        opened = self._open_legs()
        ready = [PrefillReplica(name, slots, *opened.get(name, (0, 0))) for name, slots in self.prefill.items()]
        chosen = choose_leg(ready, exclude)
        if chosen is not None:
            self.legs[request_id] = (attempt, chosen, tokens)
        return chosen or ""

    def end_leg(self, request_id: str, attempt: int) -> None:
        if (leg := self.legs.get(request_id)) is not None and leg[0] == attempt:
            del self.legs[request_id]

    def record(self, records: Sequence[LedgerRecord]) -> set[str]:
        in_flight: set[str] = set()
        for r in records:
            if r.request_id in self.held or r.request_id in self.queue:
                in_flight.add(r.request_id)
            elif self.ended(r.request_id) is Reason.GATEWAY_LOST != r.reason:
                self._put_right(r, Reason(r.reason))
            elif self.ended(r.request_id) is None:
                self._mark_ended(r.request_id, Reason(r.reason))
                self.ledger.append((b"r", codec.encode_ledger(r)))
                if wanted := unmet(r):
                    self._meter(f"{r.entitlement}:refused", wanted)
                    self._meter(f"{r.entitlement}:refusals", 1)
                self._settle_forgotten(r.entitlement, ran_for(r), self._now())
        return in_flight

    def _put_right(self, ledger: LedgerRecord, reason: Reason) -> None:
        self._mark_ended(ledger.request_id, reason)
        self.ledger.append((b"r", codec.encode_ledger(ledger), b"after", b"gateway_lost"))

    def suspect(self, backend: str, why: str) -> None:
        self._notify("s", f"{backend} {why}")

    def pause(self, backend: str, pause_s: float, why: str, *, refused: bool) -> None:
        offers = {b.id: b for b in self._backends()}
        mine = offers.pop(backend, None)
        paused = mine is not None and (refused or any(b.slots > 0 for b in offers.values()))
        if mine is not None and paused:
            self.ready[backend] = (0, mine.kv_tokens, mine.prefill_credit, mine.longest, mine.speed)
        self._notify("p", f"{backend} {math.ceil(pause_s * 1000) if paused else 0} {int(refused)} {why}")

    def report(self, attempts: Mapping[str, Attempts]) -> None:
        self._notify("a", codec.encode_attempts(attempts).decode())


def _left(scope: Scope, now: LimitStanding) -> LimitLeft:
    """What an answer tells of a scope; nothing of users who count as one."""
    if scope.of_user and scope == scope.rest:
        return LimitLeft()
    limits = scope.limits
    return LimitLeft(
        float(f"{now.requests:.6f}") if limits.requests_per_minute else None,
        float(f"{now.tokens:.6f}") if limits.tokens_per_minute else None,
        now.inflight if limits.concurrency else None,
    )
