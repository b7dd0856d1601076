"""How much is there to gain? The best of many settings on traffic that is known, and what no scheduler exceeds."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from controlplane.lab import bar
from scheduling.core.policies.registry import PolicyError
from scheduling.simulator.bound import most_in_time
from scheduling.simulator.compare import parse_policy
from scheduling.simulator.engine import EngineConfig
from scheduling.tuning.merit import Merit, merit_of, worst_loss
from scheduling.tuning.structure import Structure
from scheduling.tuning.traffic import Room, Serving, Traffic

DRAWN = 16  # points of a study's space, drawn evenly


def tried(traffic: Traffic, serving: Serving, seed: int) -> Iterator[Serving]:
    """Every composition that is shipped, what a study begins with, and some points of its space."""
    for name in bar.shipped():
        composed, params = parse_policy(name)
        *modifiers, order = composed.split("+")
        yield Serving(order, dict(params), {modifier: {} for modifier in modifiers}, room=Room())
    structure, random = Structure(traffic, serving), Random(f"hindsight {seed}")
    yield from map(structure.serving, structure.anchors())
    yield from (structure.serving(structure.draw(random)) for _ in range(DRAWN))


def best_of(traffic: Traffic, serving: Serving, drop: float, seed: int) -> Serving:
    """The setting with most requests in time, of those under which no tier loses more than ``drop`` of its attainment
    against what serves."""
    before = _merit(traffic, serving)
    best, most = serving, _kept(before)
    for each in tried(traffic, serving, seed):
        try:
            merit = _merit(traffic, each)
        except PolicyError:
            continue  # a point of the space that is no policy
        if _kept(merit) > most and worst_loss(merit, before) <= drop:
            best, most = each, _kept(merit)
    return best


def bound_of(traffic: Traffic) -> float:
    """What no scheduler exceeds [% in time], with limits or without."""
    requests, first = traffic.requests(), traffic.replicas[0]
    config = EngineConfig(
        first.step_time, token_budget=first.token_budget, max_seqs=first.slots, kv_tokens=first.kv_tokens
    )
    return 100.0 * most_in_time(requests, config, len(traffic.replicas)) / len(requests)


def _merit(traffic: Traffic, serving: Serving) -> Merit:
    requests = traffic.requests()
    outcomes = traffic.run(serving, requests)
    return merit_of(traffic.felt(requests, outcomes), outcomes)


def _kept(merit: Merit) -> int:
    return sum(tier.kept for tier in merit.values())
