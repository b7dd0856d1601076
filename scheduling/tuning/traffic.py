"""Recent traffic to try things on: recorded requests, replicas as they are now, and variants of what happened.

A variant is the recording cut into blocks of time, drawn with replacement and put together again (a block bootstrap):
what is compared on several variants has not just been lucky once. Every candidate meets the same variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from scheduling.core.capacity.pool import automatic_headroom, most_headroom
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.contracts import OrderingPolicy, RoutingPolicy
from scheduling.core.policies.registry import make_routing
from scheduling.core.types import EntitlementSpec, Phase, PoolSpec
from scheduling.simulator.admission import Admission
from scheduling.simulator.kernel import rng
from scheduling.simulator.recording import Recorded
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request
from scheduling.tuning.reward import Felt, felt_of

BLOCKS = 12
Params = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Room:
    """How much is granted ahead of a replica's first tokens [prompt tokens], and how many of the pool's free slots are
    kept for baselines. None: automatic."""

    prefill_credit: int | None = None
    headroom_slots: int | None = None


@dataclass(frozen=True)
class Serving:
    """What decides: a policy with its parameters, what is laid around it, the routing, and the room. ``room`` None: as
    the pool of the traffic has it."""

    policy: str
    params: Params = field(default_factory=dict)
    modifiers: Mapping[str, Params] = field(default_factory=dict)
    routing: str = "least_work"
    routing_params: Params = field(default_factory=dict)
    room: Room | None = None

    def ordering(self) -> OrderingPolicy:
        """Raises PolicyError for a policy that cannot be made."""
        return make_policy(self.policy, dict(self.params), {k: dict(v) for k, v in self.modifiers.items()})


@dataclass(frozen=True)
class Traffic:
    """``rows``: what was asked for, in order of arrival. ``signal_s``: from an engine's token to the grant that follows
    from it [s].

    ``pool`` and its ``entitlements``: who may enter, as the product decides it (:mod:`scheduling.simulator.admission`).
    A row that was refused live is asked again. It and one in flight are taken to have the answer that was expected of
    them, the latter at least what it has so far. Rows of entitlements that the pool does not have are let in. Without
    ``pool`` all are, within ``concurrency`` (entitlements' limits, 0 none) and ``headroom`` (the last free slots, kept
    for who is within a baseline)."""

    rows: tuple[Recorded, ...]
    tiers: tuple[Tier, ...]
    replicas: tuple[Replica, ...]
    concurrency: Mapping[str, int] = field(default_factory=dict)
    headroom: int = 0
    signal_s: float = 0.0
    pool: PoolSpec | None = None
    entitlements: tuple[EntitlementSpec, ...] = ()
    own_credits: tuple[int | None, ...] = ()

    def variant(self, number: int) -> tuple[Recorded, ...]:
        """The recording itself (0), or its blocks drawn anew; the same number is the same draw."""
        if number == 0 or len(self.rows) < 2 * BLOCKS:
            return self.rows
        start, span = self.rows[0].arrival_s, self.rows[-1].arrival_s - self.rows[0].arrival_s
        each = span / BLOCKS or 1.0
        blocks: list[list[Recorded]] = [[] for _ in range(BLOCKS)]
        for row in self.rows:
            blocks[min(BLOCKS - 1, int((row.arrival_s - start) / each))].append(row)
        draw = rng(number, "variant")
        rows = []
        for place in range(BLOCKS):
            chosen = draw.randrange(BLOCKS)
            rows += [replace(row, arrival_s=row.arrival_s + (place - chosen) * each) for row in blocks[chosen]]
        return tuple(rows)

    def hurried(self, times: float) -> Traffic:
        """The same requests, so many times as fast."""
        if not self.rows:
            return self
        start = self.rows[0].arrival_s
        return replace(
            self, rows=tuple(replace(row, arrival_s=start + (row.arrival_s - start) / times) for row in self.rows)
        )

    def requests(self, number: int = 0) -> list[SimRequest]:
        """A variant as requests. What could never run on a replica is left out."""
        tiers = {tier.name: tier for tier in self.tiers}
        requests: list[SimRequest] = []
        rows = self.variant(number)
        for row in self.fitting(rows):
            given, out, bound = _sizes(row)
            belief = Belief(row.expected_tokens or float(out), bound)
            at = max(0.0, row.arrival_s - rows[0].arrival_s)
            sim = make_request(len(requests), at, given, out, tiers[row.tier], belief, tenant=row.tenant)
            entitlement = row.entitlement or row.tenant
            limit = self.concurrency.get(entitlement, 0)
            sim.queued = replace(sim.queued, entitlement=entitlement, concurrency=limit)
            sim.whole = row.whole
            requests.append(sim)
        return requests

    @property
    def answering(self) -> tuple[Replica, ...]:
        """Replicas that write answers: whose slots and KV cache are the pool's."""
        return tuple(replica for replica in self.replicas if replica.phase is not Phase.PREFILL)

    def fitting(self, rows: Sequence[Recorded]) -> list[Recorded]:
        """Those that a replica could hold, and a prefill replica their prompts: what :meth:`requests` are made of, in
        the same order."""
        most = max(replica.kv_tokens for replica in self.answering)
        others = [replica.kv_tokens for replica in self.replicas if replica.phase is Phase.PREFILL]
        prompt = min([most, *others])
        return [row for row in rows if sum(_sizes(row)[::2]) <= 0.98 * most and _sizes(row)[0] < 0.98 * prompt]

    def serve(self, serving: Serving, number: int = 0) -> list[Outcome]:
        """What a variant comes to. Raises PolicyError for a policy that cannot be made."""
        return self.run(serving, self.requests(number))

    def run(self, serving: Serving, requests: Sequence[SimRequest]) -> list[Outcome]:
        return self.replay(serving).run(requests)

    def replay(self, serving: Serving) -> Replay:
        """The pool with nothing on it. Raises PolicyError for a policy that cannot be made."""
        routing: RoutingPolicy = make_routing(serving.routing, dict(serving.routing_params))
        pool, replicas, headroom = self.pool, self.replicas, self.headroom
        if serving.room is not None:
            pool, headroom = self._keeping(serving.room.headroom_slots)
            replicas = self._credited(serving.room.prefill_credit)
        return Replay(
            replicas,
            serving.ordering(),
            routing,
            headroom=headroom,
            signal_s=self.signal_s,
            admission=None if pool is None else partial(Admission, pool, self.entitlements),
        )

    def room_of(self, serving: Serving) -> tuple[int, int, tuple[int | None, ...]]:
        """Headroom, how far it may rise by itself, and the replicas' prefill credits, as a setting has them."""
        pool, replicas, headroom = self.pool, self.replicas, self.headroom
        if serving.room is not None:
            pool, headroom = self._keeping(serving.room.headroom_slots)
            replicas = self._credited(serving.room.prefill_credit)
        if pool is not None:
            headroom = pool.headroom_slots
        return headroom, 0 if pool is None else pool.headroom_most, tuple(r.prefill_tokens for r in replicas)

    def _credited(self, credit: int | None) -> tuple[Replica, ...]:
        """The replicas with this prefill credit; None: each one's own, which most find while they serve."""
        own = self.own_credits or (None,) * len(self.replicas)
        return tuple(
            replace(replica, prefill_tokens=own_credit if credit is None else credit)
            for replica, own_credit in zip(self.replicas, own, strict=True)
        )

    def _keeping(self, slots: int | None) -> tuple[PoolSpec | None, int]:
        """The pool with this headroom, and the headroom where there is no admission; None: automatic."""
        if self.pool is None:
            return None, self.headroom if slots is None else slots
        if slots is not None:
            return replace(self.pool, headroom_slots=slots, headroom_most=0), slots
        every = sum(replica.slots for replica in self.answering)
        kept, most = automatic_headroom(every, self.entitlements), most_headroom(every, self.entitlements)
        return replace(self.pool, headroom_slots=kept, headroom_most=most), kept

    def felt(self, requests: Sequence[SimRequest], outcomes: Sequence[Outcome]) -> list[Felt]:
        """What users felt, for the reward."""
        return [
            felt_of(request, outcome, self.replicas[0].step_time)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]


def _sizes(row: Recorded) -> tuple[int, int, int]:
    """Prompt, answer, and the answer's bound [tokens]."""
    given, out = max(1, row.input_tokens), max(1, row.output_tokens)
    if row.turned_away or row.in_flight:
        out = max(out, round(row.expected_tokens or row.output_bound))
    return given, out, max(row.output_bound, out)
