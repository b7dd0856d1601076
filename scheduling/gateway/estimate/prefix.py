"""How a prompt begins, as chained hashes: what placement goes by (``scheduling.core.placement.rule``).

An engine's prefix cache knows a prompt by the hashes of its blocks, each chained to those before it. Here likewise: a
*point* is the hash of all of the prompt up to it. There is one behind tools, one at the end of messages, so that a
conversation finds its last turn and sessions with the same system message are told apart, and inside long texts, each
twice as far as the one before. Where they are depends on what is before them only: a prompt that goes on keeps the
points that it had. All of it is hashed: prompts that share a point are alike up to it, whatever somebody makes of them
(:mod:`scheduling.core.placement.cached_prompts` relies on that). Bytes that no text has stand between its parts.

Only hashes leave the gateway. The first is keyed with the tenant (where a pool's tenants share their engines' prefix
caches: with the pool) and with the client's ``cache_salt``, as the engine's own chain begins with the salt: equal
prompts of two tenants are different, nobody can find out from where his requests go, or how fast they are, what others
have asked; nor, by reading Redis, whether a prompt was asked.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b, sha1
from typing import Final

import msgspec

from scheduling.core.placement.rule import NAME_CHARS, SKEW_TOKENS, located, write_points
from scheduling.core.policies.routing import uncounted_s
from scheduling.core.types import PoolSpec
from scheduling.gateway.bodies.openai_types import ChatRequest, CompletionRequest, Message, Part

MIN_BYTES: Final = 256  # about four blocks of an engine's cache: less is not worth a place of its own
ALONE_TOKENS: Final = 1024  # of a prompt that is looked at where there is one replica only
MAX_POINTS: Final = 12  # of a request: the first few, by which sessions are told apart, and the deepest
FIRST_POINTS: Final = 4
MAX_MESSAGES: Final = 512  # further ones are not read
ID_BYTES: Final = 4  # of a prompt of token ids, one id counts as so many
_FIRST_STOP: Final = 1024  # characters of a text after which its first point is; the next ones at 2,048, 4,096 ...
_LONGEST: Final = 1 << 20  # and the last one here at the latest
_LINKS: Final = frozenset((1, 2, 6, 14, 30, 62, 126, 254))  # messages after which there is a point in any case
_ROLES: Final = {
    role: b"\xff" + role.encode() + b"\xff" for role in ("system", "developer", "user", "assistant", "tool", "function")
}
_encode = msgspec.json.Encoder().encode


def prefixes_of(body: object, key: bytes, pool: PoolSpec, input_tokens: int, media_tokens: int = 0) -> str:
    """``QueuedRequest.prefixes`` under the ``key`` of those who share a cache (``cache_salt.prefix_key``, at most 64
    bytes). Empty for a prompt that is too short, or where there is only one replica, unless a long prompt may count
    less against its prefill credit (``scheduling.core.placement.cached_prompts``). Tokens of media belong to no point,
    since images are not looked at."""
    if len(pool.backends) < 2 and (input_tokens < ALONE_TOKENS or not uncounted_s(pool.routing, pool.routing_params)):
        return ""
    if not isinstance(body, (ChatRequest, CompletionRequest)):
        return ""
    chain = _Chain(_head(key, pool.model, body.cache_salt))
    goes_on = True  # of a bare prompt nobody knows
    if isinstance(body, CompletionRequest):
        if body.echo and body.logprobs is not None:
            return ""  # vLLM computes all of it, whatever it has cached, and does not count it
        if body.add_special_tokens is not None:
            chain.other(_encode(body.add_special_tokens))
        prompt = body.prompt
        if isinstance(prompt, str):
            chain.text(prompt)
        elif type(prompt[0]) is int:
            chain.ids(prompt)  # type: ignore[arg-type]
        else:
            return ""  # several prompts: none of them says where all of them should go
        chain.point()
    else:
        goes_on = _chat(chain, body)
    points = chain.points
    if not points:
        return ""
    if len(points) > MAX_POINTS:
        del points[FIRST_POINTS : len(points) - MAX_POINTS + FIRST_POINTS]
    text_tokens = max(0, input_tokens - media_tokens)
    skew = float(pool.routing_params.get("skew_tokens", SKEW_TOKENS))
    return write_points(skew, located(points, chain.size, text_tokens), goes_on)


@lru_cache(maxsize=4096)
def _head(key: bytes, model: str, salt: str | None) -> bytes:
    return blake2b(f"{model}\0{salt or ''}\0".encode(errors="surrogatepass"), digest_size=20, key=key).digest()


class _Chain:
    """The running hash of a prompt. It has a hundred bits more than its points tell, so that nobody can continue it
    from the points."""

    __slots__ = ("_hash", "pieces", "points", "size")

    def __init__(self, first: bytes) -> None:
        self._hash = sha1(first, usedforsecurity=False)
        self.pieces: list[bytes] = []  # that are read and not hashed yet
        self.size = 0  # of the prompt so far [bytes]
        self.points: list[tuple[str, int]] = []

    def point(self) -> None:
        """There is one here, if something was read since the last one."""
        if self.size < MIN_BYTES or not self.pieces:
            return
        self._hash.update(b"".join(self.pieces))
        self.pieces.clear()
        self.points.append((self._hash.hexdigest()[:NAME_CHARS], self.size))

    def other(self, data: bytes) -> None:
        """Adds a part of the prompt that is not a message's text: roles, tools, images."""
        self.pieces += (b"\xfe", data)
        self.size += len(data)

    def text(self, text: str) -> None:
        """A text of a prompt, with its points."""
        size, start, stop, pieces = len(text), 0, _FIRST_STOP, self.pieces
        while stop <= size and stop <= _LONGEST:
            piece = text[start:stop].encode(errors="surrogatepass")
            pieces.append(piece)
            self.size += len(piece)
            self.point()
            start, stop = stop, stop * 2
        piece = (text[start:] if start else text).encode(errors="surrogatepass")
        pieces.append(piece)
        self.size += len(piece)

    def ids(self, ids: list[int]) -> None:
        """The same for token ids."""
        self.pieces.append(b"\xfe")
        size, start, stop = len(ids), 0, _FIRST_STOP // ID_BYTES
        while start < size:
            until = stop if stop <= size and stop * ID_BYTES <= _LONGEST else size
            self.pieces.append(array("I", ids[start:until]).tobytes())
            self.size += (until - start) * ID_BYTES
            if until == stop:
                self.point()
            start, stop = until, stop * 2


def _chat(chain: _Chain, body: ChatRequest) -> bool:
    """The points of a conversation; whether it has an answer in it already. Beside the usual ones it has a point at its
    end, which its next turn looks for, and one where its last turn ended: before the answer to it and what follows
    that: what is asked now, or what tools said that the answer called."""
    goes_on = False
    # what templates show at the beginning, or show nothing for
    shown = body.documents, body.chat_template_kwargs, body.reasoning_effort, body.verbosity, body.add_special_tokens
    if any(one is not None for one in shown) or body.tool_choice == "none":
        chain.other(_encode((*shown, body.tool_choice == "none")))
    if body.tools:
        chain.other(_encode(body.tools))
        chain.point()
    messages = body.messages[:MAX_MESSAGES]
    last = len(messages)
    turn = last - 1  # messages of the last turn; 0: there was none
    while turn > 0 and messages[turn - 1].role != "assistant":
        turn -= 1
    turn -= 1
    for number, message in enumerate(messages, 1):
        role, content = message.role, message.content
        chain.pieces.append(_ROLES[role])
        goes_on = goes_on or role == "assistant"
        if type(content) is str:
            if len(content) < _FIRST_STOP:
                data = content.encode(errors="surrogatepass")
                chain.pieces.append(data)
                chain.size += len(data)
            else:
                chain.text(content)
        elif content:
            _parts(chain, content)
        if role != "user" or message.name:
            _beside(chain, message)
        if number in _LINKS or number in (last, turn):
            chain.point()
    chain.size += sum([len(_encode(message)) for message in body.messages[MAX_MESSAGES:]])  # behind all points
    return goes_on


def _parts(chain: _Chain, parts: Sequence[Part | str]) -> None:
    """Engines put something between texts. Of media only a hash is read: how many tokens they have does not depend on
    their length."""
    for number, part in enumerate(parts):
        if number:
            chain.pieces.append(b"\xfe")
        if isinstance(part, str):
            chain.text(part)
        elif part.text is not None:
            chain.text(part.text)
        elif part.image_url or part.input_audio or part.audio_url or part.video_url:
            chain.pieces += (b"\xfe", sha1(_encode(part), usedforsecurity=False).digest())
        else:
            chain.other(_encode(part))


def _beside(chain: _Chain, message: Message) -> None:
    """What a message has beside its content: an assistant's, a tool's."""
    thought = message.reasoning or message.reasoning_content
    told = message.name, message.tool_calls, message.tool_call_id, thought, message.refusal
    if any(told):
        chain.other(_encode(told))
