"""Two tenants of one tier and equal rights. One changes how it sends, and not what it needs: what does that gain it?

Each test is one strategy of ``docs/internals/threat-model.md``, in the lab, behind the product's own rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.contracts import OrderingPolicy
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import EntitlementSpec, EntitlementState, OverLimit, ServiceClass, Slo, TierSpec
from scheduling.simulator.admission import Admission
from scheduling.simulator.kernel import to_fs
from scheduling.simulator.replay import Replay
from scheduling.simulator.replay_events import ARRIVED, LOOK
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import Outcome
from scheduling.simulator.workload import (
    CODE,
    CONV,
    Belief,
    ClippedLognormal,
    Quantiles,
    SimRequest,
    Tier,
    make_request,
)
from tests.support.state_world import pool_spec

STANDARD = Tier("standard", Slo(ttft_s=5.0, tbt_s=0.2), 1, 30.0, 1.0, ServiceClass.ELASTIC)
OWNERS = replace(STANDARD, service_class=ServiceClass.GUARANTEED)
BATCH = Tier("batch", Slo(ttlt_s=600.0), 2, 20.0, 1.0, ServiceClass.SPOT)
ALIKE = (Quantiles((100, 100)), Quantiles((200, 200)))
Lengths = tuple[ClippedLognormal, ClippedLognormal] | tuple[Quantiles, Quantiles]
Lie = Callable[[SimRequest], SimRequest]


def asked(
    tier: Tier, per_s: float, seconds: float, lengths: Lengths = CONV, lie: Lie | None = None
) -> list[SimRequest]:
    """What both send, each at this rate; the strategist's as it tells it."""
    rows = []
    for name in ("neighbour", "strategist"):
        draw, at_s = Random(name), 0.0
        while (at_s := at_s + draw.expovariate(per_s)) < seconds:
            rows.append((at_s, name, lengths[0].draw(draw), lengths[1].draw(draw)))
    made = []
    for n, (at_s, name, given, out) in enumerate(sorted(rows)):
        request = make_request(n, at_s, given, out, tier, Belief(60.0, 1024, (60.0,), (1.0,)), label=name, tenant=name)
        made.append(lie(request) if lie is not None and name == "strategist" else request)
    return made


@dataclass
class Got:
    """What one of them got."""

    served: int
    in_time: int
    ttft_s: float  # mean


def got(outcomes: Sequence[Outcome], name: str) -> Got:
    served = [o for o in outcomes if o.label == name and not o.refused]
    return Got(len(served), sum(not o.late for o in served), sum(o.ttft_s for o in served) / len(served))


def both(
    requests: list[SimRequest],
    places: int,
    slots: int = 128,
    kind: type[Replay] = Replay,
    policy: str = "unified",
) -> tuple[Got, Got]:
    """What the neighbour and the strategist get on two replicas, each with so many places of its own."""
    queued = requests[0].queued
    waits = queued.service_class is ServiceClass.SPOT
    tier = TierSpec(
        queued.tier, queued.service_class, queued.rank, queued.weight, requests[0].slo,
        over_limit=OverLimit.WAIT if waits else OverLimit.REFUSE, queue_limit=2000, max_wait_s=900.0 if waits else 30.0,
    )  # fmt: skip
    specs = [
        EntitlementSpec(name, name, "p", tier, EntitlementState.BOUND, 0.0, 0.0, 0, places)
        for name in ("neighbour", "strategist")
    ]
    replica = Replica(load_preset("llama-3-8b-a100").step_time, slots, 421_000, 1024, None, "priority")
    replay = kind(
        [replica] * 2, make_named(policy), make_routing("prefix_affinity"), signal_s=0.005,
        admission=lambda view: Admission(pool_spec(backends=()), specs, view),
    )  # fmt: skip
    outcomes = replay.run(requests)
    return got(outcomes, "neighbour"), got(outcomes, "strategist")


def wide(request: SimRequest) -> SimRequest:
    return replace(request, queued=replace(request.queued, sequences=16))


def test_who_asks_for_many_answers_at_once_takes_no_place_of_an_owner() -> None:
    """Places that counted requests were worth 16 times as many slots, so that the owner of the other half of the pool
    got a tenth of what it gets beside an honest one."""
    honest, _ = both(asked(OWNERS, 10.0, 60.0, ALIKE), places=32, slots=32)
    beside, _ = both(asked(OWNERS, 10.0, 60.0, ALIKE, wide), places=32, slots=32)
    assert beside.served >= 0.95 * honest.served


def test_many_answers_at_once_take_no_more_than_as_many_requests_of_one() -> None:
    """Who may burst takes idle slots either way."""
    requests = asked(STANDARD, 10.0, 60.0, ALIKE)
    narrow = [r for r in requests for _ in range(16 if r.label == "strategist" else 1)]
    narrow = [replace(r, index=n, queued=replace(r.queued, id=f"r{n}", seq=n)) for n, r in enumerate(narrow)]
    beside_many, _ = both(narrow, places=32, slots=32)
    beside_wide, _ = both(asked(STANDARD, 10.0, 60.0, ALIKE, wide), places=32, slots=32)
    assert beside_wide.served >= 0.95 * beside_many.served


class Resending(Replay):
    """The strategist takes back what has waited for four seconds and sends it again, with a new deadline."""

    def _arrive(self, request: SimRequest) -> None:
        super()._arrive(request)
        if request.label != "strategist":
            return
        name = request.queued.id

        def again(now_s: float, _ended: object, _oldest: object) -> None:
            admission = self._admission
            assert admission is not None
            if name not in self._scheduler:
                return
            self._scheduler.withdraw(name)
            admission.left(name, self._now_ms)
            del self._requests[name]
            queued = replace(request.queued, id=f"{name}~", arrival_s=now_s, ttft_deadline_s=now_s + 5.0)
            self._kernel.post(self._kernel.now_fs + 1, ARRIVED, replace(request, queued=queued))

        self._kernel.post(self._kernel.now_fs + to_fs(4.0), LOOK, again)


def test_who_takes_back_what_is_late_and_sends_it_again_is_served_in_time_no_more_often() -> None:
    """Its requests count as in time again and again, but the time that they have waited is lost."""
    requests = asked(STANDARD, 9.0, 90.0)
    _, honest = both(requests, places=150)
    _, strategist = both(requests, places=150, kind=Resending)
    assert strategist.in_time <= 1.02 * honest.in_time


def test_a_bound_that_is_far_too_high_gains_nothing_where_lengths_are_predicted() -> None:
    def high(request: SimRequest) -> SimRequest:
        queued = request.queued
        return replace(request, queued=replace(queued, output_bound=4000, kv_tokens=queued.input_tokens + 4000))

    honest, _ = both(asked(BATCH, 7.0, 60.0), places=100)
    beside, strategist = both(asked(BATCH, 7.0, 60.0, lie=high), places=100)
    assert beside.ttft_s <= 1.05 * honest.ttft_s
    assert strategist.ttft_s >= 0.95 * honest.ttft_s


@pytest.mark.parametrize(("policy", "gains"), [("unified", False), ("relegate+hybrid", True)])
def test_who_asks_for_everything_three_times_gains_nothing_from_its_neighbour(policy: str, gains: bool) -> None:
    """Where nothing is promised, as to spot, entitlements take turns by what they had. Where turns go by deadline, who
    sends more gets more."""
    requests = asked(BATCH, 16.0, 40.0, ALIKE)
    thrice = [r for r in requests for _ in range(3 if r.label == "strategist" else 1)]
    thrice = [replace(r, index=n, queued=replace(r.queued, id=f"r{n}", seq=n)) for n, r in enumerate(thrice)]
    honest, _ = both(requests, places=64, slots=32, policy=policy)
    beside, _ = both(thrice, places=64, slots=32, policy=policy)
    assert (beside.ttft_s > 1.05 * honest.ttft_s) is gains


QUIET = ("one", "two", "three", "four")


def crowd(
    seconds: float, quiet_per_s: float, loud_per_s: float, backlog: int = 0, when: Callable[[float], float] = float
) -> list[SimRequest]:
    """Four quiet tenants and a loud one of one tier, with long prompts, beside so many requests of batch. ``when`` the
    loud one sends what it would have sent at this time."""
    rows = []
    for name in (*QUIET, "loud"):
        draw, at_s = Random(name), 0.0
        while (at_s := at_s + draw.expovariate(loud_per_s if name == "loud" else quiet_per_s)) < seconds:
            rows.append((when(at_s) if name == "loud" else at_s, name, CODE[0].draw(draw), CODE[1].draw(draw)))
    rows += [(0.0, "backlog", 1000, 200)] * backlog
    belief = Belief(60.0, 1024, (60.0,), (1.0,))
    return [
        make_request(n, at_s, given, out, BATCH if name == "backlog" else STANDARD, belief, label=name, tenant=name)
        for n, (at_s, name, given, out) in enumerate(sorted(rows))
    ]


def served(requests: list[SimRequest], places: int, policy: OrderingPolicy) -> list[Outcome]:
    """By two replicas. Each of the five has so many places."""
    tiers = [
        TierSpec(
            each.name, each.service_class, each.rank, each.weight, each.slo, over_limit=over, queue_limit=2000,
            max_wait_s=60.0 if over is OverLimit.REFUSE else 600.0,
        )
        for each, over in ((STANDARD, OverLimit.REFUSE), (BATCH, OverLimit.WAIT))
    ]  # fmt: skip
    specs = [
        EntitlementSpec(name, name, "p", tiers[name == "backlog"], EntitlementState.BOUND, 0.0, 0.0, 0, places)
        for name in (*QUIET, "loud", "backlog")
    ]
    replica = Replica(load_preset("llama-3-8b-a100").step_time, 128, 421_000, 1024, None, "priority")
    replay = Replay(
        [replica] * 2, policy, make_routing("prefix_affinity"), signal_s=0.005,
        admission=lambda view: Admission(pool_spec(backends=()), specs, view),
    )  # fmt: skip
    return replay.run(requests)


def in_time(outcomes: Sequence[Outcome], names: Sequence[str]) -> float:
    """Share of what these tenants asked for."""
    theirs = [o for o in outcomes if o.label in names]
    return sum(not o.late and not o.refused for o in theirs) / len(theirs)


def test_a_loud_tenant_of_the_same_rights_takes_little_from_quiet_ones_in_an_overload() -> None:
    """Within everybody's limits there is neither debt nor burst: what each had of the class's tokens tells them
    apart."""
    requests, default = crowd(60.0, 0.5, 14.0), make_ordering("unified")
    assert in_time(served([r for r in requests if r.label != "loud"], 40, default), QUIET) == 1.0
    assert in_time(served(requests, 40, make_ordering("unified", {"debt_s": 0.0})), QUIET) < 0.8
    assert in_time(served(requests, 40, default), QUIET) > 0.9


def test_who_sends_the_same_in_pulses_gains_nothing_from_quiet_ones() -> None:
    """In the pauses its share goes back to 1; what it missed does not count for it, and its places stay as many."""

    def pulsed(at_s: float) -> float:
        return at_s - at_s % 40.0 + at_s % 40.0 / 2

    steady = served(crowd(80.0, 1.0, 12.0), 60, make_ordering("unified"))
    pulses = served(crowd(80.0, 1.0, 12.0, when=pulsed), 60, make_ordering("unified"))
    assert in_time(pulses, ["loud"]) < in_time(steady, ["loud"])
    assert in_time(pulses, QUIET) > in_time(steady, QUIET) - 0.03


@pytest.mark.parametrize("policy", ["unified", "hybrid"])
def test_who_exceeds_its_concurrency_is_in_time_where_slots_are_left(policy: str) -> None:
    """The pool has slots for all and could prefill all in time. Six slots are the loud tenant's own; what it asked for
    beyond them was refused for the sake of a backlog that has ten minutes, and waits for prefill credit itself."""
    outcomes = served(crowd(60.0, 0.5, 5.0, backlog=300), 6, make_ordering(policy))
    assert in_time(outcomes, QUIET) == 1.0
    assert in_time(outcomes, ["loud"]) > 0.95, "0.75 where it is refused"
    assert in_time(outcomes, ["backlog"]) == 1.0


def test_what_is_late_already_keeps_no_newer_request_of_its_tenant_out() -> None:
    """As many are refused, and others: no more of the loud tenant's are in flight than it may have."""
    outcomes = served(crowd(90.0, 1.0, 14.0, backlog=900), 50, make_ordering("unified"))
    ends = Counter(o.refused for o in outcomes if o.label == "loud")
    assert ends["superseded"] > ends["concurrency"]
    assert in_time(outcomes, ["loud"]) > 0.55, "0.4 where they do"
