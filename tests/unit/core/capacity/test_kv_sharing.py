"""What requests' prompts have in common is held once: how much of it is seen, and how much of that is used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.capacity.kv_overcommit import TARGET, KvUse
from scheduling.core.capacity.kv_sharing import BUSY, EASY, LEAST, EngineUse, KvSharing

CACHE = 100_000
PROMPTS = 0.8  # of a reservation


def seconds(sharing: KvSharing, count: int, now_s: float = 0.0, tbt_s: float | None = None, **found: object) -> float:
    """That many looks, a second apart, at an engine of which all is reserved and half held. ``step_s`` [s]."""
    step_s = found.pop("step_s", 0.05)
    steps = sharing._steps or 0.0
    for _ in range(count):
        now_s += 1.0
        steps += 1.0 / step_s  # type: ignore[operator]
        given = {"usage": 0.4, "kv_tokens": CACHE, "reserved": CACHE, "steps": steps} | found
        sharing.seen(now_s, EngineUse(**given), PROMPTS, tbt_s)  # type: ignore[arg-type]
    return now_s


def test_an_engine_that_holds_half_of_its_prompts_is_seen_to_share_half():
    sharing = KvSharing()
    seconds(sharing, 60)
    assert sharing.counted == pytest.approx(0.5, abs=0.01)


def test_one_that_holds_all_of_them_shares_nothing_however_much_it_holds():
    sharing = KvSharing()
    seconds(sharing, 60, usage=0.8)
    seconds(sharing, 60, now_s=60.0, usage=1.0)
    assert sharing.counted == 1.0


def test_what_is_no_longer_shared_counts_within_seconds_and_what_is_shared_later():
    sharing = KvSharing()
    now_s = seconds(sharing, 1)
    assert sharing.counted > 0.7
    now_s = seconds(sharing, 59, now_s)
    now_s = seconds(sharing, 4, now_s, usage=0.8)
    assert sharing.counted > 0.9


def test_sequences_that_wait_in_the_engine_hold_nothing_and_do_not_look_shared():
    sharing = KvSharing()
    seconds(sharing, 60, waiting=0.5)
    assert sharing.counted == 1.0


def test_answers_that_have_just_begun_do_not_look_shared():
    """Short prompts with long answers: what is reserved is all answer, and little of it is there yet."""
    sharing = KvSharing()
    for second in range(1, 60):
        sharing.seen(float(second), EngineUse(0.05, CACHE, CACHE, steps=20.0 * second), 0.05, None)
    assert sharing.counted == 1.0


def test_little_that_runs_says_nothing_and_what_was_known_fades():
    sharing = KvSharing()
    now_s = seconds(sharing, 60)
    seconds(sharing, 600, now_s, reserved=int(LEAST * CACHE), usage=0.0)
    assert sharing.counted == pytest.approx(1.0, abs=0.01)


def test_an_engine_that_does_not_say_how_full_it_is_shares_nothing():
    sharing = KvSharing()
    now_s = seconds(sharing, 60)
    seconds(sharing, 1, now_s, usage=None)
    assert sharing.counted == 1.0


def test_sharing_is_used_as_far_as_steps_keep_the_promised_time_between_tokens():
    sharing = KvSharing()
    now_s = seconds(sharing, 60, tbt_s=0.1)
    assert sharing.counted == pytest.approx(0.5, abs=0.01)
    now_s = seconds(sharing, 20, now_s, tbt_s=0.1, step_s=0.12)
    assert sharing.counted > 0.99
    held = sharing.counted
    now_s = seconds(sharing, 20, now_s, tbt_s=0.1, step_s=0.1 * (1 + EASY) / 2)
    assert sharing.counted == pytest.approx(held, abs=1e-5), "neither too long nor easily short enough"
    now_s = seconds(sharing, 20, now_s, tbt_s=0.1, step_s=0.08)
    assert sharing.counted == pytest.approx(0.5, abs=0.01)
    seconds(sharing, 20, now_s, tbt_s=None, step_s=0.5)
    assert sharing.counted == pytest.approx(0.5, abs=0.01), "nothing is promised"


def test_an_idle_engine_has_no_long_steps():
    sharing = KvSharing()
    seconds(sharing, 60, tbt_s=0.1, step_s=0.5, reserved=int(BUSY * CACHE), usage=0.32)
    assert sharing.pace == 1.0


def test_steps_that_are_read_late_are_not_taken_for_quick_ones():
    sharing = KvSharing()
    for second in range(1, 61):  # steps of 0.15 s, read every third second
        use = EngineUse(0.4, CACHE, CACHE, steps=second // 3 * 3 / 0.15)
        sharing.seen(float(second), use, PROMPTS, 0.1)
    assert sharing.pace < 0.05


def test_where_steps_are_not_counted_a_promise_forbids_sharing():
    sharing = KvSharing()
    now_s = seconds(sharing, 60, tbt_s=0.1, steps=None)
    assert sharing.counted == 1.0
    seconds(sharing, 60, now_s, steps=None)
    assert sharing.counted == pytest.approx(0.5, abs=0.01)


@given(
    looks=st.lists(
        st.tuples(
            st.floats(0.0, 100.0),
            st.none() | st.floats(0.0, 1.0),
            st.integers(0, 10**7),
            st.integers(0, 10**9),
            st.floats(-1.0, 2.0),
            st.none() | st.floats(0.0, 1e9),
            st.floats(0.0, 1.0),
            st.none() | st.floats(0.001, 10.0),
        ),
        max_size=40,
    )
)
def test_whatever_engines_report_the_factor_is_a_share(looks: list[tuple]):
    sharing, now_s = KvSharing(), 0.0
    for past_s, usage, kv_tokens, reserved, waiting, steps, prompts, tbt_s in looks:
        now_s += past_s
        sharing.seen(now_s, EngineUse(usage, kv_tokens, reserved, waiting, steps), prompts, tbt_s)
        assert 0.0 <= sharing.counted <= 1.0
        assert 0.0 <= sharing.factor <= 1.0


def test_what_prompts_have_in_common_is_taken_off_what_requests_are_expected_to_hold():
    """Prompts are 0.8 of the reservation and answers fill 0.1 of it on average; of the prompts a quarter is held."""
    use = KvUse()
    for _ in range(5_000):
        use.ended("acme", 1_000, 800, 200, 1.0)
    expected = use.expected({})
    assert expected.prompts == pytest.approx(0.8)
    assert expected.overcommit(10**8) == pytest.approx(TARGET / 0.9, abs=0.06)
    assert expected.overcommit(10**8, sharing=0.25) == pytest.approx(TARGET / (0.9 - 0.6), abs=0.06)
    assert expected.overcommit(10**8, sharing=0.0) <= 16.0
    assert KvUse().expected({"new": (10, 10_000)}).overcommit(10**8, sharing=0.0) == 1.0, "nothing is known of it"
