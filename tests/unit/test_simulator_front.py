"""The policy in front of replicas: grants by room, engines that work on them in the order in which they came."""

from __future__ import annotations

from scheduling.core.registry import make_ordering, make_routing
from scheduling.core.step_time import StepTime
from scheduling.core.types import Slo
from scheduling.simulator.replay import Replay, Replica
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

A100 = StepTime(14.936e-3, 81.3e-6, 95.17e-6, 0.1111e-6, 2801e-12, 512, 8.86e-6)
PREMIUM = Tier("premium", Slo(ttft_s=1.0, tbt_s=0.1), 0, 50.0)
BATCH = Tier("batch", Slo(ttlt_s=600.0), 2, 20.0)


def request(index: int, at_s: float, prompt: int, output: int, tier: Tier) -> SimRequest:
    return make_request(index, at_s, prompt, output, tier, Belief(float(output), output))


def test_an_engine_works_on_requests_in_the_order_in_which_they_were_granted():
    work = [
        request(0, 0.0, 64, 50, BATCH),
        request(1, 0.0, 64, 50, BATCH),  # both slots come free in the same step
        request(2, 0.1, 2000, 5, BATCH),
        request(3, 0.2, 2000, 5, PREMIUM),
    ]
    replay = Replay([Replica(A100, 2, 100_000, 512)], make_ordering("priority"), make_routing("least_work"))
    outcomes = replay.run(work)
    first = {o.index: o.arrival_s + o.ttft_s for o in outcomes}
    assert first[3] < first[2]
