"""From a body to what an engine gets: bounded, rebuilt, sized."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.estimate.tokens import LEAST, MOST, Calibration, raw_tokens
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, KeySpec, PoolSpec
from scheduling.gateway.auth import Access, split_key
from scheduling.gateway.errors import Refusal
from scheduling.gateway.estimates import engine_priority, make_estimate, make_queued
from scheduling.gateway.guard import TTFT_HINT, TTLT_HINT
from scheduling.gateway.headers import Limits
from scheduling.gateway.openai_types import ChatRequest, CompletionRequest
from scheduling.gateway.prepare import Prepared, parse, prepare
from tests.gateway_world import TIER

POOL = PoolSpec("p", "demo", "up", (BackendSpec("b", "p", "http://127.0.0.1:1", 8, 4000),), max_model_len=2000)
ENTITLEMENT = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)
ACCESS = Access(KeySpec("k" * 12, b"", "e"), ENTITLEMENT, POOL, Limits(ENTITLEMENT), None)
USER = {"role": "user", "content": "hello there"}


def chat(**fields: Any) -> Prepared:
    return prepare(json.dumps({"model": "demo", "messages": [USER]} | fields).encode(), True, POOL)


def sent(prepared: Prepared) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(prepared.upstream("up", 7))
    return body


def test_nothing_is_forwarded_by_default() -> None:
    fields = {
        "prompt_logprobs": 5,
        "best_of": 9,
        "service_tier": "flex",
        "n": 1,
        "user": "u",
        "extra": [1],
        "echo": True,
    }
    assert sent(chat(**fields)) == {"model": "up", "messages": [USER], "max_tokens": 512, "priority": 7}


def test_tools_and_formats_travel_as_they_are() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": ["A", "B"]}}}
    fields = {
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        "messages": [
            USER,
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ],
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"17": -100},
        "stop_token_ids": [1, 2],
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "seed": 4,
    }
    body = sent(chat(**fields))
    for name, value in fields.items():
        assert body[name] == value, name


def test_what_vllm_takes_beyond_openai_travels_within_bounds() -> None:
    schema = {"type": "object"}
    fields = {
        "chat_template_kwargs": {"enable_thinking": False, "level": 3, "style": "brief", "none": None},
        "structured_outputs": {"json": schema, "disable_any_whitespace": True},
        "reasoning_effort": "max",
        "thinking_token_budget": 100,
        "include_reasoning": False,
        "continue_final_message": True,
        "add_generation_prompt": False,
        "bad_words": ["no"],
        "allowed_token_ids": [1],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    body = sent(chat(**fields))
    for name, value in fields.items():
        assert body[name] == value, name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"guided_json": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"guided_json": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
        ({"guided_regex": "[a-z]+"}, {"regex": "[a-z]+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "root ::= x", "guided_json": None}, {"grammar": "root ::= x"}),
        ({"guided_json": None}, None),
    ],
)
def test_older_names_of_constraints_are_not_dropped_without_a_word(old: dict[str, Any], new: Any) -> None:
    for body in (
        sent(chat(**old)),
        sent(prepare(json.dumps({"model": "demo", "prompt": "x"} | old).encode(), False, POOL)),
    ):
        assert body.get("structured_outputs") == new
        assert not [name for name in body if name.startswith("guided_")]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"chat_template": "{{ messages }}"}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"return_tensors": "pt"}},
        {"chat_template_kwargs": {"a b": 1}},
        {"chat_template_kwargs": {"nested": {"a": 1}}},
        {"chat_template_kwargs": {"long": "x" * 1025}},
        {"chat_template_kwargs": {f"k{n}": n for n in range(17)}},
        {"structured_outputs": {"json": {"description": "x" * 200_000}}},
        {"guided_json": {"description": "x" * 200_000}},
        {"structured_outputs": {"regex": "x" * 8193}},
        {"guided_regex": "a", "guided_choice": ["b"]},
        {"guided_regex": "a", "structured_outputs": {"regex": "b"}},
        {"allowed_token_ids": []},
        {"bad_words": ["x"] * 129},
    ],
)
def test_what_an_engine_must_not_be_told_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        chat(**fields)
    assert refused.value.status == 400


def test_the_page_about_v1_names_every_field() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "v1.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    assert set(ChatRequest.__struct_fields__) | set(CompletionRequest.__struct_fields__) <= named


def test_a_stream_always_asks_for_usage() -> None:
    assert sent(chat(stream=True))["stream_options"] == {"include_usage": True}
    assert not chat(stream=True).wants_usage
    asked = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert asked.wants_usage
    assert sent(asked)["stream_options"] == {"include_usage": True}
    assert "stream" not in sent(chat(stream=False))


def test_the_newer_name_of_the_bound_wins() -> None:
    prepared = chat(max_tokens=10, max_completion_tokens=20)
    assert prepared.output_bound == sent(prepared)["max_tokens"] == 20
    assert "max_completion_tokens" not in sent(prepared)


def test_schemas_have_a_size() -> None:
    big = {"description": "x" * 200_000}
    with pytest.raises(Refusal, match="invalid_request"):
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": big}}])
    with pytest.raises(Refusal, match="invalid_request"):
        chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": big}})


def refusal_of(data: bytes, is_chat: bool) -> int:
    """The status of its refusal, 0 where it is taken."""
    try:
        parse(data, is_chat)
    except Refusal as refused:
        return refused.status if len(refused.fields["detail"]) < 600 else -1
    return 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(
    JSON,
    st.sampled_from(
        [
            "chat_template_kwargs",
            "structured_outputs",
            "guided_json",
            "messages",
            "prompt",
            "tools",
            "stop",
            "logit_bias",
            "response_format",
            "max_tokens",
        ]
    ),
)
def test_whatever_comes_is_parsed_or_refused_never_a_fault(value: Any, field: str) -> None:
    for is_chat in (True, False):
        base = {"model": "demo", "messages": [USER], "prompt": "x", field: value}
        assert refusal_of(json.dumps(base).encode(), is_chat) in (0, 400)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_never_a_fault(data: bytes) -> None:
    for is_chat in (True, False):
        with pytest.raises(Refusal):
            parse(data, is_chat)


# --- estimates


@given(st.text(max_size=500))
def test_tokens_lie_between_words_and_characters(text: str) -> None:
    assert (raw_tokens(text) == 0) == (text == "")
    assert raw_tokens(text) <= max(1.0, len(text) + 1)
    assert raw_tokens(text + " more words here") >= raw_tokens(text)


def test_a_calibration_finds_the_tokenizer_and_bears_nonsense() -> None:
    calibration = Calibration()
    assert calibration.estimate(100) == 100
    for _ in range(200):
        calibration.observe(100, 130)
    assert calibration.estimate(1000) == pytest.approx(1300, rel=0.01)
    for _ in range(500):
        calibration.observe(1, 10**9)
        calibration.observe(0, 5)
        calibration.observe(5, 0)
    assert LEAST <= calibration.factor <= MOST
    assert Calibration().estimate(0) == 1


def test_an_estimate_covers_prompt_and_bound() -> None:
    estimate = make_estimate(chat(max_tokens=100), POOL, Calibration())
    assert estimate.kv_tokens == estimate.cost_tokens == estimate.input_tokens + 100
    assert estimate.output_bound == 100


def test_what_fits_nowhere_is_refused_and_doubt_is_left_to_the_engine() -> None:
    def completion(tokens: int, **fields: Any) -> Prepared:
        body = {"model": "demo", "prompt": [1] * tokens} | fields
        return prepare(json.dumps(body).encode(), False, POOL)

    with pytest.raises(Refusal, match="too_long"):
        make_estimate(completion(1500, max_tokens=600), POOL, Calibration())
    assert make_estimate(completion(1500, max_tokens=500), POOL, Calibration()).kv_tokens == 2000
    shrunk = completion(1900)
    assert make_estimate(shrunk, POOL, Calibration()).output_bound == 100
    assert sent(shrunk)["max_tokens"] == 100
    long_text = chat(messages=[{"role": "user", "content": "word " * 1600}], max_tokens=500)
    assert make_estimate(long_text, POOL, Calibration()).kv_tokens == 2000, "only our guess says it is too long"


def test_a_hint_stands_beside_the_contracts_deadline_and_never_loosens_it() -> None:
    prepared = chat(max_tokens=5)
    estimate = make_estimate(prepared, POOL, Calibration())
    assert TIER.slo.ttft_s == 5.0

    def hinted(ms: float) -> float | None:
        hints = {TTFT_HINT: ms / 1000, TTLT_HINT: 0.1}
        queued = make_queued("r", 1000.0, ACCESS, prepared, estimate, hints, "gw")
        assert queued.ttlt_deadline_s is None, "an interactive tier stays interactive"
        assert queued.ttft_deadline_s == 1005.0, "the contract's"
        return queued.hint_deadline_s

    assert hinted(1500) == 1001.5
    assert hinted(60_000) is None


def test_the_engine_hears_the_tiers_rank_and_nothing_of_what_the_client_wishes() -> None:
    prepared = chat(max_tokens=5, priority=-1000)
    tier = replace(TIER, rank=2)
    priority = engine_priority(replace(ENTITLEMENT, tier=tier))
    assert json.loads(prepared.upstream("m", priority))["priority"] == priority == 2


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Basic qm-abcdefghijkl.secret", b"Bearer qm-abc.secret",
     b"Bearer qm-abcdefghijkl", b"Bearer qm-abcdefghijkl.", b"Bearer qm-abcdefghij\xff\xfe.s", b"Bearer " + b"q" * 500],
)  # fmt: skip
def test_what_cannot_be_a_key_is_not_looked_up(header: bytes | None) -> None:
    assert split_key(header) is None


def test_a_key_has_two_parts() -> None:
    assert split_key(b"bearer qm-abcdefghijkl.sec.ret") == ("abcdefghijkl", b"sec.ret")
