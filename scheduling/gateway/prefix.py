"""How a prompt begins, as a number: what routing by warm prefixes goes by.

Only the number leaves the gateway. It is keyed with the tenant (where a pool's tenants share their engines' prefix
caches: with the pool), so that equal prompts of two tenants are different prefixes: nobody can find out from where his
requests go, or how fast they are, what others have asked; nor, by reading Redis, whether a prompt was asked.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from scheduling.gateway.openai_types import ChatRequest, CompletionRequest

MOST_BYTES = 1024  # what lies behind does not count: a conversation keeps its prefix while it grows
LEAST_BYTES = 256  # about four blocks of an engine's cache: less is not worth going to a busier replica


def prefix_of(body: ChatRequest | CompletionRequest, key: bytes, model: str) -> int:
    """64 bits of the prompt's beginning, its model and the client's ``cache_salt``, under the ``key`` of those who
    share (``cache_salt.prefix_key``, at most 64 bytes); 0 for a prompt that is too short to be worth it.

    A system message (with what is before it) of at least ``LEAST_BYTES`` is the prefix by itself: all that begin with
    it share it. Else it is the first ``MOST_BYTES`` of the prompt, over its messages.
    """
    begin = _of_chat(body) if isinstance(body, ChatRequest) else _of_prompt(body.prompt)
    if len(begin) < LEAST_BYTES:
        return 0
    digest = blake2b(f"{model}\0{body.cache_salt or ''}\0".encode(errors="surrogatepass"), digest_size=8, key=key)
    digest.update(begin)
    return int.from_bytes(digest.digest(), "big") or 1


def _of_prompt(prompt: str | list[int]) -> bytes:
    if isinstance(prompt, str):
        return prompt[:MOST_BYTES].encode()[:MOST_BYTES]
    return array("I", prompt[: MOST_BYTES // 4]).tobytes()


def _of_chat(body: ChatRequest) -> bytes:
    found = b""
    for message in body.messages:
        if message.role not in ("system", "developer") and len(found) >= LEAST_BYTES:
            break
        content = message.content
        texts = [content] if isinstance(content, str) else [part.text or "" for part in content or ()]
        said = "".join(text[:MOST_BYTES] for text in texts)
        found += f"\0{message.role}\0{said}".encode()
        if len(found) >= MOST_BYTES:
            break
    return found[:MOST_BYTES]
