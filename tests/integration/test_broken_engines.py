"""What engines and broken proxies before them may do wrong: a client gets a right answer or an error of ours, never the
engine's broken JSON, never another's answer; what is recorded can be true; and the next request is served."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from scheduling.core.ledger.record import LedgerRecord
from scheduling.gateway.answers import long_answers
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.engine import relay
from telemetry.ledger import rollup, usage, writer
from telemetry.ledger.quotas import read_ledger
from tests.support.fake_engine import Script
from tests.support.gateway_world import World, gateway_world

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
BOUND = 5
CONFIG = GatewayConfig(
    first_token_timeout_s=0.8, idle_token_timeout_s=0.8, renew_every_s=0.2, drain_s=0.5, max_answer_bytes=200_000
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, *more: bytes) -> bytes:
    head = b"".join(line + b"\r\n" for line in more)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        head,
        len(body),
        body,
    )


def piece(name: str, text: Any = " word", finish: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    base = {"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": 1, "model": "fake-upstream"}
    return base | {"choices": [choice]} | more


def frame(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def answer(name: str, **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": " word"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "total_tokens": 13, "completion_tokens": 1}
    base = {"id": f"chatcmpl-{name}", "object": "chat.completion", "created": 1, "model": "fake-upstream"}
    return json.dumps(base | {"choices": [choice], "usage": usage} | more).encode()


def good(name: str) -> bytes:
    return frame(piece(name, "", None)) + frame(piece(name, " word", "stop"))


@dataclass(frozen=True)
class Bad:
    """One way to be wrong. ``ends`` says how the client's request may end: completed, or the reason of an error."""

    name: str
    raw: Callable[[str], bytes]  # the whole answer as it goes over the wire
    ends: str = "backend_error"
    then_close: bool = True


def stream(name: str, *parts: bytes | Callable[[str], bytes], ends: str = "backend_error") -> Bad:
    """A good first frame, then these, then [DONE]."""

    def raw(request: str) -> bytes:
        found = b"".join(part(request) if callable(part) else part for part in parts)
        return HEAD + chunked(frame(piece(request))) + chunked(found + DONE) + END

    return Bad(name, raw, ends)


def only(name: str, *parts: bytes | Callable[[str], bytes], ends: str = "backend_error", end: bytes = DONE) -> Bad:
    """A stream of exactly these."""

    def raw(request: str) -> bytes:
        found = b"".join(part(request) if callable(part) else part for part in parts)
        return HEAD + chunked(found + end) + END

    return Bad(name, raw, ends)


def last(request: str) -> bytes:
    return frame(piece(request, " end", "stop"))


STREAMS = [
    stream("json-cut", b'data: {"id":"x","choices":[{"ind\n\n', last),
    stream("not-json", b"data: oh no\n\n", last),
    stream("two-objects", b'data: {"choices":[]}{"choices":[]}\n\n', last),
    stream("array", b"data: []\n\n", last),
    stream("null", b"data: null\n\n", last),
    stream("number", b"data: 5\n\n", last),
    stream("empty-data", b"data:\n\n", last),
    stream("no-choices", lambda r: frame({"id": f"chatcmpl-{r}", "object": "chat.completion.chunk"}), last),
    stream("choices-null", lambda r: frame(piece(r) | {"choices": None}), last),
    stream("choices-object", lambda r: frame(piece(r) | {"choices": {}}), last),
    stream("choices-of-text", lambda r: frame(piece(r) | {"choices": ["x"]}), last),
    stream("two-choices", lambda r: frame(piece(r) | {"choices": piece(r)["choices"] * 2}), last),
    stream("choice-1", lambda r: frame(piece(r) | {"choices": [{"index": 1, "delta": {"content": "x"}}]}), last),
    stream("no-delta", lambda r: frame(piece(r) | {"choices": [{"index": 0}]}), last),
    stream("delta-text", lambda r: frame(piece(r) | {"choices": [{"index": 0, "delta": "x"}]}), last),
    stream("content-number", lambda r: frame(piece(r, 5)), last),
    stream("finish-number", lambda r: frame(piece(r, "x", 5)), last),
    stream("created-text", lambda r: frame(piece(r, created="now")), last),
    stream("id-number", lambda r: frame(piece(r, id=7)), last),
    stream("another-id", lambda r: frame(piece("req_" + "0" * 24)), last),
    stream("tool-calls-text", lambda r: frame(piece(r) | {"choices": [{"delta": {"tool_calls": "x"}}]}), last),
    stream("error-object", frame({"error": {"message": "node-7 at 10.0.0.7 died", "code": 500}})),
    stream("error-beside-choices", lambda r: frame(piece(r, error={"message": "10.0.0.7"})), last),
    stream("error-event", b'event: error\ndata: {"message": "10.0.0.7"}\n\n', last),
    stream("html", b"<html><body>502 Bad Gateway (10.0.0.7)</body></html>\n\n"),
    stream("unknown-field", b'date: {"choices":[]}\n\n', last),
    stream("nul", b'data: {"choices":[],"x":"\x00"}\n\n', last),
    stream("not-utf8", b'data: {"choices":[],"x":"\xff\xfe"}\n\n', last),
    stream("surrogate", b'data: {"choices":[],"x":"\\ud800"}\n\n', last),
    stream("bare-cr", b'data: {"choices":[],\r"x":1}\n\n', last),
    stream("two-data-lines", b'data: {"choices":\ndata: []}\n\n', last),
    stream("nan", b'data: {"choices":[],"x":NaN}\n\n', last),
    stream("deep", b'data: {"choices":[],"x":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n", last),
    stream("digits", b'data: {"choices":[],"x":' + b"9" * 5000 + b"}\n\n", last),
    stream("no-finish", lambda r: frame(piece(r))),
    stream("more-frames-than-asked", lambda r: frame(piece(r)) * 500, last),
    stream("comments", b": ping\n\n: ping\n\n", last, ends="completed"),
    stream("crlf", lambda r: frame(piece(r)).replace(b"\n\n", b"\r\n\r\n"), last, ends="completed"),
    stream("named-events", lambda r: b"event: message\nid: 7\nretry: 1\n" + frame(piece(r)), last, ends="completed"),
    stream("no-space", lambda r: frame(piece(r)).replace(b"data: ", b"data:"), last, ends="completed"),
    stream("blank-lines", b"\n\n\n", last, ends="completed"),
    stream("usage-in-content", lambda r: frame(piece(r, usage={"prompt_tokens": 2**63})), last, ends="completed"),
    only("done-alone"),
    only("html-first", b"<html><body>502 Bad Gateway (10.0.0.7)</body></html>\n\n", end=b""),
    only("error-first", frame({"error": {"message": "10.0.0.7", "code": 500}})),
    only("whole-in-stream", answer, end=b"\n\n"),
    only("nothing", end=b" ", ends="backend_lost"),
    only("frame-without-end", b"data: " + b"x" * (5 * 1024 * 1024), end=b""),
    only("silence-after-comment", b": ping\n\n", end=b"", ends="backend_lost"),
    Bad("stream-cut", lambda r: HEAD + chunked(good(r)), "backend_lost"),
    Bad("ended-without-done", lambda r: HEAD + chunked(good(r)) + END, "backend_lost"),
    Bad("chunk-garbage", lambda r: HEAD + chunked(good(r)) + b"zz\r\n", "backend_lost"),
    Bad("chunk-overflow", lambda r: HEAD + b"f" * 17 + b"\r\n", "backend_lost"),
    Bad("extension-without-end", lambda r: HEAD + b"5;" + b"x" * 600_000, "backend_lost", then_close=False),
    Bad("trailers-without-end", lambda r: HEAD + b"0\r\n" + b"x: y\r\n" * 100_000, "backend_lost", then_close=False),
    Bad(
        "chunks-of-a-letter", lambda r: HEAD + b"".join(chunked(bytes([x])) for x in good(r) + DONE) + END, "completed"
    ),
]

WHOLES = [
    Bad("cut-json", lambda r: whole(answer(r)[:-20])),
    Bad("not-json", lambda r: whole(b"oh no")),
    Bad("empty", lambda r: whole(b"")),
    Bad("html", lambda r: whole(b"<html><body>502 Bad Gateway (10.0.0.7)</body></html>")),
    Bad("array", lambda r: whole(b"[]")),
    Bad("no-choices", lambda r: whole(json.dumps({"id": f"chatcmpl-{r}"}).encode())),
    Bad("no-choice", lambda r: whole(answer(r, choices=[]))),
    Bad("two-choices", lambda r: whole(answer(r, choices=json.loads(answer(r))["choices"] * 2))),
    Bad("no-message", lambda r: whole(answer(r, choices=[{"index": 0, "text": "x"}]))),
    Bad("content-list", lambda r: whole(answer(r, choices=[{"message": {"role": "a", "content": [1]}}]))),
    Bad("error-200", lambda r: whole(json.dumps({"error": {"message": "10.0.0.7"}}).encode())),
    Bad("error-beside", lambda r: whole(answer(r, error={"message": "10.0.0.7"}))),
    Bad("not-utf8", lambda r: whole(answer(r, x="PLACE").replace(b"PLACE", b"\xff"))),
    Bad("nul", lambda r: whole(answer(r, x="PLACE").replace(b"PLACE", b"\x00"))),
    Bad("deep", lambda r: whole(answer(r, x=0)[:-2] + b"[" * 5000 + b"]" * 5000 + b"}")),
    Bad("digits", lambda r: whole(answer(r, x=0)[:-2] + b"9" * 5000 + b"}")),
    Bad("sse", lambda r: whole(good(r) + DONE)),
    Bad("gzip", lambda r: whole(b"\x1f\x8b\x08\x00" + b"\x00" * 20, b"content-encoding: gzip")),
    Bad("too-large", lambda r: whole(answer(r, x="y" * 300_000)), "backend_lost"),
    Bad("cl-and-te", lambda r: whole(answer(r), b"transfer-encoding: chunked"), "backend_lost"),
    Bad("two-lengths", lambda r: whole(answer(r), b"content-length: 5"), "backend_lost"),
    Bad("short-length", lambda r: whole(answer(r), b"x: y").replace(b"length: ", b"length: 1"), "backend_lost"),
    Bad("http-1.0-no-length", lambda r: b"HTTP/1.0 200 OK\r\n\r\n" + answer(r), "backend_lost"),
    Bad("not-http", lambda r: b"SSH-2.0-OpenSSH\r\n", "backend_lost"),
    Bad("bare-lf-head", lambda r: whole(answer(r)).replace(b"\r\n", b"\n"), "backend_lost"),
    Bad("head-without-end", lambda r: b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 50_000, "backend_lost"),
    Bad("upgrade", lambda r: b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", "backend_lost"),
    Bad("no-content", lambda r: b"HTTP/1.1 204 No Content\r\n\r\n"),
    Bad("redirect", lambda r: b"HTTP/1.1 302 X\r\nlocation: http://10.0.0.7/\r\ncontent-length: 0\r\n\r\n"),
    Bad("another-answer", lambda r: whole(answer("req_" + "0" * 24))),
    Bad("chunk-extensions", lambda r: HEAD + b"1;" + b"x" * 600_000 + b"\r\n", "backend_lost"),
    Bad("hundred-continues", lambda r: b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + whole(answer(r)), "completed"),
    Bad("second-answer", lambda r: whole(answer(r)) + whole(answer(r)), "completed"),
    Bad("garbage-behind", lambda r: whole(answer(r)) + b"garbage", "completed"),
]


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with gateway_world(redis_url, pool_id, config=CONFIG) as made:
        yield made


@pytest.fixture
async def patient(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    """For engines that answer: on a busy machine that takes longer than where silence is waited for."""
    config = replace(CONFIG, first_token_timeout_s=30.0, idle_token_timeout_s=30.0)
    async with gateway_world(redis_url, pool_id, config=config) as made:
        yield made


async def ask(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    body = {"model": "demo", "messages": HELLO, "max_tokens": BOUND} | changes
    return await client.post("/v1/chat/completions", json=body)


def is_chunk(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value["choices"], list) and "error" not in value


def check_stream(text: str) -> str:
    """Every event is a completion chunk, or the last is an error of ours; how it ended."""
    assert text.endswith("\n\n")
    events = text.split("\n\n")[:-1]
    assert all(event.startswith("data: ") and "\n" not in event and "\r" not in event for event in events)
    payloads = [event.removeprefix("data: ") for event in events]
    assert payloads
    if payloads[-1] == "[DONE]":
        assert all(is_chunk(json.loads(p)) for p in payloads[:-1])
        return "completed"
    assert "[DONE]" not in payloads
    assert all(is_chunk(json.loads(p)) for p in payloads[:-1])
    return str(json.loads(payloads[-1])["error"]["code"])


def check(answer: httpx.Response) -> str:
    """How a request ended, as its client saw it, with everything checked that it was sent."""
    assert "10.0.0.7" not in answer.text
    if answer.status_code != 200:
        return str(answer.json()["error"]["code"])
    if answer.headers["content-type"].startswith("text/event-stream"):
        return check_stream(answer.text)
    assert len(answer.json()["choices"]) == 1
    return "completed"


@pytest.mark.parametrize(
    ("bad", "streamed"),
    [(bad, True) for bad in STREAMS] + [(bad, False) for bad in WHOLES],
    ids=[f"stream-{bad.name}" for bad in STREAMS] + [f"whole-{bad.name}" for bad in WHOLES],
)
async def test_whatever_an_engine_sends_ends_explicitly_and_the_next_request_is_served(
    world: World, bad: Bad, streamed: bool
) -> None:
    engine = world.engines[0]
    async with world.http() as client:
        engine.script = Script(raw=bad.raw, then_close=bad.then_close)
        assert check(await ask(client, stream=streamed)) == bad.ends
        for next_streamed in (True, False):
            engine.script = Script(word=f" next-{next_streamed}")
            after = await ask(client, stream=next_streamed)
            assert check(after) == "completed"
            assert after.text.count(f"next-{next_streamed}") == BOUND
            assert len(re.findall("word|end", after.text)) == 0
    await world.settled()
    records = await world.ledger_of(3)
    assert all(0 <= r.input_tokens < 5000 and 0 <= r.output_tokens <= BOUND for r in records)
    assert [r.reason == bad.ends or (bad.ends, r.outcome) == ("completed", "completed") for r in records[:1]] == [True]


# --- usage

ABSURD: list[Any] = [
    {"prompt_tokens": 2**63, "completion_tokens": 3, "total_tokens": 2**63 + 3},
    {"prompt_tokens": 12, "completion_tokens": 2**63, "total_tokens": 2**63},
    {"prompt_tokens": 10**23, "completion_tokens": 10**23, "total_tokens": 10**23},
    {"prompt_tokens": -12, "completion_tokens": -3, "total_tokens": -15},
    {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    {"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12},
    {"prompt_tokens": 12, "completion_tokens": BOUND + 1, "total_tokens": 12 + BOUND + 1},
    {"prompt_tokens": 12.5, "completion_tokens": 3.5, "total_tokens": 16.0},
    {"prompt_tokens": "12", "completion_tokens": "3", "total_tokens": "15"},
    {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
    {"prompt_tokens": True, "completion_tokens": True, "total_tokens": 2},
    {"prompt_tokens": {"tokens": 12}, "completion_tokens": [3], "total_tokens": 15},
    {"prompt_tokens": 1e308, "completion_tokens": 1e308, "total_tokens": 1e308},
    {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 10**23},
    {},
    [],
    5,
    "missing",
]


async def test_an_answer_that_our_own_process_cannot_read_is_not_held_against_its_replica(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LONG", 0)
    monkeypatch.setattr(long_answers, "_PROGRAM", "raise SystemExit(1)")
    async with world.http() as client:
        assert check(await ask(client)) == "backend_error"
        assert not world.metrics.answer_rejections
        monkeypatch.undo()
        assert check(await ask(client)) == "completed"


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_usage_that_cannot_be_true_is_replaced_by_our_own_count(world: World, streamed: bool) -> None:
    await world.configure(tokens_per_s=1e6, burst_tokens=1e6)
    more = {"stream_options": {"include_usage": True}} if streamed else {}
    async with world.http() as client:
        for usage in ABSURD:
            world.engines[0].script = Script(tokens=3, usage=usage)
            answer = await ask(client, stream=streamed, **more)
            assert check(answer) == "completed"
            if streamed:
                shown = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
            else:
                shown = answer.json()["usage"]
            assert 0 < shown["prompt_tokens"] < 100, usage
            assert 0 < shown["completion_tokens"] <= BOUND, usage
            assert shown["total_tokens"] == shown["prompt_tokens"] + shown["completion_tokens"], usage
        believed = len(world.metrics.usage_rejections)
        world.engines[0].script = Script(tokens=3)
        assert check(await ask(client, stream=streamed, **more)) == "completed"
    assert believed == len(ABSURD)
    assert len(world.metrics.usage_rejections) == believed, "a true usage is believed"
    await world.settled()
    records = await world.ledger_of(len(ABSURD) + 1)
    assert all(0 < r.input_tokens < 100 and 0 < r.output_tokens <= BOUND for r in records)
    view = await world.store.view()
    level = view.entitlements[world.entitlement.id].level_tokens
    assert level is not None
    assert 0.9e6 < level <= 1e6


async def test_the_log_tells_of_a_change_and_not_of_every_answer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.http() as client:
        for usage in ("missing", "missing", None, None, {}, {}):
            world.engines[0].script = Script(tokens=3, usage=usage)
            assert check(await ask(client)) == "completed"
    lines = [r.getMessage() for r in caplog.records if "usage" in r.getMessage() and "replica" in r.getMessage()]
    assert len(lines) == 3, lines


# --- late answers


def late(request: str) -> bytes:
    return whole(
        answer(
            request,
            choices=[{"index": 0, "message": {"role": "assistant", "content": " SECRET"}, "finish_reason": "stop"}],
        )
    )


class Late:
    """An engine (or a proxy before it) that answers twice: again ``after_s`` after it has answered."""

    def __init__(self, after_s: float, *, named: bool) -> None:
        self.after_s = after_s
        self.named = named
        self.number = 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                name = head.lower().split("x-request-id: ")[1].split("\r\n")[0] if self.named else "none"
                data = whole(json.dumps(self._says(name, body)).encode())
                if self.after_s > 0.02:
                    await asyncio.sleep(self.after_s * 1.2)  # still at work when its last second answer goes out
                writer.write(data)
                await writer.drain()
                asyncio.get_running_loop().call_later(self.after_s, self._again, writer, data)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def _says(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if "tokens" in body:  # /detokenize
            return {"prompt": f"text of {body['tokens']}"}
        own: dict[str, Any] = json.loads(answer(name))
        own["choices"][0]["message"]["content"] = f" {body['messages'][0]['content']}"
        return own

    def _again(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not writer.transport.is_closing():
            writer.write(data)


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.005, 0.03])
async def test_a_second_answer_never_reaches_another_request(patient: World, after_s: float, named: bool) -> None:
    engine = Late(after_s, named=named)
    await engine.start()
    try:
        backend = replace(patient.pool.backends[0], url=engine.url)
        await patient.configure(pool={"backends": (backend,)})
        async with patient.http() as client:

            async def one(number: int) -> None:
                said = f"number-{number}-"
                found = await ask(client, messages=[{"role": "user", "content": said}])
                if found.status_code == 200:
                    assert found.json()["choices"][0]["message"]["content"] == f" {said}"
                else:
                    assert check(found) in ("backend_error", "backend_lost")

            for turn in range(12):
                await asyncio.gather(*(one(turn * 4 + i) for i in range(4)))
    finally:
        await engine.stop()
    await patient.settled()
    assert sum(r.outcome == "completed" for r in await patient.ledger_of(48)) >= 24


@pytest.mark.parametrize("after_s", [0.001, 0.005, 0.03])
async def test_a_second_answer_to_a_question_never_reaches_another_one(world: World, after_s: float) -> None:
    engine = Late(after_s, named=False)
    await engine.start()
    try:
        await world.configure(pool={"backends": (replace(world.pool.backends[0], url=engine.url),)})
        async with world.http() as client:
            for turn in range(30):
                found = await client.post("/detokenize", json={"model": "demo", "tokens": [turn]})
                assert (found.status_code, found.json()) == (200, {"prompt": f"text of [{turn}]"})
    finally:
        await engine.stop()
    assert engine.connections == 30


async def test_an_engine_that_names_no_answers_gets_a_connection_for_each(world: World) -> None:
    engine = world.engines[0]
    async with world.http() as client:
        engine.script = Script(named=False)
        for _ in range(3):
            assert check(await ask(client)) == "completed"
        assert engine.connections == 3
        engine.script = Script()
        for _ in range(3):
            assert check(await ask(client)) == "completed"
        assert engine.connections == 4
        engine.script = Script(named=False)  # on the kept one: cannot be known to be ours
        assert check(await ask(client)) == "completed"
    assert world.metrics.answer_rejections == [(world.pool.backends[0].id, "foreign")]
    records = await world.ledger_of(7)
    assert [r.attempts for r in records] == [1, 1, 1, 1, 1, 1, 2]


def error_in_a_stream(message: str, code: Any, *before: bytes) -> bytes:
    error = {"message": message, "type": "BadRequestError", "param": "logit_bias", "code": code}
    return HEAD + chunked(b"".join(before) + frame({"error": error}) + DONE) + END


@pytest.mark.parametrize("kept", [False, True])
async def test_an_input_that_an_engine_refuses_in_its_stream_is_the_clients_error(world: World, kept: bool) -> None:
    """vLLM answers a stream with 200 before it compares token ids with its vocabulary."""
    engine = world.engines[0]
    async with world.http() as client:
        if kept:
            assert check(await ask(client)) == "completed"
        engine.script = Script(raw=lambda _: error_in_a_stream("5000 is out of vocabulary", 400))
        found = await ask(client, stream=True)
        assert found.status_code == 400
        error = found.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_request", "logit_bias")
        assert error["message"] == "5000 is out of vocabulary"
        assert found.headers["x-should-retry"] == "false"
        for code in (500, "400", None):
            engine.script = Script(raw=lambda _, code=code: error_in_a_stream("at 10.0.0.7", code))
            assert check(await ask(client, stream=True)) == "backend_error"
        engine.script = Script(raw=lambda r: error_in_a_stream("at 10.0.0.7", 400, frame(piece(r))))
        assert check(await ask(client, stream=True)) == "backend_error"
        engine.script = Script()
        assert check(await ask(client, stream=True)) == "completed"
    records = await world.ledger_of(6 + kept)
    refused = records[kept]
    assert (refused.reason, refused.attempts, refused.output_tokens) == ("invalid_request", 1, 0)


async def test_words_of_an_error_in_a_stream_that_may_be_anothers_are_not_shown(world: World) -> None:
    engine, answers = world.engines[0], 0

    def late(request: str) -> bytes:
        nonlocal answers
        answers += 1
        return (
            error_in_a_stream("SECRET of another", 400) if answers == 1 else HEAD + chunked(good(request) + DONE) + END
        )

    async with world.http() as client:
        assert check(await ask(client)) == "completed"
        engine.script = Script(raw=late)
        found = await ask(client, stream=True)
        assert "SECRET" not in found.text
        assert check(found) == "completed"
    assert answers == 2


async def test_words_of_an_error_that_may_be_anothers_are_not_shown(world: World) -> None:
    """A late 400 on a kept connection would tell one client what was wrong with another's input."""
    engine = world.engines[0]
    async with world.http() as client:
        assert check(await ask(client)) == "completed"
        engine.script = Script(statuses=[400], error="SECRET of another")
        found = await ask(client)
        assert "SECRET" not in found.text
        assert check(found) == "completed"


@pytest.mark.parametrize("behind", [b"data: {}\n\n", b'data: {"choices":[]}\n\n', b"x"])
async def test_what_comes_behind_the_end_of_a_stream_closes_its_connection(world: World, behind: bytes) -> None:
    engine = world.engines[0]
    async with world.http() as client:
        engine.script = Script(raw=lambda r: HEAD + chunked(good(r) + DONE + behind) + END)
        assert check(await ask(client, stream=True)) == "completed"
        engine.script = Script()
        assert check(await ask(client, stream=True)) == "completed"
        assert engine.connections == 2


# --- all the way to the catalog


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("streamed", [True, False])
def test_absurd_usage_reaches_neither_ledger_nor_hours_nor_quotas(
    redis_url: str, pool_id: str, streamed: bool, figure: Callable[[str], None]
) -> None:
    """From a real engine's bytes over Redis into the database, as the leader's recorder writes it."""

    async def serve() -> list[LedgerRecord]:
        async with gateway_world(redis_url, pool_id, config=CONFIG) as world:
            async with world.http() as client:
                for usage in ABSURD:
                    world.engines[0].script = Script(tokens=3, usage=usage)
                    assert check(await ask(client, stream=streamed)) == "completed"
            await world.settled()
            return await world.ledger_of(len(ABSURD))

    records = asyncio.run(serve())
    writer.write(records)
    rollup.roll_up()
    since = datetime.fromtimestamp(records[0].received_s - 7200, tz=UTC)
    [row] = usage.usage(None, since, since + timedelta(hours=4), ["tenant"], pool=pool_id)
    figure(
        f"{len(ABSURD)} absurd figures in {'streams' if streamed else 'whole answers'}: {row['completed']} completed, "
        f"{len(records)} ledger rows, {row['output_tokens']} tokens summed"
    )
    assert row["requests"] == row["completed"] == len(ABSURD)
    assert len(ABSURD) <= row["output_tokens"] <= BOUND * len(ABSURD)
    assert len(ABSURD) <= row["input_tokens"] < 100 * len(ABSURD)
    told = read_ledger(pool_id, frozenset({"acme"}), records[-1].done_s)
    assert sum(told["acme"]) == 2 * (row["input_tokens"] + row["output_tokens"])
