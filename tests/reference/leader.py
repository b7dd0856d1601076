"""What scripts of the leader do, in Python: one method per script (``pool.py`` has the gateway's)."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduling.core.admission.rule import choose_victims
from scheduling.core.capacity.prefill_credit import USUAL_BUDGET
from scheduling.core.capacity.prefill_pace import FASTER, PrefillPace
from scheduling.core.capacity.uncounted import Beginnings
from scheduling.core.outcomes import Reason
from scheduling.core.placement.room import Need, any_with_slot_and_kv, choose_backend
from scheduling.core.rights import RIGHTS
from scheduling.core.scheduler.prefill_preemption import LongPrompt
from scheduling.core.types import BackendSpec, BackendView, ServiceClass, Standing
from scheduling.state import codec
from scheduling.state.codec import Entry
from scheduling.state.snapshot import make_snapshot
from scheduling.state.standing import read_standing, standing_words
from scheduling.state.types import (
    EJECTED_CHANNEL,
    ENTITLEMENTS_AT_ONCE,
    GRANTS_AT_ONCE,
    LEADER_MS,
    LEASE_MS,
    REBUILD_MS,
    SWEEP_GAP_MS,
    TRIED_OF_EACH,
    BackendTotals,
    BucketDebit,
    Counts,
    Election,
    EvictItem,
    GrantItem,
    GrantStatus,
    Look,
    PoolSnapshot,
    SweptRequest,
    gateway_channel,
    leader_channel,
)
from tests.reference.memory import PoolMemory


class ReferenceLeader(PoolMemory):
    """One pool, as its leader moves it."""

    def __init__(
        self,
        pool_id: str,
        clock_ms: Callable[[], int],
        publish: Callable[[str, bytes], bool] = lambda _channel, _payload: True,
        listens: Callable[[str], bool] = lambda _channel: True,
    ) -> None:
        super().__init__(pool_id, clock_ms)
        self._publish = publish
        self._listens = listens

    def elect(self, holder: str, floor: int, first_start: bool) -> Election:
        now, leader = self._now(), self.meta.get("leader")
        if leader != holder and self._led(now):
            return Election(False, 0, str(leader), (int(self.meta["leader_until"]) - now) / 1000)
        epoch = int(self.meta.get("epoch", 0))
        if leader != holder or epoch < floor:
            epoch = max(epoch, floor) + 1
        self.meta.update(epoch=epoch, leader=holder, leader_until=now + LEADER_MS)
        self._keep_meta("leader_listens", int(self._listens(leader_channel(holder))))
        if "born" not in self.meta:
            self.meta["born"] = now
            if not first_start:
                self.meta["rebuild_until"] = now + REBUILD_MS
                self.meta["lost"] = now
        return Election(True, epoch, holder, LEADER_MS / 1000)

    def debit(self, epoch: int, start: int, debits: Sequence[BucketDebit]) -> int:
        self._fence(epoch)
        done, now = int(self.meta.get("debited", 0)), self._now()
        if done != start:
            return done
        for d in debits:
            level = self._level(d.entitlement, d.rate, d.depth, now)
            self._set_level(d.entitlement, level - d.tokens, now, d.rate, d.depth)
        self.meta["debited"] = done + len(debits)
        return done + len(debits)

    def resign(self, holder: str) -> None:
        if self.meta.get("leader") == holder:
            del self.meta["leader"], self.meta["leader_until"]
            self.meta.pop("leader_listens", None)

    def grant(self, epoch: int, items: Sequence[GrantItem], *, turnaround_s: float | None = None) -> list[GrantStatus]:
        self._fence(epoch)
        if turnaround_s is not None:
            self.turnaround = round(turnaround_s * 1000)
        return [self._grant(g) for g in items]

    def _grant(self, g: GrantItem) -> GrantStatus:
        now = self._now()
        e = self.queue.get(g.request_id)
        if e is None:
            held = self.held.get(g.request_id)
            again = held is not None and held.attempt == g.attempt and held.backend == g.backend
            return GrantStatus.OK if again else GrantStatus.GONE
        if e.attempt != g.attempt:
            return GrantStatus.GONE
        note = codec.encode_note(g.policy, g.why)
        told = g.point, g.cached_tokens
        return self._grant_waiting(g.request_id, e, g.backend, g.cap, note, now, *told)

    def _grant_waiting(
        self,
        request_id: str,
        e: Entry,
        backend: str,
        cap: int | None,
        note: str,
        now: int,
        point: str = "",
        tokens: int = 0,
    ) -> GrantStatus:
        offer = next((b for b in self._backends() if b.id == backend), None)
        if offer is None:
            return GrantStatus.FULL
        if point:
            told = min(tokens, e.prefill - 1) if backend in self.caches else 0
            tokens = offer.uncounted.uncounted(point, told, offer.uncounted_most)
        if not offer.room_for(e.kv, e.prefill - (tokens if offer.prefill_credit else 0), self._owns(e)):
            return GrantStatus.FULL
        if cap is not None and self._total(f"e:{e.entitlement}:run") >= cap:
            return GrantStatus.ENT
        told_of = replace(e, prefill=e.prefill - tokens)
        if not self._publish(gateway_channel(e.gateway), self._notice(request_id, told_of, backend, note)):
            return GrantStatus.AWAY
        self._promote(request_id, backend, now, note, point, tokens)
        return GrantStatus.OK

    def _notice(self, request_id: str, e: Entry, backend: str, note: str) -> bytes:
        return f"{request_id} {e.attempt} {backend} {note} {e.prefill if self._credit(backend) else 0}".encode()

    def _led(self, now: int) -> bool:
        if "leader" not in self.meta or int(self.meta["leader_until"]) <= now:
            return False
        return "leader_listens" not in self.meta or self._listens(leader_channel(str(self.meta["leader"])))

    def _decided(self, now: int) -> bool:
        """Whether who leads has begun to decide."""
        return self._led(now) and self.meta.get("decides") == self.meta["epoch"]

    def _hand_out(self, now: int) -> bool:
        """Free slots go to who waits while nobody leads and decides; whether nobody does."""
        if self._decided(now):
            return False
        if int(self.meta.get("rebuild_until", 0)) > now:
            return True
        first = int(self.meta.get("order_from", 0))
        first = 0 if first >= len(self.weights) else first
        heaviest = sorted(((w, name) for name, w in self.weights.items()), reverse=True)
        lines = [
            deque(sorted((self.queue[i].seq, i) for i in self.order if self.queue[i].entitlement == name))
            for _, name in heaviest[first : first + ENTITLEMENTS_AT_ONCE]
            if self._able(name) > 0
        ]
        granted, idle, failed = 0, False, Counter[str]()
        while granted < GRANTS_AT_ONCE:
            backends = self._backends()
            free = sum(max(0, b.slots - b.running) for b in backends)
            spared = free <= int(self.meta.get("headroom", 0))
            turns = [(band, line[0], line) for line in lines if line and (band := self._band(line[0][1], spared)) >= 0]
            if free <= 0 or not turns:
                idle = free > 0
                break
            # of two with one arrival number, as after a loss of state: who is of the heavier entitlement
            _, (_, request_id), line = min(turns, key=lambda turn: (turn[0], turn[1][0]))
            line.popleft()
            entitlement = self.queue[request_id].entitlement
            said = self._hand_to(request_id, backends, now)
            if said is None:
                break
            if said is GrantStatus.OK:
                self._notify("x", request_id)
                granted += 1
                continue
            failed[entitlement] += 1
            if failed[entitlement] == TRIED_OF_EACH:
                line.clear()
            if said is GrantStatus.AWAY:
                self.order.discard(request_id)
        self._keep_meta("stuck", self._total("able") if idle else 0)
        further = idle and not granted and len(self.weights) > ENTITLEMENTS_AT_ONCE
        self._keep_meta("order_from", first + ENTITLEMENTS_AT_ONCE if further else 0)
        return True

    def _hand_to(self, request_id: str, backends: Sequence[BackendView], now: int) -> GrantStatus | None:
        """None: it lacks only prefill credit, and nobody passes it."""
        e = self.queue[request_id]
        if self.waiting[request_id] <= now:
            return GrantStatus.AWAY
        request = codec.decode_request(e.record).request
        need = self._need_of(e, request.exclude_backend if len(backends) > 1 else "")
        backend = choose_backend(backends, need)
        if backend is None:
            return None if any_with_slot_and_kv(backends, need) else GrantStatus.FULL
        note = codec.encode_note(*codec.LEADERLESS)
        return self._grant_waiting(
            request_id, e, backend, self._cap(e.entitlement), note, now, *self._uncounted(backend, e)
        )

    def _need_of(self, e: Entry, exclude: str) -> Need:
        adapter = codec.decode_request(e.record).request.adapter
        return Need(e.kv, e.prefill, self._owns(e), adapter, exclude, self._warmth(e.record), self.least_again)

    def _owns(self, e: Entry) -> bool:
        """Whether it is an owner's of reserved capacity, of which its entitlement runs less than it may."""
        within = self._total(f"e:{e.entitlement}:run") < self.totals.get(f"e:{e.entitlement}:base", 0)
        return within and RIGHTS[ServiceClass(e.service_class)].reserved

    def _band(self, request_id: str, spared: bool) -> int:
        """Who goes first where nobody leads; -1: not now. ``spared``: what is free is for those within baselines."""
        e = self.queue[request_id]
        run = self._total(f"e:{e.entitlement}:run")
        if run < self.totals.get(f"e:{e.entitlement}:base", 0):
            return 0 if self._owns(e) else 1
        cap = self._cap(e.entitlement)
        if spared or (cap is not None and run >= cap):
            return -1
        return 3 if cap is None else 2

    def _keep_meta(self, name: str, value: int) -> None:
        if value:
            self.meta[name] = value
        else:
            self.meta.pop(name, None)

    def _offer_free(self, backend: str, now: int) -> None:
        if self._total("wait"):
            self._notify("f", backend)
            self._hand_out(now)

    def evict(self, epoch: int, items: Sequence[EvictItem]) -> list[GrantStatus]:
        self._fence(epoch)
        return [self._make_room(i) for i in items]

    def _make_room(self, i: EvictItem) -> GrantStatus:
        now = self._now()
        e = self.queue.get(i.request_id)
        if e is None:
            held = self.held.get(i.request_id)
            return GrantStatus.OK if held is not None and held.attempt == i.attempt else GrantStatus.GONE
        if e.attempt != i.attempt:
            return GrantStatus.GONE
        if self._total(f"e:{e.entitlement}:run") >= i.cap:
            return GrantStatus.ENT
        if not self._listens(gateway_channel(e.gateway)):
            return GrantStatus.AWAY
        backends = self._backends()
        need = self._need_of(e, i.exclude_backend)
        backend = choose_backend(backends, need)
        if backend is None:
            has_room = any_with_slot_and_kv(backends, need)
            leases = [] if has_room else self._preemptible_leases()
            found = choose_victims(leases, backends, need)
            if found is None:
                return GrantStatus.FULL
            backend, victims = found
            for victim in victims:
                self._evict(victim, now)
        note = codec.encode_note(i.policy, i.why)
        granted = self._promote(i.request_id, backend, now, note, *self._uncounted(backend, e))
        self._publish(gateway_channel(e.gateway), self._notice(i.request_id, granted, backend, note))
        return GrantStatus.OK

    def _evict(self, request_id: str, now: int) -> None:
        e = self._drop_lease(request_id)
        self.evicted[request_id], self.leaving[request_id] = e, now + LEASE_MS
        self._mark_ended(request_id, Reason.EVICTED, math.inf)  # until its accounts are closed
        self._publish(gateway_channel(e.gateway), f"{request_id} {e.attempt} - evicted".encode())

    def _supersede(self, request_id: str, now: int, retry_ms: int) -> None:
        e = self._drop_waiting(request_id)
        self.evicted[request_id], self.leaving[request_id] = e, now + LEASE_MS
        self._mark_ended(request_id, Reason.SUPERSEDED, math.inf)  # until its accounts are closed
        self._notify("x", request_id)
        told = f"{request_id} {e.attempt} - superseded {retry_ms}"
        self._publish(gateway_channel(e.gateway), told.encode())

    def set_standing(self, epoch: int, standings: Mapping[str, Standing], gone: Sequence[str] = ()) -> None:
        self._fence(epoch)
        for name, s in standings.items():
            self.standings[name] = kept = read_standing(standing_words(s))
            if name in self.weights:
                self.weights[name] = kept.weight
        for name in gone:
            self.standings.pop(name, None)
            for what in ("served", "refused", "refusals"):
                self.meter.pop(f"{name}:{what}", None)

    def set_stuck(self, epoch: int, count: int, kept: int | None = None) -> None:
        self._fence(epoch)
        self.meta["decides"] = epoch
        self._keep_meta("stuck", count)
        self.meta.pop("kept", None)
        if kept is not None:
            self.meta["kept"] = kept

    def set_cached(self, epoch: int, backend_id: str, trust: int, most: int) -> None:
        self._fence(epoch)
        self.caches.pop(backend_id, None)
        if trust >= 0:
            self.caches[backend_id] = trust, most

    def set_prefill(self, epoch: int, slots: Mapping[str, int]) -> dict[str, int]:
        self._fence(epoch)
        self.prefill = dict(slots)
        return {name: count for name, (count, _) in sorted(self._open_legs().items())}

    def set_waking(self, epoch: int, ms: int) -> None:
        self._fence(epoch)
        self._keep_meta("waking", ms)

    def set_ready(self, epoch: int, backend_id: str, spec: BackendSpec | None, *, ejected: bool = False) -> None:
        self._fence(epoch)
        if spec is None:
            self.ready.pop(backend_id, None)
            self.paces.pop(backend_id, None)
            self.steps.pop(backend_id, None)
            self.caches.pop(backend_id, None)
            self.resuming.discard(backend_id)
            self.tokens_us.pop(backend_id, None)
            for name in ("tokens", "prompts"):
                self.expected.pop(f"{backend_id} {name}", None)
            if ejected:
                self._publish(EJECTED_CHANNEL, backend_id.encode())
        else:
            self.ready[backend_id] = (spec.slots, spec.kv_tokens, spec.prefill_tokens, spec.longest, spec.speed)
            if spec.step_tokens:
                self.steps[backend_id] = spec.step_tokens
            else:
                self.steps.pop(backend_id, None)
            self.tokens_us[backend_id] = spec.token_us
            (self.resuming.add if spec.resumes else self.resuming.discard)(backend_id)

    def set_adapters(self, epoch: int, homes: Mapping[str, tuple[bool, Iterable[str]]]) -> None:
        self._fence(epoch)
        self.adapters = {name: (loads, frozenset(replicas)) for name, (loads, replicas) in homes.items()}

    def prefilled(self, epoch: int, backend_id: str, waiting: int, age_s: float, *, hurry: float = FASTER) -> int:
        self._fence(epoch)
        now = self._now()
        pace, step = self.paces.get(backend_id, PrefillPace()), self.steps.get(backend_id, USUAL_BUDGET)
        unseen_ms = int(pace.unseen_ms(math.ceil(age_s * 1000), step))
        found = self._whole_answers(backend_id, now - unseen_ms, 1000)
        predicted, behind, end = pace.per_ms > 0, waiting, len(found)
        while behind > 0 and end > 0:
            end -= 1
            behind -= self.held[found[end]].sequences
        if behind == 0 and predicted:
            end -= 1
        done = found[: max(0, end)]
        given = sum(self._give_back(name) for name in done)
        if given:
            begun = self.held[found[len(done)]].prefill if predicted else 0
            self._told(backend_id, given, min(self.held[name].granted_ms for name in done), now, begun)
        used = self._total(f"b:{backend_id}:pre")
        ahead = self.paces.get(backend_id, PrefillPace()).ahead(used, step, self._turnaround(), now)
        if not waiting and found and round(hurry * 1000) != 1000 and self._total("wait") and ahead > 0:
            self.paces.setdefault(backend_id, PrefillPace()).faster(round(hurry * 1000) / 1000)
        if given:
            self._offer_free(backend_id, now)
        return len(done)

    def sweep(self, epoch: int, passed_s: float | None = None) -> list[SweptRequest]:
        self._fence(epoch)
        now = self._now()
        swept: list[SweptRequest] = []
        last = self.meta.get("swept_at")
        self.meta["swept_at"] = now
        if last is not None and now - int(last) > SWEEP_GAP_MS:
            self.meta["sweep_from"] = now + REBUILD_MS
        if now < int(self.meta.get("sweep_from", 0)):
            return swept
        for request_id in self._due(self.waiting, now):
            e = self._drop_waiting(request_id)
            self._settle(e, 0, now)
            self._settle_limits(e, 0, ran=False)
            self._notify("x", request_id)
            swept.append(self._bury(request_id, e, now, Reason.GATEWAY_LOST))
        for request_id in self._due(self.leases, now):
            e = self._drop_lease(request_id)
            self._ring_free(e.backend)
            swept.append(self._bury(request_id, e, now, Reason.GATEWAY_LOST))
        for request_id in self._due(self.leaving, now):
            del self.leaving[request_id]
            reason, e = self.ended(request_id) or Reason.EVICTED, self.evicted.pop(request_id)
            if not e.granted_ms:
                self._settle(e, 0, now)
                self._settle_limits(e, 0, ran=False)
            swept.append(self._bury(request_id, e, now, reason))
        return swept

    def rebuild(self, epoch: int) -> list[str]:
        self._fence(epoch)
        now, differs = self._now(), set[str]()
        for name, entries, expiries in (
            ("leases", self.held, self.leases),
            ("waiting", self.queue, self.waiting),
            ("leaving", self.evicted, self.leaving),
        ):
            if set(entries) != set(expiries):
                differs.add(name)
                for request_id in set(expiries) - set(entries):
                    del expiries[request_id]
                expiries |= dict.fromkeys(set(entries) - set(expiries), now + LEASE_MS)
        for request_id in set(self.held) & set(self.queue):
            del self.queue[request_id], self.waiting[request_id]
            differs.add("waiting")
        self.order = set(self.queue)
        return self._compare_sums(now, differs)

    def _compare_sums(self, now: int, differs: set[str]) -> list[str]:
        old, weights, inflight = (
            self.totals,
            self.weights,
            {e.entitlement for e in (*self.held.values(), *self.queue.values())},
        )
        self.totals = {
            f"e:{name}:{limit}": old[f"e:{name}:{limit}"]
            for name in inflight
            for limit in ("cap", "base")
            if f"e:{name}:{limit}" in old
        }
        self.weights = {n: weights.get(n, self._weight(n, 1.0)) for n in inflight}
        using, self.using = self.using, {}
        differs |= self._compare_beginnings()
        for e in self.held.values():
            self._count(e, 1, 0)
        for e in self.queue.values():
            self._count(e, 0, 1)
        differs |= {name for name in {*old, *self.totals} if old.get(name) != self.totals.get(name)}
        differs |= {f"using:{name}" for name in {*using, *self.using} if using.get(name) != self.using.get(name)}
        preemptible = {n: e.granted_ms for n, e in self.held.items() if e.service_class == ServiceClass.PREEMPTIBLE}
        if set(preemptible) != set(self.preemptible):
            differs.add("preemptible")
            self.preemptible = {n: self.preemptible.get(n, at) for n, at in preemptible.items()}
        self.prefills = {n: at for n, at in self.prefills.items() if n in self.held}
        self.long = {n: at for n, at in self.long.items() if n in self.held}
        if set(weights) != inflight:
            differs.add("weights")
        if differs:
            self.meta |= {"rebuilt": int(self.meta.get("rebuilt", 0)) + 1, "rebuilt_at": now}
        return sorted(differs)

    def _compare_beginnings(self) -> set[str]:
        """How long a beginning is was written down once; of how many prompts it is, they say themselves."""
        prompts = Counter((e.backend, codec.uncounted_point(e.record)) for e in self.held.values() if e.prefill)
        differs = set[str]()
        for name, there in self.uncounted.items():
            of_name = {point: prompts[name, point] for point in there.held}
            differs |= {f"uncounted:{name} {p}" for p, (counted, _) in there.held.items() if counted != of_name[p]}
            now = Beginnings({p: (of_name[p], tokens) for p, (_, tokens) in there.held.items() if of_name[p]})
            self.uncounted[name] = now
            self._shift(f"b:{name}:unc", now.tokens)
        return differs

    def long_prompts(self) -> list[LongPrompt]:
        known = sorted((at, name) for name, at in self.long.items() if name in self.held)[:100]
        entries = [self.held[name] for _, name in known]
        return [LongPrompt(e.queued_request(), e.backend, e.prefill, e.granted_ms / 1000) for e in entries]

    def look(self, entitlements: Sequence[str]) -> Look:
        now = self._now()
        backends = {
            b.id: BackendTotals(
                True,
                b.slots,
                b.kv_tokens,
                b.running,
                b.kv_used,
                int(b.work_tokens),
                b.prefill_credit,
                *self._ahead(b.id),
                b.prefill_owned,
                b.longest,
                b.speed,
                self._offer(b.id).cache_trust,
                b.uncounted_most,
                b.uncounted.held,
                token_us=b.token_us,
            )
            for b in self._backends()
        }
        running = {name: self._total(f"e:{name}:run") for name in entitlements}
        rebuilding_ms = max(0, int(self.meta.get("rebuild_until", 0)) - now)
        return Look(now, rebuilding_ms, backends, running, len(self.preemptible), self._total("run"))

    def view(self) -> PoolSnapshot:
        d = self.dump()
        totals = {name: str(value) for name, value in d.totals.items()}
        buckets = {name: repr(value) for name, value in d.buckets.items()}
        meter = {name: str(value) for name, value in d.meter.items()}
        expected = {name: str(value) for name, value in d.expected.items()}
        counts = Counts(
            len(self.leases), len(self.held), len(self.waiting), len(self.queue), len(self.leaving), len(self.evicted)
        )
        return make_snapshot(
            self._now(), d.meta, d.ready, totals, buckets, len(self.ledger), d.standing, meter, counts, expected
        )
