"""KV room: what a replica offers for reservations."""

from __future__ import annotations

import pytest

from scheduling.core.capacity.kv_overcommit import TARGET, KvUse
from scheduling.core.capacity.kv_room import KvRoom, inherited
from scheduling.core.capacity.kv_sharing import EngineUse

CACHE = 100_000


def known(reserved: int = 5_000, prompt: int = 500, answer: int = 1_000) -> KvUse:
    use = KvUse()
    for _ in range(5_000):
        use.ended("acme", reserved, prompt, answer, 10.0)
    return use


def after(room: KvRoom, seconds: int, usage: float, *, needed: bool, most: float = 16.0, tbt_s: float | None = None):
    """What it offers [times its cache] after so many looks at an engine whose steps take 50 ms. ``needed``: all that is
    offered is reserved."""
    expected = known().expected({})
    for second in range(seconds):
        reserved = room.offered(CACHE) if needed else 20_000
        room.pressure.seen(float(second), usage, 0.0)
        room.look(float(second), EngineUse(usage, CACHE, reserved, 0.0, 20.0 * second), expected, tbt_s, most)
    return room.offered(CACHE) / CACHE


EXPECTED = TARGET / 0.2  # what fits where requests of 5,000 tokens hold 1,000


def test_a_replica_offers_what_is_expected_to_fit_while_nobody_needs_more() -> None:
    assert after(KvRoom(), 60, 0.2, needed=False) == pytest.approx(EXPECTED, rel=0.05)


def test_where_all_that_it_offers_is_reserved_and_its_cache_has_room_it_offers_more() -> None:
    assert after(KvRoom(), 60, 0.5, needed=True) > 1.5 * EXPECTED


@pytest.mark.parametrize(("usage", "more"), [(0.65, True), (0.75, False)])
def test_it_offers_more_only_where_what_another_usual_request_is_expected_to_hold_is_free(usage: float, more: bool):
    """Requests that reserve 60,000 of 100,000 tokens and hold 25,000."""
    room, expected = KvRoom(), known(60_000, 20_000, 10_000).expected({})
    for second in range(60):
        room.pressure.seen(float(second), usage, 0.0)
        room.look(float(second), EngineUse(usage, CACHE, room.offered(CACHE), 0.0, 20.0 * second), expected, None)
    assert (room.pressure.part > 1.5) is more


def test_it_never_offers_more_than_is_allowed() -> None:
    assert after(KvRoom(), 60, 0.5, needed=True, most=6.0) == 6.0
    assert after(KvRoom(), 60, 0.5, needed=True, most=1.0) == 1.0


def test_it_offers_no_more_than_expected_where_steps_are_too_long_for_what_is_promised() -> None:
    assert after(KvRoom(), 60, 0.5, needed=True, tbt_s=0.2) > 1.5 * EXPECTED
    assert after(KvRoom(), 60, 0.5, needed=True, tbt_s=0.02) == pytest.approx(EXPECTED, rel=0.05)


def test_a_new_leader_offers_each_replica_what_the_one_before_did() -> None:
    """One was offered with more than what is expected to fit, since it had room; others were full. Under the most of
    them the full ones would be granted twice what they hold."""
    offered = {"roomy": 7.0, "usual": 3.0, "full": 1.5, "unknown": 1.0}
    overcommit, parts = inherited(offered)
    use = KvUse()
    use.inherit(overcommit)
    for name, times in offered.items():
        room = KvRoom()
        room.pressure.inherit(parts[name])
        room.look(0.0, EngineUse(0.5, CACHE, CACHE, 0.0, 0.0), use.expected({}), None)
        assert room.offered(CACHE) == pytest.approx(times * CACHE, rel=0.02), name


@pytest.mark.parametrize("offered", [{}, {"b1": 1.0}, {"b1": 0.5, "b2": 1.0}])
def test_a_leader_before_that_overcommitted_nothing_hands_no_parts_on(offered: dict[str, float]) -> None:
    assert inherited(offered) == (1.0, {})
