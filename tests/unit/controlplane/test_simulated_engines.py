"""How the engines of ``make up`` are started."""

from __future__ import annotations

import pytest

from controlplane.embedded.engines import PROMISED_TBT_S, full_step_s, step_tokens
from scheduling.core.capacity.engine_limits import STEP_QUANTUM, slow_steps
from scheduling.core.engine.step_time import load_preset, preset_names
from scheduling.simulator.contracts import SHIPPED


def test_the_strictest_promise_is_that_of_the_shipped_tiers() -> None:
    assert min(tier.slo.tbt_s for tier in SHIPPED if tier.slo.tbt_s) == PROMISED_TBT_S


@pytest.mark.parametrize("name", preset_names())
def test_a_full_step_under_load_takes_no_longer_than_tokens_are_promised_to_be_apart(name: str) -> None:
    preset = load_preset(name)
    tokens = step_tokens(preset)
    assert full_step_s(preset, tokens) <= PROMISED_TBT_S or tokens == STEP_QUANTUM
    assert full_step_s(preset, tokens + STEP_QUANTUM) > PROMISED_TBT_S or tokens >= 2048, "a larger one computes more"


def test_an_a100_computes_768_tokens_a_step_for_a_promise_of_a_tenth_of_a_second() -> None:
    """With 1,024 tokens come 0.12 s apart beside long prompts: all of premium was late."""
    assert step_tokens(load_preset("llama-3-8b-a100")) == 768


def test_no_smaller_steps_are_advised_to_an_engine_as_it_is_started() -> None:
    """The demo would begin with advice to start it otherwise."""
    for name in preset_names():
        preset = load_preset(name)
        tokens = step_tokens(preset)
        told = slow_steps(tokens, full_step_s(preset, tokens), PROMISED_TBT_S)
        assert "--max-num-batched-tokens" not in told, name
