"""The lab's admission against the reference model of the scripts: on one trace, the same decisions in the same order.

The lab serves the trace; every call to its admission is made to the reference model as well, which
``test_state_model.py`` holds to the scripts themselves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.admission.rule import AdmissionAnswer, AdmissionDecision
from scheduling.core.engine.step_time import load_preset
from scheduling.core.outcomes import Reason
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import (
    EntitlementSpec,
    EntitlementState,
    Estimate,
    OverLimit,
    Phase,
    PoolSpec,
    PoolView,
    QueuedRequest,
    ServiceClass,
    Slo,
    Standing,
)
from scheduling.simulator.admission import Admission, body_bytes_of
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request
from scheduling.state.types import AdmissionStatus, FinishStatus, GrantItem, GrantStatus
from tests.reference.pool import ReferencePool
from tests.support.state_world import FACTS, backend, entitlement, ledger, pool_spec, tier

STEP = load_preset("llama-3-8b-a100").step_time
BEGUN_MS = 1_700_000_000_000
ANSWERS = {
    AdmissionStatus.GRANTED: AdmissionAnswer.GRANT,
    AdmissionStatus.QUEUED: AdmissionAnswer.QUEUE,
    AdmissionStatus.REFUSED: AdmissionAnswer.REFUSE,
}


class Shadowed(Admission):
    """Asks the reference model whatever it is asked, and compares. ``said``: the decisions in their order."""

    def __init__(self, pool: PoolSpec, specs: list[EntitlementSpec], view: PoolView) -> None:
        super().__init__(pool, specs, view)
        self.said: list[tuple[str, str, Reason | None]] = []
        self.clock_ms = BEGUN_MS
        self.reference = ReferencePool(pool.id, lambda: self.clock_ms)
        self.epoch = self.reference.elect("leader", 0, True).epoch
        self.reference.meta["leader_until"] = 10**14
        self.reference.set_stuck(self.epoch, 0)
        for b in view.backends.values():
            self.reference.set_ready(self.epoch, b.id, backend(b.id, b.slots, b.kv_tokens))

    def _at(self, now_ms: int) -> None:
        self.clock_ms = BEGUN_MS + now_ms

    def decide(self, request: QueuedRequest, now_ms: int) -> AdmissionDecision:
        self._at(now_ms)
        self.reference.set_stuck(self.epoch, self.stuck, self._kept)
        mine = super().decide(request, now_ms)
        spec = self.specs[request.entitlement]
        cost = request.input_tokens + request.output_bound
        estimate = Estimate(request.input_tokens, request.output_bound, request.output_tokens, request.kv_tokens, cost)
        body_bytes, sent_s = body_bytes_of(request), now_ms / 1000
        theirs = self.reference.admit(spec, self.pool, request, estimate, body_bytes, FACTS, sent_s=sent_s)
        said = (ANSWERS[theirs.status], theirs.backend, theirs.reason, theirs.retry_s)
        refused = mine.verdict is AdmissionAnswer.REFUSE
        retry_s = None if mine.retry_ms is None or not refused else mine.retry_ms / 1000
        reason = mine.reason if refused else None
        assert said == (mine.verdict, mine.backend, reason, retry_s), f"{request.id} at {now_ms} ms"
        superseded = {name for name, reason in self.reference._ended.items() if reason[0] is Reason.SUPERSEDED}
        assert superseded == ({mine.supersedes} if mine.supersedes else set()), f"{request.id} at {now_ms} ms"
        evicted = {name for name, reason in self.reference._ended.items() if reason[0] is Reason.EVICTED}
        assert set(mine.evict) <= evicted
        self.said.append((request.id, mine.verdict.value, reason))
        return mine

    def granted(self, request: QueuedRequest, backend: str, now_ms: int) -> None:
        self._at(now_ms)
        super().granted(request, backend, now_ms)
        items = [GrantItem(request.id, 1, backend, 1 << 30, "p@1", "why")]
        assert self.reference.grant(self.epoch, items) == [GrantStatus.OK]

    def ended(self, request_id: str, used_tokens: int, now_ms: int) -> None:
        self._at(now_ms)
        super().ended(request_id, used_tokens, now_ms)
        done = self.reference.finish(request_id, 1, Reason.STOP, used_tokens, True, ledger(request_id))
        assert done.status is FinishStatus.OK

    def left(self, request_id: str, now_ms: int) -> None:
        self._at(now_ms)
        super().left(request_id, now_ms)
        self.reference.finish(request_id, 1, Reason.QUEUE_TIMEOUT, 0, False, ledger(request_id))

    def evicted(self, request_id: str, used_tokens: int, now_ms: int) -> None:
        self._at(now_ms)
        super().evicted(request_id, used_tokens, now_ms)
        if request_id not in self.reference.evicted:  # the leader made room, not an arrival
            self.reference._evict(request_id, self.clock_ms)
        done = self.reference.finish(request_id, 1, Reason.EVICTED, used_tokens, True, ledger(request_id))
        assert done.status is FinishStatus.OK

    def stand(self, standings: dict[str, Standing]) -> None:
        self.reference.set_standing(self.epoch, standings)
        super().stand({name: self.reference.standings[name] for name in standings})


SERVED = Tier("all", Slo(ttft_s=1.0, tbt_s=0.1))


def specs_of(draw: Random) -> list[EntitlementSpec]:
    """One of each class, with limits that an overload reaches."""
    found = []
    for rank, service_class in enumerate(ServiceClass):
        budget = draw.choice([0.0, 0.0, 400.0, 2000.0])
        found.append(
            entitlement(
                service_class.value, tier=tier(
                    name=service_class.value, service_class=service_class, rank=rank,
                    max_wait_s=draw.choice([1.0, 8.0]),
                    over_limit=draw.choice(list(OverLimit)),
                    queue_limit=draw.choice([0, 2, 10]),
                ),
                tokens_per_s=budget, burst_tokens=4 * budget, kv_tokens=draw.choice([0, 0, 3000]),
                concurrency=draw.choice([1, 3, 6]),
                state=draw.choice([EntitlementState.BOUND] * 4 + [EntitlementState.DEGRADED]),
            )
        )  # fmt: skip
    return found


def work(draw: Random, count: int, rate: float) -> list[SimRequest]:
    at_s, requests = 0.0, []
    for index in range(count):
        at_s += draw.expovariate(rate)
        name = draw.choice(list(ServiceClass))
        own = Tier(name.value, SERVED.slo, 0, 1.0, 1.0, name)
        given, out = draw.randint(20, 800), draw.randint(2, 150)
        made = make_request(index, at_s, given, out, own, Belief(float(out), out + draw.randint(0, 60)))
        wide = replace(made.queued, sequences=1 + index % 3)  # its slots; the engine of the lab runs one for it
        requests.append(replace(made, queued=wide))
    return requests


def served(
    specs: list[EntitlementSpec], requests: list[SimRequest], slots: int = 4, *, headroom: int = 0, returns: int = 0,
    policy: str = "unified", apart: bool = False,
) -> tuple[Shadowed, list[Outcome]]:  # fmt: skip
    pool = pool_spec(queue_limit=12, queue_bytes=30_000, headroom_slots=headroom, headroom_most=2 * headroom)
    replicas = [Replica(STEP, slots, 6000)] * 2
    if apart:
        replicas = [replace(one, phase=Phase.DECODE) for one in replicas]
        replicas.append(Replica(STEP, 8, 9000, phase=Phase.PREFILL))
    replay = Replay(
        replicas, make_ordering(policy), make_routing("least_work"), signal_s=0.005,
        admission=lambda view: Shadowed(pool, specs, view), returns=returns,
    )  # fmt: skip
    outcomes = replay.run(requests)
    assert isinstance(replay._admission, Shadowed)
    for engine in replay.engines:  # also what was evicted has left nothing behind
        assert (engine.decodes, engine.kv_dec, len(engine.live), len(engine.admitted)) == (0, 0, 0, 0)
        assert engine.kv.free == engine.kv.total
        assert not any(engine.kv.places)
    return replay._admission, outcomes


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([0, 1]), st.sampled_from([0, 2]), st.sampled_from([2.0, 12.0, 40.0]),
    st.booleans(),
)  # fmt: skip
def test_the_lab_decides_as_the_scripts_do(seed: int, headroom: int, returns: int, rate: float, apart: bool) -> None:
    draw = Random(seed)
    requests = work(draw, 150, rate)
    admission, outcomes = served(specs_of(draw), requests, headroom=headroom, returns=returns, apart=apart)
    assert [outcome.index for outcome in outcomes] == list(range(len(requests))), "a request has no outcome"
    assert not admission._entries
    assert admission.waiting == admission._able == admission._due == 0
    assert all(b.running == 0 and b.kv_used == 0 and b.prefill_used == 0 for b in admission.view.backends.values())
    for name, share in admission._shares.items():
        assert (share.running, share.waiting, share.kv) == (0, 0, 0)
        bucket = admission.reference.buckets.get(name)
        assert (bucket is None) == (share.level_ms is None)
        assert bucket is None or bucket.level == share.level
    assert admission.reference.weights == {}


def test_an_overload_meets_every_rule() -> None:
    """What the walks above compare is not idle: each answer of admission comes up."""
    seen: Counter[object] = Counter()
    ends: Counter[str] = Counter()
    for seed in range(12):
        draw = Random(seed)
        admission, outcomes = served(specs_of(draw), work(draw, 150, 40.0), headroom=seed % 2)
        seen.update(reason or verdict for _, verdict, reason in admission.said)
        ends.update(outcome.refused for outcome in outcomes)
    wanted = {"grant", "queue", Reason.CONCURRENCY, Reason.TOKEN_BUDGET, Reason.KV_BUDGET, Reason.QUEUE_FULL,
              Reason.LOW_PRIORITY}  # fmt: skip
    assert wanted <= set(seen), seen
    assert {"queue_timeout", "evicted", "superseded"} <= set(ends), ends


@pytest.mark.parametrize("state", [EntitlementState.PENDING, EntitlementState.EXPIRED])
def test_who_is_not_entitled_is_refused_for_good(state: EntitlementState) -> None:
    pool, spec = pool_spec(), entitlement("elastic", state=state)
    replay = Replay(
        [Replica(STEP, 4, 6000)], make_ordering("fifo"), make_routing("least_work"),
        admission=lambda view: Admission(pool, [spec], view), returns=5,
    )  # fmt: skip
    draw = Random(1)
    rows = [r for r in work(draw, 40, 10.0) if r.queued.entitlement == "elastic"]
    assert {outcome.refused for outcome in replay.run(rows)} == {"not_entitled"}


def test_clients_that_come_back_are_served_in_the_end() -> None:
    """A client waits as long as it is told, and what it waits counts."""
    pool, spec = pool_spec(), entitlement("elastic", concurrency=1, tier=tier(queue_limit=0, name="elastic"))
    own = Tier("elastic", SERVED.slo)
    rows = [make_request(n, 0.001 * n, 100, 50, own, Belief(50.0, 50)) for n in range(4)]

    def run(returns: int) -> list[Outcome]:
        replay = Replay(
            [Replica(STEP, 1, 6000)], make_ordering("fifo"), make_routing("least_work"),
            admission=lambda view: Admission(pool, [spec], view), returns=returns,
        )  # fmt: skip
        return replay.run(rows)

    assert [bool(outcome.refused) for outcome in run(0)] == [False, True, True, True]
    again = run(8)
    assert not any(outcome.refused for outcome in again)
    assert all(outcome.ttft_s > 0.75 for outcome in again[1:]), "it came back before it was told to"
