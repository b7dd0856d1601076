"""How long a stream waits for its client: at once, and in all."""

from __future__ import annotations

from scheduling.gateway.engine.relay import _Reader


def test_a_reader_has_the_time_of_one_send_at_once() -> None:
    reader = _Reader(100.0, 30.0)
    assert reader.until(100.0, 0) == 130.0
    assert reader.until(500.0, 0) == 530.0


def test_what_was_waited_for_it_is_taken_from_what_is_left() -> None:
    reader = _Reader(100.0, 30.0)
    reader.took(20.0)
    assert reader.until(120.0, 0) == 130.0
    reader.took(10.0)
    assert reader.until(130.0, 0) == 130.0, "it has had all of it"


def test_who_is_waited_for_half_of_the_time_is_waited_for_without_end() -> None:
    reader, now = _Reader(0.0, 30.0), 0.0
    for _ in range(100):
        now += 10.0  # the engine's
        assert reader.until(now, 0) - now >= 10.0
        now += 10.0  # the reader's
        reader.took(10.0)


def test_a_slot_is_held_for_twice_as_long_as_its_engine_needs_and_one_send_at_most() -> None:
    reader, now = _Reader(0.0, 30.0), 40.0
    while (left_s := reader.until(now, 0) - now) > 0:
        reader.took(min(5.0, left_s))
        now += min(5.0, left_s)
    assert now == 40.0 + 70.0


def reads(bytes_per_s: float, engine_bytes_per_s: float, of: int) -> float | None:
    """When a client has read a stream of so many bytes whose engine writes at such a rate, while 160 KiB fit between
    the two; None: it was dropped. What the engine is ahead by beyond that waits in the engine."""
    room, piece = 160 * 1024, 32 * 1024
    reader, now, passed = _Reader(0.0, 30.0), 0.0, 0
    while passed < of:
        now = max(now, (passed + piece) / engine_bytes_per_s)  # for the engine
        takes_s = max(0.0, (passed + piece - room) / bytes_per_s - now)
        if now + takes_s > reader.until(now, passed):
            return None
        reader.took(takes_s)
        now += takes_s
        passed += piece
    return now


def test_who_reads_more_slowly_than_the_engine_writes_gets_a_long_answer() -> None:
    """The stream waits for it nearly all of the time, since the engine's next piece is always there."""
    assert reads(15_000, 25_000, of=3_000_000)  # two minutes of an engine at 100 tokens/s
    assert reads(5_000, 10_000, of=1_000_000)
    assert reads(5_000, 1e9, of=1_000_000), "whatever the engine does"


def test_who_reads_a_little_now_and_then_is_dropped() -> None:
    assert reads(2_000, 1e9, of=1_000_000) is None
