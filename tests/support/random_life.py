"""A scheduler's life: arrivals, grants, ends, prefills that are interrupted, replicas that come and go; the laws are
checked after each step."""

from __future__ import annotations

import random
from dataclasses import replace

from scheduling.core.scheduler.invariants import check_step, remember
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.prefill_preemption import interrupted
from scheduling.core.types import QueuedRequest
from tests.support.scheduling_world import backend_view, crowd, pool_view


def live(scheduler: Scheduler, seed: int, count: int, unruly: bool = False) -> int:
    """How many of ``count`` requests ended. ``unruly``: lengths are told at the end, and the state refuses some grants.
    Raises AssertionError as soon as a law is broken."""
    rng = random.Random(seed)
    view = pool_view(*(backend_view(f"b{n}", slots=4, kv_tokens=6000) for n in range(3)))
    arrivals = [
        replace(
            r, concurrency=5, expires_s=r.arrival_s + rng.uniform(5, 90), exclude_backend=rng.choice(("", "", "b1"))
        )
        for r in crowd(seed, count)
    ]
    running: list[tuple[QueuedRequest, str]] = []
    ended: set[str] = set()
    now_s = 1000.0
    while arrivals or len(scheduler) or running:
        now_s += rng.uniform(0.1, 2.0)
        while arrivals and arrivals[0].arrival_s <= now_s:
            scheduler.offer(arrivals.pop(0), now_s)
        rng.shuffle(running)
        for request, where in [running.pop() for _ in range(min(len(running), rng.randrange(4)))]:
            backend = view.backends[where]
            backend.running -= 1
            backend.kv_used -= request.kv_tokens
            view.running_by_entitlement[request.entitlement] -= 1
            if unruly:
                scheduler.settle(request.id, request.input_tokens, rng.randrange(request.output_bound))
        view.backends["b2"].ready = rng.random() < 0.8
        before = remember(view, scheduler)
        expired = scheduler.expire(now_s)
        grants = scheduler.step(view, now_s)
        kv_hold = scheduler.kv_hold is not None
        assert check_step(before, grants, scheduler, now_s, max_grants=8, kv_hold=kv_hold) == []
        for grant in grants:
            assert grant.request.id not in ended
            taken_back = rng.random() < 0.1  # its prefill was interrupted
            if taken_back or (unruly and rng.random() < 0.1):  # else the state refused it: it waits again
                backend = view.backends[grant.backend]
                backend.running -= 1
                backend.kv_used -= grant.request.kv_tokens
                view.running_by_entitlement[grant.request.entitlement] -= 1
                request = grant.request
                if taken_back:
                    request = interrupted(request, grant.backend, request.input_tokens // 2)
                scheduler.offer(request, now_s)
                continue
            ended.add(grant.request.id)
            running.append((grant.request, grant.backend))
        ended.update(request.id for request in expired)
    return len(ended)
