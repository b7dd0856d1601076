"""How long prompts take beside their prefill, found from the times of those that nothing was in the way of."""

from __future__ import annotations

import random

import pytest

from scheduling.core.engine.lag import ENOUGH, KEPT, MOST_S, EngineLag
from scheduling.core.engine.step_time import load_preset
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.outcomes import Outcome
from tests.support.state_world import ledger

RATE = 40_000.0  # prompt tokens/s


def told(lag_s: float, count: int = 400, *, rate: float = RATE, waits_s: float = 0.2, seed: int = 1) -> EngineLag:
    """Of prompts of all lengths, a quarter of which found the engine free."""
    lag, draw = EngineLag(), random.Random(seed)
    for _ in range(count):
        tokens = round(2 ** draw.uniform(5, 13))
        waited_s = 0.0 if draw.random() < 0.25 else draw.expovariate(1 / waits_s)
        lag.add(tokens, lag_s + tokens / rate + waited_s + draw.uniform(0, 0.006))
    return lag


@pytest.mark.parametrize("lag_s", [0.002, 0.01, 0.025])
@pytest.mark.parametrize("rate", [8_500.0, RATE])
def test_it_is_found_among_prompts_most_of_which_waited(lag_s: float, rate: float) -> None:
    for seed in range(5):
        assert told(lag_s, rate=rate, seed=seed).line_s == pytest.approx(lag_s, abs=0.006)


def test_the_step_that_any_prompt_takes_part_in_is_none_of_it() -> None:
    lag, draw = EngineLag(), random.Random(3)
    for n in range(400):
        tokens, busy = round(2 ** draw.uniform(5, 13)), n % 4
        lag.add(tokens, 0.012 + 0.03 + tokens / RATE + busy * draw.uniform(0, 0.3), 0.03 + 0.05 * busy)
    assert lag.line_s == pytest.approx(0.012, abs=0.003)
    lag.add(100, 5.0, 0.2)  # a stream whose steps were long takes nothing off
    assert lag.line_s == pytest.approx(0.012, abs=0.003)


def test_it_is_not_known_before_two_lengths_were_seen_often_enough() -> None:
    lag = EngineLag()
    for _ in range(100):
        lag.add(2_000, 0.07)
    assert lag.line_s is None
    for n in range(ENOUGH):
        assert lag.line_s is None, n
        lag.add(200, 0.025)
    assert lag.line_s == pytest.approx(0.02)


def test_it_follows_an_engine_that_became_slower_and_is_bounded() -> None:
    lag = told(0.005)
    for _ in range(3):
        for tokens in (64, 128, 256, 512, 1_024, 2_048) * 32:
            lag.add(tokens, 0.06 + tokens / RATE)
    assert lag.line_s == MOST_S


def test_where_all_wait_for_long_nothing_is_told_of_so_short_a_time() -> None:
    """Lengths of which none comes any more say nothing of it, either."""
    lag = told(0.005)
    for _ in range(3):
        for tokens in (64, 128, 256, 512, 1_024, 2_048) * 32:
            lag.add(tokens, 3.0 + tokens / RATE)
    assert lag.line_s is None


@pytest.mark.parametrize("preset", ["llama-3-8b-a100", "llama-3-8b-h100", "llama-2-13b-a100-tp4"])
@pytest.mark.parametrize("lag_s", [0.01, 0.03])
def test_long_prompts_take_nothing_off(preset: str, lag_s: float) -> None:
    """Their attention grows with the square of their length, so a straight line through them meets zero far below."""
    engine, lag, draw = load_preset(preset).step_time, EngineLag(), random.Random(2)
    for _ in range(600):
        tokens, done, took_s = round(2 ** draw.uniform(6, 16)), 0, 0.0
        while done < tokens:
            chunk = min(2_000, tokens - done)
            took_s += engine.step(chunk, 16, 16 * 1500.0, chunk * (2 * done + chunk))
            done += chunk
        step_s = engine.step(0, 16, 16 * 1500.0)
        waited_s = draw.expovariate(20.0) if draw.random() < 0.75 else draw.uniform(0, 0.005)
        lag.add(tokens, lag_s + draw.uniform(0, step_s) + took_s + waited_s, step_s)
    assert lag.line_s == pytest.approx(lag_s, abs=0.006)


def test_prompts_that_are_all_long_tell_nothing() -> None:
    lag = EngineLag()
    for tokens in (2_500, 4_000, 9_000, 30_000) * 20:
        lag.add(tokens, tokens / 8_000)
    assert lag.line_s is None


def test_what_no_clock_can_have_seen_is_left_out() -> None:
    lag = EngineLag()
    for _ in range(50):
        lag.add(0, 1.0)
        lag.add(100, -5.0)
        lag.add(4_000, 0.0)
    assert lag.line_s is None
    for _ in range(10):  # longer prompts that took less: no rate is below zero
        lag.add(100, 0.03)
        lag.add(4_000, 0.01)
    assert lag.line_s == pytest.approx(0.012)


def test_only_streams_that_ended_well_at_their_first_attempt_count() -> None:
    good = {
        "output_tokens": 4,
        "done_s": 11.0,
        "streamed": True,
        "attempts": 1,
        "outcome": Outcome.COMPLETED,
        "granted_s": 10.0,
        "cached_tokens": 0,
    }
    seen = [
        ledger("r", **good | {"input_tokens": tokens, "first_token_s": 10.0 + 0.01 + tokens / RATE})
        for tokens in (200, 3_000)
        for _ in range(ENOUGH)
    ]
    lag = EngineLag()
    for other in ({"streamed": False}, {"attempts": 2}, {"interruptions": 1}, {"outcome": Outcome.FAILED},
                  {"granted_s": None}, {"first_token_s": None}):  # fmt: skip
        lag.read([ledger("r", **good | {"input_tokens": 200, "first_token_s": 10.001} | other)] * 20)
    assert lag.lag_s is None
    lag.read(seen)
    assert lag.lag_s == pytest.approx(0.01, abs=1e-6)
    lag.read([ledger("r", **good | {"input_tokens": 200, "first_token_s": 10.5, "done_s": 10.54, "output_tokens": 9})])
    assert lag.lag_s == pytest.approx(0.005, abs=1e-6)
    cached = ledger(
        "r", **good | {"input_tokens": 3_000, "cached_tokens": 2_900, "first_token_s": 10.0 + 0.01 + 100 / RATE}
    )
    lag.read([cached] * ENOUGH)
    assert lag.lag_s == pytest.approx(0.005, abs=1e-6)


def test_overload_raises_it_slowly_and_a_quiet_moment_lowers_it_at_once() -> None:
    def streams(lag_s: float) -> list[LedgerRecord]:
        good = {"streamed": True, "attempts": 1, "outcome": Outcome.COMPLETED, "granted_s": 10.0, "output_tokens": 2}
        return [
            ledger("r", **good | {"input_tokens": tokens, "first_token_s": 10.0 + lag_s + tokens / RATE})
            for tokens in (200, 3_000) * KEPT
        ]

    lag = EngineLag()
    lag.read(streams(0.004))
    assert lag.lag_s == pytest.approx(0.004, abs=1e-6)
    lag.read(streams(0.035))
    assert lag.lag_s is not None
    assert 0.004 < lag.lag_s < 0.006
    for _ in range(200):
        lag.read(streams(0.035))
    assert lag.lag_s == pytest.approx(0.035, abs=0.001)
    lag.read(streams(0.004))
    assert lag.lag_s == pytest.approx(0.004, abs=1e-6)
