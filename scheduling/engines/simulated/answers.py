"""From a request body to sequences, and from their tokens to the bytes vLLM 0.32 would send."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from scheduling.engines.simulated import text
from scheduling.engines.simulated.engine import Sequence
from scheduling.engines.simulated.http import Connection

COMPLETION_DEFAULT_TOKENS = 16  # vLLM's default for /v1/completions; a chat may fill the context
MAX_CHOICES = 128
FINGERPRINT = "vllm-0.32.0-simulated"

Abort = Callable[[Sequence], None]


class ApiError(Exception):
    """An error in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Part(msgspec.Struct):
    type: str = "text"
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    priority: int | None = None


class ChatBody(_Body, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None


class CompletionBody(_Body, kw_only=True):
    prompt: str | list[Any]


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None


CHAT = msgspec.json.Decoder(ChatBody)
COMPLETION = msgspec.json.Decoder(CompletionBody)
TOKENIZE = msgspec.json.Decoder(TokenizeBody)


T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Parses a body. Raises :class:`ApiError` 400 that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(400, str(error), "Bad Request") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"JSON decode error: {error}", "Bad Request") from error


def chat_prompt(messages: list[_Message]) -> tuple[int, int]:
    """Tokens and fingerprint of a conversation."""
    if not messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    tokens = mark = 0
    for message in messages:
        tokens += text.CHAT_MESSAGE_TOKENS
        parts = [message.content or ""] if not isinstance(message.content, list) else [p.text for p in message.content]
        for part in parts:
            tokens += text.count_tokens(part)
            mark = text.fingerprint(part, mark)
    return tokens, mark


def completion_prompts(prompt: str | list[Any]) -> list[tuple[int, int]]:
    """Tokens and fingerprint of each prompt: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [(text.count_tokens(prompt), text.fingerprint(prompt))]
    if not prompt:
        raise ApiError(400, "prompt must not be empty", param="prompt")
    if all(type(item) is int for item in prompt):
        return [(len(prompt), text.fingerprint(repr(prompt)))]
    found: list[tuple[int, int]] = []
    for item in prompt:
        if not isinstance(item, str) and not (isinstance(item, list) and item and all(type(i) is int for i in item)):
            raise ApiError(400, "prompt must be a string, a list of token ids, or a list of these", param="prompt")
        found.extend(completion_prompts(item))
    return found


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
            answer.send(b"%b%b%b,%b}\n\n" % (head, word, self._tails, answer.usage_field(seq)))
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
            usage = b"," + answer.usage_field(seq) if answer.continuous_usage else b""
            answer.send(
                b'data: {%b,"choices":[{"index":%d,%b,"logprobs":null,"finish_reason":"%b","stop_reason":null,'
                b'"token_ids":null}]%b}\n\n' % (answer.stem, self.index, body, reason, usage)
            )
        answer.choice_ended()


class Answer:
    """One request's generations. Stops them when the client leaves."""

    def __init__(self, connection: Connection, *, model: str, chat: bool, body: _Body, abort: Abort) -> None:
        self.connection = connection
        self.chat = chat
        self.stream = bool(body.stream)
        options = body.stream_options
        self.include_usage = bool(options and options.include_usage)
        self.continuous_usage = bool(options and options.continuous_usage_stats and self.include_usage)
        self.priority = body.priority or 0
        self.choices: list[Choice] = []
        self.prompt_tokens = 0  # each prompt once, however many answers it was asked for
        self.cut_after = 0  # tokens after which the connection is cut; 0: never
        self._abort = abort
        self._open = 0
        self._id = ("chatcmpl-" if chat else "cmpl-") + os.urandom(8).hex()
        self._created = int(time.time())
        self._model = model
        kind = "chat.completion.chunk" if chat else "text_completion"
        self.stem = b'"id":"%b","object":"%b","created":%d,"model":%b' % (
            self._id.encode(),
            kind.encode(),
            self._created,
            msgspec.json.encode(model),
        )

    def add(self, prompt_tokens: int, mark: int, output: int, stops: bool) -> None:
        self.choices.append(Choice(self, len(self.choices), prompt_tokens, mark, output, stops))
        self._open += 1

    def lost(self) -> None:
        """The connection is gone: everything this request holds is given back at once."""
        for choice in self.choices:
            self._abort(choice.seq)

    def send(self, frame: bytes) -> None:
        self.connection.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def send_role(self, index: int) -> None:
        usage = (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0}' % ((self.prompt_tokens,) * 2)
            if self.continuous_usage
            else b""
        )
        self.send(
            b'data: {%b,"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]%b}\n\n' % (self.stem, index, usage)
        )

    def usage_field(self, seq: Sequence | None = None) -> bytes:
        """The whole answer's usage, or one sequence's so far."""
        if seq is None:
            prompt, done = self.prompt_tokens, sum(choice.seq.generated for choice in self.choices)
        else:
            prompt, done = seq.prompt_tokens, seq.generated
        return b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (prompt, prompt + done, done)

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
            self.send(b'data: {%b,"choices":[],%b}\n\n' % (self.stem, self.usage_field()))
        self.send(b"data: [DONE]\n\n")
        self.connection.end_stream()

    def _whole(self) -> bytes:
        choices: list[dict[str, Any]] = []
        for choice in self.choices:
            said = text.generated_text(choice.start, choice.seq.generated)
            content: dict[str, Any] = (
                {"message": {"role": "assistant", "content": said, "refusal": None, "reasoning": None}}
                if self.chat
                else {"text": said}
            )
            reason = "stop" if choice.seq.stops else "length"
            choices.append(
                {"index": choice.index, **content, "logprobs": None, "finish_reason": reason, "stop_reason": None}
            )
        done = sum(choice.seq.generated for choice in self.choices)
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "chat.completion" if self.chat else "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "system_fingerprint": FINGERPRINT,
                "usage": {
                    "prompt_tokens": self.prompt_tokens,
                    "total_tokens": self.prompt_tokens + done,
                    "completion_tokens": done,
                    "prompt_tokens_details": None,
                },
            }
        )
