"""KV overcommit: how much may be reserved of a cache that is used less than it is reserved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.capacity.kv_overcommit import (
    CALM,
    FULL,
    HALF,
    MAX_OVERCOMMIT,
    MEMORY,
    MOST_PART,
    PAUSE_S,
    ROOMY,
    STEP_BACK,
    TARGET,
    KvPressure,
    KvUse,
)

CACHE = 400_000


def known(use: KvUse, name: str, output: int, requests: int = 4 * MEMORY, reserved: int = 8_200) -> KvUse:
    for _ in range(requests):
        use.ended(name, reserved, 200, output, 10.0)
    return use


def test_what_nobody_has_seen_end_is_reserved_in_full() -> None:
    assert KvUse().overcommit({}, CACHE) == 1.0
    assert KvUse().overcommit({"acme": (12, 96_000)}, CACHE) == 1.0


def test_requests_that_fill_their_bound_leave_nothing_to_overcommit() -> None:
    use = KvUse()
    for _ in range(4 * MEMORY):
        use.ended("acme", 6_000, 5_990, 10, 1.0)
    assert use.overcommit({"acme": (10, 60_000)}, CACHE) == 1.0


def test_of_answers_that_are_far_shorter_than_their_bound_several_times_the_cache_may_be_reserved() -> None:
    use = known(KvUse(), "acme", 1_000)
    offered = use.overcommit({"acme": (10, 82_000)}, CACHE)
    filled = (200 + 1_000 / 2) / 8_200
    assert 0.8 * TARGET / filled <= offered <= TARGET / filled


def test_more_may_be_reserved_as_more_requests_end_and_not_before() -> None:
    """Those that have not ended may be the long ones: the first to end are not all."""
    use, offers = KvUse(), []
    for _ in range(6):
        offers.append(use.overcommit({"acme": (100, 820_000)}, CACHE))
        known(use, "acme", 400, requests=60)
    assert offers[0] == 1.0
    assert offers == sorted(offers)
    assert offers[1] < 2.5 * TARGET / 0.8 < 3.0 * TARGET / 0.8 < offers[-1]


def test_a_tenant_that_nobody_knows_is_counted_in_full_beside_one_that_is_known() -> None:
    use = known(KvUse(), "acme", 400)
    alone = use.overcommit({"acme": (10, 82_000)}, CACHE)
    beside = use.overcommit({"acme": (10, 82_000), "new": (10, 82_000)}, CACHE)
    assert beside < 0.5 * alone


def test_requests_that_hold_the_cache_longest_count_most() -> None:
    use = KvUse()
    for _ in range(MEMORY):
        for _ in range(9):
            use.ended("acme", 8_000, 100, 100, 1.0)
        use.ended("acme", 8_000, 100, 7_000, 80.0)  # nine tenths of the time somebody holds is these
    assert use.overcommit({}, CACHE) < TARGET / 0.4


def test_where_few_requests_fit_a_cache_there_is_more_room_for_chance() -> None:
    use = KvUse()
    for n in range(4 * MEMORY):
        use.ended("acme", 8_200, 200, 4_000 * (n % 2), 10.0)
    assert use.overcommit({}, 10_000) < use.overcommit({}, 1_000_000)


def test_deleted_entitlements_are_forgotten() -> None:
    use = known(KvUse(), "acme", 100)
    use.keep({"other": None})
    assert use.overcommit({}, CACHE) == 1.0


def test_a_new_leader_goes_on_from_what_the_one_before_offered_and_learns_for_itself() -> None:
    """What runs was granted by that: forgotten, it would keep everybody out until most of it has ended."""
    running = {"acme": (100, 820_000)}
    before = known(KvUse(), "acme", 400).overcommit(running, CACHE)
    assert before > 5.0
    use = KvUse()
    use.inherit(before)
    assert use.overcommit(running, CACHE) == pytest.approx(before, abs=0.1)
    assert use.overcommit({}, CACHE) == pytest.approx(before, abs=0.1), "also where nothing runs yet"
    known(use, "acme", 400, requests=60)
    assert use.overcommit(running, CACHE) > 0.75 * before
    known(use, "acme", 8_000)
    assert use.overcommit(running, CACHE) < 2.0, "answers have become longer"


@pytest.mark.parametrize("offered", [0.0, 0.5, 1.0])
def test_a_leader_before_that_overcommitted_nothing_hands_nothing_on(offered: float) -> None:
    use = KvUse()
    use.inherit(offered)
    assert use.overcommit({"acme": (12, 96_000)}, CACHE) == 1.0


TOKENS = st.integers(-5, 300_000)
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200_000), TOKENS, TOKENS, st.floats(0, 1e6)))
RUNNING = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 500), st.integers(0, 10**7)))


@given(REQUESTS, RUNNING, st.integers(0, 10**7), st.sampled_from([1.0, 2.0, MAX_OVERCOMMIT]), st.floats(0.0, 1e9))
def test_it_stays_between_the_cache_and_what_is_allowed(requests, running, kv_tokens, most, before) -> None:
    use = KvUse()
    use.inherit(before)
    for request in requests:
        use.ended(*request)
    assert 1.0 <= use.overcommit(running, kv_tokens, most) <= most


# --- one replica


def seconds(
    pressure: KvPressure, count: int, usage: float | None, preemptions: float = 0.0, since_s: float = 0.0
) -> float:
    for second in range(count):
        pressure.seen(since_s + second, usage, preemptions)
    return since_s + count


def test_an_engine_that_does_not_say_how_full_its_cache_is_is_offered_with_its_cache() -> None:
    pressure = KvPressure()
    assert pressure.offered(1_000, 4.0) == 1_000
    seconds(pressure, 1, 0.2)
    assert pressure.offered(1_000, 4.0) == 4_000
    seconds(pressure, 1, None, since_s=1.0)
    assert pressure.offered(1_000, 4.0) == 1_000


def test_a_full_cache_takes_the_overcommit_back_by_tenths_and_a_calm_one_returns_it() -> None:
    pressure = KvPressure()
    now_s = seconds(pressure, 1, FULL)
    assert pressure.offered(1_000, 5.0) == pytest.approx(1_000 + STEP_BACK * 4_000)
    now_s = seconds(pressure, int(40 * PAUSE_S), FULL, since_s=now_s)
    assert pressure.offered(1_000, 5.0) == 1_000
    now_s = seconds(pressure, 60, (CALM + FULL) / 2, since_s=now_s)
    assert pressure.offered(1_000, 5.0) == 1_000, "neither full nor calm"
    seconds(pressure, int(12 * PAUSE_S), CALM / 2, since_s=now_s)
    assert pressure.offered(1_000, 5.0) == 5_000


def test_more_than_expected_is_offered_only_while_the_offer_binds_and_the_cache_has_room() -> None:
    pressure = KvPressure()
    now_s = seconds(pressure, int(4 * PAUSE_S), CALM / 2)
    assert pressure.part == 1.0, "nobody needs it"
    pressure.binds = True
    now_s = seconds(pressure, int(100 * PAUSE_S), CALM, since_s=now_s)
    assert pressure.part == 1.0, "the cache is nearly full"
    now_s = seconds(pressure, int(100 * PAUSE_S), CALM / 2, since_s=now_s)
    assert pressure.part == MOST_PART
    assert pressure.offered(1_000, 3.0) == 1_000 * (1.0 + MOST_PART * 2.0)
    assert pressure.offered(1_000, 3.0, most=4.0) == 4_000, "no more than is allowed"
    assert pressure.offered(1_000, 3.0, pace=0.0) == 3_000, "steps that are too long for what is promised"
    pressure.binds = False
    seconds(pressure, int(100 * PAUSE_S), CALM / 2, since_s=now_s)
    assert pressure.part == 1.0, "what was learned of other traffic is forgotten"


def test_more_is_offered_only_where_another_usual_request_would_fit_the_cache() -> None:
    """Granted beyond that it would wait in the engine, where nobody can go before it."""
    pressure = KvPressure(binds=True, usual=0.25)
    now_s = seconds(pressure, int(10 * PAUSE_S), 0.75)
    assert pressure.part == 1.0
    seconds(pressure, int(10 * PAUSE_S), 0.7, since_s=now_s)
    assert pressure.part > 1.5


@pytest.mark.parametrize("usual", [0.6, 0.97, 1.5])
def test_what_is_expected_to_fit_is_offered_again_where_usual_requests_do_not_fit_the_cache(usual: float) -> None:
    """What runs on the smallest replica of a pool is smaller than what is usual there."""
    pressure = KvPressure(part=0.0, binds=True, usual=usual)
    now_s = seconds(pressure, int(20 * PAUSE_S), ROOMY)
    assert pressure.part == 0.0
    seconds(pressure, int(20 * PAUSE_S), 0.9 * ROOMY, since_s=now_s)
    assert pressure.part == pytest.approx(1.0), "and not more"


def test_a_preemption_takes_half_of_it_back_and_those_of_before_do_not() -> None:
    pressure = KvPressure()
    now_s = seconds(pressure, 10, 0.5, preemptions=40.0)
    assert pressure.offered(1_000, 5.0) == 5_000
    seconds(pressure, 1, 0.5, preemptions=41.0, since_s=now_s)
    assert pressure.offered(1_000, 5.0) == pytest.approx(1_000 + HALF * 4_000)


@pytest.mark.parametrize("offset", range(5))
def test_it_does_not_return_while_an_engine_preempts_now_and_then(offset: int) -> None:
    """Also between two of its changes, when nothing is taken back."""
    pressure, preemptions, parts = KvPressure(part=0.5), 0.0, []
    for second in range(60):
        preemptions += second % 5 == offset
        pressure.seen(float(second), 0.85, preemptions)
        parts.append(pressure.part)
    assert max(parts) < 0.65
    assert parts[-1] < 0.1
