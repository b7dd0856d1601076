"""In the lab: a guaranteed tier with a loose promise beside an elastic one with a tight promise."""

from __future__ import annotations

import random
from functools import partial

from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import EntitlementSpec, EntitlementState, OverLimit, PoolSpec, ServiceClass, Slo, TierSpec
from scheduling.simulator.admission import Admission
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.result import by_tier, late_share
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

LOOSE = Tier("loose", Slo(ttlt_s=300.0), 0, 50.0, 0.4, ServiceClass.GUARANTEED)
TIGHT = Tier("tight", Slo(ttft_s=1.0, tbt_s=0.2), 1, 30.0, 0.6, ServiceClass.ELASTIC)
PRESET = load_preset("llama-3-8b-a100")


def traffic(seconds: float = 120.0, a_second: float = 3.4) -> list[SimRequest]:
    """Prompts of very different lengths, nearly as many as one replica prefills."""
    draw, at_s, requests = random.Random(7), 0.0, list[SimRequest]()
    while (at_s := at_s + draw.expovariate(a_second)) < seconds:
        tier = LOOSE if draw.random() < LOOSE.share else TIGHT
        tokens = max(50, min(7_000, round(draw.lognormvariate(7.2, 1.0))))
        requests.append(make_request(len(requests), at_s, tokens, 30, tier, Belief(30.0)))
    return requests


def spec(tier: Tier, over: OverLimit, kv_tokens: int = 0) -> EntitlementSpec:
    contract = TierSpec(tier.name, tier.service_class, tier.rank, tier.weight, tier.slo, over, 500, 300.0)
    return EntitlementSpec(tier.name, tier.name, "pool", contract, EntitlementState.BOUND, 0.0, 0.0, kv_tokens, 60)


def in_time(over: OverLimit, kv_tokens: int = 0, **params: int) -> dict[str, float]:
    """Of all that each tier asked for [%]."""
    requests = traffic()
    specs = (spec(LOOSE, over, kv_tokens), spec(TIGHT, OverLimit.WAIT))
    replica = Replica(PRESET.step_time, 128, PRESET.kv_tokens, 768, None, "priority")
    admission = partial(Admission, PoolSpec("pool", "model", "model", ()), specs)
    replay = Replay([replica], make_ordering("unified", params), make_routing("least_work"), admission=admission)
    return {name: 100.0 * (1.0 - late_share(mine)) for name, mine in by_tier(replay.run(requests)).items()}


def test_an_owner_that_has_time_leaves_prefill_to_those_who_would_be_late() -> None:
    before, now = in_time(OverLimit.WAIT, relegate=2), in_time(OverLimit.WAIT)
    assert before["loose"] == now["loose"] == 100.0
    assert now["tight"] > before["tight"] + 10.0


def test_an_owner_that_would_be_refused_for_waiting_goes_first() -> None:
    assert in_time(OverLimit.REFUSE)["loose"] == 100.0


def test_an_owner_is_not_refused_for_the_kv_budget_because_it_had_time() -> None:
    """What waits and what runs take of the same budget."""
    before, now = in_time(OverLimit.WAIT, 40_000, relegate=2), in_time(OverLimit.WAIT, 40_000)
    assert now["loose"] >= before["loose"]
