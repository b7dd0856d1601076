"""``docs/reference/fields.md``: what becomes of every field that a client may send. Written from the types themselves
by ``python -m scheduling.gateway.bodies.fields``, and compared by a test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from scheduling.gateway.bodies import audio_types, messages_types, openai_types, pooling_types, responses_types
from scheduling.gateway.bodies.openai_types import Consumed, FromClient, Refused

# (heading, type, what it adds to); a type's fields are listed where they are declared first
SECTIONS: list[tuple[str, type]] = [
    ("/v1/chat/completions and /v1/completions", openai_types.Sampling),
    ("/v1/chat/completions", openai_types.ChatRequest),
    ("/v1/completions", openai_types.CompletionRequest),
    ("a message", openai_types.Message),
    ("a part of a message", openai_types.Part),
    ("image_url, audio_url, video_url of a part", openai_types.Linked),
    ("input_audio of a part", openai_types.InputAudio),
    ("a tool call", openai_types.ToolCall),
    ("function of a tool call", openai_types.FunctionCall),
    ("a tool", openai_types.Tool),
    ("function of a tool", openai_types.Function),
    ("tool_choice", openai_types.NamedTool),
    ("function of a tool_choice", openai_types.NamedFunction),
    ("response_format", openai_types.ResponseFormat),
    ("json_schema of a response_format", openai_types.JsonSchema),
    ("stream_options", openai_types.StreamOptions),
    ("structured_outputs", openai_types.StructuredOutputs),
    ("embeddings, classify, rerank and score", pooling_types.Pooled),
    ("/v1/embeddings and /v1/classify", pooling_types.Read),
    ("/v1/embeddings", pooling_types.EmbeddingRequest),
    ("rerank and score", pooling_types.Compared),
    ("/v1/rerank, /v2/rerank, /rerank", pooling_types.RerankRequest),
    ("/v1/score, /score", pooling_types.ScoreRequest),
    ("/v1/audio/transcriptions (a form)", audio_types.TranscriptionRequest),
    ("/v1/messages and count_tokens", messages_types.Conversation),
    ("/v1/messages", messages_types.MessagesRequest),
    ("a message of /v1/messages", messages_types.Turn),
    ("a block of /v1/messages", messages_types.Block),
    ("source of a block", messages_types.Source),
    ("a tool of /v1/messages", messages_types.ToolOffer),
    ("tool_choice of /v1/messages", messages_types.ToolPick),
    ("thinking of /v1/messages", messages_types.Thinking),
    ("output_config of /v1/messages", messages_types.OutputConfig),
    ("format of an output_config", messages_types.OutputFormat),
    ("/v1/responses", responses_types.ResponsesRequest),
    ("an item of /v1/responses", responses_types.Item),
    ("a part of an item", responses_types.ItemPart),
    ("a tool of /v1/responses", responses_types.ToolOffer),
    ("tool_choice of /v1/responses", responses_types.ToolPick),
    ("reasoning of /v1/responses", responses_types.Reasoning),
    ("text of /v1/responses", responses_types.TextConfig),
    ("format of a text", responses_types.TextFormat),
    ("stream_options of /v1/responses", responses_types.StreamPadding),
    ("/tokenize, /v1/tokenize", openai_types.TokenizeRequest),
    ("/detokenize, /v1/detokenize", openai_types.DetokenizeRequest),
]

TRANSLATED = {
    "model": "sent as the engine's own name of the model",
    "max_completion_tokens": "sent as max_tokens; it wins over that",
    "store": "whether the answer is kept here, where the deployment keeps any; the engine is told false",
    "previous_response_id": "sent as the conversation that was kept here",
    "priority": "orders within the entitlement; the engine gets the policy's order",
    "cache_salt": "sent as a keyed digest of tenant and salt",
    "reasoning_content": "sent as reasoning",
    "guided_json": "sent as structured_outputs.json",
    "guided_regex": "sent as structured_outputs.regex",
    "guided_choice": "sent as structured_outputs.choice",
    "guided_grammar": "sent as structured_outputs.grammar",
    "stream_options": "usage is always asked for, and its chunk sent on to who asked for it",
}


def kind_of(hint: Any) -> str:
    """What becomes of a field with this annotation: passed, consumed or refused."""
    if isinstance(hint, type) and issubclass(hint, Refused):
        return "refused"
    return "consumed" if isinstance(hint, type) and issubclass(hint, Consumed) else "passed"


def own_fields(struct: type) -> Iterator[tuple[str, Any]]:
    """Fields that no listed type above it has."""
    hints = get_type_hints(struct, include_extras=True)
    above = {name for base in struct.__mro__[1:] if base in _LISTED for name in get_type_hints(base)}
    return ((name, hint) for name, hint in hints.items() if name not in above)


_LISTED = {struct for _, struct in SECTIONS}


def bounds(hint: Any) -> str:
    """The limits of a field's value in a few words; empty where the body's size is the only one."""
    phrases: list[str] = []
    _collect(hint, phrases)
    return ", ".join(dict.fromkeys(phrases))


def _collect(hint: Any, phrases: list[str]) -> None:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *metas = get_args(hint)
        for meta in metas:
            if isinstance(meta, msgspec.Meta):
                phrases += _limits(meta, "entries" if get_origin(inner) in (list, dict) else "characters")
        _collect(inner, phrases)
    elif origin is Literal:
        phrases.append("one of " + " ".join(f"`{value}`" for value in get_args(hint)))
    else:
        for inner in get_args(hint):
            if not (isinstance(inner, type) and issubclass(inner, FromClient)):
                _collect(inner, phrases)


def _limits(meta: msgspec.Meta, unit: str) -> list[str]:
    phrases = []
    low = meta.ge if meta.ge is not None else meta.gt
    high = meta.le if meta.le is not None else meta.lt
    if low is not None or high is not None:
        above = "above " if meta.gt is not None else ""
        phrases.append(f"{above}{low:,} to {high:,}" if high is not None and low is not None else f"{above}{low}")
    if meta.max_length is not None:
        phrases.append(f"at most {meta.max_length} {unit}")
    elif meta.min_length:
        phrases.append(f"at least {meta.min_length} {unit}")
    if meta.pattern is not None:
        phrases.append("matches `" + meta.pattern.replace("|", "\\|") + "`")
    return phrases


def _row(name: str, hint: Any) -> str:
    kind = kind_of(hint)
    if kind == "passed":
        if name in TRANSLATED:
            return f"| `{name}` | translated | {TRANSLATED[name]} |"
        limits = bounds(hint)
        return f"| `{name}` | {'bounded' if limits else 'passed'} | {limits} |"
    if kind == "refused":
        return f"| `{name}` | refused | {hint.why} |"
    values = "" if hint.only is None else "only " + " or ".join(f"`{json.dumps(v)}`" for v in hint.only)
    if hint.why:
        values += f": {hint.why}"
    return f"| `{name}` | consumed | {values} |"


def table() -> str:
    """The page."""
    lines = [
        "# Every field of a request",
        "",
        "For developers of clients. This page is generated from the types by which requests are read",
        "(`python -m scheduling.gateway.bodies.fields > docs/reference/fields.md`), so it is what the gateway does.",
        "",
        "**passed**: goes to the engine as it is; **bounded**: passed within these limits; **translated**: the engine",
        "gets something else; **consumed**: means nothing to an engine and goes no further; **refused**: a 400 whose",
        "`param` is the field's path. Unlisted fields are refused at every level. A null counts as absent everywhere.",
    ]
    for heading, struct in SECTIONS:
        rows = [_row(name, hint) for name, hint in own_fields(struct)]
        if rows:
            lines += ["", f"## {heading}", "", "| field | | limits or reason |", "|---|---|---|", *sorted(rows)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(table(), end="")
