"""What a simulated GPU is said to do: busy whenever a step is under way, active by what the batch needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scheduling.core.engine.step_time import StepTime
from scheduling.engines.simulated.engine import Engine, EngineLimits, Sequence, State
from scheduling.engines.simulated.runner import Runner

MODEL = StepTime(t0=0.010, a=0.0, b=0.0001, c=0.0, e=0.0, knee=1e9, a2=0.0)


class HandClock:
    """The three methods of an event loop that a runner uses, on a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], Any]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], Any]) -> Any:
        return self.call_at(self.now, callback)

    def call_at(self, at: float, callback: Callable[[], Any]) -> Any:
        self.timers.append((at, callback))
        return asyncio.Handle(callback, (), self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def run_until(self, end: float) -> None:
        while self.timers:
            soonest = min(self.timers, key=lambda timer: timer[0])
            if soonest[0] > end:
                break
            self.timers.remove(soonest)
            self.now = max(self.now, soonest[0])
            soonest[1]()
        self.now = end


def world(sequences: int, output: int, speed: float = 1.0) -> tuple[HandClock, Runner]:
    clock = HandClock()
    limits = EngineLimits(slots=128, kv_tokens=160_000, token_budget=2048, max_model_len=8192)
    runner = Runner(Engine(limits), MODEL, speed, clock)  # type: ignore[arg-type]
    for _ in range(sequences):
        runner.submit(Sequence(prompt_tokens=4, output_tokens=output))
    return clock, runner


@pytest.mark.parametrize("speed", [1.0, 7.0])
@pytest.mark.parametrize("sequences", [1, 25, 100])
def test_at_steady_load_it_is_always_busy_but_active_by_the_size_of_its_batch(sequences: int, speed: float) -> None:
    clock, runner = world(sequences, output=4_000, speed=speed)
    clock.run_until(1.5)
    busy, active = runner.utilization()
    assert busy == pytest.approx(1.0, abs=1e-6)
    assert active == pytest.approx(sequences * MODEL.b / (MODEL.t0 + sequences * MODEL.b), rel=1e-3)


def test_it_is_neither_busy_nor_active_when_nothing_runs() -> None:
    clock, runner = world(100, output=20)  # 20 steps of 20 ms, but the first, whose prompts cost nothing here
    clock.run_until(0.5)
    busy, active = runner.utilization()
    assert busy == pytest.approx(0.39, abs=1e-6)
    assert active == pytest.approx(0.19, abs=1e-6)
    clock.run_until(1.6)
    assert runner.utilization() == (0.0, 0.0)


def test_what_is_kept_of_the_past_stays_small_when_nobody_asks() -> None:
    clock, runner = world(100, output=8_000)
    clock.run_until(100.0)
    assert len(runner._stretches) <= 1_001


def test_steps_shorter_than_the_clock_can_tell_do_not_end_its_work() -> None:
    clock, runner = world(1, output=3, speed=1e30)
    clock.now = 1e6
    clock.run_until(1e6 + 0.1)
    assert runner.utilization() == (0.0, 0.0)
    last = Sequence(prompt_tokens=4, output_tokens=2)
    runner.submit(last)
    clock.run_until(1e6 + 0.2)
    assert last.state is State.FINISHED
