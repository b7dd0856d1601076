"""Requests that clients of OpenAI's, Anthropic's and vLLM's APIs send, and how two answers to one are compared.

Bodies name no model: an engine and the gateway know it by different names. ``differs`` says why the gateway's answer is
another one, where it is meant to be.
"""

from __future__ import annotations

import io
import json
import math
import wave
from dataclasses import dataclass, field
from typing import Any

HELLO = [{"role": "user", "content": "Say hello to the city of Oslo"}]
GREEDY = {"temperature": 0, "seed": 7}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@dataclass(frozen=True)
class Case:
    """One request. ``tasks``: what a model has to be for, to answer it."""

    name: str
    path: str
    body: dict[str, Any]
    engine_path: str = ""  # where the engine has it; empty: the same
    differs: str = ""
    tasks: str = "generate"
    ignore: tuple[str, ...] = field(default=())  # fields whose values no two answers share


def _chat(name: str, differs: str = "", **body: Any) -> Case:
    return Case(
        f"chat: {name}", "/v1/chat/completions", {"messages": HELLO, "max_tokens": 8, **GREEDY} | body, "", differs
    )


def _text(name: str, differs: str = "", **body: Any) -> Case:
    return Case(f"completion: {name}", "/v1/completions", {"prompt": "one two three", "max_tokens": 8, **GREEDY} | body,
                "", differs)  # fmt: skip


def _message(name: str, differs: str = "", **body: Any) -> Case:
    return Case(f"message: {name}", "/v1/messages", {"messages": HELLO, "max_tokens": 8, "temperature": 0} | body, "",
                differs, ignore=("signature",))  # fmt: skip


def _response(name: str, differs: str = "", **body: Any) -> Case:
    return Case(f"response: {name}", "/v1/responses", {"input": "Say hello", "max_output_tokens": 8, "temperature": 0}
                | body, "", differs)  # fmt: skip


ERRORS = "an engine's 400 is told with its message; type and code are the gateway's own reason"
UNKNOWN = "an engine drops what it does not know; here it is refused by name"
FAILS = "an engine's 500 is a 502 here, after other replicas were tried"
OURS = "refused here, because it would reach past what a request may decide"

GENERATING = [
    _chat("plain"),
    _chat("streamed", stream=True),
    _chat("streamed with usage", stream=True, stream_options={"include_usage": True}),
    _chat("newer name of the bound", max_completion_tokens=5),
    _chat("stop", stop=["e", "a"]),
    _chat("logprobs", logprobs=True, top_logprobs=3),
    _chat("logprobs, streamed", logprobs=True, top_logprobs=2, stream=True),
    _chat("two answers", n=2, temperature=0.8),
    _chat("two answers, streamed", n=2, temperature=0.8, stream=True, stream_options={"include_usage": True}),
    _chat("parts", messages=[
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
    _chat("system and history", messages=[{"role": "system", "content": "Be brief."}, *HELLO,
          {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Again"}]),
    _chat("developer", messages=[{"role": "developer", "content": "Be brief."}, *HELLO]),
    _chat("reasoning goes back", messages=[*HELLO, {"role": "assistant", "content": "a", "reasoning": "b"}, *HELLO]),
    _chat("tool results", messages=[*HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]},
          {"role": "tool", "tool_call_id": "call_1", "content": "5 C"}], tools=[TOOL], tool_choice="none"),
    _chat("penalties", presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1),
    _chat("top_k and min_p", temperature=0.7, top_k=5, min_p=0.01, top_p=0.9),
    _chat("logit_bias", logit_bias={"17": -100}),
    _chat("min_tokens", min_tokens=8, ignore_eos=True),
    _chat("bad words", bad_words=["hello"]),
    _chat("allowed ids", allowed_token_ids=[5, 6, 7]),
    _chat("token ids", return_token_ids=True),
    _chat("continued", messages=[*HELLO, {"role": "assistant", "content": "He"}], continue_final_message=True,
          add_generation_prompt=False),
    _chat("template arguments", chat_template_kwargs={"enable_thinking": False}),
    _chat("documents", documents=[{"title": "a", "text": "b"}]),
    _chat("truncated", truncate_prompt_tokens=8),
    _chat("json object", response_format={"type": "json_object"}),
    _chat("json schema", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
          max_tokens=20),
    _chat("structured choice", structured_outputs={"choice": ["yes", "no"]}),
    _chat("older name of a choice", "vLLM ignores it since 0.12; here it is sent under its newer name",
          guided_choice=["yes", "no"]),
    _chat("user, metadata, store", user="u", metadata={"a": "b"}, store=False),
    _chat("nulls", top_p=None, stop=None, tools=None, functions=None),
    _chat("no messages", ERRORS, messages=[]),
    _chat("no bound", "the pool's default holds, not the rest of the context", max_tokens=None),
    _chat("too much output", "the pool's limit is told, not the engine's", max_tokens=100_000),
    _chat("unknown field", UNKNOWN, spelled_wrong=1),
    _chat("unknown role", "templates know no other roles: they are refused here",
          messages=[{"role": "king", "content": "a"}]),
    _chat("wrong type", ERRORS, temperature="hot"),
    _chat("image by URL", OURS, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}]}]),
    _chat("image inline, to a model of text", ERRORS, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}]),
    _chat("own template", OURS, chat_template="{{ messages }}"),
    _chat("prompt_logprobs", OURS, prompt_logprobs=1),
    _chat("continuous usage", "usage comes once, at the end", stream=True,
          stream_options={"include_usage": True, "continuous_usage_stats": True}),
    _chat("beams", OURS, use_beam_search=True, n=2),
    _text("plain"),
    _text("streamed", stream=True),
    _text("streamed with usage", stream=True, stream_options={"include_usage": True}),
    _text("token ids", prompt=[5, 6, 7, 8]),
    _text("several texts", prompt=["one", "two three"]),
    _text("several texts, streamed", prompt=["one", "two three"], stream=True, stream_options={"include_usage": True}),
    _text("several lists of ids, twice each", prompt=[[5, 6], [7]], n=2, temperature=0.8),
    _text("echo", echo=True),
    _text("echo and logprobs", echo=True, logprobs=1, max_tokens=1),
    _text("logprobs", logprobs=2),
    _text("regex", structured_outputs={"regex": "[ab]{3}"}),
    _text("suffix", ERRORS, suffix="end"),
    _text("empty", ERRORS, prompt=""),
    _text("empty list", ERRORS, prompt=[]),
    _text("n of nothing", ERRORS, n=0),
    _text("usage without a stream", ERRORS, stream_options={"include_usage": True}),
    _text("longer than the context", ERRORS, prompt=[5] * 5000),
    _text("min above max", ERRORS, min_tokens=100),
    _message("plain"),
    _message("streamed", stream=True),
    _message("system, blocks and a thought", system=[{"type": "text", "text": "Be brief."}], messages=[
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "b", "signature": "c"},
                                          {"type": "text", "text": "d"}]},
        {"role": "user", "content": "e"}]),
    _message("a tool's result", messages=[
        *HELLO,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "5 C"}]}],
        tools=[{"name": "weather", "input_schema": SCHEMA}], tool_choice={"type": "none"}),
    _message("stop sequences", stop_sequences=["e"]),
    _message("output format", output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, max_tokens=20),
    _message("metadata", metadata={"user_id": "u"}),
    _message("no messages", ERRORS, messages=[]),
    _message("no output", ERRORS, max_tokens=0),
    _message("unknown field", UNKNOWN, spelled_wrong=1),
    _message("an image by URL", OURS, messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/a.png"}}]}]),
    Case("count_tokens", "/v1/messages/count_tokens", {"messages": HELLO}),
    Case("count_tokens with tools", "/v1/messages/count_tokens", differs=ERRORS, body=
         {"messages": HELLO, "system": "a", "tools": [{"name": "weather", "input_schema": SCHEMA}]}),
    _response("plain"),
    _response("streamed", stream=True),
    _response("instructions and items", instructions="Be brief.", input=[
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "5 C"}]),
    _response("metadata", metadata={"run": "7"}, store=False),
    _response("schema", text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, max_output_tokens=20),
    _response("reasoning effort", reasoning={"effort": "low"}),
    _response("no input", ERRORS, input=[]),
    _response("store", OURS, store=True),
    _response("previous response", OURS, previous_response_id="resp_1"),
    _response("unknown field", UNKNOWN, spelled_wrong=1),
    Case("tokenize", "/tokenize", {"prompt": "one two three"}),
    Case("tokenize a chat", "/v1/tokenize", {"messages": HELLO}, "/tokenize"),
    Case("detokenize", "/detokenize", {"tokens": [5, 6, 7]}),
]  # fmt: skip

READING = [
    Case("embedding", "/v1/embeddings", {"input": "one two"}, tasks="embed"),
    Case("embeddings", "/v1/embeddings", {"input": ["one two", "three"]}, tasks="embed"),
    Case("embeddings of ids", "/v1/embeddings", {"input": [[5, 6], [7]]}, tasks="embed"),
    Case("embedding as base64", "/v1/embeddings", {"input": "one two", "encoding_format": "base64"}, tasks="embed"),
    Case("embedding of a chat", "/v1/embeddings", {"messages": HELLO}, tasks="embed"),
    Case("embedding of nothing", "/v1/embeddings", {"input": []}, "", ERRORS, tasks="embed"),
    Case("embedding, unknown field", "/v1/embeddings", {"input": "a", "spelled_wrong": 1}, "", UNKNOWN, tasks="embed"),
    Case("rerank", "/v1/rerank", {"query": "one", "documents": ["one two", "three"]}, tasks="embed"),
    Case("rerank, newer path", "/v2/rerank", {"query": "one", "documents": ["a", "one"], "top_n": 1}, tasks="embed"),
    Case("score", "/score", {"text_1": "one", "text_2": ["one two", "three"]}, tasks="embed"),
    Case("score of pairs", "/v1/score", {"queries": ["a", "b"], "documents": ["a", "c"]}, "/score", tasks="embed"),
    Case("classify", "/classify", {"input": ["one", "two"]}, tasks="classify"),
]


def _heard(name: str, differs: str = "", **fields: Any) -> Case:
    """A recording with these fields of its form."""
    given = {"language": "en", "temperature": "0", "max_completion_tokens": "12"} | fields
    given = {key: value for key, value in given.items() if value}
    return Case(f"transcription: {name}", "/v1/audio/transcriptions", given, "", differs, tasks="transcribe")


HEARING = [
    _heard("plain"),
    _heard("with times", response_format="verbose_json", **{"timestamp_granularities[]": "segment"}),
    _heard("led by words", prompt="Names: Oslo"),
    _heard("seed and bounds of the choice", temperature="0.6", top_p="0.9", top_k="5", seed="7"),
    _heard("no bound", "the pool's default holds, not the rest of the context", max_completion_tokens=""),
    _heard("no number", ERRORS, temperature="hot"),
    _heard("another format", OURS, response_format="text"),
    _heard("a language that is none", ERRORS, language="xx"),
    _heard("unknown field", UNKNOWN, spelled_wrong="1"),
]


def tone() -> bytes:
    """Three seconds that rise, as a WAV file."""
    file, rate = io.BytesIO(), 16_000
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        steps = (int(9000 * math.sin(2 * math.pi * (200 + n / 100) * n / rate)) for n in range(3 * rate))
        sound.writeframes(b"".join(step.to_bytes(2, "little", signed=True) for step in steps))
    return file.getvalue()


_PASSING = frozenset({"id", "created", "created_at", "item_id", "model", "system_fingerprint", "signature"})
_CACHES = frozenset({"cached_tokens", "cache_read_input_tokens", "cached_tokens_per_turn", "cache_write_tokens"})


def events(body: str) -> list[Any]:
    """The events of a stream, in order: their JSON, or the text of those that have none."""
    frames: list[Any] = []
    for frame in body.split("\n\n"):
        for line in frame.split("\n"):
            if line.startswith("data: "):
                data = line[6:]
                frames.append(json.loads(data) if data.startswith("{") else data)
    return frames


def _numbered(chunks: list[Any]) -> list[Any]:
    """Whether numbered events count up by one, instead of their numbers: how many pieces a text has is the engine's."""
    numbers = [chunk["sequence_number"] for chunk in chunks if isinstance(chunk, dict) and "sequence_number" in chunk]
    if not numbers:
        return chunks
    counts_up = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return [
        {**chunk, "sequence_number": f"from {numbers[0]}, {'one by one' if counts_up else numbers}"}
        if isinstance(chunk, dict) and "sequence_number" in chunk else chunk
        for chunk in chunks
    ]  # fmt: skip


def plain(value: Any, case: Case) -> Any:
    """An answer without what no two of them share: names, times, and what a cache did."""
    if isinstance(value, dict):
        return {
            name: plain(inner, case)
            for name, inner in value.items()
            if name not in _PASSING and name not in _CACHES and name not in case.ignore
        }
    if isinstance(value, list):
        return [plain(inner, case) for inner in value]
    return round(value, 3) if isinstance(value, float) else value


def together(chunks: list[Any], case: Case) -> Any:
    """A stream as one value: what each answer said, whatever the pieces; the fields of its events; its end."""
    said: dict[str, str] = {}
    rest: list[Any] = []
    for chunk in _numbered(chunks):
        if not isinstance(chunk, dict):
            rest.append(chunk)
            continue
        for choice in chunk.get("choices") or ():
            said[str(choice["index"])] = said.get(str(choice["index"]), "") + (
                choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            )
            if choice.get("finish_reason"):
                rest.append(("finish", choice["index"], choice["finish_reason"]))
        if "choices" in chunk:
            rest.append(("fields", sorted(set(chunk) - _PASSING)))
            if chunk.get("usage"):
                rest.append(("usage", plain(chunk["usage"], case)))
        elif str(chunk.get("type", "")).endswith("delta") and isinstance(chunk.get("delta"), (str, dict)):
            delta = chunk["delta"]
            text = delta if isinstance(delta, str) else delta.get("text") or delta.get("thinking") or ""
            said["events"] = said.get("events", "") + text
            rest.append(("event", chunk["type"], sorted(chunk)))
            if chunk.get("usage"):
                rest.append(("usage", plain(chunk["usage"], case), delta))
        else:
            rest.append(("event", plain(chunk, case)))
    kept: list[Any] = []
    for one in rest:  # how many pieces a text comes in is the engine's business
        if one not in kept:
            kept.append(one)
    return {"said": said, "rest": [json.loads(json.dumps(one)) for one in sorted(kept, key=str)]}


def differences(case: Case, engine: tuple[int, str, str], ours: tuple[int, str, str]) -> list[str]:
    """What differs between two answers, each (status, content type, body); one line each."""
    lines = []
    for name, a, b in zip(("status", "content type"), engine, ours, strict=False):
        if a != b:
            lines.append(f"{name}: {a!r} -> {b!r}")
    if lines and engine[0] != ours[0]:
        return lines
    if case.body.get("stream") and engine[0] == 200:
        a, b = together(events(engine[2]), case), together(events(ours[2]), case)
    else:
        a, b = plain(json.loads(engine[2]), case), plain(json.loads(ours[2]), case)
    return lines + compare(a, b)


def compare(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        lines = [f"{path}.{name}: {'only the engine has it' if name in a else 'only we have it'}"
                 for name in sorted(a.keys() ^ b.keys())]  # fmt: skip
        return lines + [
            line for name in sorted(a.keys() & b.keys()) for line in compare(a[name], b[name], f"{path}.{name}")
        ]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [line for n, (x, y) in enumerate(zip(a, b, strict=True)) for line in compare(x, y, f"{path}[{n}]")]
    return [] if a == b else [f"{path}: {str(a)[:150]} -> {str(b)[:150]}"]
