"""From the tokens of sequences to the bytes vLLM 0.32 would send."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from scheduling.engines.simulated import text
from scheduling.engines.simulated.engine import Sequence
from scheduling.engines.simulated.http import Connection
from scheduling.engines.simulated.requests import GenerationBody

FINGERPRINT = "vllm-0.32.0-simulated"

Abort = Callable[[Sequence], None]


def usage_frame_part(prompt: int, done: int, chat: bool) -> bytes:
    """What each frame carries with ``continuous_usage_stats``."""
    details = b',"completion_tokens_details":null' if chat else b""
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
        *(prompt, prompt + done, done),
        details,
    )


class Choice:
    """One generation of an answer, and the bytes that surround each of its tokens."""

    __slots__ = ("_heads", "_tails", "answer", "index", "seq", "start")

    def __init__(self, answer: Answer, index: int, prompt_tokens: int, mark: int, output: int, stops: bool) -> None:
        self.answer = answer
        self.index = index
        self.start = mark & text.VOCABULARY_MASK
        self.seq = Sequence(prompt_tokens, output, stops, answer.priority)
        self.seq.on_end = self._ended
        self._heads: dict[int, bytes] = {}
        self._tails = b""
        if answer.stream:
            self.seq.on_token = self._token
            self._prepare()

    def _prepare(self) -> None:
        """Everything of a frame but the word, chunk length included; one head per length of word."""
        answer = self.answer
        body = b'"delta":{"content":"' if answer.chat else b'"text":"'
        before = b'data: {%b,"choices":[{"index":%d,%b' % (answer.stem, self.index, body)
        after = (b'"},' if answer.chat else b'",') + b'"logprobs":null,"finish_reason":null,'
        after += b'"token_ids":null}]' if answer.chat else b'"stop_reason":null,"token_ids":null}]'
        if not answer.continuous_usage:
            after += b"}\n\n"
        self._tails = after
        size = len(before) + len(after)
        self._heads = {n: b"%x\r\n%b" % (size + n, before) for n in text.WORD_LENGTHS}

    def _word(self) -> bytes:
        return text.VOCABULARY[(self.start + self.seq.generated - 1) & text.VOCABULARY_MASK]

    def _token(self, seq: Sequence) -> None:
        answer = self.answer
        if seq.generated == 1 and answer.chat:
            answer.send_role(self.index)
        word = self._word()
        if answer.continuous_usage:
            head = self._heads[len(word)].partition(b"\r\n")[2]
            usage = usage_frame_part(seq.prompt_tokens, seq.generated, answer.chat)
            answer.send(b"%b%b%b%b}\n\n" % (head, word, self._tails, usage))
        else:
            answer.connection.write(b"%b%b%b\r\n" % (self._heads[len(word)], word, self._tails))
        if seq.generated == answer.cut_after:
            answer.connection.abort()

    def _ended(self, seq: Sequence) -> None:
        answer = self.answer
        if answer.stream:
            if answer.cut_after:
                answer.connection.abort()
                return
            if seq.generated == 1 and answer.chat:
                answer.send_role(self.index)
            reason = b"stop" if seq.stops else b"length"
            word = self._word()
            body = b'"delta":{"content":"%b"}' % word if answer.chat else b'"text":"%b"' % word
            more = b""
            if answer.continuous_usage:
                more = usage_frame_part(seq.prompt_tokens, seq.generated, answer.chat)
            if answer.last_open and not answer.include_usage:  # the stream's last frame names the build
                more += b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
            answer.send(
                b'data: {%b,"choices":[{"index":%d,%b,"logprobs":null,"finish_reason":"%b","stop_reason":null,'
                b'"token_ids":null}]%b}\n\n' % (answer.stem, self.index, body, reason, more)
            )
        answer.choice_ended()


class Answer:
    """One request's generations. Stops them when the client leaves."""

    def __init__(
        self, connection: Connection, *, model: str, chat: bool, body: GenerationBody, name: str, abort: Abort
    ) -> None:
        """``name``: what the client calls the request (``X-Request-Id``), by which vLLM names the answer."""
        self.connection = connection
        self.chat = chat
        self.stream = bool(body.stream)
        options = body.stream_options
        self.include_usage = bool(options and options.include_usage)
        self.continuous_usage = bool(options and options.continuous_usage_stats and self.include_usage)
        self.priority = body.priority or 0
        self.choices: list[Choice] = []
        self.prompt_tokens = 0  # each prompt once, however many answers it was asked for
        self.cached_tokens: int | None = None  # of these, found in the prefix cache; None: there is none
        self.transfer: dict[str, Any] | None = None  # where its KV cache is, for whom it was computed
        self.gone = False  # its client
        self.cut_after = 0  # tokens after which the connection is cut; 0: never
        self._abort = abort
        self._open = 0
        self._id = ("chatcmpl-" if chat else "cmpl-") + (name or os.urandom(8).hex())
        self._created = int(time.time())
        self._model = model
        kind = "chat.completion.chunk" if chat else "text_completion"
        self.stem = b'"id":%b,"object":"%b","created":%d,"model":%b' % (
            msgspec.json.encode(self._id),
            kind.encode(),
            self._created,
            msgspec.json.encode(model),
        )

    def add(self, prompt_tokens: int, mark: int, output: int, stops: bool) -> None:
        self.choices.append(Choice(self, len(self.choices), prompt_tokens, mark, output, stops))
        self._open += 1

    def lost(self) -> None:
        """The connection is gone: everything this request holds is given back at once."""
        self.gone = True
        for choice in self.choices:
            self._abort(choice.seq)

    def send(self, frame: bytes) -> None:
        self.connection.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def send_role(self, index: int) -> None:
        usage = usage_frame_part(self.prompt_tokens, 0, chat=True) if self.continuous_usage else b""
        self.send(
            b'data: {%b,"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]%b,"prompt_token_ids":null,"prompt_text":null}\n\n' % (self.stem, index, usage)
        )

    @property
    def sequences(self) -> list[Sequence]:
        return [choice.seq for choice in self.choices]

    @property
    def last_open(self) -> bool:
        return self._open == 1

    def choice_ended(self) -> None:
        self._open -= 1
        if self._open:
            return
        if not self.stream:
            if self.cut_after:
                self.connection.abort()
            else:
                self.connection.respond(200, self._whole())
            return
        if self.include_usage:
            prompt, done = self.prompt_tokens, sum(choice.seq.generated for choice in self.choices)
            self.send(
                b'data: {%b,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d},'
                b'"system_fingerprint":"%b"}\n\n' % (self.stem, prompt, prompt + done, done, FINGERPRINT.encode())
            )
        self.send(b"data: [DONE]\n\n")
        self.connection.end_stream()

    def _whole(self) -> bytes:
        choices: list[dict[str, Any]] = []
        for choice in self.choices:
            content = text.generated_text(choice.start, choice.seq.generated)
            what: dict[str, Any] = {"text": content}
            if self.chat:
                nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
                what = {"message": {"role": "assistant", "content": content, **nothing}}
            unused: tuple[str, ...] = () if self.chat else ("prompt_logprobs", "prompt_token_ids")
            choices.append(
                {
                    "index": choice.index,
                    **what,
                    "logprobs": None,
                    "finish_reason": "stop" if choice.seq.stops else "length",
                    **dict.fromkeys(("stop_reason", "token_ids", "routed_experts", *unused)),
                }
            )
        done = sum(choice.seq.generated for choice in self.choices)
        unused = ("prompt_logprobs", "prompt_token_ids", "prompt_text") if self.chat else ()
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "chat.completion" if self.chat else "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": {
                    "prompt_tokens": self.prompt_tokens,
                    "total_tokens": self.prompt_tokens + done,
                    "completion_tokens": done,
                    "prompt_tokens_details": (
                        None if self.cached_tokens is None else {"cached_tokens": self.cached_tokens}
                    ),
                    "completion_tokens_details": None,
                },
                "kv_transfer_params": self.transfer,
                **dict.fromkeys((*unused, "ec_transfer_params", "metrics")),
            }
        )
