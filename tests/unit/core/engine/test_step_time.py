"""The step-time model against its own definition and against the figures it was taken from."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.engine.step_time import PRESETS_DIR, StepTime, load_preset, parse_preset, preset_names

coefficient = st.floats(0, 1e-3, allow_nan=False)
models = st.builds(
    StepTime,
    t0=st.floats(1e-4, 0.1),
    a=coefficient,
    b=coefficient,
    c=st.floats(0, 1e-5),
    e=st.floats(0, 1e-8),
    knee=st.floats(0, 2048),
    a2=coefficient,
)


def decoding(model: StepTime, sequences: int, context: int, steps: int) -> float:
    """Seconds of steps that do nothing but decode; ``context``: of all sequences at the first of them [tokens]."""
    return sum(model.step(0, sequences, context + sequences * i) for i in range(steps))


@given(models, st.integers(0, 64), st.integers(0, 100_000), st.integers(0, 8000), st.floats(0, 0.5), st.floats(1, 2))
def test_max_prefill_is_the_largest_chunk_that_fits(
    model: StepTime, decodes: int, kv: int, context: int, budget: float, margin: float
) -> None:
    most = 4096
    chunk = model.max_prefill(decodes, kv, context, budget, margin, most)

    def seconds(tokens: int) -> float:
        return margin * model.step(tokens, decodes, kv, tokens * (context + tokens / 2))

    assert chunk == 0 or seconds(chunk) <= budget
    assert chunk == most or seconds(chunk + 1) > budget


def test_no_time_left_means_no_prefill() -> None:
    model = load_preset("llama-3-8b-a100").step_time
    assert model.max_prefill(8, 1000, 0, 0.0) == 0


def test_a_slowed_engine_takes_that_much_longer() -> None:
    model = load_preset("llama-3-8b-a100").step_time
    assert model.slowed(3).step(700, 9, 800, 1e5) == pytest.approx(3 * model.step(700, 9, 800, 1e5))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_coefficient_that_makes_no_sense_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="coefficient c"):
        StepTime(0.01, 0, 0, bad, 0, 0, 0)


# --- presets


def test_qoserve_steps_are_those_its_artifact_fits() -> None:
    model = load_preset("llama-3-8b-a100").step_time

    def prompt(tokens: int) -> float:
        return model.step(tokens, 0, 0, tokens * tokens / 2)

    assert prompt(256) * 1e3 == pytest.approx(35.7, rel=0.01)
    assert prompt(2500) * 1e3 == pytest.approx(244.6, rel=0.01)
    ratio = (2500 / prompt(2500)) / (256 / prompt(256))
    assert 1.4 <= ratio <= 2.1  # the paper says 1.39 in one place and 2 in another
    assert 375 <= model.max_prefill(10, 25_000, 0, 0.050) <= 424  # within a TBT of 50 ms beside 10 decodes


def test_driftsched_batches_take_as_long_as_printed() -> None:
    """A batch of 32 runs until its longest answer ends (512 tokens), shorter ones leave it before: printed 10.5 s."""
    model = load_preset("qwen1.5-1.8b-l4").step_time
    left = {64: 3, 256: 6, 384: 13, 512: 10}  # the stress phase's mix: output tokens -> how many
    seconds, done, running, prompt = 0.0, 0, 32, 20
    for length, count in left.items():
        seconds += decoding(model, running, running * (prompt + done), length - done)
        done, running = length, running - count
    assert seconds == pytest.approx(10.5, rel=0.06)


def test_token_pools_service_time_is_the_printed_one() -> None:
    model = load_preset("qwen3-8b-gb10").step_time
    assert decoding(model, 16, 16 * 64, 64) == pytest.approx(4.27, rel=0.01)


@pytest.mark.parametrize(
    ("name", "t256", "t2500"),
    [
        ("llama-3-8b-h100", 10.7, 56.8),
        ("llama-2-13b-a100-tp4", 15.8, 100.8),
        ("qwen1.5-1.8b-l4", 20.0, 85.8),
        ("llama-3.1-8b-a40", 53.6, 340),
        ("qwen3-32b-h800", 64.3, 327),
    ],
)
def test_roofline_presets_pass_through_their_two_points(name: str, t256: float, t2500: float) -> None:
    model = load_preset(name).step_time
    assert model.step(256, 0, 0, 256 * 128) * 1e3 == pytest.approx(t256, rel=0.002)
    assert model.step(2500, 0, 0, 2500 * 1250) * 1e3 == pytest.approx(t2500, rel=0.002)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_says_where_it_comes_from_and_fits_its_gpus(name: str) -> None:
    preset = load_preset(name)
    assert preset.label in ("measured", "fitted", "roofline")
    assert preset.source
    assert preset.weights_bytes + preset.kv_tokens * preset.kv_bytes_per_token <= preset.gpus * preset.gpu_memory_bytes
    assert preset.max_model_len <= preset.kv_tokens


def test_the_seven_setups_are_shipped() -> None:
    assert preset_names() == [
        "llama-2-13b-a100-tp4",
        "llama-3-8b-a100",
        "llama-3-8b-h100",
        "llama-3.1-8b-a40",
        "qwen1.5-1.8b-l4",
        "qwen3-32b-h800",
        "qwen3-8b-gb10",
    ]


def test_wrong_presets_are_named_with_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"unknown engine preset '\.\./x'; there are: llama-2"):
        load_preset("../x")
    data = tomllib.loads((PRESETS_DIR / "llama-3-8b-a100.toml").read_text())
    with pytest.raises(ValueError, match="slots must be a whole number"):
        parse_preset("p", {**data, "slots": 0})
    with pytest.raises(ValueError, match=r"missing or unknown keys: slot$"):
        parse_preset("p", {**data, "slot": 1})
    with pytest.raises(ValueError, match="label"):
        parse_preset("p", {**data, "label": "guessed"})
    with pytest.raises(ValueError, match="step_time"):
        parse_preset("p", {**data, "step_time": {}})
