"""How long a stream that has begun may send nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from scheduling.core.outcomes import Reason
from scheduling.gateway.engine.silence import Silence
from scheduling.gateway.stages import Call
from scheduling.gateway.timeouts import Timeouts


def silent_for(silence: Silence, idle_s: float, spoke_s: float = 0.0) -> float:
    """How long it may be silent after it spoke [s]."""
    limit = spoke_s + idle_s
    while (further := silence.limit(limit)) > limit:
        limit = further
    return limit - spoke_s


def test_it_is_given_up_where_its_replica_is_not_known_to_work():
    assert silent_for(Silence(20.0, 120.0, lambda: False), 20.0) == 20.0


def test_it_may_wait_longer_for_a_replica_that_works_but_not_for_ever():
    silence = Silence(20.0, 120.0, lambda: True)
    assert silent_for(silence, 20.0) == 120.0
    assert silent_for(silence, 20.0, spoke_s=500.0) == 120.0, "each silence anew"


def test_it_is_given_up_soon_after_its_replica_was_taken_out():
    ready = True
    silence = Silence(20.0, 120.0, lambda: ready)
    assert silence.limit(20.0) == 21.0
    ready = False
    assert silence.limit(21.0) == 21.0


def test_a_shorter_limit_for_the_first_token_shortens_nothing():
    assert silent_for(Silence(20.0, 5.0, lambda: True), 20.0) == 20.0


async def test_a_gateway_that_did_not_run_gives_a_silent_engine_that_time_and_no_more():
    call = Call.of("r", {}, cast(Any, None), cast(Any, None), asyncio.get_running_loop(), 0.0)
    call.silence = Silence(20.0, 120.0, lambda: True)
    call.limit(Reason.BACKEND_STALLED, 20.0)
    clock = Timeouts(lambda: None)
    clock.calls.add(call)
    now = 20.0
    while now < call.deadline or not call.overdue(now):
        now += 0.5
        if now in (60.0, 90.0):
            clock._slept(1.5)
    assert now == 123.0
