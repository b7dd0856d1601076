"""``/v1/responses/{id}`` and what is below it, as OpenAI defines them, and where the gateway keeps responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

from django.db import DatabaseError, InterfaceError

from controlplane.env import Env
from controlplane.responses import services
from controlplane.v1_routes import (
    DatabaseRoutes,
    Problem,
    handle,
    is_id,
    limit_of,
    order_of,
    page_object,
    pairs_of,
    query_of,
)
from scheduling.gateway.answers.stored import Kept, Owner, StoreAway, input_items
from scheduling.gateway.endpoints import NO_RESPONSES, not_served
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.guard import Head
from scheduling.gateway.stages import Call

log = logging.getLogger(__name__)

BELOW = "/v1/responses/"
WAIT_S = 5.0  # for the database, while a client waits
MAX_LIST = 100
BODY_BYTES = 64 * 1024  # of requests that have nothing to say
INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")  # what may be asked for at creation
SYNCHRONOUS = "A response that was not made in the background cannot be cancelled: it ends with its request."


class ResponseRoutes(DatabaseRoutes):
    """Both sides of what is kept."""

    def __init__(self, env: Env, secrets: Sequence[bytes]) -> None:
        """``secrets``: the deployment's, for this alone; the first one seals, and all open."""
        super().__init__(env, "responses")
        self._secrets = secrets

    # --- for the gateway's requests

    async def load(self, owner: Owner, response_id: str) -> Kept | None:
        if not is_id(response_id):
            return None
        try:
            async with asyncio.timeout(WAIT_S):
                return await self.ask(services.load, self._secrets, owner, response_id)
        except (DatabaseError, InterfaceError, TimeoutError) as error:
            raise StoreAway(type(error).__name__) from None

    async def keep(self, owner: Owner, response_id: str, kept: Kept) -> bool:
        given_up = Event()
        try:
            async with asyncio.timeout(WAIT_S):
                return await self.ask(services.keep, self._secrets[0], owner, response_id, kept, given_up.is_set)
        except (DatabaseError, InterfaceError, TimeoutError) as error:
            log.warning("a response could not be kept (%s)", type(error).__name__)
            return False
        finally:
            given_up.set()  # who is late keeps nothing that its client was told is not kept

    # --- paths

    def serves(self, path: str) -> bool:
        return path.startswith(BELOW)

    async def route(self, call: Call, access: Access, head: Head) -> None:
        ident, _, action = call.scope["path"].rstrip("/").removeprefix(BELOW).partition("/")
        owner = Owner(access.entitlement.tenant, access.key.project)
        handlers: dict[str, Callable[[], Any]]
        if call.scope["path"].rstrip("/") in NO_RESPONSES:
            raise Problem(not_served(call.scope["path"], stores=True), None, 404)
        if not action:
            handlers = {
                "GET": lambda: self._response(call, owner, ident),
                "DELETE": lambda: self._delete(call, owner, ident),
            }
        elif action == "input_items":
            handlers = {"GET": lambda: self._items(call, owner, ident)}
        elif action == "cancel":
            handlers = {"POST": lambda: self._cancel(call, owner, ident, head)}
        else:
            raise Problem(not_served(call.scope["path"], stores=True), None, 404)
        await handle(call, handlers)

    async def _kept(self, owner: Owner, response_id: str) -> Kept:
        kept = await self.ask(services.load, self._secrets, owner, response_id) if is_id(response_id) else None
        if kept is None:
            raise _none(response_id)
        return kept

    async def _response(self, call: Call, owner: Owner, response_id: str) -> None:
        for name, value in pairs_of(call):
            if name == "stream" and value != "false":
                raise Problem("A kept response is given whole: leave stream out.", "stream")
            if name in ("include", "include[]") and value not in INCLUDED:
                raise Problem(f"include is {' or '.join(INCLUDED)}, as at its creation.", "include")
        await self.answer(call, (await self._kept(owner, response_id)).answer)

    async def _delete(self, call: Call, owner: Owner, response_id: str) -> None:
        if not is_id(response_id) or not await self.ask(services.delete, owner, response_id):
            raise _none(response_id)
        await self.answer(call, {"id": response_id, "object": "response", "deleted": True})

    async def _items(self, call: Call, owner: Owner, response_id: str) -> None:
        query = query_of(call, {"after", "limit", "order"})
        limit, order, after = limit_of(query, MAX_LIST, 20), order_of(query), query.get("after", "")
        items = await self.ask(input_items, await self._kept(owner, response_id), response_id)
        if order == "desc":
            items.reverse()
        if after:
            place = next((number for number, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise Problem("after names an item of this list.", "after")
            items = items[place + 1 :]
        await self.answer(call, page_object(items[:limit], len(items) > limit))

    async def _cancel(self, call: Call, owner: Owner, response_id: str, head: Head) -> None:
        await self.body(call, head, BODY_BYTES)
        await self._kept(owner, response_id)
        raise Problem(SYNCHRONOUS, "response_id")


def _none(response_id: str) -> Problem:
    return Problem(f"Response with id {response_id[:64]!r} not found.", None, 404)
