"""Sessions whose prompts are almost all cached, on replicas that take one prompt at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from scheduling.core.engine.step_time import load_preset
from scheduling.core.policies.registry import make_ordering, make_routing
from scheduling.core.scheduler import step
from scheduling.core.types import ServiceClass, Slo
from scheduling.simulator.prefix_cache import Turns
from scheduling.simulator.replay import Replay
from scheduling.simulator.replica import Replica
from scheduling.simulator.shared_prompts import Conversations, agents
from scheduling.simulator.trace import TraceRequest
from scheduling.simulator.workload import Belief, Tier, make_request

TIER = Tier("standard", Slo(ttft_s=2.0), 1, 30.0, 1.0, ServiceClass.ELASTIC)


class Served:
    def __init__(self, trace: list[TraceRequest], replicas: int = 4) -> None:
        preset = load_preset("llama-3-8b-a100")
        replica = Replica(preset.step_time, 128, 421_000, 1024, None, "priority")
        replay = Replay([replica] * replicas, make_ordering("unified"), make_routing("prefix_affinity"))
        requests, turns, belief = [], Turns(), Belief(100.0, 300, (100.0,), (1.0,))
        for n, one in enumerate(trace):
            made = make_request(n, one.arrival_s, one.input_tokens, one.output_tokens, TIER, belief)
            queued = replace(made.queued, prefixes=turns.prefixes_of(one.blocks, one.input_tokens))
            requests.append(replace(made, queued=queued, blocks=one.blocks))
        outcomes = replay.run(requests)
        self.computed = sum(engine.counters.prefill_tokens for engine in replay.engines)
        self.in_time = sum(o.ttft_s <= 2.0 for o in outcomes) / len(outcomes)
        self.last_s = max(o.arrival_s + o.ttlt_s for o in outcomes)


def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a cache."""
    monkeypatch.setattr(step, "cache_wait", lambda *_: None)


def test_turns_of_agents_wait_for_the_replica_that_has_their_session(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = list(agents(5120).requests(0.7, 60.0, Random(3)))
    waited = Served(trace)
    everywhere(monkeypatch)
    at_once = Served(trace)
    assert waited.computed < 0.75 * at_once.computed
    assert waited.in_time > at_once.in_time + 0.08


def test_conversations_in_overload_end_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = list(Conversations().requests(8.3, 40.0, Random(3)))
    waited = Served(trace)
    everywhere(monkeypatch)
    at_once = Served(trace)
    assert waited.computed < 0.9 * at_once.computed
    assert waited.in_time > at_once.in_time + 0.05
    assert waited.last_s < at_once.last_s - 2.0


def test_a_session_that_everybody_shares_is_spread_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long beginning, and nothing of anybody's own that is cached: whoever has room is as good."""
    blocks = tuple(range(8))
    trace = [TraceRequest(0.05 * n, 8 * 512 + 100, 50, blocks=(*blocks, 100 + n)) for n in range(600)]
    waited = Served(trace)
    everywhere(monkeypatch)
    assert waited.last_s == pytest.approx(Served(trace).last_s, rel=0.02)


def test_the_end_of_the_last_turn_is_a_point_of_the_next_one() -> None:
    turns, first, second = Turns(), tuple(range(11)), tuple(range(14))
    before = turns.prefixes_of(first, 11 * 512).partition(":")
    after = turns.prefixes_of(second, 14 * 512 - 100).partition(":")
    deepest = before[2][-17:-5]
    assert deepest in after[2]
    assert (int(before[0], 16) & 1, int(after[0], 16) & 1) == (1, 0), "the first of them begins a conversation"
