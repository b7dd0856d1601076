"""Who may read the metrics: they name tenants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.asgi import Application

TOKEN = "a-token-of-enough-length"


async def get(path: str, *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
    sent = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    application = Application()
    try:
        await application({"type": "http", "method": "GET", "path": path, "headers": list(headers)}, receive, send)
    finally:
        application._metrics.close()
    return sent[0]["status"], sent[1]["body"]


@pytest.fixture
def guarded(settings):
    settings.ENV = replace(settings.ENV, metrics_token=TOKEN)


async def test_without_a_token_of_its_own_the_page_is_open():
    status, page = await get("/metrics")
    assert status == 200
    assert b"quartermaster_" in page


@pytest.mark.parametrize("header", [b"", b"Bearer ", b"Bearer wrong", TOKEN.encode(), b"Bearer \xff"])
async def test_with_one_it_is_closed_to_everybody_else(guarded, header):
    status, page = await get("/metrics", (b"authorization", header))
    assert status == 401
    assert b"quartermaster_" not in page


async def test_whoever_has_it_reads(guarded):
    assert (await get("/metrics", (b"authorization", b"Bearer " + TOKEN.encode())))[0] == 200
    assert (await get("/healthz"))[0] == 200
