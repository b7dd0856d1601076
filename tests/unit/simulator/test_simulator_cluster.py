"""Replicas: dealt shares, routing on one clock, silos, clients that wait for their answers."""

from __future__ import annotations

import itertools

import pytest

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.simulator.batches import make_engine
from scheduling.simulator.cluster import Cluster, deal, deal_silos
from scheduling.simulator.engine import Engine, EngineConfig
from scheduling.simulator.kernel import rng, to_s
from scheduling.simulator.result import outcomes_of
from scheduling.simulator.workload import (
    Belief,
    ClosedLoop,
    SimRequest,
    Tier,
    independent_lengths,
    make_request,
    open_loop,
    poisson,
)
from tests.support.simulator_laws import check_ended, check_little

A100 = StepTime(14.936e-3, 81.3e-6, 95.17e-6, 0.1111e-6, 2801e-12, 512, 8.86e-6)
TIERS = (Tier("a"), Tier("b"))


def engine(jumps: bool = True, mode: str = "continuous") -> Engine:
    return make_engine(EngineConfig(A100, jumps=jumps, mode=mode), make_ordering("fifo"))


def azure(count: int, rate: float, seed: int = 1) -> list[SimRequest]:
    return open_loop(
        poisson(rng(seed, "arrivals"), rate),
        count,
        independent_lengths("azure-code"),
        TIERS,
        Belief(15.0, 1024),
        length_stream=rng(seed, "lengths"),
        tier_stream=rng(seed, "tiers"),
    )


def test_a_cluster_of_one_is_the_engine_alone():
    work = azure(300, 2.0)
    alone = {s.sim.index: s.end_fs for s in engine().run(work)}
    for mode in ("jumps", "steps"):
        cluster = Cluster([engine(mode == "jumps")], make_routing("least_work"))
        assert {s.sim.index: s.end_fs for s in cluster.run(work)} == alone


@pytest.mark.parametrize("mode", ["continuous", "whole_batch", "slots"])
def test_every_request_ends_once_wherever_it_was_sent(mode: str):
    work = azure(200, 8.0)
    cluster = Cluster([engine(mode=mode) for _ in range(3)], make_routing("least_work"))
    lives = cluster.run(work)
    assert check_ended(lives, len(work)) == []
    assert check_little(outcomes_of(lives)) == []
    assert {life.replica for life in lives} == {0, 1, 2}


def test_least_work_beats_round_robin_where_sizes_differ():
    work = azure(2000, 7.2)
    dealt = [life for hand in deal(work, 3) for life in engine().run(hand)]
    routed = Cluster([engine() for _ in range(3)], make_routing("least_work")).run(work)
    waits = [sum(to_s(s.first_fs - s.sim.arrival_fs) for s in lives) for lives in (dealt, routed)]
    assert waits[1] < waits[0]


def test_routing_by_what_is_outstanding_is_the_same_whether_engines_jump_or_step():
    work = azure(400, 6.0)
    runs = [
        {s.sim.index: (s.replica, s.end_fs) for s in Cluster(engines, make_routing("least_work")).run(work)}
        for engines in ([engine(True) for _ in range(3)], [engine(False) for _ in range(3)])
    ]
    assert runs[0] == runs[1]


def test_silos_keep_tiers_apart_and_need_a_replica_for_each():
    work = azure(50, 5.0)
    hands = deal_silos(work, {"a": 2, "b": 1})
    assert [{r.tier for r in hand} for hand in (*hands["a"], *hands["b"])] == [{"a"}, {"a"}, {"b"}]
    with pytest.raises(ValueError, match="'b'"):
        deal_silos(work, {"a": 2, "b": 0})


def test_a_client_sends_its_next_request_only_when_the_last_one_is_answered():
    loop = ClosedLoop(4, 5, lambda random: (100, 10), TIERS, Belief(10.0), rng(1, "clients"), think_s=0.5)
    lives = Cluster([engine()], make_routing("least_work")).run(loop)
    assert len(lives) == 20
    inside = sorted([(s.sim.arrival_fs, 1) for s in lives] + [(s.end_fs, -1) for s in lives])
    count = most = 0
    for _, change in inside:
        count += change
        most = max(most, count)
    assert most <= 4


def test_clients_that_do_not_think_follow_at_once():
    loop = ClosedLoop(1, 3, lambda random: (100, 10), TIERS, Belief(10.0), rng(1, "clients"))
    lives = sorted(Cluster([engine()], make_routing("least_work")).run(loop), key=lambda s: s.sim.index)
    assert [b.sim.arrival_fs - a.end_fs for a, b in itertools.pairwise(lives)] == [
        pytest.approx(0, abs=1),
        pytest.approx(0, abs=1),
    ]


def test_a_request_made_by_hand_reaches_its_replica():
    lives = Cluster([engine()], make_routing("least_work")).run([make_request(0, 1.0, 10, 2, TIERS[0], Belief(2.0))])
    assert to_s(lives[0].start_fs) == 1.0
