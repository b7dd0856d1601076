"""How often a page changes between the event loop and a thread: each change waits for both where they are busy."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from django.core.handlers.asgi import ASGIHandler

from controlplane.web.pages import Pages


class Visits:
    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Visits:
    """Of threads, from now on."""
    seen, visit = Visits(), SyncToAsync.__call__

    async def counted(work: Any, *args: Any, **named: Any) -> Any:
        seen.count += 1
        return await visit(work, *args, **named)

    monkeypatch.setattr(SyncToAsync, "__call__", counted)
    return seen


async def get(app: Any, path: str) -> tuple[int, dict[str, str], bytes]:
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"localhost"), (b"accept", b"text/html")], "server": ("localhost", 80),
    }  # fmt: skip
    asked = False
    sent: list[dict[str, Any]] = []
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await gone.wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/login", "/", "/nothing/here"])
async def test_a_page_is_made_in_one_visit_to_a_thread(path: str, visits: Visits) -> None:
    """Two more are Django's, before the page and after it was sent."""
    app, django = Pages(), ASGIHandler()
    visits.count = 0
    status, headers, body = await get(app, path)
    assert visits.count <= 3
    ours, visits.count = visits.count, 0
    theirs = await get(django, path)
    assert visits.count > 3 * ours, "Django needs no help any more: leave this out"
    assert theirs[0] == status
    assert theirs[1].keys() == headers.keys()
    assert len(theirs[2]) == len(body)
    assert "content-security-policy" in headers
    assert "x-content-type-options" in headers


@pytest.mark.django_db(transaction=True)
async def test_a_file_is_sent_by_the_event_loop_with_the_same_headers_and_an_open_page_is_no_thread(
    recwarn: pytest.WarningsRecorder,
) -> None:
    before = threading.active_count()
    app = Pages()
    status, headers, body = await get(app, "/static/admin/css/base.css")
    assert status == 200
    assert b"{" in body
    assert "content-security-policy" in headers
    assert not [w for w in recwarn if "synchronous iterators" in str(w.message)]
    for _ in range(10):
        await get(app, "/login")
    assert threading.active_count() <= before + 2
