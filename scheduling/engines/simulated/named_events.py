"""``/v1/messages`` and ``/v1/responses`` of the simulated engine: the same words as a chat's, in vLLM's other forms."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from scheduling.engines.simulated import requests, text
from scheduling.engines.simulated.engine import Sequence
from scheduling.engines.simulated.http import Connection


class MessagesBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    messages: list[requests.Message]
    system: str | list[requests.Part] | None = None
    max_tokens: int = 0
    stream: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: requests.Transfer | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None
    request_id: str = ""
    metadata: dict[str, str] | None = None
    priority: int | None = None
    kv_transfer_params: requests.Transfer | None = None


MESSAGES, RESPONSES = msgspec.json.Decoder(MessagesBody), msgspec.json.Decoder(ResponsesBody)


def messages_of(body: MessagesBody) -> list[requests.Message]:
    system = [] if body.system is None else [requests.Message("system", body.system)]
    return [*system, *body.messages]


def input_of(body: ResponsesBody) -> list[requests.Message]:
    messages = [] if body.instructions is None else [requests.Message("system", body.instructions)]
    if isinstance(body.input, str):
        return [*messages, requests.Message("user", body.input)]
    for item in body.input:
        content = item.get("content") or item.get("output") or item.get("arguments") or ""
        parts = content if isinstance(content, str) else [requests.Part(p["type"], p.get("text", "")) for p in content]
        messages.append(requests.Message(item.get("role", "assistant"), parts))
    return messages


class NamedAnswer:
    """One generation, told as events with names. Stops when the client leaves."""

    def __init__(
        self, connection: Connection, *, model: str, name: str, stream: bool, seq: Sequence, mark: int,
        abort: Callable[[Sequence], None],
    ) -> None:  # fmt: skip
        self.connection = connection
        self.model = model
        self.id = name
        self.stream = stream
        self.seq = seq
        self.created = int(time.time())
        self.cut_after = 0
        self.prompt_tokens = seq.prompt_tokens
        self.transfer: dict[str, Any] | None = None  # where its KV cache is, for whom it was computed
        self.gone = False  # its client
        self._start = mark & text.VOCABULARY_MASK
        self._abort = abort
        self._number = 0
        seq.on_end = self._ended
        if stream:
            seq.on_token = self._token

    @property
    def sequences(self) -> list[Sequence]:
        return [self.seq]

    def lost(self) -> None:
        self.gone = True
        self._abort(self.seq)

    def send(self, kind: str, **fields: Any) -> None:
        """One event."""
        data = msgspec.json.encode({"type": kind, **self.numbered(), **fields})
        frame = b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
        self.connection.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def numbered(self) -> dict[str, Any]:
        return {}

    @property
    def full_text(self) -> str:
        return text.generated_text(self._start, self.seq.generated)

    def _word(self) -> str:
        return text.VOCABULARY[(self._start + self.seq.generated - 1) & text.VOCABULARY_MASK].decode()

    def _token(self, seq: Sequence) -> None:
        if seq.generated == 1:
            self.begin()
        self.word(self._word())
        if seq.generated == self.cut_after:
            self.connection.abort()

    def _ended(self, seq: Sequence) -> None:
        if self.cut_after:
            self.connection.abort()
        elif self.stream:
            if seq.generated == 1:
                self.begin()
            self.word(self._word())
            self.end()
            self.connection.end_stream()
        else:
            self.connection.respond(200, msgspec.json.encode(self.whole()))

    def head(self) -> None:
        """What is sent before anything was computed."""

    def begin(self) -> None:
        raise NotImplementedError

    def word(self, word: str) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        raise NotImplementedError


class MessageAnswer(NamedAnswer):
    """Anthropic's form."""

    def begin(self) -> None:
        usage = {"input_tokens": self.seq.prompt_tokens, "output_tokens": 0}
        message: dict[str, Any] = {
            "id": self.id, "type": "message", "role": "assistant", "content": [], "model": self.model,
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        self.send("message_start", message=message)
        self.send("content_block_start", content_block={"type": "text", "text": ""}, index=0)

    def word(self, word: str) -> None:
        self.send("content_block_delta", delta={"type": "text_delta", "text": word}, index=0)

    def end(self) -> None:
        self.send("content_block_stop", index=0)
        self.send("message_delta", delta={"stop_reason": self._reason, "stop_sequence": None}, usage=self._usage)
        self.send("message_stop")

    @property
    def _reason(self) -> str:
        return "end_turn" if self.seq.stops else "max_tokens"

    @property
    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self.seq.prompt_tokens, "output_tokens": self.seq.generated}

    def whole(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": self.full_text}],
            "model": self.model,
            "stop_reason": self._reason,
            "usage": self._usage,
            **({"kv_transfer_params": self.transfer} if self.transfer else {}),  # vLLM leaves out what is null here
        }


class ResponseAnswer(NamedAnswer):
    """The form of ``/v1/responses``."""

    body: ResponsesBody

    def numbered(self) -> dict[str, Any]:
        self._number += 1
        return {"sequence_number": self._number - 1}

    def head(self) -> None:
        self.send("response.created", response=self._response("in_progress", []))
        self.send("response.in_progress", response=self._response("in_progress", []))

    def begin(self) -> None:
        item = {"id": self._item, "type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        self.send("response.output_item.added", item=item, output_index=0)
        self.send("response.content_part.added", part=self._part(""), **self._place)

    def word(self, word: str) -> None:
        self.send("response.output_text.delta", delta=word, logprobs=[], **self._place)

    def end(self) -> None:
        self.send("response.output_text.done", text=self.full_text, logprobs=[], **self._place)
        self.send("response.content_part.done", part=self._part(self.full_text), **self._place)
        self.send("response.output_item.done", item=self._message(), output_index=0)
        self.send("response.completed", response=self.whole())

    @property
    def _item(self) -> str:
        return f"msg_{self.id}"

    @property
    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item, "output_index": 0}

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

    def _message(self) -> dict[str, Any]:
        content = [self._part(self.full_text)]
        return {
            "id": self._item, "type": "message", "role": "assistant", "content": content, "status": "completed",
        }  # fmt: skip

    def whole(self) -> dict[str, Any]:
        done, prompt = self.seq.generated, self.seq.prompt_tokens
        usage = {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": done,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + done,
        }  # fmt: skip
        status = "completed" if self.seq.stops else "incomplete"
        return self._response(status, [self._message()]) | {"usage": usage, "kv_transfer_params": self.transfer}

    def _response(self, status: str, output: list[Any]) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": details,
            "instructions": self.body.instructions,
            "metadata": self.body.metadata,
            "model": self.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.body.max_output_tokens,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": None,
        }
