"""What the paths of ``/v1`` have in common that ask the database instead of an engine.

The gateway has checked the key and asks here; everything that waits for the database, the storage or a disk does so in
a few threads of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from django.db import DatabaseError, InterfaceError

from controlplane.env import Env
from scheduling.core.outcomes import Reason
from scheduling.gateway.conclusion import send_answer
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.entry.guard import Head, check_size, read_body
from scheduling.gateway.errors import Answer, Refusal
from scheduling.gateway.headers import JSON
from scheduling.gateway.stages import Call

T = TypeVar("T")

THREADS = 4
MOST_OPEN, MOST_OF_TENANT = 64, 8  # requests here at once, in one process
MAX_ID = 64  # characters of an id in a path or a query

encode = msgspec.json.Encoder().encode


class Problem(Exception):
    """What was asked cannot be done: why, the parameter, and the HTTP status."""

    def __init__(self, detail: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(detail)
        self.detail, self.param, self.status = detail, param, status


class DatabaseRoutes:
    """Some paths. A kind of them says which in ``serves``, and answers in ``route``."""

    def __init__(self, env: Env, name: str) -> None:
        self._env = env
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._open: dict[str, int] = {}

    def serves(self, path: str) -> bool:
        raise NotImplementedError

    async def route(self, call: Call, access: Access, head: Head) -> None:
        """Answers. Raises :class:`Problem` for what is wrong with the request."""
        raise NotImplementedError

    async def serve(self, call: Call, access: Access, head: Head) -> None:
        tenant = access.entitlement.tenant
        busy = self._open.get(tenant, 0)
        everybody = sum(self._open.values())
        for inflight, limit, whose in ((busy, MOST_OF_TENANT, "of this tenant"), (everybody, MOST_OPEN, "of all")):
            if inflight >= limit:
                what = f"open requests {whose}"
                raise Refusal(Reason.TENANT_CONNECTIONS, close=True, inflight=inflight, limit=limit, what=what)
        self._open[tenant] = busy + 1
        call.last_deadline = call.started_loop + self._env.request_timeout_s
        try:
            await self.route(call, access, head)
        except Problem as problem:
            raise Refusal(
                Reason.INVALID_REQUEST, status=problem.status, param=problem.param, detail=problem.detail
            ) from None
        except (DatabaseError, InterfaceError):
            raise Refusal(Reason.STATE_UNAVAILABLE) from None
        finally:
            if self._open[tenant] == 1:
                del self._open[tenant]
            else:
                self._open[tenant] -= 1

    async def ask(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """What a function answers that blocks."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **options))

    async def answer(self, call: Call, answer: Mapping[str, Any] | bytes, status: int = 200) -> None:
        body = answer if isinstance(answer, bytes) else encode(answer)
        headers = [JSON, (b"content-length", b"%d" % len(body)), (b"x-request-id", call.id.encode("ascii"))]
        call.responding, call.status = True, status
        if call.body_read:  # and it may be large: a kept response, a page of a list
            await call.answer(status, headers, body, self._env.send_timeout_s)
            call.closed = True
        else:
            call.closed = True
            await send_answer(call, Answer(status, headers, body))

    async def body(self, call: Call, head: Head, limit: int) -> bytes:
        """What was sent."""
        check_size(head, limit)
        call.limit(Reason.SLOW_REQUEST, call.loop.time() + self._env.body_timeout_s)
        data = await read_body(call.receive, limit)
        call.body_read = True
        call.limit(Reason.DEADLINE, call.last_deadline)
        return data


async def handle(call: Call, handlers: Mapping[str, Callable[[], Any]]) -> None:
    """Answers by the request's method."""
    method = call.scope["method"]
    handler = handlers.get("GET" if method == "HEAD" else method)
    if handler is None:
        path, allow = call.scope["path"].rstrip("/"), ", ".join(handlers)
        raise Refusal(Reason.INVALID_REQUEST, status=405, allow=allow.encode(), detail=f"{path[:100]} takes {allow}.")
    await handler()


def is_id(text: str) -> bool:
    """Whether a database may be asked for it."""
    return 0 < len(text) <= MAX_ID and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def pairs_of(call: Call) -> list[tuple[str, str]]:
    """The query of a request. Raises :class:`Problem`."""
    try:
        return parse_qsl(call.scope.get("query_string", b"").decode("ascii"), max_num_fields=16)
    except (ValueError, UnicodeDecodeError):
        raise Problem("The query cannot be read.") from None


def query_of(call: Call, names: set[str]) -> dict[str, str]:
    """Those values of the query that have these names; each is checked as an id is."""
    query = {name: value for name, value in pairs_of(call) if name in names}
    for name, value in query.items():
        if not is_id(value):
            raise Problem(f"{name} has 1 to {MAX_ID} letters, digits, - and _.", name)
    return query


def limit_of(query: Mapping[str, str], most: int, default: int) -> int:
    """How many objects of a list are wanted."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise Problem(f"limit is 1 to {most}.", "limit")
    return int(text)


def order_of(query: Mapping[str, str]) -> str:
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Problem("order is asc or desc.", "order")
    return order


def page_object(objects: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """A page of a list."""
    return {
        "object": "list",
        "data": objects,
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": more,
    }
