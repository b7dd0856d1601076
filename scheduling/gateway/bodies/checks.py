"""Checks that several kinds of body share. A fault is a 400 with the field's path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scheduling.core.inside_engine.digest import ARGUMENT
from scheduling.core.outcomes import Reason
from scheduling.core.types import PoolSpec, PrefixCache
from scheduling.gateway.bodies.media import MAX_MEDIA, MAX_PIXELS, UNREAD_PIXELS
from scheduling.gateway.bodies.openai_types import MAX_SCHEMA_BYTES, Tool
from scheduling.gateway.errors import Refusal

# arguments of the tokenizer's own method, which some versions of vLLM pass on with the template's
_NOT_FOR_CLIENTS = frozenset({
    "chat_template", "conversation", "messages", "tools", "documents", "tokenize", "tokenizer", "tokenizer_kwargs",
    "padding", "truncation", "max_length", "add_generation_prompt", "continue_final_message",
})  # fmt: skip
# vLLM hands these on with what its own parts exchange: a request could have another's cache read, or be told of as one
# of another's session
_NOT_FOR_EXTENSIONS = ("kv_", "ec_", "cache_salt", "session_id", ARGUMENT)


def invalid(detail: str, param: str | None = None) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, detail=detail, param=param)


def check_bound(bound: int | None, pool: PoolSpec, param: str) -> None:
    """Refuses more output than the pool allows."""
    if bound is not None and bound > pool.max_output_tokens:
        raise invalid(f"At most {pool.max_output_tokens} output tokens can be asked for here.", param)


def check_salt(salt: str | None, pool: PoolSpec) -> None:
    if salt is not None and pool.prefix_cache is PrefixCache.UNSALTED:
        raise invalid("The engines behind this model take no cache_salt.", "cache_salt")


def check_arguments(extensions: Mapping[str, object] | None, template: Mapping[str, object] | None) -> None:
    """What a body says to vLLM's extensions (``vllm_xargs``) and to the chat template."""
    if extensions is not None:
        check_extensions(extensions)
    if template is not None:
        check_template(template)


def check_media(count: int, param: str, what: str = "images", pixels: Sequence[int] = ()) -> None:
    if count > MAX_MEDIA:
        raise invalid(f"{count} {what} are more than {MAX_MEDIA}.", param)
    if (total := sum(pixels)) > MAX_PIXELS:
        unread = " Of some the size cannot be read: send PNG, JPEG, GIF or WebP." if UNREAD_PIXELS in pixels else ""
        raise invalid(f"The images have {total} pixels in all, more than {MAX_PIXELS}.{unread}", param)


def check_schema(schema: msgspec.Raw, param: str, what: str = "The schema") -> None:
    if size_of(schema) > MAX_SCHEMA_BYTES:
        raise invalid(f"{what} is larger than {MAX_SCHEMA_BYTES} bytes.", param)


def check_tools(tools: Iterable[Tool]) -> None:
    """Their schemas together."""
    if sum(size_of(tool.function.parameters) for tool in tools) > MAX_SCHEMA_BYTES:
        raise invalid(f"The tools' parameters are larger than {MAX_SCHEMA_BYTES} bytes.", "tools")


def size_of(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


def check_template(kwargs: Mapping[str, object]) -> None:
    """What a template may be told, but not another template, nor how the engine renders and tokenises it."""
    for name in kwargs:
        if name in _NOT_FOR_CLIENTS or name.startswith("return_"):
            raise invalid(f"{name} cannot be set here.", "chat_template_kwargs")


def check_extensions(arguments: Mapping[str, object]) -> None:
    for name in arguments:
        if name.startswith(_NOT_FOR_EXTENSIONS):
            raise invalid(f"vllm_xargs: {name} cannot be set here.", f"vllm_xargs.{name}")
