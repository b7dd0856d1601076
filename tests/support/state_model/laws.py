"""The laws that hold whatever the reference model says (``docs/internals/state.md``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from scheduling.core.admission.key_limits import read_limits
from scheduling.core.admission.rule import EXTRA_PLACES
from scheduling.core.outcomes import Reason
from scheduling.core.rights import RIGHTS, able_to_run
from scheduling.core.types import RateLimits, ServiceClass
from scheduling.state import codec
from scheduling.state.codec import Entry
from scheduling.state.standing import read_standing
from scheduling.state.types import (
    ENDED_MS,
    TRIED_OF_EACH,
    gateway_channel,
)
from tests.reference.memory import Dump
from tests.support.state_model.listeners import Ears
from tests.support.state_model.members import (
    BACKENDS,
    BASES,
    CAPS,
    ENTITLEMENTS,
    POOL,
    RESERVED,
)
from tests.support.state_model.scripts import USERS

OUT = (Reason.EVICTED.value, Reason.SUPERSEDED.value)  # ends of which others' accounts stay open


class Laws:
    """What is checked after each move. The attributes are those of :class:`Sides`."""

    now: int
    pool_id: str
    led: bool
    seen: set[tuple[str, str]]
    _ears: Ears
    _ended_at: dict[str, int]
    _lost: set[str]

    def check_laws(self, move: str, before: Dump, after: Dump) -> None:
        """The laws that hold whatever the reference model says."""
        held = {k: codec.decode_entry(v) for k, v in after.held.items()}
        queue = {k: codec.decode_entry(v) for k, v in after.queue.items()}
        assert set(held) == set(after.leases), "a lease without expiry, or an expiry without lease"
        assert set(queue) == set(after.waiting)
        assert not set(held) & set(queue), "a request waits and runs"
        places = {codec.place_of(i, e) for i, e in queue.items()}
        assert set(after.order) <= places, "the order of what waits names what does not"
        assert not (set(held) | set(queue)) & set(after.ended), "a request lives after its end"
        evicted = set(after.evicted)
        assert evicted == set(after.leaving) == {i for i in after.evicted if after.ended.get(i) in OUT}
        assert not evicted & (set(held) | set(queue)), "an evicted request runs or waits"
        assert set(after.prefills) == {
            i for i, e in held.items() if e.prefill and not codec.decode_request(e.record).facts.streamed
        }, "not the whole answers that hold prefill credit are to give it back"
        assert set(after.preemptible) == {i for i, e in held.items() if e.service_class == ServiceClass.PREEMPTIBLE}

        sums: dict[str, int] = {}
        for e in held.values():
            ent, at = f"e:{e.entitlement}", f"b:{e.backend}"
            for name, x in (("run", 1), (f"{ent}:run", e.sequences), (f"{ent}:kv", e.kv),
                            (f"{at}:run", e.sequences), (f"{at}:kv", e.kv), (f"{at}:work", e.work),
                            (f"{at}:pre", e.prefill), (f"{at}:own", e.prefill if _reserved(e) else 0)):  # fmt: skip
                sums[name] = sums.get(name, 0) + x
        for name, words in after.uncounted.items():
            at = f"b:{name.split(' ')[0]}:unc"
            sums[at] = sums.get(at, 0) + int(words.split(" ")[1])
        sums = {name: x for name, x in sums.items() if x}
        for e in queue.values():
            ent = f"e:{e.entitlement}"
            for name, x in (("wait", 1), ("bytes", e.body_bytes), (f"{ent}:wait", 1), (f"{ent}:kv", e.kv)):
                sums[name] = sums.get(name, 0) + x
        caps = {name: n for name, n in after.totals.items() if name.endswith(":cap")}
        inflight = {e.entitlement for e in (*held.values(), *queue.values())}
        assert caps == {f"e:{name}:cap": c for name in inflight if (c := CAPS[name]) is not None}
        assert set(after.weights) == inflight, "not the entitlements in flight are compared by weight"
        able = sum(
            able_to_run(sums.get(f"e:{name}:wait", 0), sums.get(f"e:{name}:run", 0), CAPS[name]) for name in inflight
        )
        bases = {name: n for name, n in after.totals.items() if name.endswith(":base")}
        assert bases == {f"e:{name}:base": n for name in inflight if (n := BASES[name])}
        due = sum(
            able_to_run(sums.get(f"e:{name}:wait", 0), sums.get(f"e:{name}:run", 0), BASES[name]) for name in inflight
        )
        sums |= caps | bases | ({"able": able} if able else {}) | ({"due": due} if due else {})
        assert dict(after.totals) == sums, "totals are not the sums over leases and queue"
        self._check_beginnings(move, held, before, after)
        self._check_limits(move, [*held.values(), *queue.values()], before, after)
        for name, weight in after.weights.items():
            known = after.standing.get(name)
            assert known is None or weight == read_standing(known).weight, f"{name} is compared by an old weight"
        out = evicted - set(before.evicted)
        superseded = {name for name in out if after.ended[name] == Reason.SUPERSEDED}
        self._check_superseded(move, superseded, before, queue)
        if move in ("admit", "evict") and (out := out - superseded):
            for name in out:
                known = before.held.get(name) or before.queue[name]  # it may have waited: handed out, and taken back
                assert known.split(b" ")[2] == b"preemptible", "who is not preemptible lost its slot"
            handed_out = {name for name, e in held.items() if e.note == codec.encode_note(*codec.LEADERLESS)}
            winners = set(held) - set(before.held) - handed_out
            assert winners, "a slot was taken back for nobody"
            self.seen.add((move, f"{'granted' if move == 'admit' else 'ok'}, others evicted"))
            assert all(RIGHTS[ServiceClass(held[name].service_class)].evicts for name in winners)

        def grew(name: str) -> bool:
            return after.totals.get(name, 0) > before.totals.get(name, 0)

        if move not in ("announce", "grant"):
            self._check_adapters(move, held, before)
        if move != "announce":
            for at in BACKENDS:
                if grew(f"b:{at}:pre"):
                    self._check_credit(move, at, held, before, after)
                if grew(f"b:{at}:run"):
                    slots, kv, _, longest, *_ = codec.decode_offer(after.ready[at])
                    new = [e for e in _granted(before, held) if e.backend == at]
                    widest = max(e.sequences for e in new)  # who took the last free slot is not wider
                    assert after.totals[f"b:{at}:run"] - widest < slots, f"{move} overshot the slots of {at}"
                    used = after.totals[f"b:{at}:kv"]
                    over = all(_reserved(e) for e in new) and used - sum(e.kv for e in new) > kv
                    assert used <= kv or over, f"{move} overshot the KV of {at}"
                    assert all(e.kv <= (longest or kv) for e in new), f"{move} gave {at} what is too long for it"
            for spec in ENTITLEMENTS:
                if grew(f"e:{spec.id}:run") and CAPS[spec.id] is not None:
                    run = after.totals[f"e:{spec.id}:run"]
                    widest = max(e.sequences for e in _granted(before, held) if e.entitlement == spec.id)
                    assert run - widest < spec.concurrency, f"{move} overshot r_e of {spec.id}"
        if move == "admit" and grew("wait") and not any(grew(f"e:{name}:wait") for name in RESERVED):
            extra = 1 + 1 / EXTRA_PLACES if any(grew(f"e:{name}:wait") for name, base in BASES.items() if base) else 1
            assert after.totals["wait"] <= POOL.queue_limit * extra
            assert after.totals.get("bytes", 0) <= POOL.queue_bytes * extra
        if move == "admit":
            for spec in ENTITLEMENTS:
                level = after.buckets.get(f"{spec.id}:level")
                if level is not None and level != before.buckets.get(f"{spec.id}:level"):
                    owed = min(0.0, before.buckets.get(f"{spec.id}:level", 0.0))  # by those that used more
                    assert level >= owed, "admission took a bucket below zero"
        if move == "sweep" and set(before.evicted) - evicted:
            self.seen.add(("sweep", "evicted"))
        if handed := set(held) & set(before.queue) if move in ("admit", "finish", "renew", "requeue") else set():
            assert not self.led, "scripts handed out slots though somebody leads"
            assert int(after.meta.get("rebuild_until", 0)) <= self.now, "slots were handed out before leases came back"
            self.seen.add((move, "handed out"))
            self._check_handed(handed, before, after)
        if move == "finish" and set(before.held) - set(held) and queue and not self.led:
            self._check_none_idle(before, after)
        for fields in after.ledger:
            name = self._ledger_id(fields)
            known = self._ended_at.get(name)
            if b"after" in fields:
                assert name in self._lost, f"{name} was put right, and was not lost"
                self._lost.discard(name)
                self.seen.add((move, "put right"))
                known = None
            assert known is None or known + ENDED_MS <= self.now, f"{name} ended twice"
            self._ended_at[name] = self.now
            if fields[-2:] == (b"as", b"gateway_lost") or b"unread" in fields:
                self._lost.add(name)

    def _check_superseded(self, move: str, names: set[str], before: Dump, queue: Mapping[str, Entry]) -> None:
        """Who is superseded waited in vain, and one newer request of its entitlement has its place."""
        if not names:
            return
        [name] = names if move == "admit" else []
        old = codec.decode_entry(before.queue[name])
        new = [e for name, e in queue.items() if name not in before.queue]
        assert [e.entitlement for e in new] == [old.entitlement], "it made room for nobody of its entitlement"
        due_s = old.queued_request().ttft_deadline_s
        assert old.attempt == 1, "a replica has worked on it"
        assert due_s is not None, "nothing was promised"
        assert due_s < self.now / 1000, "it did not wait in vain"
        self.seen.add(("admit", "queued, another one superseded"))

    def _check_beginnings(self, move: str, held: dict[str, Entry], before: Dump, after: Dump) -> None:
        """What does not count is in flight, once for all prompts that have it, and bounded on each replica."""
        having = Counter(
            f"{e.backend} {point}" for e in held.values() if e.prefill and (point := codec.uncounted_point(e.record))
        )
        assert having == {name: int(words.split(" ")[0]) for name, words in after.uncounted.items()}, (
            "not the beginnings of what is in flight do not count"
        )
        for at in BACKENDS:
            now = after.totals.get(f"b:{at}:unc", 0)
            if now > before.totals.get(f"b:{at}:unc", 0):
                self.seen.add((move, "uncounted"))
                there = [name for name in after.uncounted if name.startswith(f"{at} ")]
                most = codec.decode_offer(after.ready[at]).uncounted_most
                assert now <= most or len(there) == 1, f"too much does not count on {at}"

    def _check_limits(self, move: str, inflight: list[Entry], before: Dump, after: Dump) -> None:
        """No scope has more in flight, or takes more, than its limits; and users are bounded."""
        using: dict[str, int] = {}
        limits: dict[str, RateLimits] = {}
        for e in inflight:
            for scope in read_limits(codec.decode_request(e.record).facts.limits).scopes:
                limits[scope.name] = scope.limits
                if scope.limits.concurrency:
                    using[scope.name] = using.get(scope.name, 0) + 1
        assert dict(after.using) == using, "not what keys and users have in flight is counted"
        for name, n in using.items():
            grew = n > before.using.get(name, 0)
            assert move == "announce" or not grew or n <= limits[name].concurrency, f"{name} has too many in flight"
        for ent, known in after.users.items():
            assert sum(at > self.now for at in known.values()) <= USERS, f"too many users of {ent} are tracked"
            assert not any(name.endswith(":-") for name in known), "the rest is not a user"
        if move == "admit":
            for name, now in after.limits.items():
                for level in ("r", "t"):
                    old = before.limits.get(name, {}).get(level, 0.0)
                    assert now.get(level, 0.0) >= min(0.0, old), f"an admission took {name} below zero"

    def _check_credit(self, move: str, at: str, held: dict[str, Entry], before: Dump, after: Dump) -> None:
        """What was granted is within the credit of the replica, or it is one prompt alone. Of an owner's prompt that is
        so among the prompts of owners."""
        credit = codec.decode_offer(after.ready[at])[2]
        holding = [name for name, e in held.items() if e.backend == at and e.prefill]
        used = after.totals[f"b:{at}:pre"]
        assert credit > 0, f"{move} took of a credit that {at} does not have"
        new = [name for name in holding if name not in before.held or not codec.decode_entry(before.held[name]).prefill]
        sure = int(after.paces[f"{at} pace"].split()[2])
        new = new or holding  # an attempt that holds more than the one before it
        owners = all(_reserved(held[name]) for name in new)
        if owners and used - sure > credit and len(holding) > 1:
            self.seen.add((move, "an owner beside others"))
        if owners:
            holding, used = [name for name in holding if _reserved(held[name])], after.totals.get(f"b:{at}:own", 0)
        counts = used - sure
        early = used > credit and len(holding) > 1
        whole = any(not codec.decode_request(held[name].record).facts.streamed for name in holding)
        assert not early or whole or counts <= credit or (counts <= sum(held[n].prefill for n in new)), (
            f"{move} overshot the prefill credit of {at}"
        )
        self.seen.add((move, "early" if early else "alone" if used > credit else "within its credit"))

    def _check_adapters(self, move: str, held: dict[str, Entry], before: Dump) -> None:
        """What scripts place of an adapter they place where that is loaded."""
        for name, e in held.items():
            adapter = codec.decode_request(e.record).request.adapter
            placed = name not in before.held or codec.decode_entry(before.held[name]).attempt != e.attempt
            if adapter and placed:
                homes = before.adapters.get(adapter, "0 ").split()[1:]
                assert e.backend in homes, f"{move} placed {name} on {e.backend}, which lacks {adapter}"
                self.seen.add((move, "placed where its adapter is"))

    def _check_handed(self, handed: set[str], before: Dump, after: Dump) -> None:
        """Of each entitlement who came first went first, unless it did not fit or nobody listens for it."""
        held = {k: codec.decode_entry(after.held[k]) for k in handed}
        for e in held.values():
            assert codec.decode_note(e.note) == codec.LEADERLESS
            assert gateway_channel(e.gateway) in self._ears.listening
            exclude = codec.decode_request(e.record).request.exclude_backend
            assert e.backend != exclude or len(after.ready) == 1, "back to the replica where it failed"
        for name, data in after.queue.items():
            e = codec.decode_entry(data)
            later = [h for h in held.values() if h.entitlement == e.entitlement and h.seq > e.seq and h.kv >= e.kv]
            passed = name in before.queue and codec.place_of(name, e) in after.order and later
            waits = codec.decode_request(e.record).request
            assert not passed or waits.exclude_backend or waits.adapter, f"{name} was passed over"
        owners = {e.entitlement for e in held.values() if RIGHTS[ServiceClass(e.service_class)].reserved}
        if {e.entitlement for e in held.values()} - owners:
            for name, e in self._could_run(before, after):
                due = name in before.queue and after.totals.get(f"e:{e.entitlement}:run", 0) < BASES[e.entitlement]
                assert not (due and RIGHTS[ServiceClass(e.service_class)].reserved), (
                    f"{name} of an owner was passed over"
                )

    def _check_none_idle(self, before: Dump, after: Dump) -> None:
        """Nobody leads, and a slot became free: whoever waits and could use one has it."""
        if int(after.meta.get("rebuild_until", 0)) <= self.now:
            able = [name for name, _ in self._could_run(before, after)]
            assert not able, f"{able} wait beside free slots that they could use"

    def _could_run(self, before: Dump, after: Dump) -> Iterator[tuple[str, Entry]]:
        free = {
            b: (slots - after.totals.get(f"b:{b}:run", 0), kv - after.totals.get(f"b:{b}:kv", 0))
            for b, (slots, kv, *_) in ((b, codec.decode_offer(words)) for b, words in after.ready.items())
        }
        offers = {b: codec.decode_offer(words) for b, words in after.ready.items()}
        if any(credit for _, _, credit, *_ in offers.values()):
            return  # one that lacks only credit holds up those after it
        spared = sum(max(0, slots) for slots, _ in free.values()) <= int(after.meta.get("headroom", 0))
        first = Counter(place.partition(" ")[0] for place in before.order)
        for name, data in after.queue.items():
            e = codec.decode_entry(data)
            run = after.totals.get(f"e:{e.entitlement}:run", 0)
            cap = CAPS[e.entitlement]
            waits = codec.decode_request(e.record).request
            exclude = waits.exclude_backend if len(after.ready) > 1 else ""
            homes = after.adapters.get(waits.adapter, "0 ").split()[1:] if waits.adapter else list(after.ready)
            if (
                codec.place_of(name, e) in after.order
                and first[e.entitlement] <= TRIED_OF_EACH
                and after.waiting[name] > self.now
                and (cap is None or run < cap)
                and not (spared and run >= BASES[e.entitlement])
                and any(
                    s > 0 and kv >= e.kv and (offers[b][3] or kv) >= e.kv and b != exclude and b in homes
                    for b, (s, kv) in free.items()
                )
                and gateway_channel(e.gateway) in self._ears.listening
            ):
                yield name, e

    def _ledger_id(self, fields: tuple[bytes, ...]) -> str:
        return codec.decode_ledger_fields(self.pool_id, list(fields)).request_id


def _granted(before: Dump, held: Mapping[str, Entry]) -> list[Entry]:
    """What has been granted since: a lease whose first token has come is another entry, and no grant."""
    was = {name: codec.decode_entry(data) for name, data in before.held.items()}
    return [e for name, e in held.items() if name not in was or was[name].attempt != e.attempt]


def _reserved(e: Entry) -> bool:
    """Whether it is of a service class that owns reserved capacity."""
    return RIGHTS[ServiceClass(e.service_class)].reserved
