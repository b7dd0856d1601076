"""What a client is told of a value that no field takes: which are taken, and what to do."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from scheduling.gateway.bodies import explain, fields
from scheduling.gateway.bodies.openai_types import FromClient, consume
from scheduling.gateway.bodies.prepare import CHAT_FORM, Form
from scheduling.gateway.bodies.prepare_messages import MESSAGES_FORM
from scheduling.gateway.bodies.prepare_pooling import EMBEDDING_FORM
from scheduling.gateway.bodies.prepare_responses import RESPONSES_FORM
from scheduling.gateway.errors import Refusal

MODEL = {"model": "m"}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}


def parts(*content: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 5}


def asked(*content: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(content)}]}


ALLOWED_TOOLS = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
TURNED = dict(reversed(ALLOWED_TOOLS.items()))
SENT: list[tuple[Form[Any], dict[str, Any], str, str]] = [
    (CHAT_FORM, CHAT | {"tool_choice": ALLOWED_TOOLS}, "tool_choice.type", "Offer only these tools in tools"),
    (CHAT_FORM, CHAT | {"tool_choice": TURNED}, "tool_choice.allowed_tools", "Offer only these tools in tools"),
    (CHAT_FORM, CHAT | {"tool_choice": "any"}, "tool_choice", "Allowed: none, auto, required. Say required"),
    (CHAT_FORM, CHAT | {"tools": [{"type": "web_search"}]}, "tools[0].type", "describe a function of your own"),
    (
        CHAT_FORM,
        CHAT | {"reasoning_effort": "ultra"},
        "reasoning_effort",
        "'ultra' is not allowed here. Allowed: none, ",
    ),
    (CHAT_FORM, CHAT | {"response_format": {"type": "grammar"}}, "response_format.type", "structured_outputs"),
    (CHAT_FORM, parts({"type": "file", "file": {"file_id": "f"}}), "messages[0].content[0].type", "Files are not read"),
    (CHAT_FORM, parts({"file": {"file_id": "f"}, "type": "file"}), "messages[0].content[0].file", "Files are not read"),
    (CHAT_FORM, parts({"type": "input_text", "text": "x"}), "messages[0].content[0].type", "a part of type text"),
    (CHAT_FORM, {"messages": [{"content": "x"}]}, "messages[0].role", "This field is missing"),
    (CHAT_FORM, {}, "messages", "This field is missing"),
    (CHAT_FORM, CHAT | {"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", "The name of an entry"),
    (
        MESSAGES_FORM,
        parts({"type": "document", "source": {}}),
        "messages[0].content[0].type",
        "send their text as text",
    ),
    (MESSAGES_FORM, parts({"type": "server_tool_use"}), "messages[0].content[0].type", "read as text only"),
    (MESSAGES_FORM, CHAT | {"tool_choice": {"type": "required"}}, "tool_choice.type", "auto, any, tool, none. Say any"),
    (
        MESSAGES_FORM,
        parts({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document"}]}),
        "messages[0].content[0].content[0].type",
        "send their text as text",
    ),
    (RESPONSES_FORM, asked({"type": "input_file", "file_id": "f"}), "input[0].content[0].type", "Files are not read"),
    (RESPONSES_FORM, {"input": [{"type": "item_reference"}]}, "input[0].type", "not looked up"),
    (RESPONSES_FORM, {"input": "x", "tool_choice": ALLOWED_TOOLS}, "tool_choice.type", "Offer only these tools"),
    (RESPONSES_FORM, {"input": "x", "include": ["y"]}, "include[0]", "message.output_text.logprobs"),
    (EMBEDDING_FORM, {"input": "x", "encoding_format": "int8"}, "encoding_format", "Allowed: float, base64"),
]


@pytest.mark.parametrize(("form", "body", "param", "told"), SENT, ids=[f"{told} at {at}" for _, _, at, told in SENT])
def test_what_is_taken_elsewhere_is_told_with_what_to_do_here(
    form: Form[Any], body: dict[str, Any], param: str, told: str
) -> None:
    with pytest.raises(Refusal) as refused:
        form.parse(json.dumps(MODEL | body).encode())
    message = refused.value.fields["detail"]
    assert (refused.value.status, refused.value.param) == (400, param)
    assert message.startswith(f"{param}: ")
    assert told in message


def literals(hint: Any) -> list[str]:
    """The values of every list of allowed ones that is a field's own."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, FromClient):
        return []
    return [value for inner in get_args(hint) for value in literals(inner)]


CHOICES = [
    (struct, said, values, hints[name])
    for _, struct in fields.SECTIONS
    for hints in [get_type_hints(struct)]
    for name, said in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    if (values := literals(hints[name]))
]


def wrong_value(struct: type, said: str, hint: Any) -> str:
    """What the parser says of a value that the field does not take."""
    listed = "list[" in str(hint)
    body = json.dumps({said: ["no such value"] if listed else "no such value"}).encode()
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(body, type=struct, dec_hook=consume)
    return str(wrong.value)


@pytest.mark.parametrize("broken", [False, True])
def test_of_every_field_with_a_list_of_values_all_are_told(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken:  # says what the parser says
        monkeypatch.setattr(explain, "_not_allowed", lambda shown, path, struct: f"Invalid enum value {shown}")
    assert len(CHOICES) > 30
    silent = []
    for struct, said, values, hint in CHOICES:
        message, param = explain.explained(wrong_value(struct, said, hint), struct)
        assert param is not None
        assert param.startswith(said)
        if not all(str(value) in message for value in values):
            silent.append((struct.__name__, said))
    assert len(silent) == (len(CHOICES) if broken else 0)


def test_a_long_value_hides_none_of_the_allowed_ones() -> None:
    with pytest.raises(Refusal) as refused:
        EMBEDDING_FORM.parse(json.dumps(MODEL | {"input": "x", "encoding_format": "y" * 10_000}).encode())
    message = refused.value.fields["detail"]
    assert message.endswith("Allowed: float, base64.")
    assert len(message) < 200
