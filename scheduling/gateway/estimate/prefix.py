"""How a prompt begins, as chained hashes: what placement goes by (``scheduling.core.placement``).

An engine's prefix cache knows a prompt by the hashes of its blocks, each chained to those before it. Here likewise: a
*point* is the hash of all of the prompt up to it. There is one at the end of messages, so that a conversation finds its
last turn and sessions with the same system message are told apart, and inside long texts, each twice as far as the one
before. Where they are depends on what is before them only: a prompt that goes on keeps the points that it had. Of a
long text between two points a sample is hashed (how it begins and ends): the work does not grow with it, and prompts
that differ in nothing else are taken for the same, which costs no more than a place less good.

Only hashes leave the gateway. The first is keyed with the tenant (where a pool's tenants share their engines' prefix
caches: with the pool) and with the client's ``cache_salt``, as the engine's own chain begins with the salt: equal
prompts of two tenants are different, nobody can find out from where his requests go, or how fast they are, what others
have asked; nor, by reading Redis, whether a prompt was asked.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from hashlib import blake2b, sha1
from typing import Final

from scheduling.core.placement import NAME_CHARS, SKEW_TOKENS, valued, write_points
from scheduling.core.routing import uncounted_of
from scheduling.core.types import PoolSpec
from scheduling.gateway.bodies.openai_types import ChatRequest, CompletionRequest, Message

MIN_CHARS: Final = 256  # about four blocks of an engine's cache: less is not worth a place of its own
ALONE_TOKENS: Final = 1024  # of a prompt that is looked at where there is one replica only
MAX_POINTS: Final = 12  # of a request: the first few, by which sessions are told apart, and the deepest
FIRST_POINTS: Final = 4
MAX_MESSAGES: Final = 16  # further ones are not read: a conversation is known long before
SAMPLE: Final = 128  # characters at either end of a longer text that are hashed
TOKEN_CHARS: Final = 4  # of a prompt of token ids, one id counts as so many characters
_FIRST_STOP: Final = 1024  # characters of a text after which its first point is; the next ones at 2,048, 4,096 ...
_LONGEST: Final = 1 << 20  # and the last one here at the latest
_LINKS: Final = frozenset((1, 2, 6))  # messages after which the chain takes a link


def prefixes_of(body: object, key: bytes, pool: PoolSpec, input_tokens: int) -> str:
    """``QueuedRequest.prefixes`` under the ``key`` of those who share (``cache_salt.prefix_key``, at most 64 bytes);
    empty for a prompt that is too short to be worth it, or where there is nothing to choose from, unless a long one may
    count less against a prefill credit (``scheduling.core.cached_prompts``)."""
    if len(pool.backends) < 2 and (input_tokens < ALONE_TOKENS or not uncounted_of(pool.routing, pool.routing_params)):
        return ""
    if not isinstance(body, (ChatRequest, CompletionRequest)):
        return ""
    chain = _Chain(_head(key, pool.model, body.cache_salt))
    goes_on = True  # of a bare prompt nobody knows
    if isinstance(body, CompletionRequest):
        prompt = body.prompt
        if isinstance(prompt, str):
            chain.text(prompt)
        elif type(prompt[0]) is int:
            chain.ids(prompt)  # type: ignore[arg-type]
        else:
            return ""  # several prompts: none of them says where all of them should go
        chain.end()
    else:
        goes_on = _chat(chain, body)
    points = chain.points
    if not points:
        return ""
    if len(points) > MAX_POINTS:
        del points[FIRST_POINTS : len(points) - MAX_POINTS + FIRST_POINTS]
    skew = float(pool.routing_params.get("skew_tokens", SKEW_TOKENS))
    return write_points(skew, valued(points, chain.chars, input_tokens, goes_on), goes_on)


@lru_cache(maxsize=4096)
def _head(key: bytes, model: str, salt: str | None) -> bytes:
    return blake2b(f"{model}\0{salt or ''}\0".encode(errors="surrogatepass"), digest_size=20, key=key).digest()


class _Chain:
    """Hashes, each of its text and the one before it: a hundred bits more of each than is told, so that who knows some
    cannot go on from there."""

    __slots__ = ("_last", "chars", "pieces", "points")

    def __init__(self, last: bytes) -> None:
        self._last = last
        self.pieces: list[str] = []  # since the last link
        self.chars = 0  # of the prompt so far
        self.points: list[tuple[str, int]] = []

    def link(self) -> None:
        """A point from which the chain goes on."""
        self._last = last = self._hash()
        self.pieces.clear()
        if self.chars >= MIN_CHARS:
            self.points.append((last.hex()[:NAME_CHARS], self.chars))

    def end(self) -> None:
        """A point beside the chain: whether there is one here does not change those that follow."""
        if self.chars >= MIN_CHARS and self.pieces:
            self.points.append((self._hash().hex()[:NAME_CHARS], self.chars))

    def _hash(self) -> bytes:
        texts = "\0".join(self.pieces).encode(errors="surrogatepass")
        return sha1(self._last + texts, usedforsecurity=False).digest()

    def text(self, text: str) -> None:
        """A text of a prompt, with its points."""
        size, start, stop, pieces = len(text), 0, _FIRST_STOP, self.pieces
        while stop <= size and stop <= _LONGEST:
            pieces += (text[start : start + SAMPLE], text[stop - SAMPLE : stop])
            self.chars += stop - start
            self.link()
            start, stop = stop, stop * 2
        size -= start
        self.chars += size
        pieces += (text[start:],) if size <= 2 * SAMPLE else (str(size), text[start : start + SAMPLE], text[-SAMPLE:])

    def ids(self, ids: list[int]) -> None:
        """The same for token ids."""
        size, start, stop, few = len(ids), 0, _FIRST_STOP // TOKEN_CHARS, SAMPLE // TOKEN_CHARS
        while start < size:
            whole = stop <= size and stop * TOKEN_CHARS <= _LONGEST
            until = stop if whole else size
            piece = (
                ids[start:until] if until - start <= 2 * few else ids[start : start + few] + ids[until - few : until]
            )
            self.pieces += (str(until - start), array("I", piece).tobytes().hex())
            self.chars += (until - start) * TOKEN_CHARS
            if whole:
                self.link()
            start, stop = until, stop * 2


def _chat(chain: _Chain, body: ChatRequest) -> bool:
    """The points of a conversation; whether it has an answer in it already. Beside its links it has a point at its end,
    which its next turn looks for, and one where its last turn ended: before the answer and what is asked now."""
    pieces, goes_on = chain.pieces, False
    if body.tools:  # templates show them before the conversation
        pieces.append(str(len(body.tools)))
        for tool in body.tools[:8]:
            pieces += (tool.function.name, str(len(tool.function.description or "")))
    messages = body.messages[:MAX_MESSAGES]
    last = len(messages)
    for number, message in enumerate(messages, 1):
        text, role = message.content, message.role
        goes_on = goes_on or role == "assistant"
        if not isinstance(text, str):
            text = _parts(message)
        size = len(text)
        if size <= 2 * SAMPLE:
            pieces += (role, text)
            chain.chars += size
        elif size < _FIRST_STOP:
            pieces += (role, str(size), text[:SAMPLE], text[-SAMPLE:])
            chain.chars += size
        else:
            pieces.append(role)
            chain.text(text)
        if number in _LINKS:
            chain.link()
        elif number == last or number == last - 2:
            chain.end()
    return goes_on


def _parts(message: Message) -> str:
    pieces = [part.text or "" for part in message.content or () if not isinstance(part, str)]
    pieces += [f"\0{call.function.name}\0{call.function.arguments}" for call in message.tool_calls or ()]
    return "".join(pieces)
