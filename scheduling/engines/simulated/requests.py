"""What a request may say, and the mistakes vLLM 0.32 answers with 400 and 404."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from scheduling.engines.simulated import prefix_cache, text

COMPLETION_DEFAULT_TOKENS = 16  # vLLM's default for /v1/completions; a chat may fill the context
MAX_CHOICES = 128
MEDIA = ("image_url", "audio_url", "video_url", "input_audio", "image", "input_image")
MEDIA_TOKENS = 256  # of each, whatever it shows


class ApiError(Exception):
    """An error in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Part(msgspec.Struct):
    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    reasoning: str | None = None


class Transfer(msgspec.Struct):
    """vLLM's ``kv_transfer_params``, in NixlConnector's form."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_block_ids: list[int] | None = None
    remote_host: str | None = None
    remote_port: int | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What both kinds share. Fields that are not listed are ignored, as vLLM does."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    kv_transfer_params: Transfer | None = None


class ChatBody(GenerationBody, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[Any]


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


CHAT = msgspec.json.Decoder(ChatBody)
COMPLETION = msgspec.json.Decoder(CompletionBody)
TOKENIZE = msgspec.json.Decoder(TokenizeBody)
DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)
NAMED_VALUES = msgspec.json.Decoder(dict[str, Any])

_FIELD = re.compile(r"`\$\.(\w+)|missing required field `(\w+)`")

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Parses a body. Raises :class:`ApiError` 400 that names the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        param = f"body.{field[1] or field[2]}" if field else None
        raise ApiError(400, f"1 validation error:\n  {error}", "Bad Request", param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"1 validation error:\n  JSON decode error: {error}", "Bad Request", "body") from error


def chat_prompt(messages: list[Message]) -> tuple[int, int]:
    """Tokens and fingerprint of a conversation."""
    if not messages:
        raise ApiError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    tokens = mark = 0
    for message in messages:
        tokens += text.CHAT_MESSAGE_TOKENS
        parts = [message.content or ""] if not isinstance(message.content, list) else [p.text for p in message.content]
        if isinstance(message.content, list):
            tokens += MEDIA_TOKENS * sum(part.type in MEDIA for part in message.content)
        if message.reasoning is not None:
            parts.append(message.reasoning)
        for part in parts:
            tokens += text.count_tokens(part)
            mark = text.fingerprint(part, mark)
    return tokens, mark


def cached_ids(messages: list[Message]) -> list[int]:
    """A conversation's tokens as the prefix cache knows them."""
    texts: list[str] = []
    for message in messages:
        content = message.content
        texts += [message.role, *([p.text for p in content] if isinstance(content, list) else [content or ""])]
    return prefix_cache.ids_of(texts)


def completion_prompts(prompt: str | list[Any]) -> list[tuple[int, int]]:
    """Tokens and fingerprint of each prompt: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        if not prompt:
            raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
        return [(max(1, text.count_tokens(prompt)), text.fingerprint(prompt))]
    if not prompt:
        raise ApiError(400, "You must pass at least one prompt")
    if all(type(item) is int for item in prompt):
        return [(len(prompt), text.fingerprint(repr(prompt)))]
    prompts: list[tuple[int, int]] = []
    for item in prompt:
        if not isinstance(item, str) and not (isinstance(item, list) and all(type(i) is int for i in item)):
            raise ApiError(
                400,
                "1 validation error:\n  prompt: a text, a list of token ids, or a list of these",
                "Bad Request",
                "body.prompt",
            )
        prompts.extend(completion_prompts(item))
    return prompts


def check(body: GenerationBody, bound: int | None, max_model_len: int) -> None:
    """What vLLM refuses before it looks at the prompt. ``bound`` is the request's max_tokens."""
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if body.n is not None and body.n < 1:
        raise ApiError(400, f"n must be at least 1, got {body.n}.")
    if bound is not None and bound < 1:
        raise ApiError(400, f"max_tokens must be at least 1, got {bound}.", param="max_tokens")
    if bound is not None and bound > max_model_len:
        raise ApiError(
            400,
            f"max_tokens={bound} cannot be greater than max_model_len={max_model_len}. Please request fewer output "
            "tokens.",
            param="max_tokens",
        )
    if body.cache_salt is not None and not body.cache_salt:
        raise ApiError(400, "Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    least = body.min_tokens or 0
    if least < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {least}.")
    if bound is not None and least > bound:
        raise ApiError(400, f"min_tokens must be less than or equal to max_tokens={bound}, got {least}.")


def most_output(prompt_tokens: int, bound: int | None, max_model_len: int) -> int:
    """The output bound of a prompt: what the client asked for, or less where the context ends before."""
    room = max_model_len - prompt_tokens
    if room < 0:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            "the length of the input prompt.",
            param="input_tokens",
        )
    if room == 0:
        raise ApiError(400, "max_tokens must be at least 1, got 0.", param="max_tokens")
    return room if bound is None else min(bound, room)
