"""A promised time between tokens, under every policy: nobody gets a replica that is too slow for it before its wait for
a faster one is over, and everything runs in the end.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from scheduling.core.placement.pace_wait import pace_us
from scheduling.core.policies.compose import make_named
from scheduling.core.policies.registry import make_routing, orderings, routings
from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import QueuedRequest, Slo
from scheduling.simulator.room import end, first_token
from tests.support.scheduling_world import backend_view, crowd, pool_view

PACE_US = pace_us(Slo(tbt_s=0.1), 100)
TOKEN_US = {"fast": 0, "slow": 120_000, "slower": 300_000}


def arrivals_of(seed: int, rng: random.Random) -> list[QueuedRequest]:
    """Of every tier but batch, some with a promised pace; some without a promised first token, some that failed."""
    return [
        replace(
            r,
            concurrency=6,
            pace_us=PACE_US if r.rank < 2 and rng.random() < 0.8 else 0,
            ttft_deadline_s=r.ttft_deadline_s and rng.choice((r.arrival_s + 5.0, r.arrival_s + 20.0, None)),
            expires_s=rng.choice((None, r.arrival_s + 400.0)),
            exclude_backend=rng.choice(("", "", "", "fast", "slow")),
        )
        for r in crowd(seed, 150)
    ]


@pytest.mark.parametrize("routing", sorted(routings()))
@pytest.mark.parametrize("name", sorted(orderings()))
def test_no_replica_is_too_slow_for_what_it_is_granted_while_a_faster_one_is_waited_for(name: str, routing: str):
    rng = random.Random(f"{name} {routing}")
    made = Scheduler(make_named(name, {}), make_routing(routing), max_grants=8, patience_s=3.0)
    view = pool_view(
        *(backend_view(n, 4, 9000, token_us=us, prefill_credit=800, speed=300 if us else 1000)
          for n, us in TOKEN_US.items())
    )  # fmt: skip
    arrivals = arrivals_of(len(name), rng)
    running: list[tuple[QueuedRequest, str]] = []
    seen: Counter[str] = Counter()
    now_s = 1000.0
    while arrivals or len(made) or running:
        now_s += rng.uniform(0.1, 1.5)
        assert now_s < 20_000, f"{len(made)} wait for ever"
        while arrivals and arrivals[0].arrival_s <= now_s:
            made.offer(arrivals.pop(0), now_s)
        rng.shuffle(running)
        for request, where in [running.pop() for _ in range(min(len(running), rng.randrange(3)))]:
            first_token(view, request, where)
            end(view, request, where)
        view.backends["fast"].ready = rng.random() < 0.9
        before = remember(view, made)
        grants = made.step(view, now_s)
        holds = {
            "kv_hold": made.kv_hold is not None,
            "credit_holds": made.credit_holds,
            "waits_for_replica": made.waits_for_replica,
        }
        assert check_step(before, grants, made, now_s, max_grants=8, **holds) == []
        running += [(g.request, g.backend) for g in grants]
        seen["waited"] += len(made.waits_for_replica)
        for g in grants:
            seen["fast enough" if before.backends[g.backend].keeps(g.request.pace_us) else "in vain"] += 1
    assert min(seen[what] for what in ("waited", "fast enough", "in vain")) > 0, seen
