"""Two pools that must be one: the real scripts on a real Redis, and the Python reference model, driven together.

:class:`World` makes every move on both, compares answers and every key, and checks the laws of
``docs/internals/state.md``. The scripts are those of production but for their first text, the clock, which here reads a
key so that time can pass.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

import redis

from scheduling.core.admission import MAX_TOLD_MS, RIGHTS, able_to_run, baseline_slots, cap_of, rights_of
from scheduling.core.outcomes import Reason
from scheduling.core.placement import POINTS_KEPT, write_points
from scheduling.core.types import (
    BackendSpec,
    EntitlementSpec,
    EntitlementState,
    Estimate,
    OverLimit,
    PoolSpec,
    QueuedRequest,
    ServiceClass,
    Standing,
)
from scheduling.state import codec
from scheduling.state.codec import Entry
from scheduling.state.resp import RespConnection
from scheduling.state.script import REDIS_CLOCK, Script, load_scripts, make_script
from scheduling.state.standing import read_standing
from scheduling.state.store import NO_CAP, PoolStore
from scheduling.state.types import (
    EJECTED_CHANNEL,
    ENDED_MS,
    TRIED_OF_EACH,
    Admission,
    AdmissionStatus,
    Attempts,
    EvictItem,
    Fenced,
    GrantItem,
    RequestFacts,
    gateway_channel,
    leader_channel,
)
from tests.reference.memory import Dump
from tests.reference.pool import ReferencePool
from tests.support.state_world import FACTS, backend, entitlement, estimate, ledger, pool_spec, request, tier

TEST_CLOCK = (
    "local CLOCK = KEYS[1] .. 'clock'\n"
    "local function now_ms() return tonumber(redis.call('GET', KEYS[1] .. 'test_now')) end\n"
    "local function believe() end\n"
    "local function doubted() return 0 end\n"
)
_worlds = itertools.count(1)


def variant(script: Script, old: str, new: str) -> Script:
    """A script with one text replaced; fails when that text is not there (any more)."""
    text = script.source.decode()
    assert old in text, f"{script.name}.lua no longer contains {old!r}"
    return make_script(script.name, text.replace(old, new))


def timed_scripts() -> dict[str, Script]:
    scripts = {name: variant(s, REDIS_CLOCK, TEST_CLOCK) for name, s in load_scripts().items()}
    few = f"local POINTS_KEPT = {POINTS}\n"  # so that generations of the index change
    return {n: variant(s, f"local POINTS_KEPT = {POINTS_KEPT}\n", few) for n, s in scripts.items()}


POOL = pool_spec(backends=(), queue_limit=8, queue_bytes=2000, threshold=0.2)
SPARING = dataclasses.replace(POOL, headroom_slots=2)
ENTITLEMENTS = (
    entitlement("plain", concurrency=3, tier=tier(queue_limit=3)),
    entitlement("metered", concurrency=2, tokens_per_s=5.5, burst_tokens=400.0, tier=tier(queue_limit=2)),
    entitlement(
        "batch", concurrency=1, kv_tokens=400, tokens_per_s=33.3, burst_tokens=900.5,
        tier=tier(over_limit=OverLimit.WAIT, queue_limit=4),
    ),
    entitlement(
        "spot", concurrency=1,
        tier=tier(service_class=ServiceClass.SPOT, over_limit=OverLimit.WAIT, queue_limit=4),
    ),
    entitlement(
        "gold", concurrency=1, tokens_per_s=20.0, burst_tokens=700.0,
        tier=tier(service_class=ServiceClass.GUARANTEED, over_limit=OverLimit.WAIT, queue_limit=3),
    ),
    entitlement(
        "short", concurrency=1, state=EntitlementState.DEGRADED,
        tier=tier(service_class=ServiceClass.GUARANTEED, queue_limit=2),
    ),
    entitlement(
        "own", concurrency=2, kv_tokens=300, tokens_per_s=9.0, burst_tokens=400.0,
        tier=tier(service_class=ServiceClass.DEDICATED, queue_limit=2),
    ),
    entitlement(
        "cheap", concurrency=3, kv_tokens=300, tier=tier(service_class=ServiceClass.PREEMPTIBLE, queue_limit=3)
    ),
    entitlement(
        "cheaper", concurrency=2, tokens_per_s=50.0, burst_tokens=900.0,
        tier=tier(service_class=ServiceClass.PREEMPTIBLE, over_limit=OverLimit.WAIT, queue_limit=3),
    ),
)  # fmt: skip
RESERVED = {spec.id for spec in ENTITLEMENTS if rights_of(spec).reserved}
BASES = {spec.id: baseline_slots(spec.tier.service_class, spec.concurrency) for spec in ENTITLEMENTS}
CAPS = {spec.id: cap_of(spec.tier.service_class, spec.concurrency) for spec in ENTITLEMENTS}
POINTS = 12  # of prompts' beginnings that a generation of the index keeps
WEIGHTS = (0.05, 0.3, 0.3, 8.0, 33.3, 33.3, 80.25, 600.0)
REQUESTS = 80
BACKENDS = ("b1", "b2", "b3")
CREDITS = (0, 0, 60, 130, 300)  # prompts have 40 to 108 tokens
STEPS = (0, 30, 100)  # step budgets
TURNAROUNDS = (None, None, 0.0, 0.005, 0.2)
WHOLE = dataclasses.replace(FACTS, streamed=False)
GATEWAYS = ("gw-1", "gw-2")
HOLDERS = ("leader-1", "leader-2")
REFUSALS = (Reason.TOKEN_BUDGET, Reason.LOW_PRIORITY, Reason.QUEUE_FULL)
REASONS = (Reason.STOP, Reason.CLIENT_LEFT, Reason.QUEUE_TIMEOUT, Reason.BACKEND_LOST)


class Ears:
    """Who listens on the real Redis, and what was heard."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._pubsub = self._client.pubsub()
        self._pubsub.subscribe(EJECTED_CHANNEL)
        self._next()
        self.listening: set[str] = set()  # channels

    def listen(self, channels: set[str]) -> None:
        """From now on exactly these are listened on."""
        for names, change, said in (
            (channels - self.listening, self._pubsub.subscribe, "subscribe"),
            (self.listening - channels, self._pubsub.unsubscribe, "unsubscribe"),
        ):
            if names:
                change(*names)
                assert [self._next()["type"] for _ in names] == [said] * len(names)
        self.listening = set(channels)

    def heard(self, count: int) -> list[tuple[str, bytes]]:
        """The next ``count`` notifications that were published (channel, payload), in order."""
        messages = [self._next() for _ in range(count)]
        return [(m["channel"].decode(), m["data"]) for m in messages]

    def _next(self) -> dict[str, Any]:
        message = self._pubsub.get_message(timeout=10)
        assert message is not None, "a gateway heard too little"
        return message

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


class World:
    """One pool on both sides. Raises AssertionError as soon as they differ or a law is broken."""

    def __init__(
        self, run: Callable[[Awaitable[Any]], Any], resp: RespConnection, scripts: dict[str, Script], ears: Ears
    ) -> None:
        self.pool_id = f"model-{next(_worlds)}"
        self._run = run
        self._resp = resp
        self._prefix = f"qm:{{{self.pool_id}}}:"
        self.now = 1_700_000_000_000
        self.server = PoolStore(resp, self.pool_id, scripts=scripts)
        self.reference = ReferencePool(self.pool_id, lambda: self.now, self._published, self._listens)
        self.reference.places.kept = POINTS
        self._ears = ears
        self._told: list[tuple[str, bytes]] = []  # what the reference model published and Redis has yet to deliver
        self.listen(set(GATEWAYS))
        self.floor = 0  # what the database would remember
        self.epochs = dict.fromkeys(HOLDERS, 0)  # what each leader believes
        self._read = {"events": "-", "ledger": "-"}  # how far the streams were compared
        self._ended_at: dict[str, int] = {}
        self.seen: set[tuple[str, str]] = set()  # (move, answer) that came up
        self._set_clock()
        self._last = self.reference.dump()

    # --- who and what

    def spec_of(self, n: int) -> EntitlementSpec:
        return ENTITLEMENTS[n % len(ENTITLEMENTS)]

    def cap_of(self, n: int) -> int:
        return CAPS[self.spec_of(n).id] or NO_CAP

    @property
    def led(self) -> bool:
        return self.reference._decided(self.now)

    def roomy(self) -> list[str]:
        """Replicas with a free slot."""
        return [
            b for b, (slots, _, _) in self.reference.ready.items() if self.reference.totals.get(f"b:{b}:run", 0) < slots
        ]

    def facts_of(self, n: int) -> RequestFacts:
        """Some answers are whole: nobody sees their first token."""
        return WHOLE if n % 4 == 0 else FACTS

    def pool_of(self, n: int) -> PoolSpec:
        """Some requests meet the pool with headroom, some without: a setting may change at any time."""
        return SPARING if n % 7 == 0 else POOL

    def estimate_of(self, n: int) -> Estimate:
        return estimate(40 + 17 * (n % 5), 30 + 11 * (n % 7))

    def prefixes_of(self, n: int) -> str:
        """Prompts begin with one of three system messages, some go on alike; every fifth is too short to tell."""
        tokens = 4 * self.estimate_of(n).input_tokens
        points = [(f"{n % 3:012x}", tokens // 4), (f"{n % 9 + 16:012x}", tokens // 2), (f"{n + 256:012x}", tokens)]
        return "" if n % 5 == 0 else write_points(60 if n % 2 else 10**6, points)

    def request_of(self, n: int, attempt: int | None = None) -> QueuedRequest:
        name = f"r{n}"
        e = self.reference.held.get(name) or self.reference.queue.get(name)
        current = e.attempt if e else 1
        return request(
            name, self.spec_of(n), self.estimate_of(n), gateway=GATEWAYS[n % 2], seq=e.seq if e else n,
            attempt=current if attempt is None else attempt, prefixes=self.prefixes_of(n),
        )  # fmt: skip

    # --- moves; ``again`` repeats the call, as a caller does whose reply was lost

    def admit(self, n: int, again: bool) -> None:
        args = (self.spec_of(n), self.pool_of(n), self.request_of(n), self.estimate_of(n), 100 + 37 * (n % 24))
        self._both("admit", again, *args, self.facts_of(n))
        self._compare_told()

    def requeue(self, n: int, off: int, again: bool) -> None:
        r = self.request_of(n)
        r = dataclasses.replace(r, attempt=max(1, r.attempt + off))
        held = self.reference.held.get(r.id)
        self._both("requeue", again, r, 100 + 37 * (n % 24), self.facts_of(n), held.backend if held else "b1",
                   SPARING.headroom_slots * (n % 2))  # fmt: skip
        self._compare_told()

    def finish(self, n: int, off: int, reason: Reason, used: int, ran: bool, again: bool) -> None:
        r = self.request_of(n)
        self._both("finish", again, r.id, max(1, r.attempt + off), reason, used, ran, ledger(r.id, reason))
        self._compare_told()

    def renew(self, gateway: str, numbers: list[int], off: int, again: bool) -> None:
        items = [(r.id, max(1, r.attempt + off), (self.now // 1000 + n) % 90) for n, r in map(self._numbered, numbers)]
        self._both("renew", again, gateway, items, repeats=self.led)  # what it hands out it does not hand out twice
        self._compare_told()

    def first_tokens(self, picks: list[tuple[int, int]], again: bool) -> None:
        items = [(f"r{n}", max(1, self.request_of(n).attempt + off)) for n, off in picks]
        held = {r: e.prefill for r, _ in items if (e := self.reference.held.get(r)) is not None}
        told = self._both("first_tokens", False, items)
        after = {r: e.prefill for r in held if (e := self.reference.held.get(r)) is not None}
        gone = sum(held[r] > 0 and after[r] == 0 for r in held)  # some of them by the first token of a later one
        assert min(gone, 1) <= told <= gone, "a first token gave back what was not held"
        if told:
            self.seen.add(("first_tokens", "given back"))
        if again:  # but for those that were handed the room of the others
            handed = {
                r
                for r, a in items
                if (e := self.reference.held.get(r)) and r not in held and e.attempt == a and e.prefill
            }
            assert self._both("first_tokens", False, items) == len(handed), "a first token told twice gave back twice"
        self._compare_told()

    def announce(self, n: int, at: str, again: bool) -> None:
        args = (self.spec_of(n), POOL, self.request_of(n), self.estimate_of(n), 100 + 37 * (n % 24), self.facts_of(n))
        self._both("announce", again, *args, at, n % 3, prefill=(0, 60, 108)[n % 3])

    def record(self, numbers: list[int], again: bool) -> None:
        self._both("record", again, [ledger(f"r{n}", REFUSALS[n % 3], entitlement=self.spec_of(n).id) for n in numbers])

    def suspect(self, at: str) -> None:
        self._both("suspect", False, at, "connection refused")  # a notification: twice rings twice

    def pause(self, at: str, refused: bool) -> None:
        self._both("pause", False, at, 1.5, "status 429", refused=refused)

    def report(self, at: str) -> None:
        self._both("report", False, {at: Attempts(3, 1, 0, 40, "status 500")})

    def elect(self, holder: str, first: bool, again: bool) -> None:
        election = self._both("elect", again, holder, max(self.floor, self.epochs[holder]), first)
        if election.leader:
            assert election.epoch >= self.floor, "an epoch went back"
            self.epochs[holder] = election.epoch
            self.floor = max(self.floor, election.epoch)

    def resign(self, holder: str, again: bool) -> None:
        self._both("resign", again, holder)

    def set_ready(
        self, holder: str, at: str, slots: int | None, again: bool, ill: bool = False, credit: int = 0, step: int = 0
    ) -> None:
        spec: BackendSpec | None = None
        if slots is not None:
            spec = backend(at, slots, (120 if at == "b2" else 250) * slots)
            spec = dataclasses.replace(spec, prefill_tokens=credit, step_tokens=step)
        self._both("set_ready", again, self.epochs[holder], at, spec, ill=ill)
        self._compare_told()

    def prefilled(self, holder: str, at: str, waiting: int, age_ms: int) -> None:
        before = self.reference.held
        holds = {name: e.prefill for name, e in before.items() if name in self.reference.prefills}
        done = self._both("prefilled", False, self.epochs[holder], at, waiting, age_ms / 1000.0)
        if done not in (0, "fenced"):
            gone = {n for n, had in holds.items() if (e := self.reference.held.get(n)) and had and not e.prefill}
            assert len(gone) == done, "an engine's word gave back what was not held"
            self.seen.add(("prefilled", "given back"))
        self._compare_told()

    def listen(self, gateways: set[str], holders: Collection[str] = ()) -> None:
        """From now on these gateways, and no others, hear of their grants; ``holders`` are seen to live."""
        self._ears.listen({*map(gateway_channel, gateways), *map(leader_channel, holders)})

    def grant(self, holder: str, picks: list[tuple[int, str, int]], again: bool) -> None:
        items = [
            GrantItem(f"r{n}", max(1, self.request_of(n).attempt + off), at, self.cap_of(n), "fifo@1", "first of 2")
            for n, at, off in picks
        ]
        self._both("grant", again, self.epochs[holder], items, turnaround_s=TURNAROUNDS[len(picks) % 5])
        self._compare_told()

    def evict(self, holder: str, picks: list[tuple[int, str, int]], again: bool) -> None:
        items = [
            EvictItem(f"r{n}", max(1, self.request_of(n).attempt + off), self.cap_of(n), exclude, "fifo@1", "reserved")
            for n, exclude, off in picks
            if RIGHTS[self.spec_of(n).tier.service_class].evicts
        ]
        if not items:
            return
        self._both("evict", again, self.epochs[holder], items, repeats=False)
        self._compare_told()

    def set_standing(self, holder: str, weights: dict[str, float], gone: list[str], again: bool) -> None:
        found = {name: Standing(w, round(w / 1000 - 0.2, 3), 0.125) for name, w in weights.items()}
        self._both("set_standing", again, self.epochs[holder], found, gone)

    def set_stuck(self, holder: str, count: int, again: bool) -> None:
        self._both("set_stuck", again, self.epochs[holder], count)

    def look(self, names: list[str]) -> None:
        """What decisions see is what everybody sees: ``look`` is a part of ``view``."""
        seen = self._both("look", True, names)
        whole = self.reference.view()
        ready = {name: b for name, b in whole.backends.items() if b.ready}
        for name, b in seen.backends.items():  # what is predicted to be prefilled counts no more
            held = ready[name].prefill_used
            assert b.prefill_used <= held, "more counts than is held"
            ready[name] = dataclasses.replace(ready[name], prefill_used=b.prefill_used, falls_ms=b.falls_ms)
            if b.prefill_used < held:
                self.seen.add(("look", "predicted"))
        assert seen.backends == ready
        assert (seen.now_ms, seen.rebuilding_ms) == (whole.now_ms, whole.rebuilding_ms)
        running = {name: e.running for name, e in whole.entitlements.items()}
        assert seen.running == {name: running.get(name, 0) for name in names}

    def sweep(self, holder: str, again: bool) -> None:
        self._both("sweep", again, self.epochs[holder])

    def pass_time(self, ms: int) -> None:
        ended = set(self.reference.dump().ended)
        self.now += ms
        self._set_clock()
        if gone := ended - set(self.reference.dump().ended):  # Redis would expire them by its own clock
            self._run(self._resp.call("DEL", *(f"{self._prefix}ended:{i}" for i in gone)))
        self._compare("pass_time")

    def corrupt(self, holder: str, rng: random.Random) -> None:
        """Totals and pairs go wrong, as by a script that failed half-way; the leader's next look heals them."""
        if self.epochs[holder] != self.reference.meta.get("epoch"):
            self._both("rebuild", False, self.epochs[holder])
            return
        names = sorted(n for n in self.reference.totals if not n.endswith((":cap", ":base")))
        for name in ("run", "e:acme:run", "b:b9:work", "b:b1:pre", *rng.sample(names, min(3, len(names)))):
            wrong = rng.choice((-3, 1, 99, 10**12))
            self.reference.totals[name] = wrong
            self._run(self._resp.call("HSET", self._prefix + "totals", name, wrong))
        for entries, expiries, what in (
            (self.reference.held, self.reference.leases, "leases"),
            (self.reference.queue, self.reference.waiting, "waiting"),
        ):
            if entries and rng.random() < 0.3:
                lost = rng.choice(sorted(entries))
                del expiries[lost]
                self._run(self._resp.call("ZREM", self._prefix + what, lost))
            expiries["nobody"] = self.now
            self._run(self._resp.call("ZADD", self._prefix + what, self.now, "nobody"))
        if self.reference.prey and rng.random() < 0.3:
            lost = rng.choice(sorted(self.reference.prey))
            del self.reference.prey[lost]
            self._run(self._resp.call("ZREM", self._prefix + "prey", lost))
        self.reference.weights["nobody"] = 3.0
        self._run(self._resp.call("ZADD", self._prefix + "weights", 3, "nobody"))
        assert self._run(self.server.view()).differences() == self.reference.view().differences() != []
        assert "e:acme:run" in self._both("rebuild", False, self.epochs[holder])
        assert self._run(self.server.view()).differences() == []
        assert self._both("rebuild", True, self.epochs[holder]) == [], "a sound state was written anew"

    def flush(self) -> None:
        """The whole state is lost, as by FLUSHALL, of this pool."""
        keys = self._run(self._resp.call("KEYS", self._pattern("*")))
        self._run(self._resp.call("DEL", *keys))
        self.reference.flush()
        self.reference.places.kept = POINTS
        self._read = {"events": "-", "ledger": "-"}
        self._ended_at.clear()
        self._set_clock()
        self._compare("flush")

    def _numbered(self, n: int) -> tuple[int, QueuedRequest]:
        return n, self.request_of(n)

    def _listens(self, channel: str) -> bool:
        return channel in self._ears.listening

    def _published(self, channel: str, payload: bytes) -> bool:
        heard = channel in (EJECTED_CHANNEL, *self._ears.listening)
        if heard:
            self._told.append((channel, payload))
        return heard

    def _compare_told(self) -> None:
        told, self._told = self._told, []
        heard = self._ears.heard(len(told))
        assert heard == told, f"gateways heard {heard}, the reference model told them {told}"

    # --- both sides, and the laws

    def _pattern(self, tail: str) -> str:
        return self._prefix.replace("{", "[{]").replace("}", "[}]") + tail

    def _set_clock(self) -> None:
        self._run(self._resp.call("SET", self._prefix + "test_now", self.now))

    def _call(self, name: str, *args: Any, **named: Any) -> tuple[Any, Any]:
        answers: list[Any] = []
        for call in (getattr(self.reference, name), lambda *a, **n: self._run(getattr(self.server, name)(*a, **n))):
            try:
                answers.append(call(*args, **named))
            except Fenced:
                answers.append("fenced")
        return answers[0], answers[1]

    def _both(self, name: str, again: bool, *args: Any, repeats: bool = True, **named: Any) -> Any:
        before, led = self._last, self.led
        mine, theirs = self._call(name, *args, **named)
        assert theirs == mine, f"{name}{args}: the server answers {theirs}, the reference model {mine}"
        self._compare(name)
        self.seen |= {(name, a) for a in _kinds(mine)}
        if mine == "fenced":
            assert self._last == before, f"{name} changed something though it was fenced"
        if again and repeats:
            after = self._last
            mine, theirs = self._call(name, *args, **named)
            assert theirs == mine, f"{name}{args} again: the server answers {theirs}, the reference model {mine}"
            self._compare(name)
            assert _but_told(self._last) == _but_told(after), f"{name}{args} called again changed something"
            assert self._last == after or _refused(mine), f"{name}{args} called again told somebody to come back"
        if _refused(mine) and led:  # while nobody leads, slots are handed out before it is refused
            self._check_refusal(before, args[0].id)
        return mine

    def _check_refusal(self, before: Dump, ent: str) -> None:
        """A refusal changes nothing but what the next refused client of the entitlement is told."""
        assert _but_told(self._last) == _but_told(before), "a refusal changed something"
        old, new = before.buckets, self._last.buckets
        changed = {name for name in new if name.endswith(":told") and new[name] != old.get(name)}
        assert changed <= {f"{ent}:told"}, "a refusal told clients of others to come back"
        for name in changed:
            assert old.get(name, 0) < new[name] <= self.now + MAX_TOLD_MS, "clients were told to come back together"

    def _compare(self, move: str) -> None:
        reference = self.reference.dump()
        server = self._run(self._server_dump())
        for f in dataclasses.fields(Dump):
            mine, theirs = getattr(reference, f.name), getattr(server, f.name)
            assert theirs == mine, f"after {move}: {f.name} is {theirs} on the server and {mine} in the reference model"
        self.check_laws(move, self._last, server)
        # Streams are compared piece by piece; the reference model's are dropped once they were equal.
        self._last = dataclasses.replace(server, events=(), ledger=())
        self.reference.events.clear()
        self.reference.ledger.clear()

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
        assert evicted == set(after.leaving) == {i for i in after.evicted if after.ended.get(i) == "evicted"}
        assert not evicted & (set(held) | set(queue)), "an evicted request runs or waits"
        assert set(after.prefills) == {
            i for i, e in held.items() if e.prefill and not codec.decode_request(e.record).facts.streamed
        }, "not the whole answers that hold prefill credit are to give it back"
        assert set(after.prey) == {i for i, e in held.items() if e.service_class == ServiceClass.PREEMPTIBLE}

        sums: dict[str, int] = {}
        for e in held.values():
            ent, at = f"e:{e.entitlement}", f"b:{e.backend}"
            for name, x in (("run", 1), (f"{ent}:run", 1), (f"{ent}:kv", e.kv), (f"{at}:run", 1), (f"{at}:kv", e.kv),
                            (f"{at}:work", e.work), (f"{at}:pre", e.prefill)):  # fmt: skip
                sums[name] = sums.get(name, 0) + x
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
        for name, weight in after.weights.items():
            known = after.standing.get(name)
            assert known is None or weight == read_standing(known).weight, f"{name} is compared by an old weight"
        if move in ("admit", "evict") and (out := evicted - set(before.evicted)):
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

        if move != "announce":
            for at in BACKENDS:
                if grew(f"b:{at}:pre"):
                    self._check_credit(move, at, held, before, after)
                if grew(f"b:{at}:run"):
                    slots, kv, _ = codec.decode_offer(after.ready[at])
                    assert after.totals[f"b:{at}:run"] <= slots, f"{move} overshot the slots of {at}"
                    assert after.totals[f"b:{at}:kv"] <= kv, f"{move} overshot the KV of {at}"
            for spec in ENTITLEMENTS:
                if grew(f"e:{spec.id}:run") and CAPS[spec.id] is not None:
                    assert after.totals[f"e:{spec.id}:run"] <= spec.concurrency, f"{move} overshot r_e of {spec.id}"
        if move == "admit" and grew("wait") and not any(grew(f"e:{name}:wait") for name in RESERVED):
            assert after.totals["wait"] <= POOL.queue_limit
            assert after.totals.get("bytes", 0) <= POOL.queue_bytes
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
            assert known is None or known + ENDED_MS <= self.now, f"{name} ended twice"
            self._ended_at[name] = self.now

    def _check_credit(self, move: str, at: str, held: dict[str, Entry], before: Dump, after: Dump) -> None:
        """What was granted is within the credit of the replica, or it is one prompt alone."""
        _, _, credit = codec.decode_offer(after.ready[at])
        holding = [name for name, e in held.items() if e.backend == at and e.prefill]
        used = after.totals[f"b:{at}:pre"]
        assert credit > 0, f"{move} took of a credit that {at} does not have"
        new = [name for name in holding if name not in before.held or not codec.decode_entry(before.held[name]).prefill]
        sure = int(after.paces[f"{at} pace"].split()[2])
        counts = used - sure
        early = used > credit and len(holding) > 1
        whole = any(not codec.decode_request(held[name].record).facts.streamed for name in holding)
        assert not early or whole or counts <= credit or (counts <= sum(held[n].prefill for n in new)), (
            f"{move} overshot the prefill credit of {at}"
        )
        self.seen.add((move, "early" if early else "alone" if used > credit else "within its credit"))

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
            assert not passed or codec.decode_request(e.record).request.exclude_backend, f"{name} was passed over"
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
            for b, (slots, kv, _) in ((b, codec.decode_offer(words)) for b, words in after.ready.items())
        }
        offers = {b: codec.decode_offer(words) for b, words in after.ready.items()}
        if any(credit for _, _, credit in offers.values()):
            return  # one that lacks only credit holds up those after it
        spared = sum(max(0, slots) for slots, _ in free.values()) <= int(after.meta.get("headroom", 0))
        first = Counter(place.partition(" ")[0] for place in before.order)
        for name, data in after.queue.items():
            e = codec.decode_entry(data)
            run = after.totals.get(f"e:{e.entitlement}:run", 0)
            cap = CAPS[e.entitlement]
            exclude = codec.decode_request(e.record).request.exclude_backend if len(after.ready) > 1 else ""
            if (
                codec.place_of(name, e) in after.order
                and first[e.entitlement] <= TRIED_OF_EACH
                and after.waiting[name] > self.now
                and (cap is None or run < cap)
                and not (spared and run >= BASES[e.entitlement])
                and any(s > 0 and kv >= e.kv and b != exclude for b, (s, kv) in free.items())
                and gateway_channel(e.gateway) in self._ears.listening
            ):
                yield name, e

    def _ledger_id(self, fields: tuple[bytes, ...]) -> str:
        return codec.decode_ledger_fields(self.pool_id, list(fields)).request_id

    async def _server_dump(self) -> Dump:
        call, p = self._resp.call, self._prefix
        names = ("meta", "ready", "held", "queue", "totals", "buckets", "standing", "meter", "evicted", "warm",
                 "warm:before", "credits")  # fmt: skip
        replies = await asyncio.gather(
            *(call("HGETALL", p + n) for n in names),
            *(
                call("ZRANGE", p + n, 0, -1, "WITHSCORES")
                for n in ("leases", "waiting", "weights", "prey", "leaving", "prefills")
            ),
            call("ZRANGE", p + "order", 0, -1),
            *(call("XRANGE", p + n, self._read[n], "+") for n in ("events", "ledger")),
            call("KEYS", self._pattern("ended:*")),
        )
        flat = [dict(zip(r[::2], r[1::2], strict=True)) for r in replies[:18]]
        named = [{k.decode(): v for k, v in d.items()} for d in flat]
        meta, ready, held, queue, totals, buckets, standing, meter, evicted, warm, warm_before, credits = named[:12]
        leases, waiting, weights, prey, leaving, prefills = named[12:]
        of_replicas = {k for k in credits if " " not in k}
        assert of_replicas <= ready.keys(), "a credit of a replica that may get no work"
        for n, r in zip(("events", "ledger"), replies[19:21], strict=True):
            if r:
                self._read[n] = "(" + r[-1][0].decode()
        keys = replies[21]
        reasons = await call("MGET", *keys) if keys else []
        return Dump(
            meta={k: v.decode() for k, v in meta.items()},
            ready={k: f"{v.decode()} {credits.get(k, b'0').decode()}" for k, v in ready.items()},
            leases={k: int(v) for k, v in leases.items()},
            held=held,
            waiting={k: int(v) for k, v in waiting.items()},
            queue=queue,
            order=[m.decode() for m in replies[18]],
            totals={k: int(v) for k, v in totals.items()},
            standing={k: v.decode() for k, v in standing.items()},
            weights={k: float(v) for k, v in weights.items()},
            meter={k: int(v) for k, v in meter.items()},
            prey={k: int(v) for k, v in prey.items()},
            prefills={k: int(v) for k, v in prefills.items()},
            paces={k: v.decode() for k, v in credits.items() if " " in k},
            evicted=evicted,
            leaving={k: int(v) for k, v in leaving.items()},
            warm={k: v.decode() for k, v in warm.items()},
            warm_before={k: v.decode() for k, v in warm_before.items()},
            buckets={k: float(v) for k, v in buckets.items()},
            events=[(f[0].decode(), f[1]) for _, f in replies[19]],
            ledger=[tuple(f) for _, f in replies[20]],
            ended={k.decode().rpartition(":")[2]: v.decode() for k, v in zip(keys, reasons, strict=True)},
        )


def _refused(answer: Any) -> bool:
    return isinstance(answer, Admission) and answer.status is AdmissionStatus.REFUSED


def _but_told(dump: Dump) -> Dump:
    """A dump without when refused clients were told to come back."""
    kept = {name: value for name, value in dump.buckets.items() if not name.endswith(":told")}
    return dataclasses.replace(dump, buckets=kept, events=(), ledger=())


def _kinds(answer: Any) -> set[str]:
    """The words by which an answer is told from others."""
    if isinstance(answer, list):
        return set().union(*map(_kinds, answer)) if answer else {"nothing"}
    reason = getattr(answer, "reason", None)
    status = getattr(answer, "status", answer)
    return {f"{status} {reason}" if reason is not None else str(status)}


def step(world: World, rng: random.Random) -> None:
    """One random move. Odds favour what makes traffic; rare moves lose the state."""
    n, again, holder = rng.randrange(REQUESTS), rng.random() < 0.4, rng.choice(HOLDERS)
    off = rng.choice((0, 0, 0, 0, 0, 1, -1))
    some = [rng.randrange(REQUESTS) for _ in range(rng.randint(1, 6))]
    if world.reference.queue and rng.random() < 0.7:
        some = [int(name[1:]) for name in rng.sample(sorted(world.reference.queue), min(3, len(world.reference.queue)))]
    live = sorted(world.reference.held | world.reference.queue)
    if world.reference.evicted and rng.random() < 0.3:
        live = sorted(world.reference.evicted)
    target = int(rng.choice(live)[1:]) if live and rng.random() < 0.8 else n
    move = rng.choices(
        ("admit", "finish", "grant", "renew", "requeue", "sweep", "time", "elect", "ready", "announce", "record",
         "suspect", "resign", "listen", "look", "evict", "standing", "stuck", "corrupt", "flush",
         "pause", "report", "first", "prefilled"),
        (40, 24, 16, 8, 6, 5, 10, 5, 5, 4, 2, 1, 1, 3, 3, 8, 4, 2, 2, 0.4, 1, 0.5, 8, 4),
    )[0]  # fmt: skip
    if move == "admit":
        world.admit(n, again)
    elif move == "finish":
        used = rng.choice((rng.randrange(250), rng.randrange(250), rng.choice((-5, 10**9, 2**63, 10**23))))
        world.finish(target, off, rng.choice(REASONS), used, rng.random() < 0.7, again)
    elif move == "grant":
        world.grant(holder, [(i, rng.choice(world.roomy() or BACKENDS), off) for i in some], again)
    elif move == "renew":
        world.renew(rng.choice(GATEWAYS), [*some, target], off, again)
    elif move == "requeue":
        world.requeue(target, off, again)
    elif move == "sweep":
        for _ in range(rng.choice((1, 1, 4))):  # a leader sweeps regularly; a lone sweep after a gap ends nothing
            world.sweep(holder, again)
            world.pass_time(rng.choice((1, 1_900, 4_000)))
    elif move == "time":
        world.pass_time(rng.choice((1, 7, 250, 250, 3_000, 3_000, 6_500, 10_001, 121_000)))
    elif move == "elect":
        world.elect(holder, rng.random() < 0.5, again)
        if rng.random() < 0.7:
            world.set_stuck(holder, 0, again)  # it has decided
    elif move == "ready":
        slots, ill = rng.choice((None, 1, 2, 2, 3)), rng.random() < 0.5
        world.set_ready(holder, rng.choice(BACKENDS), slots, again, ill, rng.choice(CREDITS), rng.choice(STEPS))
    elif move == "first":
        world.first_tokens([(i, off) for i in [*some, target]], again)
    elif move == "prefilled":
        world.prefilled(holder, rng.choice(BACKENDS), rng.choice((0, 0, 1, 2)), rng.choice((0, 0, 5, 400)))
    elif move == "announce":
        world.announce(n, rng.choice(("", *BACKENDS)), again)
    elif move == "record":
        world.record(some, again)
    elif move == "suspect":
        world.suspect(rng.choice(BACKENDS))
    elif move == "pause":
        world.pause(rng.choice(BACKENDS), rng.random() < 0.5)
    elif move == "report":
        world.report(rng.choice(BACKENDS))
    elif move == "resign":
        world.resign(holder, again)
    elif move == "evict":
        world.evict(holder, [(i, rng.choice(("", "", "", "b1")), off) for i in some], again)
    elif move == "standing":
        names = [spec.id for spec in ENTITLEMENTS]
        found = {name: rng.choice(WEIGHTS) for name in rng.sample(names, rng.randint(1, len(names)))}
        world.set_standing(holder, found, rng.sample(names, rng.choice((0, 0, 1))), again)
    elif move == "stuck":
        world.set_stuck(holder, rng.choice((0, 0, 0, 1, 3)), again)
    elif move == "corrupt":
        world.corrupt(holder, rng)
    elif move == "look":
        world.look(rng.sample([spec.id for spec in ENTITLEMENTS], rng.randint(0, len(ENTITLEMENTS))))
    elif move == "listen":
        world.listen(
            set(rng.choice((*[GATEWAYS] * 6, GATEWAYS[:1], ()))), set(rng.choice((HOLDERS, HOLDERS, HOLDERS[:1], ())))
        )
    else:
        world.flush()


def walk(world: World, seed: int, steps: int) -> None:
    """A pool with a leader and two replicas, then ``steps`` random moves."""
    rng = random.Random(seed)
    world.elect(HOLDERS[0], True, True)
    world.set_stuck(HOLDERS[0], 0, True)
    for at in BACKENDS[:2]:
        world.set_ready(HOLDERS[0], at, 2, True, credit=rng.choice(CREDITS))
    for i in range(steps):
        try:
            step(world, rng)
        except AssertionError as e:
            raise AssertionError(f"seed {seed}, step {i}: {e}") from e
