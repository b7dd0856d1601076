"""How large a schema, regex or grammar may be is the tier's: the engine compiles it while others run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduling.core.types import MAX_GRAMMAR_BYTES
from scheduling.gateway.bodies.grammar import ENDLESS, MOST_LEVELS, MOST_PIECES, check_grammar, written_out
from scheduling.gateway.bodies.messages_types import MessagesRequest
from scheduling.gateway.bodies.openai_types import MAX_TOOLS
from scheduling.gateway.bodies.prepare_responses import RESPONSES_FORM, fit_response
from scheduling.gateway.errors import Refusal
from tests.support.gateway_world import TIER, World, gateway_world
from tests.support.preparing import prepare
from tests.unit.gateway.test_gateway_prepare import POOL, USER

SCHEMA = {"type": "object", "properties": {"word": {"enum": ["x" * 900]}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
LOOSE = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": False}}
SMALL_STRICT = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}, "strict": True}}
LARGE: dict[str, dict[str, Any]] = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "json": {"structured_outputs": {"json": SCHEMA}},
    "guided json": {"guided_json": SCHEMA},
    "regex": {"structured_outputs": {"regex": "a" * 1000}},
    "guided regex": {"guided_regex": "(a|b)" * 200},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "é"' * 80}},
    "choices": {"structured_outputs": {"choice": ["yes" * 100] * 4}},
    "tag": {"structured_outputs": {"structural_tag": "t" * 1000}},
    "a tool that must be called": {"tools": [TOOL], "tool_choice": "required"},
    "a strict tool that may be called": {"tools": [STRICT]},
    "a tool beside a strict one": {"tools": [TOOL, SMALL_STRICT], "tool_choice": "auto"},
}
SMALL: dict[str, dict[str, Any]] = {
    "nothing": {},
    "text": {"response_format": {"type": "text"}},
    "tools that may be called": {"tools": [TOOL]},
    "strict tools that may not": {"tools": [STRICT], "tool_choice": "none"},
    "a tool that is not strict beside one that is": {"tools": [LOOSE, SMALL_STRICT]},
    "a short regex": {"guided_regex": "[a-z]+"},
}


def refusal_of(fields: dict[str, Any], limit: int) -> Refusal | None:
    data = json.dumps({"model": "demo", "messages": [USER]} | fields).encode()
    try:
        check_grammar(prepare(data, True, POOL).body, limit)
    except Refusal as refusal:
        return refusal
    return None


@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE)
def test_what_is_larger_than_the_tier_allows_is_refused_by_its_field_and_the_limit(fields: dict[str, Any]):
    assert refusal_of(fields, MAX_GRAMMAR_BYTES) is None, "as large as every tier may send"
    refusal = refusal_of(fields, 500)
    assert refusal is not None
    assert refusal.status == 400
    assert refusal.param in ("response_format", "structured_outputs", "tools")
    assert "this key's tier allows 500" in refusal.fields["detail"]


@pytest.mark.parametrize("fields", SMALL.values(), ids=SMALL)
def test_what_is_small_passes(fields: dict[str, Any]):
    assert refusal_of(fields, 500) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("a{1000}", 1000),
        ("ab{2,5}c", 10),
        ("(ab){3}", 7),
        (r"\(x{2}\)", 10),
        ("[a-z{9}]{3}", 24),
        ("((a{1,1000}){1,1000}){1,1000}", 10**9),
        ("(" * 50 + "a" + "{99})" * 50, ENDLESS),
        ("a{999999999999999999}", ENDLESS),
        ("a{2}" * (MOST_PIECES + 1), ENDLESS),
        ("a{3,}", 5),
        (") a{2} (", 8),
        ('{"pattern": "^.{1,300}$"}', 320),
        ("no { braces } with 3 numbers", 28),
    ],
)
def test_counted_repetitions_count_as_if_they_were_written_out(text: str, size: int):
    assert written_out(text.encode()) == pytest.approx(size, abs=8)


@pytest.mark.parametrize("where", ["regex", "grammar", "schema", "text", "tool"])
def test_few_bytes_of_nested_repetitions_are_refused_wherever_they_stand(where: str):
    bomb = "((a{1,1000}){1,1000}){1,1000}"
    schema = {"anyOf": [{"type": "string", "enum": ["]", "("]}, {"type": "string", "pattern": rf"\[\"{bomb}"}]}
    fields: dict[str, dict[str, Any]] = {
        "regex": {"structured_outputs": {"regex": bomb}},
        "grammar": {"structured_outputs": {"grammar": f"root ::= {bomb}"}},
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
        "text": {"structured_outputs": {"json": json.dumps(schema)}},
        "tool": {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required",
        },
    }  # fmt: skip
    refusal = refusal_of(fields[where], MAX_GRAMMAR_BYTES)
    assert refusal is not None
    assert "written out" in refusal.fields["detail"]


def constrained(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every place that a schema may stand in."""
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    return {
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
        "json": {"structured_outputs": {"json": schema}},
        "text": {"structured_outputs": {"json": json.dumps(schema)}},
        "tag": {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        "tool": {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required",
        },
        "strict tool": {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}],
        },
    }  # fmt: skip


WHERE = list(constrained({}))


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", ["items", "properties", "anyOf"])
def test_a_schema_has_so_many_levels_at_most_for_engines_compile_them_by_their_cube(where: str, kind: str):
    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for _ in range(levels // (1 if kind == "items" else 2)):
            inner = {"q": schema} if kind == "properties" else [schema] if kind == "anyOf" else schema
            schema = {kind: inner}
        return schema

    assert refusal_of(constrained(nested(MOST_LEVELS - 4))[where], MAX_GRAMMAR_BYTES) is None
    for levels in (MOST_LEVELS + 2, 900):
        refusal = refusal_of(constrained(nested(levels))[where], MAX_GRAMMAR_BYTES)
        assert refusal is not None
        assert refusal.status == 400
        assert "100 objects and arrays within each other" in refusal.fields["detail"]


@pytest.mark.parametrize("where", WHERE)
def test_an_object_that_bounds_the_number_of_its_properties_counts_as_every_two_of_them(where: str):
    def bounded(number: int, **bound: int) -> dict[str, Any]:
        return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(number)}, **bound}

    assert refusal_of(constrained(bounded(1000))[where], MAX_GRAMMAR_BYTES) is None, "no bound, no cost"
    assert refusal_of(constrained(bounded(1000, minProperties=0))[where], MAX_GRAMMAR_BYTES) is None, "nor is this one"
    assert refusal_of(constrained(bounded(100, minProperties=1))[where], MAX_GRAMMAR_BYTES) is None
    for schema in (
        bounded(1000, minProperties=2),
        bounded(300, maxProperties=5),
        {"items": bounded(1000, minProperties=2)},
    ):
        refusal = refusal_of(constrained(schema)[where], MAX_GRAMMAR_BYTES)
        assert refusal is not None
        assert "this key's tier allows" in refusal.fields["detail"]


def test_the_names_of_a_schema_may_be_escaped():
    schema = json.dumps({"properties": {f"p{n}": {} for n in range(300)}, "minProperties": 2})
    data = json.dumps({"model": "demo", "messages": [USER], "structured_outputs": {"json": 0}})
    escaped = data.replace('"json": 0', '"json": ' + schema.replace("minProperties", r"minPropertie\u0073"))
    with pytest.raises(Refusal, match="invalid_request"):
        check_grammar(prepare(escaped.encode(), True, POOL).body, MAX_GRAMMAR_BYTES)


def test_a_tier_may_allow_none_at_all():
    for fields in ({"guided_regex": "a"}, {"response_format": {"type": "json_object"}}):
        refusal = refusal_of(fields, 0)
        assert refusal is not None
        assert "allows no structured output" in refusal.fields["detail"]
    assert refusal_of({}, 0) is None


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a{1,9}/" * 60}
WRITER = {"type": "custom", "name": "write", "format": GRAMMAR}
OFFER = {"type": "function", "name": "f", "parameters": SCHEMA}
OFFERED: dict[str, tuple[dict[str, Any], bool]] = {  # what a response is asked for with, and whether 500 bytes hold it
    "a grammar of a tool": ({"tools": [WRITER]}, False),
    "one within a namespace": ({"tools": [{"type": "namespace", "name": "n", "tools": [WRITER]}]}, False),
    "a tool of a namespace that must be called": (
        {"tools": [{"type": "namespace", "name": "n", "tools": [OFFER]}], "tool_choice": "required"}, False,
    ),
    "the same where it may": ({"tools": [{"type": "namespace", "name": "n", "tools": [OFFER]}]}, True),
    "a strict one": ({"tools": [{"type": "namespace", "name": "n", "tools": [OFFER | {"strict": True}]}]}, False),
    "one beside a strict one": ({"tools": [OFFER, {"type": "function", "name": "g", "strict": True}]}, False),
    "one beside a tool of texts": ({"tools": [OFFER, WRITER | {"format": {"type": "text"}}]}, False),
    "one that is not strict beside it": (
        {"tools": [OFFER | {"strict": False}, WRITER | {"format": {"type": "text"}}]}, True,
    ),
    "a strict one that may not be called": ({"tools": [OFFER | {"strict": True}], "tool_choice": "none"}, True),
    "a tool of texts": ({"tools": [WRITER | {"format": {"type": "text"}}]}, True),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "fits"), OFFERED.values(), ids=OFFERED)
def test_tools_of_a_response_are_counted_with_their_grammars_and_namespaces(fields: dict[str, Any], fits: bool):
    prepared = fit_response(RESPONSES_FORM.parse(json.dumps({"model": "demo", "input": "hi"} | fields).encode()), POOL)
    check_grammar(prepared.body, MAX_GRAMMAR_BYTES)
    if fits:
        check_grammar(prepared.body, 500)
        return
    with pytest.raises(Refusal) as refused:
        check_grammar(prepared.body, 500)
    assert (refused.value.status, refused.value.param) == (400, "tools")


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({}, True),
        ({"tool_choice": {"type": "any"}}, False),
        ({"strict": True}, False),
        ({"strict": True, "tool_choice": {"type": "none"}}, True),
    ],
)
def test_tools_of_a_message_are_counted_where_one_must_be_called_or_is_strict(fields: dict[str, Any], fits: bool):
    tool = {"name": "f", "input_schema": SCHEMA} | {k: v for k, v in fields.items() if k == "strict"}
    data = {"model": "demo", "max_tokens": 9, "messages": [USER], "tools": [tool]}
    data |= {k: v for k, v in fields.items() if k == "tool_choice"}
    body = msgspec.json.decode(json.dumps(data), type=MessagesRequest)
    with contextlib.nullcontext() if fits else pytest.raises(Refusal, match="invalid_request"):
        check_grammar(body, 500)


@pytest.mark.parametrize(
    "tools",
    [
        [WRITER | {"format": GRAMMAR | {"definition": "a" * MAX_GRAMMAR_BYTES}}],
        [{"type": "namespace", "name": "n", "tools": [OFFER | {"name": f"f{n}"} for n in range(MAX_TOOLS)]}],
    ],
    ids=["a grammar", "many in a namespace"],
)
def test_what_no_tier_may_offer_is_refused(tools: list[dict[str, Any]]):
    body = RESPONSES_FORM.parse(json.dumps({"model": "demo", "input": "hi", "tools": tools}).encode())
    with pytest.raises(Refusal) as refused:
        fit_response(body, POOL)
    assert (refused.value.status, refused.value.param) == (400, "tools")


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id) as made:
        yield made


async def test_two_tiers_have_two_limits_and_a_refused_request_reaches_no_engine(world: World):
    body = {"model": "demo", "messages": [USER], "max_tokens": 2, "guided_regex": "(a|b)" * 200}
    async with world.http() as client:
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        await world.configure(tier=replace(TIER, name="batch", max_grammar_bytes=500))
        answer = await client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert answer.json()["error"]["message"] == (
        "structured_outputs constrains the output by 1000 bytes, with counted repetitions written out; this key's tier "
        "allows 500."
    )
    assert len(world.engines[0].bodies) == 1
