"""What a replica's counters under load say of it: throughput, slots, step times."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.engine.calibration import Burst, LoggedStep, fit, fit_steps, propose
from scheduling.core.engine.step_time import StepTime
from scheduling.engines.kinds.vllm import kv_tokens_of
from scheduling.engines.loading import Shape

MODEL = StepTime(t0=0.015, a=8e-5, b=9.5e-5, c=1.2e-7, e=0.0, knee=0.0, a2=0.0)
LEVELS = ((1, 40.0), (4, 40.0), (16, 40.0), (64, 40.0), (8, 400.0), (64, 900.0), (1, 900.0))


def seen(model: StepTime, level: int, context: float, slots: int = 1000, steps: int = 200) -> Burst:
    """What counters would say of steps that take exactly as long as the model says."""
    running = min(level, slots)
    prefill = running * context / 100  # per step: each answer has a hundred tokens
    seconds = steps * model.step(prefill, running, running * context)
    return Burst(level, seconds, steps * prefill, steps * running, running, running, level - running, context)


@given(st.floats(1e-3, 0.1), st.floats(0, 1e-3), st.floats(0, 1e-3), st.floats(0, 1e-6))
def test_step_times_that_made_the_counters_are_found_again(t0: float, a: float, b: float, c: float) -> None:
    model = StepTime(t0=t0, a=a, b=b, c=c, e=0.0, knee=0.0, a2=0.0)
    bursts = [seen(model, *level) for level in LEVELS]
    found, error = fit(bursts)
    assert found is not None
    assert error < 1e-3
    for burst in bursts:
        prefill = burst.prompt_tokens / burst.steps
        told = found.step(prefill, burst.running, burst.running * burst.context)
        assert told == pytest.approx(burst.seconds / burst.steps, rel=5e-3)


def test_coefficients_are_never_negative_whatever_noise_says() -> None:
    bursts = [seen(MODEL, *level) for level in LEVELS]
    noisy = [
        Burst(b.concurrency, b.seconds * (1.3 - 0.1 * n), *(b.prompt_tokens, b.output_tokens), b.running,
              b.running_most, b.waiting_most, b.context)
        for n, b in enumerate(bursts)
    ]  # fmt: skip
    found, error = fit(noisy)
    assert found is not None  # StepTime itself refuses negative ones
    assert error > 0.01


def test_too_few_bursts_say_nothing_of_step_times() -> None:
    assert fit([seen(MODEL, 1, 40.0), seen(MODEL, 4, 40.0)]) == (None, 0.0)


def test_where_all_that_was_offered_ran_the_limit_is_said_to_be_unknown() -> None:
    bursts = [seen(MODEL, level, 40.0, slots=24) for level in (8, 16, 32)]
    assert propose(bursts, 40.0, 24).slots == 24
    unsure = propose(bursts[:2], 40.0, None)
    assert unsure.slots is None
    assert "it ran all that were offered" in unsure.notes[0]


def test_throughput_is_that_of_the_usual_requests() -> None:
    bursts = [seen(MODEL, 16, 40.0), seen(MODEL, 16, 400.0), seen(MODEL, 16, 4000.0)]
    assert propose(bursts, 400.0, 16).tokens_per_s == bursts[1].tokens_per_s


def test_a_replica_that_generated_nothing_is_no_measurement() -> None:
    dead = Burst(4, 1.0, 100.0, 0.0, 0.0, 0, 4, 40.0)
    with pytest.raises(ValueError, match="generated nothing"):
        propose([dead], 40.0, None)


def test_context_is_the_mean_over_time_of_what_runs() -> None:
    assert Shape(100, 12).context == pytest.approx(100 + 6.5, abs=0.01)


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        ('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0', 1600),
        (
            '# HELP x\nvllm:cache_config_info{num_gpu_blocks="100",block_size="16"} 1\n'
            'vllm:cache_config_info{num_gpu_blocks="50",block_size="16"} 1\n',
            2400,
        ),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0', None),
        ("vllm:num_requests_running 1", None),
    ],
)
def test_kv_cache_is_blocks_times_their_size_over_all_engines(page: str, tokens: int | None) -> None:
    assert kv_tokens_of(page) == tokens


def logged(count: int, noise: float = 0.0, strays: int = 0) -> list[LoggedStep]:
    draw, steps = random.Random(3), []
    for number in range(count):
        prefill, decodes = draw.choice((0, 60, 500, 2000)), draw.randint(0, 30)
        kv, pp = decodes * draw.randint(50, 3000), prefill * (draw.randint(0, 4000) + prefill / 2)
        seconds = TRUE.step(prefill, decodes, kv, pp) * draw.uniform(1 - noise, 1 + noise)
        steps.append(LoggedStep(prefill, decodes, kv, pp, seconds * (20 if number < strays else 1)))
    return steps


TRUE = StepTime(t0=2e-3, a=8e-6, b=1e-5, c=2e-7, e=4e-9, knee=0.0, a2=0.0)


def test_logged_steps_give_their_coefficients_prefill_attention_included() -> None:
    found = fit_steps(logged(400))
    assert found is not None
    assert found.error < 1e-6
    for name in ("t0", "a", "b", "c", "e"):
        assert getattr(found.step_time, name) == pytest.approx(getattr(TRUE, name), rel=1e-3)


def test_steps_that_something_else_disturbed_do_not_count() -> None:
    found = fit_steps(logged(400, noise=0.1, strays=20))
    assert found is not None
    assert found.error == pytest.approx(0.05, abs=0.03), "the noise, over steps that were not fitted to"
    assert found.step_time.step(500, 10, 5000, 5e5) == pytest.approx(TRUE.step(500, 10, 5000, 5e5), rel=0.05)


def test_steps_that_do_not_tell_give_no_model() -> None:
    assert fit_steps(logged(20)) is None
    same = fit_steps([LoggedStep(0, 4, 100, 0.0, 0.01)] * 100)
    assert same is not None
    assert same.step_time.step(0, 4, 100) == pytest.approx(0.01)
