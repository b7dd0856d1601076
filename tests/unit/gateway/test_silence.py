"""How long a stream that has begun may send nothing."""

from __future__ import annotations

from scheduling.gateway.engine.silence import Silence


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
