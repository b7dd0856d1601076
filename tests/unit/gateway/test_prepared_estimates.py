"""What a body is taken for: its tokens, its hints and the order that an engine is given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduling.core.estimate.tokens import BYTES_PER_TOKEN, LEAST_RATIO, MOST_RATIO, TokenCalibration, raw_tokens
from scheduling.core.inside_engine.order import engine_order
from scheduling.core.policies.registry import orderings
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.entry.guard import TTFT_HINT, TTLT_HINT
from scheduling.gateway.errors import Refusal, message_of
from scheduling.gateway.estimate.estimates import make_estimate, make_queued
from scheduling.gateway.estimate.input_tokens import _asked, _texts
from tests.support.gateway_world import TIER
from tests.support.preparing import prepare
from tests.unit.gateway.test_gateway_prepare import ACCESS, POOL, chat, sent

LONG_TEXT = "ten words of text that an engine will have read " * 20


@given(st.text(max_size=500))
def test_tokens_lie_between_words_and_characters(text: str) -> None:
    assert (raw_tokens(text) == 0) == (text == "")
    assert raw_tokens(text) <= max(1.0, len(text) + 1)
    assert raw_tokens(text + " more words here") >= raw_tokens(text)


def test_one_letter_beyond_ascii_makes_no_longer_prompt_of_the_english_around_it() -> None:
    english = "the committee reviewed the proposal and found several issues with it. " * 100
    assert raw_tokens(english + "Müller’s 🙂") == pytest.approx(raw_tokens(english), rel=0.01)
    assert raw_tokens("漢字仮名交じり文" * 100) == pytest.approx(800 * 3 / BYTES_PER_TOKEN)


@pytest.mark.parametrize("spaces", [4, 20])
def test_indentation_is_not_a_word_for_each_space(spaces: int) -> None:
    lines = [" " * spaces + '"name": "a value of it",\n'] * 200
    assert raw_tokens("".join(lines)) <= max(len("".join(lines)) / BYTES_PER_TOKEN, 200 * 6 + 1)


def test_a_calibration_finds_the_tokenizer_and_bears_nonsense() -> None:
    calibration = TokenCalibration()
    assert calibration.estimate(100) == 100
    for _ in range(200):
        calibration.observe(100, 130)
    assert calibration.estimate(1000) == pytest.approx(1300, rel=0.01)
    for _ in range(500):
        calibration.observe(1, 10**9)
        calibration.observe(0, 5)
        calibration.observe(5, 0)
    assert LEAST_RATIO <= calibration.factor <= MOST_RATIO
    assert TokenCalibration().estimate(0) == 1


def test_an_estimate_covers_prompt_and_bound() -> None:
    estimate = make_estimate(chat(max_tokens=100), POOL, TokenCalibration())
    assert estimate.kv_tokens == estimate.cost_tokens == estimate.input_tokens + 100
    assert estimate.output_bound == 100


def test_what_fits_nowhere_is_refused_and_doubt_is_left_to_the_engine() -> None:
    def completion(tokens: int, **fields: Any) -> Prepared:
        body = {"model": "demo", "prompt": [1] * tokens} | fields
        return prepare(json.dumps(body).encode(), False, POOL)

    for tokens, bound, field in ((2000, 1, "prompt"), (2500, 600, "prompt"), (10, 2001, "max_tokens")):
        with pytest.raises(Refusal, match="too_long") as refused:
            make_estimate(completion(tokens, max_tokens=bound), POOL, TokenCalibration())
        assert refused.value.param == field, (tokens, bound)
        for looked_for in ("prompt is too long", "This model's maximum context length is 2000 tokens"):
            assert looked_for in message_of(refused.value.reason, **refused.value.fields), (
                "by these words clients know that it is the length"
            )
    assert make_estimate(completion(1500, max_tokens=500), POOL, TokenCalibration()).kv_tokens == 2000
    beyond = completion(1500, max_tokens=600)
    estimate = make_estimate(beyond, POOL, TokenCalibration())
    assert (estimate.output_bound, estimate.cost_tokens, estimate.kv_tokens) == (500, 2000, 2000), "what is left of it"
    assert sent(beyond)["max_tokens"] == 600, "the engine says what it makes of that"
    with pytest.raises(Refusal, match="too_long"):
        make_estimate(beyond, POOL, TokenCalibration(), cuts=False)
    shrunk = completion(1900)
    assert make_estimate(shrunk, POOL, TokenCalibration()).output_bound == 100
    assert sent(shrunk)["max_tokens"] == 100
    long_text = chat(messages=[{"role": "user", "content": "word " * 1600}], max_tokens=500)
    assert make_estimate(long_text, POOL, TokenCalibration()).kv_tokens == 2000, "only our guess says it is too long"


def test_a_default_bound_does_not_give_way_to_a_guess_of_the_prompts_length() -> None:
    def near_the_end(**of_pool: Any) -> tuple[int, int]:
        """The prompt is guessed to be as long as the context, and may be shorter: what is counted, and what is sent."""
        pool = replace(POOL, default_output_tokens=300, **of_pool)
        body = {"model": "demo", "messages": [{"role": "user", "content": "word " * 1600}]}
        prepared = prepare(json.dumps(body).encode(), True, pool)
        estimate = make_estimate(prepared, pool, TokenCalibration())
        assert estimate.input_tokens > pool.max_model_len
        assert estimate.kv_tokens == pool.max_model_len
        return estimate.output_bound, sent(prepared)["max_tokens"]

    assert near_the_end() == (300, 300), "the engine counts, and ends it where the context ends"
    assert near_the_end(engine="openai") == (1, 1), "where a bound beyond the end would be refused"


def test_a_hint_stands_beside_the_contracts_deadline_and_never_loosens_it() -> None:
    prepared = chat(max_tokens=5)
    estimate = make_estimate(prepared, POOL, TokenCalibration())
    assert TIER.slo.ttft_s == 5.0

    def hinted(ms: float) -> float | None:
        hints = {TTFT_HINT: ms / 1000, TTLT_HINT: 0.1}
        queued = make_queued("r", 1000.0, ACCESS, prepared, estimate, hints, "gw")
        assert queued.ttlt_deadline_s is None, "an interactive tier stays interactive"
        assert queued.ttft_deadline_s == 1005.0, "the contract's"
        return queued.hint_deadline_s

    assert hinted(1500) == 1001.5
    assert hinted(60_000) is None


@pytest.mark.parametrize("policy", sorted(orderings()))
def test_nothing_of_what_the_client_wishes_is_in_what_the_engine_orders_by(policy: str) -> None:
    order = engine_order(replace(POOL, policy=policy), [TIER.rank])

    def told(prepared: Prepared, hints: dict[bytes, float] | None = None) -> int:
        queued = make_queued(
            "r", 1000.0, ACCESS, prepared, make_estimate(prepared, POOL, TokenCalibration()), hints, "gw"
        )
        body: dict[str, int] = json.loads(prepared.upstream("m", order.priority(queued)))
        return body["priority"]

    plain = told(chat(max_tokens=5))
    assert told(chat(max_tokens=5, priority=-1000), {TTFT_HINT: 0.001, TTLT_HINT: 0.001}) == plain


@pytest.mark.parametrize("prompt", ["def add(", [1, 2, 3]])
def test_a_suffix_counts_as_input(prompt: Any) -> None:
    plain, filled = (
        prepare(json.dumps({"model": POOL.model, "prompt": prompt} | more).encode(), False, POOL)
        for more in ({}, {"suffix": LONG_TEXT})
    )
    assert filled.raw_input - plain.raw_input == pytest.approx(raw_tokens(LONG_TEXT))


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "assistant", "refusal": LONG_TEXT}]},
        {"messages": [{"role": "user", "content": "hi", "name": "n" * 250}]},
        {"messages": [{"role": "tool", "content": "hi", "tool_call_id": "i" * 250}]},
        {"chat_template_kwargs": {"persona": LONG_TEXT}},
        {"tools": [{"type": "function", "function": {"name": "f" * 200, "description": LONG_TEXT}}]},
    ],
)
def test_whatever_a_template_may_write_into_the_prompt_counts_as_input(more: dict[str, Any]) -> None:
    plain = {"model": POOL.model, "messages": [{"role": "user", "content": "hi"}]}
    counted = [prepare(json.dumps(body).encode(), True, POOL).raw_input for body in (plain, plain | more)]
    assert counted[1] > counted[0] + 40


def test_a_tokenizer_is_given_what_the_estimate_counts() -> None:
    body = {
        "model": POOL.model,
        "chat_template_kwargs": {"persona": "pirate"},
        "messages": [{"role": "assistant", "refusal": "never", "name": "anne"}],
    }
    asked = _asked(prepare(json.dumps(body).encode(), True, POOL))
    assert asked is not None
    text, messages = _texts(asked)
    assert (set(text.split()), messages) == ({"pirate", "never", "anne"}, 1)
    completion = {"model": POOL.model, "prompt": "a", "suffix": "b"}
    assert _asked(prepare(json.dumps(completion).encode(), False, POOL)) == "ab"


@pytest.mark.parametrize(
    ("body", "sequences"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": "a", "n": 5}, 5),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": ["a", "b", "c"], "n": 5}, 15),
        ({"prompt": [[1, 2], [3]], "n": 8}, 16),
    ],
)
def test_a_request_is_as_many_sequences_as_it_has_answers(body: dict[str, Any], sequences: int) -> None:
    prepared = prepare(json.dumps({"model": "demo", "max_tokens": 2} | body).encode(), False, POOL)
    estimate = make_estimate(prepared, POOL, TokenCalibration())
    assert make_queued("r", 0.0, ACCESS, prepared, estimate, None, "gw").sequences == sequences


def test_texts_that_are_only_read_count_as_no_more_sequences_than_answers_may() -> None:
    prepared = structs.replace(chat(max_tokens=1), prompts=2048, output_bound=0)
    estimate = make_estimate(chat(max_tokens=1), POOL, TokenCalibration())
    assert make_queued("r", 0.0, ACCESS, prepared, estimate, None, "gw").sequences == 16
