"""From a body to what an engine gets: bounded, rebuilt, sized."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.outcomes import Reason
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, KeySpec, PoolSpec
from scheduling.gateway.bodies import fields
from scheduling.gateway.bodies.openai_types import (
    ChatRequest,
    CompletionRequest,
    Consumed,
    FromClient,
    Message,
    Part,
    Refused,
    Tool,
    ToolCall,
)
from scheduling.gateway.bodies.prepare import Prepared, parse
from scheduling.gateway.bodies.prepare_responses import RESPONSES_FORM, Sent, fit_response
from scheduling.gateway.entry.auth import Access, split_key
from scheduling.gateway.entry.users import take_user
from scheduling.gateway.errors import Refusal
from scheduling.gateway.headers import Limits
from tests.support.gateway_world import TIER
from tests.support.preparing import prepare

POOL = PoolSpec("p", "demo", "up", (BackendSpec("b", "p", "http://127.0.0.1:1", 8, 4000),), max_model_len=2000)
ENTITLEMENT = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)
ACCESS = Access(KeySpec("k" * 12, b"", "e"), ENTITLEMENT, POOL, Limits(ENTITLEMENT), None)
USER = {"role": "user", "content": "hello there"}


def kinds(struct: type) -> dict[str, str]:
    """What becomes of each field: passed, consumed or refused."""
    hints = get_type_hints(struct)
    consumed = {name for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Consumed)}
    refused = {name for name in consumed if issubclass(hints[name], Refused)}
    return {name: "refused" if name in refused else "consumed" if name in consumed else "passed" for name in hints}


def chat(**fields: Any) -> Prepared:
    return prepare(json.dumps({"model": "demo", "messages": [USER]} | fields).encode(), True, POOL)


def sent(prepared: Prepared) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(prepared.upstream("up", 7))
    return body


def test_what_is_consumed_goes_no_further() -> None:
    fields = {
        "user": "u",
        "session_id": "s",
        "use_beam_search": False,
        "metadata": {"a": [1]},
        "safety_identifier": "u",
        "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_retention": "24h",
        "prediction": {"type": "content", "content": "x"},
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "echo": False,
    }
    assert {name for name, kind in kinds(ChatRequest).items() if kind == "consumed"} == fields.keys()
    prepared = chat(**fields)
    assert take_user(prepared.body) == "u"
    assert sent(prepared) == {"model": "up", "messages": [USER], "max_tokens": 512, "priority": 7}


def test_extras_that_clients_are_known_to_send_within_messages_go_no_further() -> None:
    """The OpenAI SDK's own message written out, LiteLLM's and Anthropic's cache marks, indices of a stream's pieces."""
    plain = {"role": "assistant", "content": [{"type": "text", "text": "hi"}], "tool_calls": [CALL]}
    call = CALL | {"index": 0, "provider_specific_fields": {"a": 1}, "extra_content": {}, "custom": None}
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "prompt_cache_breakpoint": {}}
    extras = {
        "id": "msg_1", "annotations": [], "audio": None, "function_call": None, "refusal": None, "reasoning": None,
        "provider_specific_fields": {"x": None}, "cache_control": {"type": "ephemeral"},
    }  # fmt: skip
    tool = {"type": "function", "function": {"name": "f"}}
    marked = {"type": "function", "function": {"name": "f", "cache_control": {}}, "cache_control": {}}
    messages = [USER, plain | extras | {"content": [part | {"annotations": []}], "tool_calls": [call]}]
    options = {"include_usage": True, "include_obfuscation": False, "continuous_usage_stats": True}
    body = sent(chat(messages=messages, tools=[marked], stream=True, stream_options=options))
    assert body["messages"] == [USER, plain]
    assert body["tools"] == [tool]
    assert body["stream_options"] == {"include_usage": True}


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": None}}}
X = {"X": 0}  # stands for an unknown field
TEXT = {"type": "text", "text": "a"}
F = {"name": "f"}
PLACES: list[tuple[str, dict[str, Any]]] = [
    ("", X),
    ("messages[0].", {"messages": [USER | X]}),
    ("messages[0].content[1].", {"messages": [USER | {"content": [TEXT, TEXT | X]}]}),
    ("messages[0].tool_calls[0].", {"messages": [{"role": "assistant", "tool_calls": [CALL | X]}]}),
    (
        "messages[0].tool_calls[0].function.",
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": F | {"arguments": ""} | X}]}]},
    ),
    ("tools[0].", {"tools": [{"type": "function", "function": F} | X]}),
    ("tools[0].function.", {"tools": [{"type": "function", "function": F | X}]}),
    ("tool_choice.", {"tools": [], "tool_choice": {"type": "function", "function": F} | X}),
    ("tool_choice.function.", {"tools": [], "tool_choice": {"type": "function", "function": F | X}}),
    ("response_format.", {"response_format": SCHEMA | X}),
    ("response_format.json_schema.", {"response_format": {"type": "json_schema", "json_schema": {"name": "n"} | X}}),
    ("stream_options.", {"stream": True, "stream_options": X}),
    ("structured_outputs.", {"structured_outputs": {"regex": "a"} | X}),
]


def with_x(fields: Any, value: Any) -> Any:
    if isinstance(fields, dict):
        return {
            ("spelled_wrong" if k == "X" else k): value if k == "X" else with_x(v, value) for k, v in fields.items()
        }
    return [with_x(v, value) for v in fields] if isinstance(fields, list) else fields


@pytest.mark.parametrize(("place", "fields"), PLACES, ids=[place or "body" for place, _ in PLACES])
def test_an_unknown_field_is_refused_by_its_path_and_taken_as_null(place: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        chat(**with_x(fields, 0))
    assert (refused.value.status, refused.value.param) == (400, f"{place}spelled_wrong")
    assert refused.value.fields["detail"].startswith(f"{place}spelled_wrong: ")
    assert "spelled_wrong" not in json.dumps(sent(chat(**with_x(fields, None))))


def test_nulls_within_a_schema_stay_though_unknown_ones_beside_it_go() -> None:
    body = sent(chat(response_format=SCHEMA, spelled_wrong=None))
    assert body["response_format"] == SCHEMA


def test_pruning_nulls_ends_soon_whatever_comes() -> None:
    nulls = {f"a{n}": None for n in range(20_000)}
    assert "a1" not in sent(chat(**nulls))
    with pytest.raises(Refusal) as refused:
        chat(**nulls, last=1)
    assert refused.value.param == "last"


REFUSED_CASES = [
    (struct, name)
    for struct in (ChatRequest, CompletionRequest, Message, Part, ToolCall, Tool)
    for name, kind in kinds(struct).items()
    if kind == "refused"
]


@pytest.mark.parametrize(("struct", "name"), REFUSED_CASES)
def test_what_is_refused_is_refused_by_name_and_taken_as_null(struct: type, name: str) -> None:
    def body(value: Any) -> tuple[bytes, bool]:
        inner: dict[Any, Any] = {
            Message: {"messages": [USER | {name: value}]},
            Part: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", name: value}]}]},
            ToolCall: {"messages": [{"role": "assistant", "tool_calls": [CALL | {name: value}]}]},
            Tool: {"tools": [{"type": "function", "function": {"name": "f"}, name: value}]},
        }
        more = inner.get(struct, {name: value})
        base = (
            {"model": "demo", "prompt": "x"} if struct is CompletionRequest else {"model": "demo", "messages": [USER]}
        )
        return json.dumps(base | more).encode(), struct is not CompletionRequest

    with pytest.raises(Refusal) as refused:
        prepare(*body({"a": 1}), POOL)
    assert (refused.value.status, str(refused.value.param).rpartition(".")[2]) == (400, name)
    assert name not in sent(prepare(*body(None), POOL))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n": 17}, "<= 16"),
        ({"n": True}, "Expected `int | null`, got `bool`"),
        ({"store": True}, "not stored"),
        ({"service_tier": "priority"}, "comes with the key"),
        ({"modalities": ["text", "audio"]}, "text"),
        ({"use_beam_search": True}, "Beam search"),
        ({"echo": True}, "not echoed"),
        ({"vllm_xargs": {"kv_transfer_params": "x"}}, "cannot be set"),
        ({"vllm_xargs": {"quartermaster": "1 0 0"}}, "cannot be set"),
        ({"vllm_xargs": {"cache_salt": "x"}}, "cannot be set"),
        ({"vllm_xargs": {"session_id": "x"}}, "cannot be set"),
        ({"vllm_xargs": {"nested": {"a": 1}}}, "Expected"),
        ({"vllm_xargs": {f"k{n}": n for n in range(17)}}, "length <= 16"),
        ({"documents": [{"text": "x"}] * 65}, "length <= 64"),
        ({"documents": [{"text": {"a": 1}}]}, "Expected"),
        ({"truncate_prompt_tokens": -2}, ">= -1"),
        ({"cache_salt": ""}, "length >= 1"),
        ({"cache_salt": "x" * 257}, "length <= 256"),
        ({"messages": [USER | {"reasoning": "a", "reasoning_content": "b"}]}, "differs"),
    ],
)
def test_a_value_that_would_be_dropped_or_harm_is_refused_with_its_reason(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(Refusal) as refused:
        chat(**fields)
    assert refused.value.status == 400
    assert told in refused.value.fields["detail"]
    assert str(refused.value.param).startswith(next(iter(fields)))


def test_a_tenants_own_salt_is_not_sent_as_it_is() -> None:
    assert "cache_salt" not in sent(chat(cache_salt="mine"))


def test_reasoning_goes_to_the_engine_under_its_present_name_and_counts_as_input() -> None:
    said = {"role": "assistant", "content": "so"}
    plain = chat(messages=[USER, said, USER])
    for name in ("reasoning", "reasoning_content"):
        prepared = chat(messages=[USER, said | {name: "one two three four"}, USER])
        assert sent(prepared)["messages"][1] == said | {"reasoning": "one two three four"}
        assert prepared.raw_input == plain.raw_input + 4.5  # a quarter of its bytes is more than its words
    thinking = {"role": "assistant", "content": [{"type": "thinking", "thinking": "one two", "closed": True}]}
    assert sent(chat(messages=[thinking, USER]))["messages"][0] == thinking
    assert chat(messages=[thinking, USER]).raw_input > chat(messages=[said | {"content": ""}, USER]).raw_input


def test_documents_count_as_input_and_teach_nothing() -> None:
    prepared = chat(documents=[{"title": "a", "text": "word " * 100}])
    assert prepared.raw_input > chat().raw_input + 100
    assert not prepared.teaches, "a template may leave them out: the pool's estimates would follow"
    assert not chat(truncate_prompt_tokens=1).teaches
    assert chat().teaches


def completion(**fields: Any) -> Prepared:
    return prepare(json.dumps({"model": "demo", "prompt": "x"} | fields).encode(), False, POOL)


@pytest.mark.parametrize(("truncate", "kept"), [(10, 10), (-1, POOL.max_model_len)])
def test_what_the_engine_cuts_off_a_prompt_does_not_count(truncate: int, kept: int) -> None:
    long = "word " * 5000
    assert chat(messages=[{"role": "user", "content": long}], truncate_prompt_tokens=truncate).raw_input == kept
    assert completion(prompt=long, truncate_prompt_tokens=truncate).raw_input == kept
    several = completion(prompt=[long, "hi"], truncate_prompt_tokens=truncate)
    assert several.longest == kept
    assert kept < several.raw_input < kept + 5
    assert chat(truncate_prompt_tokens=1000).raw_input == chat().raw_input


def test_a_response_that_may_be_truncated_counts_what_fits() -> None:
    body = {"model": "demo", "input": "word " * 5000, "max_output_tokens": 5}
    sizes = [
        fit_response(RESPONSES_FORM.parse(json.dumps(body | more).encode()), POOL).raw_input
        for more in ({"truncation": "auto"}, {})
    ]
    assert sizes[0] == POOL.max_model_len
    assert sizes[1] > 5000


def test_token_ids_that_are_cut_off_are_not_an_exact_count() -> None:
    ids = completion(prompt=[5] * 9, truncate_prompt_tokens=4)
    assert (ids.raw_input, ids.exact_input) == (4, False), "the engine reads 4: more would not be believed"
    assert completion(prompt=[5] * 9).exact_input


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
        "spaces_between_special_tokens": False,
        "add_special_tokens": True,
        "length_penalty": 1.5,
        "logprob_token_ids": [1, 2],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "truncate_prompt_tokens": 100,
        "truncation_side": "left",
        "watermarking": False,
        "vllm_xargs": {"a": 1, "b": "x", "c": 0.5},
        "verbosity": "low",
        "documents": [{"title": "a", "text": "b"}],
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


def everything_said(base: type = FromClient) -> set[type]:
    found = set(base.__subclasses__())
    return found.union(*(everything_said(one) for one in found)) if found else set()


def test_the_page_of_fields_is_what_the_types_say() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "fields.md"
    assert page.read_text(encoding="utf-8") == fields.table(), "make generated"


def test_every_type_that_a_client_may_send_is_on_that_page() -> None:
    listed = {struct for _, struct in fields.SECTIONS}
    sent_only = {Sent}  # made here for engines
    empty = {one for one in everything_said() if not list(fields.own_fields(one))}
    assert everything_said() - sent_only - empty == listed - empty


def test_every_field_has_exactly_one_row_and_every_refusal_its_reason() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", fields.table(), re.MULTILINE)
    assert len(rows) == sum(len(list(fields.own_fields(struct))) for _, struct in fields.SECTIONS)
    assert {decision for _, decision, _ in rows} == {"passed", "bounded", "translated", "consumed", "refused"}
    for name, decision, reason in rows:
        assert reason or decision in ("passed", "consumed"), name


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


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Basic qm-abcdefghijkl.secret", b"Bearer qm-abc.secret",
     b"Bearer qm-abcdefghijkl", b"Bearer qm-abcdefghijkl.", b"Bearer qm-abcdefghij\xff\xfe.s", b"Bearer " + b"q" * 500],
)  # fmt: skip
def test_what_cannot_be_a_key_is_not_looked_up(header: bytes | None) -> None:
    assert split_key(header) is None


def test_a_key_has_two_parts() -> None:
    assert split_key(b"bearer qm-abcdefghijkl.sec.ret") == ("abcdefghijkl", b"sec.ret")


@pytest.mark.parametrize("field", ["metadata", "response_format", "tools", "user"])
def test_bytes_that_are_no_text_are_refused_wherever_they_stand(field: str) -> None:
    """What goes to the engine as it is, is no exception: every replica would fail it, and be blamed for it."""
    values = {
        "metadata": b'{"a": "\xcc"}',
        "response_format": b'{"type": "json_schema", "json_schema": {"name": "s", "schema": {"title": "\xcc"}}}',
        "tools": b'[{"type": "function", "function": {"name": "f", "parameters": {"title": "\xcc"}}}]',
        "user": b'"\xcc"',
    }
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "%b": %b}' % (
        field.encode(),
        values[field],
    )
    with pytest.raises(Refusal) as refused:
        parse(body, chat=True)
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert "not valid JSON" in refused.value.fields["detail"]


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (gzip.compress, "it is compressed (gzip); send it as it is."),
        (lambda body: b"\x28\xb5\x2f\xfd" + body, "it is compressed (zstd); send it as it is."),
        (lambda body: body.decode().encode("utf-8-sig"), "it begins with a byte order mark; send UTF-8 without one."),
        (lambda body: body.decode().encode("utf-16"), "it is UTF-16; send UTF-8."),
    ],
)
def test_a_body_that_is_written_otherwise_is_told_how(write: Callable[[bytes], bytes], told: str) -> None:
    body = json.dumps({"model": "demo", "messages": [USER]}).encode()
    with pytest.raises(Refusal) as refused:
        parse(write(body), chat=True)
    assert refused.value.fields["detail"] == f"The body is not valid JSON: {told}"
