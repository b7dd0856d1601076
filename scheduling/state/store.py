"""One pool's shared state in Redis: one method per script (``docs/internals/state.md``).

Every method raises :class:`StateUnavailable` within the connection's time limit when Redis does not answer; what it did
until then is unknown, and repeating it with the same (request, attempt) is harmless. Leader methods raise
:class:`Fenced` when another leader was elected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduling.core.admission.rule import first_weight
from scheduling.core.capacity.prefill_pace import FASTER
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Reason
from scheduling.core.rights import baseline_slots, cap_of, rights_of
from scheduling.core.scheduler.prefill_preemption import LongPrompt
from scheduling.core.types import (
    FULL_SPEED,
    BackendSpec,
    EntitlementSpec,
    Estimate,
    OverLimit,
    PoolSpec,
    QueuedRequest,
    ServiceClass,
    Standing,
)
from scheduling.state import codec, replies
from scheduling.state.plain_commands import PoolKeys, batches
from scheduling.state.resp import RespConnection
from scheduling.state.script import Script, load_scripts
from scheduling.state.standing import standing_words
from scheduling.state.types import (
    BATCH,
    Admission,
    AnnounceResult,
    AnnounceStatus,
    Attempts,
    BackendTotals,
    BucketDebit,
    Election,
    EvictItem,
    Fenced,
    FinishResult,
    FinishStatus,
    GrantItem,
    GrantStatus,
    Look,
    PoolAudit,
    PoolSnapshot,
    Renewal,
    RequestFacts,
    StoredRequest,
    SweptRequest,
    gateway_channel,
    ran_for,
    unmet,
    work_of,
)

NO_CAP = 2**31 - 1


class PoolStore(PoolKeys):
    """The transitions of one pool. Stateless but for its connections; make one per pool and process."""

    def __init__(
        self,
        resp: RespConnection,
        pool_id: str,
        blocking: RespConnection | None = None,
        scripts: Mapping[str, Script] | None = None,
    ) -> None:
        super().__init__(resp, pool_id, blocking)
        self._scripts = load_scripts() if scripts is None else scripts
        self._admit = self._scripts["admit"]
        self._finish = self._scripts["finish"]

    def _eval(self, name: str, *args: str | bytes | int | float) -> Any:
        return self._resp.eval(self._scripts[name], self._prefix, args)

    # --- gateway

    async def admit(
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
        """Grants a free slot or that of a preemptible request, queues, or refuses; a refusal changes nothing.

        ``sent_s``, here and below: now, by the clock of the request's times. ``avoid``: replicas that it leaves to
        others. For who waits in no queue: there nobody knows of it. ``supersedes``: it may take the place of one of its
        entitlement that is late already.
        """
        tier, rights = spec.tier, rights_of(spec)
        flags = b"%d%d%d%d%d%d%d" % (
            tier.over_limit is OverLimit.WAIT, rights.reserved, rights.bursts, rights.over_budget, rights.evicts,
            rights.baseline, supersedes,
        )  # fmt: skip
        excluded = " ".join((request.exclude_backend, *avoid)) if avoid else request.exclude_backend
        reply = await self._resp.eval(
            self._admit,
            self._prefix,
            (
                request.id, request.attempt, spec.id, tier.service_class.value, estimate.kv_tokens,
                estimate.cost_tokens if spec.tokens_per_s > 0 else 0, work_of(estimate), body_bytes,
                request.gateway or "-", codec.encode_request(StoredRequest(request, facts, sent_s)), spec.concurrency,
                spec.tokens_per_s, spec.burst_tokens, spec.kv_tokens, excluded, flags,
                f"{first_weight(spec, pool)} {pool.threshold} {tier.queue_limit} {pool.queue_limit} {pool.queue_bytes}",
                pool.headroom_slots, request.prefill_tokens, request.pace_us,
            ),
        )  # fmt: skip
        return replies.admission(reply)

    async def requeue(
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
        """Moves attempt ``request.attempt``, which sent no byte, off its replica. ``headroom``: the pool's;
        ``interrupted``: it makes room for one that waits, so it waits as well.

        The caller goes on with ``attempt + 1``, granted elsewhere or waiting; ``Admission.attempt`` says so.
        """
        again = replace(request, attempt=request.attempt + 1, exclude_backend=exclude_backend)
        reply = await self._eval(
            "requeue", request.id, request.attempt, most_running(request.service_class, request.concurrency),
            exclude_backend, body_bytes, codec.encode_request(StoredRequest(again, facts, sent_s)),
            baseline_slots(request.service_class, request.concurrency), headroom, request.prefill_tokens,
            int(interrupted),
        )  # fmt: skip
        return replies.admission(reply)

    async def finish(
        self, request_id: str, attempt: int, reason: Reason, actual_tokens: int, ran: bool, ledger: LedgerRecord
    ) -> FinishResult:
        """Ends a request once: frees what it held, settles its bucket, writes its ledger entry.

        ``actual_tokens`` is input + output as used; a request that never ran (``ran`` False) pays nothing.
        """
        reply = await self._resp.eval(
            self._finish,
            self._prefix,
            (request_id, attempt, reason.value, actual_tokens, 1 if ran else 0, codec.encode_ledger(ledger)),
        )
        status = FinishStatus(reply[0].decode())
        return FinishResult(status, replies.read_reason(reply[1].decode()) if status is FinishStatus.ENDED else None)

    async def renew(self, gateway: str, items: Sequence[tuple[str, int, int]]) -> list[Renewal]:
        """Pushes the expiry of what a gateway holds; answers in the order of ``items``.

        Each is (request, attempt, tokens of it served so far, its input included).
        """
        renewals: list[Renewal] = []
        for batch in batches(items):
            flat: list[str | int] = [gateway or "-"]
            for request_id, attempt, served in batch:
                flat += (request_id, attempt, served)
            reply = await self._eval("renew", *flat)
            renewals += [replies.renewal(item, words) for item, words in zip(batch, reply, strict=True)]
        return renewals

    async def announce(
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
        """Re-creates a lease on ``backend``, or with ``backend=""`` a waiting entry, that ``renew`` did not know.
        ``prefill``: what the lease holds of a prefill credit [prompt tokens]."""
        service_class = spec.tier.service_class
        cap = cap_of(service_class, spec.concurrency)
        reply = await self._eval(
            "announce", request.id, request.attempt, spec.id, service_class.value, backend or "-",
            estimate.kv_tokens,
            estimate.cost_tokens if spec.tokens_per_s > 0 else 0, work_of(estimate), body_bytes,
            request.gateway or "-", request.seq, codec.encode_request(StoredRequest(request, facts, sent_s)),
            spec.tokens_per_s, spec.burst_tokens, "-" if cap is None else cap,
            first_weight(spec, pool), served, baseline_slots(service_class, spec.concurrency) or "-",
            prefill if backend else request.prefill_tokens,
        )  # fmt: skip
        status = AnnounceStatus(reply[0].decode())
        return AnnounceResult(
            status, replies.read_reason(reply[1].decode()) if status is AnnounceStatus.ENDED else None
        )

    async def first_tokens(self, items: Sequence[tuple[str, int]]) -> int:
        """The first tokens of these (request, attempt) have come: their prefill credit is given back. How many held
        some. Told twice, or too late, it changes nothing."""
        released = 0
        for batch in batches(items):
            released += await self._eval("first_tokens", *(word for item in batch for word in item))
        return released

    def tell_first_tokens(self, words: Sequence[str | int]) -> None:
        """As ``first_tokens`` (request, attempt, request, ...), without waiting for an answer: what is lost is given
        back at the end of the requests."""
        for i in range(0, len(words), 2 * BATCH):
            self._resp.tell(self._scripts["first_tokens"], self._prefix, words[i : i + 2 * BATCH])

    async def take_leg(self, request_id: str, attempt: int, tokens: int, exclude: str = "") -> str | None:
        """The prefill replica that computes the prompt of a lease on a decode replica
        (:mod:`scheduling.core.placement.legs`); empty: none is ready; None: the lease is not held any more."""
        replica = (await self._eval("take_leg", request_id, attempt, tokens, exclude)).decode()
        return None if replica == "-" else replica

    def tell_end_leg(self, request_id: str, attempt: int) -> None:
        """That prompt is computed, or its replica failed. Without waiting for an answer: what is lost ends with the
        lease."""
        self._resp.tell(self._scripts["end_leg"], self._prefix, (request_id, attempt))

    async def record(self, records: Sequence[LedgerRecord]) -> set[str]:
        """Writes the ledger entries of requests that never had state (refusals), each id once. Those that are in flight
        are left to ``finish``; their ids.

        Where an ``admit`` was not answered, state may exist: use ``finish`` (``ran`` False), which ends it either way.
        """
        in_flight: set[str] = set()
        for batch in batches(records):
            flat: list[str | bytes | int] = []
            for r in batch:
                flat += (r.request_id, r.reason, codec.encode_ledger(r), r.entitlement, unmet(r), ran_for(r))
            in_flight.update(map(bytes.decode, await self._eval("record", *flat)))
        return in_flight

    async def suspect(self, backend: str, why: str) -> None:
        """Tells the leader that a replica failed, so that it looks at once."""
        await self._eval("suspect", backend, why)

    async def pause(self, backend: str, pause_s: float, why: str, *, refused: bool) -> None:
        """A replica failed a request at once, or admitted nothing (``refused``): nothing is granted there for
        ``pause_s``, unless it failed and is the last that offers slots. The leader is told either way."""
        await self._eval("pause", backend, math.ceil(pause_s * 1000), 1 if refused else 0, why)

    async def report(self, attempts: Mapping[str, Attempts]) -> None:
        """Tells the leader what this gateway's attempts since the last report came to, by replica."""
        await self._eval("report", codec.encode_attempts(attempts))

    # --- leader

    async def elect(self, holder: str, floor: int, first_start: bool) -> Election:
        """Takes or extends the leadership. ``floor``: no epoch up to it is given again (kept in the database)."""
        reply = await self._eval("elect", holder, floor, 1 if first_start else 0)
        leader = reply[0] == b"leader"
        return Election(leader, int(reply[1]) if leader else 0, reply[2].decode(), int(reply[3]) / 1000)

    async def resign(self, holder: str) -> None:
        """Gives the leadership back at once; nothing happens to another holder's."""
        await self._eval("resign", holder, self.pool_id)

    async def grant(
        self, epoch: int, items: Sequence[GrantItem], *, turnaround_s: float | None = None
    ) -> list[GrantStatus]:
        """Turns waiting entries into leases and tells their gateways; answers in the order of ``items``.
        ``turnaround_s``: how long it takes from a decision to the engine, if that was measured."""
        statuses: list[GrantStatus] = []
        for batch in batches(items):
            flat: list[str | int] = [epoch, "-" if turnaround_s is None else round(turnaround_s * 1000)]
            for g in batch:
                flat += (g.request_id, g.attempt, g.backend, g.cap, codec.encode_note(g.policy, g.why))
                flat += (g.point or "-", g.cached_tokens)
            reply = _unfenced(await self._eval("grant", *flat))
            statuses += [GrantStatus(word.decode()) for word in reply]
        return statuses

    async def evict(self, epoch: int, items: Sequence[EvictItem]) -> list[GrantStatus]:
        """Grants waiting requests the slots of preemptible ones where no replica has room, in their order."""
        statuses: list[GrantStatus] = []
        for batch in batches(items):
            flat: list[str | int] = [epoch]
            for i in batch:
                flat += (i.request_id, i.attempt, i.cap, i.exclude_backend, codec.encode_note(i.policy, i.why))
            reply = _unfenced(await self._eval("evict", *flat))
            statuses += [GrantStatus(word.decode()) for word in reply]
        return statuses

    async def set_standing(self, epoch: int, standings: Mapping[str, Standing], gone: Sequence[str] = ()) -> None:
        """Publishes what a tick found; entitlements that are ``gone`` are forgotten."""
        rows = [(name, *standing_words(s).split()) for name, s in standings.items()]
        rows += [(name, "-", "-", "-") for name in gone]
        for batch in batches(rows):
            _unfenced(await self._eval("set_standing", epoch, *(word for row in batch for word in row)))

    async def set_cached(self, epoch: int, backend_id: str, trust: int, most: int) -> None:
        """How much of what is expected to be cached of a prompt on a replica is believed [per mille], and how many such
        tokens may be in flight and not count against its prefill credit; -1: nothing is expected."""
        _unfenced(await self._eval("set_cached", epoch, backend_id, trust, most))

    async def set_stuck(self, epoch: int, count: int, kept: int | None = None) -> None:
        """How many requests that could run, were it for slots alone, hold up no arrival now; and how many free slots
        are kept for baselines (None: as many as are configured)."""
        _unfenced(await self._eval("set_stuck", epoch, count, -1 if kept is None else kept))

    async def set_waking(self, epoch: int, ms: int) -> None:
        """Announces in how long a pool without a ready replica is expected to serve, as one is being woken; 0: none is,
        and no request may wait."""
        _unfenced(await self._eval("set_waking", epoch, ms))

    async def listening(self, gateways: Sequence[str]) -> set[str]:
        """Which of these gateways would hear of a grant now."""
        channels = {gateway_channel(name).encode(): name for name in gateways}
        reply = await self._resp.call(b"PUBSUB", b"NUMSUB", *channels)
        return {channels[c] for c, listeners in zip(reply[::2], reply[1::2], strict=True) if listeners}

    async def set_ready(self, epoch: int, backend_id: str, spec: BackendSpec | None, *, ejected: bool = False) -> None:
        """Puts a replica in (``spec``) or out (None) of those that may get work. ``ejected``: gateways are told."""
        ready, slots, kv = (0, 0, 0) if spec is None else (1, spec.slots, spec.kv_tokens)
        bounds = (0, 0, 0, FULL_SPEED, 0, 0)
        if spec is not None:
            resumes = int(spec.resumes)
            bounds = (spec.prefill_tokens, spec.step_tokens, spec.longest, spec.speed, resumes, spec.token_us)
        _unfenced(await self._eval("set_ready", epoch, backend_id, ready, slots, kv, 1 if ejected else 0, *bounds))

    async def set_prefill(self, epoch: int, slots: Mapping[str, int]) -> dict[str, int]:
        """The prefill replicas that are ready, with their slots; how many prompts each replica is computing."""
        words = [word for name, count in sorted(slots.items()) for word in (name, count)]
        reply = _unfenced(await self._eval("set_prefill", epoch, *words))
        return {name.decode(): int(count) for name, count in zip(reply[::2], reply[1::2], strict=True)}

    async def set_adapters(self, epoch: int, homes: Mapping[str, tuple[bool, Iterable[str]]]) -> None:
        """Of each adapter: whether a replica that lacks it may be asked to load it, and which replicas have it. What is
        not named here no replica has."""
        words = [
            word
            for name, (loads, replicas) in sorted(homes.items())
            for word in (name, codec.encode_homes(loads, replicas))
        ]
        _unfenced(await self._eval("set_adapters", epoch, *words))

    async def refuse(self, request: QueuedRequest, reason: Reason) -> None:
        """Asks the gateway of a waiting request to end it. A gateway that does not hear lets it wait to its end."""
        record = codec.encode_refusal(request.id, request.attempt, reason)
        await self._resp.call(b"PUBLISH", gateway_channel(request.gateway).encode(), record.encode())

    async def long_prompts(self) -> list[LongPrompt]:
        """Prompts of at least :data:`LONG_TOKENS` that hold prefill credit: their first output token has not come."""
        reply = await self._eval("long_prompts")
        return replies.long_prompts(reply)

    async def preempt(self, prompt: LongPrompt, computed: int) -> None:
        """Asks the gateway of a request that runs to take it back from its replica, and to let it wait again. One that
        does not hear, or has a first token to pass on, lets it run."""
        request = prompt.request
        notice = codec.encode_preemption(request.id, request.attempt, prompt.backend, computed)
        await self._resp.call(b"PUBLISH", gateway_channel(request.gateway).encode(), notice.encode())

    async def completed(self, gateway: str, request_id: str, secret: str, completion: bytes) -> None:
        """Tells the gateway that holds a request of its end."""
        record = codec.encode_completion(request_id, secret, completion)
        await self._resp.call(b"PUBLISH", gateway_channel(gateway).encode(), record.encode())

    async def prefilled(self, epoch: int, backend_id: str, waiting: int, age_s: float, *, hurry: float = FASTER) -> int:
        """``waiting`` requests stood in the engine's own queue ``age_s`` ago: whole answers granted there before those
        give their prefill credit back, but for the last of them, which may be in the middle of its prompt. ``hurry``:
        what its time per token is multiplied by where none wait in it and some here. How many did."""
        words = (epoch, backend_id, waiting, math.ceil(age_s * 1000), round(hurry * 1000))
        return int(_unfenced(await self._eval("prefilled", *words)))

    async def sweep(self, epoch: int, passed_s: float | None = None) -> list[SweptRequest]:
        """Ends up to 100 leases and 100 waiting entries whose gateway stopped renewing them. ``passed_s``: since this
        leader's sweep before, by a monotonic clock.

        Call it about once a second: after a gap of more than 5 s it ends nothing for 5 s, so that gateways renew first.
        """
        reply = _unfenced(await self._eval("sweep", epoch, -1 if passed_s is None else round(passed_s * 1000)))
        swept = []
        for request_id, data in zip(reply[::2], reply[1::2], strict=True):
            if not data:  # it could not be read
                swept.append(SweptRequest(request_id.decode(), 0, "", "", ""))
                continue
            e = codec.decode_entry(data)
            swept.append(SweptRequest(request_id.decode(), e.attempt, e.entitlement, e.backend, e.gateway))
        return swept

    async def rebuild(self, epoch: int) -> list[str]:
        """Compares all totals with the entries and writes anew what differs; the names of that.

        O(leases + queue) inside Redis: for a leader, on a difference and now and then.
        """
        reply = _unfenced(await self._eval("rebuild", epoch))
        return [name.decode() for name in reply]

    async def debit(self, epoch: int, start: int, debits: Sequence[BucketDebit]) -> int:
        """Debits up to 100 buckets with what was used before the data was lost, once for each data set. ``start``: how
        many were debited before. Returns how many are debited in all; ``start`` or less: nothing was changed."""
        flat = [word for d in debits for word in (d.entitlement, f"{d.tokens:.6f}", d.rate, d.depth)]
        return int(_unfenced(await self._eval("debit", epoch, start, *flat)))

    async def audit(self, most: int) -> PoolAudit | None:
        """Buckets, charges in flight and the end of the ledger stream at one instant; None where more than ``most``
        requests are in flight. O(of them)."""
        return replies.audit(await self._eval("audit", most))

    async def view(self) -> PoolSnapshot:
        """All totals at one instant. Anyone may look."""
        return replies.snapshot(await self._eval("view"))

    async def look(self, entitlements: Sequence[str]) -> Look:
        """What a decision about requests of these entitlements needs. Cheaper than ``view``, which shows everything."""
        reply = await self._eval("look", " ".join(entitlements))
        now_ms, rebuilding_ms, ready, sums, preemptible, uncounted = reply
        beginnings = replies.beginnings(uncounted)
        figures = [int(word) for word in sums.split()]
        backends: dict[str, BackendTotals] = {}
        at = 0
        for name, offer in zip(ready[::2], ready[1::2], strict=True):
            o, named = codec.decode_offer(offer.decode()), name.decode()
            run, used, work, prefill, falls, owned = figures[at : at + 6]
            backends[named] = BackendTotals(
                True, o.slots, o.kv_tokens, run, used, work, o.prefill_credit, prefill, falls, owned, o.longest,
                o.speed, o.cache_trust, o.uncounted_most, beginnings.get(named, {}), token_us=o.token_us,
            )  # fmt: skip
            at += 6
        running = dict(zip(entitlements, figures[at:-1], strict=True))
        return Look(now_ms, rebuilding_ms, backends, running, preemptible, figures[-1])


def most_running(service_class: ServiceClass, concurrency: int) -> int:
    """How many of an entitlement may run at most, as scripts are told it; with a concurrency of 0 none."""
    cap = cap_of(service_class, concurrency)
    return NO_CAP if cap is None else cap


def _unfenced(reply: Any) -> Any:
    if reply == b"fenced":
        raise Fenced
    return reply
