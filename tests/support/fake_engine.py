"""An engine whose every byte a test decides: speaks vLLM's wire format from a script, and counts what is open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Script:
    """How the next answers look."""

    tokens: int | None = None  # None: as many as max_tokens asks for
    pause_s: float = 0.0  # before each streamed token, or once before a whole answer
    first_pause_s: float = 0.0
    status: int = 200
    error: str = "scripted"
    statuses: list[int] = field(default_factory=list)  # of the next answers, before ``status`` holds again
    fails: str = ""  # 500 for bodies that have this in them, however the others are answered
    cut_after: int | None = None  # tokens after which the connection is reset
    whole_cut: bool = True  # that holds for whole answers as well
    stall_after: int | None = None  # tokens after which nothing comes any more
    error_after: int | None = None  # tokens after which an error frame comes, then [DONE], as vLLM does
    close_idle: bool = False  # closes the connection after each answer without saying so
    refuse: bool = False  # closes each connection at once
    word: str = " word"
    named: bool = True  # answers are named by their X-Request-Id, as vLLM does
    usage: Any = None  # instead of the true one; "missing": none at all
    raw: Callable[[str], bytes] | None = None  # everything that is sent, head included, by the request's name
    then_close: bool = False  # after ``raw``
    message: dict[str, Any] | None = None  # of a chat, instead of words: reasoning, tool calls; streamed field by field
    choices: int | None = None  # None: as many answers as are asked for
    counts: int | None = 12  # tokens that /tokenize finds in a prompt; None: it answers nonsense


class FakeEngine:
    """Listens on a free loopback port. ``url`` is its base."""

    def __init__(self, model: str = "fake-upstream") -> None:
        self.model = model
        self.script = Script()
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.open = 0  # generations that run
        self.aborted = 0
        self.connections = 0  # ever made
        self.connected = 0  # now
        self.url = ""
        self.generated = 0
        self.context: int | None = None  # prompt and answer of one sequence; None: it does not say, and takes all
        self.metrics: Callable[[], Awaitable[bytes]] | None = None  # None: as vLLM's; else the whole answer to a GET
        self.watch: Callable[[dict[str, Any], bool], None] | None = None  # told each body that begins or has ended
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=2048)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Closes the port and every connection."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _metrics(self) -> bytes:
        return (
            f"vllm:num_requests_running {self.open}\nvllm:num_requests_waiting 0\n"
            f"vllm:generation_tokens_total {self.generated}\n"
        ).encode()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.connected += 1
        try:
            while not self.script.refuse:
                if not await self._one(reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.connected -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if line)}
        if lines[0].startswith("GET"):
            if self.context is not None and " /v1/models " in lines[0]:
                card = {"id": self.model, "object": "model", "max_model_len": self.context}
                _whole(writer, 200, json.dumps({"object": "list", "data": [card]}).encode())
            elif self.metrics is None:
                _whole(writer, 200, self._metrics())
            else:
                writer.write(await self.metrics())
            await writer.drain()
            return True
        sent = await reader.readexactly(int(headers["content-length"]))
        form = headers["content-type"].startswith("multipart/")
        body: dict[str, Any] = {"form": sent} if form else json.loads(sent)
        self.heads.append({"": lines[0], **headers})
        self.bodies.append(body)
        script = self.script
        if "/tokenize" in lines[0]:
            _whole(writer, 200, json.dumps({"count": script.counts, "max_model_len": 8192, "tokens": []}).encode())
            await writer.drain()
            return True
        status = script.statuses.pop(0) if script.statuses else script.status
        if script.fails and script.fails.encode() in sent:
            status = 500
        if self.context is not None and len(body["prompt"]) + int(body["max_tokens"]) > self.context:
            _whole(
                writer, 400, json.dumps(_error(f"This model's maximum context length is {self.context}", 400)).encode()
            )
            await writer.drain()
            return True
        if status != 200:
            await asyncio.sleep(script.first_pause_s)
            _whole(writer, status, json.dumps(_error(script.error, status)).encode())
            await writer.drain()
            return True
        name = headers.get("x-request-id", "")
        if script.raw is not None:
            writer.write(script.raw(name))
            await writer.drain()
            return not script.then_close
        self.open += 1
        if self.watch is not None:
            self.watch(body, True)
        leaving = asyncio.ensure_future(reader.read(1))  # a client that goes away in between
        work = asyncio.ensure_future(self._answer(writer, script, body, "chat" in lines[0], name))
        try:
            await asyncio.wait({leaving, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.aborted += 1
                return False
            keep = work.result()
        finally:
            self.open -= 1
            if self.watch is not None:
                self.watch(body, False)
            work.cancel()
            leaving.cancel()
            await asyncio.gather(work, leaving, return_exceptions=True)
        return keep and not script.close_idle

    async def _answer(
        self, writer: asyncio.StreamWriter, script: Script, body: dict[str, Any], chat: bool, name: str
    ) -> bool:
        tokens = script.tokens if script.tokens is not None else int(body.get("max_tokens", 16))
        self.generated += tokens
        usage = {"prompt_tokens": 12, "total_tokens": 12 + tokens, "completion_tokens": tokens}
        counted: dict[str, Any] = {"usage": usage if script.usage is None else script.usage}
        if script.usage == "missing":
            counted = {}
        base = {"id": f"cmpl-{name}" if script.named and name else "cmpl-1", "created": 1, "model": self.model}
        await asyncio.sleep(script.first_pause_s)
        if "form" in body:
            await asyncio.sleep(script.pause_s)
            if script.stall_after is not None:
                await asyncio.sleep(3600)
            _whole(writer, 200, json.dumps({"text": script.word * tokens, "usage": self.script.usage}).encode())
            await writer.drain()
            return True
        if not body.get("stream"):
            await asyncio.sleep(script.pause_s)
            if script.stall_after is not None:
                await asyncio.sleep(3600)
            if script.cut_after is not None and script.whole_cut:
                return False
            text = script.word * tokens
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
            choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            if chat and script.message is not None:
                choice |= {"message": {"role": "assistant", **script.message}, "finish_reason": "tool_calls"}
            kind = "chat.completion" if chat else "text_completion"
            choices = [choice | {"index": index} for index in range(script.choices or _choices(body))]
            _whole(writer, 200, json.dumps(base | {"object": kind, "choices": choices} | counted).encode())
            await writer.drain()
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        base["object"] = "chat.completion.chunk" if chat else "text_completion"
        several = range(script.choices or _choices(body))
        if chat and tokens and script.stall_after != 0:
            for index in several:
                _frame(writer, base | {"choices": [_delta(chat, "", None, index, role=True)]})
        for i, (name, value) in enumerate((script.message or {}).items()):
            last = "tool_calls" if i == len(script.message or {}) - 1 else None
            pieces = [{**call, "index": n} for n, call in enumerate(value)] if name == "tool_calls" else value
            delta = {"index": 0, "logprobs": None, "finish_reason": last, "delta": {name: pieces}}
            _frame(writer, base | {"choices": [delta]})
        for i in range(tokens if script.message is None else 0):
            if script.cut_after == i:
                await writer.drain()
                return False
            if script.stall_after == i:
                await writer.drain()
                await asyncio.sleep(3600)
            if script.error_after == i:
                _frame(writer, _error("engine at 10.0.0.7 died", 500))
                _chunk(writer, b"data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            last = "length" if i == tokens - 1 else None
            for index in several:
                _frame(writer, base | {"choices": [_delta(chat, script.word, last, index)]})
            if script.pause_s:
                await writer.drain()
                await asyncio.sleep(script.pause_s)
            elif i % 64 == 63:
                await writer.drain()
        if (body.get("stream_options") or {}).get("include_usage"):
            _frame(writer, base | {"choices": []} | counted)
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _error(message: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": None, "code": code}}


def _choices(body: dict[str, Any]) -> int:
    """How many answers the body asks for: ``n`` to each of its prompts."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return int(body.get("n") or 1) * (len(prompt) if several else 1)


def _delta(chat: bool, text: str, finish: str | None, index: int = 0, *, role: bool = False) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish}
    if not chat:
        return choice | {"text": text}
    return choice | {"delta": {"role": "assistant", "content": text} if role else {"content": text}}


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _frame(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    _chunk(writer, b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")


def _whole(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body
    )


def raw_answer(answer: dict[str, Any]) -> Callable[[str], bytes]:
    """A ``Script.raw`` that gives this as a whole answer, named by the request."""

    def say(name: str) -> bytes:
        body = json.dumps({"id": f"x-{name}"} | answer).encode()
        return b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    return say
