"""Whole answers beside streams: nobody sees their first token, and a stream of a higher tier may overtake them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduling.core.capacity.prefill_pace import shows
from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.types import ServiceClass, Slo
from scheduling.simulator import held_credit
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request

PREMIUM = Tier("premium", Slo(ttft_s=1.0), 0, 30.0, 1.0, ServiceClass.GUARANTEED)
BATCH = Tier("batch", Slo(), 2, 600.0, 1.0, ServiceClass.SPOT)
SECONDS = 40


def chat_beside_batch() -> list[SimRequest]:
    """Premium streams, and more whole answers of batch than the replica can compute prompts for."""
    random, belief = Random(3), Belief(20.0, 200, (20.0,), (1.0,))
    arrivals = [(random.uniform(0, SECONDS), PREMIUM) for _ in range(16 * SECONDS)]
    arrivals += [(random.uniform(0, SECONDS), BATCH) for _ in range(30 * SECONDS)]
    made = []
    for n, (at_s, tier) in enumerate(sorted(arrivals, key=lambda arrival: arrival[0])):
        tokens = random.randint(200, 300)
        one = make_request(n, at_s, tokens, 1 if tier is BATCH else 20, tier, belief)
        made.append(replace(one, whole=tier is BATCH))
    return made


def test_engines_that_take_prompts_as_they_come_are_kept_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_s() -> float:
        preset = load_preset("llama-3-8b-a100")
        replica = Replica(preset.step_time, 256, 421_000, 1024, None, "fifo")
        outcomes = Replay([replica], make_ordering("unified"), make_routing("least_work")).run(chat_beside_batch())
        return max(o.arrival_s + o.ttlt_s for o in outcomes)

    careful = last_s()
    monkeypatch.setattr(held_credit, "shows", lambda stream, answer: True)
    assert careful <= 1.02 * last_s()


@pytest.mark.parametrize(("stream", "answer", "shown"), [(1, 1, True), (1, 0, True), (1, 2, False), (0, 2, False)])
def test_a_stream_shows_what_was_granted_before_of_its_tier_and_higher_ones(stream: int, answer: int, shown: bool):
    assert shows(stream, answer) is shown
