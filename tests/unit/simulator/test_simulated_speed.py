"""What a pool's leader believes of engines that work on long prompts, as engines count them."""

from __future__ import annotations

from random import Random

import pytest

from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import ServiceClass, Slo
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

BUDGET = 1024
PREMIUM = Tier("premium", Slo(ttft_s=1.0), 0, 30.0, 1.0, ServiceClass.ELASTIC)
BATCH = Tier("batch", Slo(ttlt_s=3600.0), 2, 3600.0, 1.0, ServiceClass.ELASTIC)


def documents(seconds: float) -> list[SimRequest]:
    """Documents of five to ten seconds each, more than two replicas compute, and short prompts of a better tier that
    interrupt them."""
    random, belief = Random(3), Belief(100.0, 200, (100.0,), (1.0,))
    asked = [(random.uniform(0, seconds), random.randint(25_000, 50_000), BATCH) for _ in range(int(seconds / 3))]
    asked += [(random.uniform(0, seconds), random.randint(200, 800), PREMIUM) for _ in range(int(2 * seconds))]
    asked.sort(key=lambda each: each[0])
    return [make_request(n, at_s, tokens, 20, tier, belief) for n, (at_s, tokens, tier) in enumerate(asked)]


@pytest.mark.parametrize("keeps", [True, False])
def test_speeds_and_credits_hold_where_prompts_take_seconds_and_are_interrupted(keeps: bool) -> None:
    """Engines count a prompt when it is done, and nothing of one that is taken back from them."""
    preset = load_preset("llama-3-8b-a100")
    replica = Replica(preset.step_time, 128, 421_000, BUDGET, None, "priority")
    replay = Replay([replica] * 2, make_ordering("unified"), make_routing("least_work"))
    for backend in replay.view.backends.values():
        backend.resumes = keeps
    credits: list[int] = []
    replay.run(
        documents(150.0),
        lambda *_: credits.extend(b.prefill_credit for b in replay.view.backends.values()),
        every_s=5.0,
    )
    assert (replay.interruptions > 20) is keeps
    assert max(credits) <= BUDGET
    for engine, backend in zip(replay.engines, replay.view.backends.values(), strict=True):
        computed_per_s = engine.counters.prefill_tokens / (engine.counters.busy_fs / 1e15)
        assert 0.6 < backend.prefill_per_s / computed_per_s < 1.6
