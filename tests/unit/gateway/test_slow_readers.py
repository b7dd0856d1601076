"""How long a stream waits for its client: at once, and in all."""

from __future__ import annotations

from scheduling.gateway.engine.relay import _Reader


def test_a_reader_has_the_time_of_one_send_at_once() -> None:
    reader = _Reader(100.0, 30.0)
    assert reader.until(100.0) == 130.0
    assert reader.until(500.0) == 530.0


def test_what_was_waited_for_it_is_taken_from_what_is_left() -> None:
    reader = _Reader(100.0, 30.0)
    reader.took(20.0)
    assert reader.until(120.0) == 130.0
    reader.took(10.0)
    assert reader.until(130.0) == 130.0, "it has had all of it"


def test_who_reads_half_as_fast_as_the_engine_writes_is_waited_for_without_end() -> None:
    reader, now = _Reader(0.0, 30.0), 0.0
    for _ in range(100):
        now += 10.0  # the engine's
        assert reader.until(now) - now >= 10.0
        now += 10.0  # the reader's
        reader.took(10.0)


def test_a_slot_is_held_for_twice_as_long_as_its_engine_needs_and_one_send_at_most() -> None:
    reader, now = _Reader(0.0, 30.0), 40.0
    while (left_s := reader.until(now) - now) > 0:
        reader.took(min(5.0, left_s))
        now += min(5.0, left_s)
    assert now == 40.0 + 70.0
