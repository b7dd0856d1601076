"""``/v1/responses`` that are kept, where the deployment says so (``docs/reference/v1.md``).

What is kept is the whole conversation that the model read and the response to it, so the next request of a conversation
needs one read, however long it is, and no earlier response. An engine stores nothing: it gets the conversation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from scheduling.core.outcomes import Reason
from scheduling.gateway.answers.answer_types import decode_top
from scheduling.gateway.bodies.checks import invalid
from scheduling.gateway.bodies.openai_types import MAX_MESSAGES, consume
from scheduling.gateway.bodies.prepare import check_parts
from scheduling.gateway.bodies.responses_types import Item, ItemPart, ResponsesRequest
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.errors import Refusal

OFF = "Nothing is stored here: send the whole conversation as input"
NOT_KEPT = "Answers are not stored here: leave it out or say false"
PREVIOUS = "previous_response_id"
_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[Item], dec_hook=consume).decode


class StoreAway(Exception):
    """The store of responses cannot be reached now."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a response is. Another project of the same tenant does not see it."""

    tenant: str
    project: str  # empty: of the keys that are of no project


@dataclass(frozen=True, slots=True)
class Kept:
    """JSON of a response."""

    context: bytes  # the items that the model read
    answer: bytes  # the response object, as its client got it

    @property
    def bytes(self) -> int:
        return len(self.context) + len(self.answer)


class ResponseStore(Protocol):
    """Where responses are kept."""

    async def load(self, owner: Owner, response_id: str) -> Kept | None:
        """None where the owner has none of this name. Raises :class:`StoreAway`."""

    async def keep(self, owner: Owner, response_id: str, kept: Kept) -> bool:
        """False where it could not be kept, and is not. Never raises."""


class Keeping:
    """What becomes of one request's answer."""

    __slots__ = ("_context", "_owner", "_previous", "_store", "_stored")

    def __init__(self, store: ResponseStore, owner: Owner, stored: bool, previous: str, context: list[Item]) -> None:
        self._store = store
        self._owner = owner
        self._stored = stored
        self._previous = previous
        self._context = context

    def dress(self, response: bytes) -> bytes:
        """A response of an engine, which knows nothing of this."""
        return self._with(decode_top(response), self._stored)

    async def settle(self, response: bytes) -> bytes:
        """The complete response as its client gets it. It is stored before the client is told that it is."""
        top = decode_top(response)
        answer = self._with(top, self._stored)
        if not self._stored:
            return answer
        response_id = msgspec.json.decode(top["id"], type=str)
        if await self._store.keep(self._owner, response_id, Kept(_encode(self._context), answer)):
            return answer
        return self._with(top, False)

    def _with(self, top: dict[str, Raw], stored: bool) -> bytes:
        top[PREVIOUS] = Raw(_encode(self._previous or None))
        top["store"] = Raw(b"true" if stored else b"false")
        return _encode(top)


class Stored:
    """The responses that a gateway keeps. ``store`` None: none."""

    def __init__(self, store: ResponseStore | None, largest: int) -> None:
        self._store = store
        self._largest = largest  # bytes of a conversation

    async def begin(self, body: ResponsesRequest, access: Access) -> Keeping | None:
        """Takes what a body says of storing out of it, and puts the conversation before its input.

        Raises:
            Refusal: it asks for what is not here.
        """
        if self._store is None:
            if body.store:
                raise invalid(f"store: {NOT_KEPT}.", "store")
            if body.previous_response_id is not None:
                raise invalid(f"{PREVIOUS}: {OFF}.", PREVIOUS)
            return None
        owner = Owner(access.entitlement.tenant, access.key.project)
        stored, previous = body.store is not False, body.previous_response_id or ""
        said = [_message(body.input)] if isinstance(body.input, str) else body.input
        body.store = body.previous_response_id = None
        if previous:
            said = body.input = [*await self._conversation(owner, previous), *said]
            if len(said) > MAX_MESSAGES:
                raise invalid(f"input: With what went before it has more than {MAX_MESSAGES} items.", PREVIOUS)
        return Keeping(self._store, owner, stored, previous, said)

    async def _conversation(self, owner: Owner, response_id: str) -> list[Item]:
        assert self._store is not None
        try:
            kept = await self._store.load(owner, response_id)
        except StoreAway:
            raise Refusal(Reason.STATE_UNAVAILABLE) from None
        if kept is None:
            raise invalid(f"Previous response with id {response_id[:64]!r} not found.", PREVIOUS)
        if kept.bytes > self._largest:
            raise Refusal(Reason.TOO_LARGE, what="stored conversation", limit=self._largest, param=PREVIOUS)
        check_parts(kept.context, "The stored conversation", PREVIOUS)  # many bodies, each within its bound, made it
        try:
            return [*_decode_items(kept.context), *_decode_items(bytes(decode_top(kept.answer)["output"]))]
        except msgspec.ValidationError as problem:
            raise invalid(f"The response {response_id[:64]!r} cannot be continued: {problem}.", PREVIOUS) from None


NOTHING_STORED = Stored(None, 0)


def _message(text: str) -> Item:
    return Item("message", "user", [ItemPart("input_text", text)])


def input_items(kept: Kept, response_id: str) -> list[dict[str, Any]]:
    """What the model read, as OpenAI lists it: each item has a type and an id, and parts instead of a text."""
    items: list[dict[str, Any]] = msgspec.json.decode(kept.context)
    for number, item in enumerate(items):
        kind = item.setdefault("type", "message")
        item.setdefault("id", f"{'msg' if kind == 'message' else 'item'}_{number}_{response_id}")
        if kind == "message":
            item.setdefault("status", "completed")
            if isinstance(item["content"], str):
                part = "output_text" if item["role"] == "assistant" else "input_text"
                item["content"] = [{"type": part, "text": item["content"]}]
    return items
