"""What the web server hands on to whom, and who may read the metrics: they name tenants."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.urls import Resolver404, resolve

from controlplane.asgi import NOT_STARTED, Application
from controlplane.web.api_clients import is_clients, is_gateways
from scheduling.gateway.endpoints import ELSEWHERE

TOKEN = "a-token-of-enough-length"


HERE = ("127.0.0.1", 40000)


async def get(
    path: str, *headers: tuple[bytes, bytes], client: tuple[str, int] = HERE, query: bytes = b"", method: str = "GET"
) -> tuple[int, bytes]:
    sent = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    application = Application()
    try:
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": list(headers),
            "client": client,
            "query_string": query,
        }
        await application(scope | {"server": ("10.0.0.1", 8000)}, receive, send)
    finally:
        application._metrics.close()
    return sent[0]["status"], sent[1]["body"]


@pytest.fixture
def guarded(settings):
    settings.ENV = replace(settings.ENV, metrics_token=TOKEN)


async def test_without_a_token_of_its_own_the_page_is_open_to_this_machine():
    for peer in ("127.0.0.1", "::1", "10.0.0.1"):
        status, page = await get("/metrics", client=(peer, 40000))
        assert status == 200
        assert b"quartermaster_" in page


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/health"])
async def test_without_a_token_nobody_else_and_nobody_behind_a_proxy_looks_inside(path):
    forwarded = [(b"x-forwarded-for", b"127.0.0.1")], [(b"via", b"1.1 proxy")], [(b"x-real-ip", b"1.2.3.4")]
    for headers, peer in ([], "10.0.0.2"), *((headers, "127.0.0.1") for headers in forwarded):
        status, page = await get(path, *headers, client=(peer, 40000))
        assert (status, page) == (503, b'{"ready": false}') if path != "/metrics" else status == 401
        assert b"quartermaster_" not in page


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/health"])
async def test_a_page_whose_name_leads_here_by_now_does_not_look_inside(path, settings):
    """A browser on this machine asks for it, under the name of a site that is somebody else's."""
    settings.ALLOWED_HOSTS = ["llm.example.org"]
    for host in ("rebound.example", "rebound.example:8000", "127.0.0.1.nip.example", "[::1", "a_b.example", ".."):
        _, page = await get(path, (b"host", host.encode()))
        assert not any(inside in page for inside in (b"quartermaster_", b"waiting_for")), host
    for host in ("127.0.0.1:8000", "[::1]:8000", "10.0.0.1", "localhost:8000", "web-1:8000", "llm.example.org", ""):
        _, page = await get(path, (b"host", host.encode()))
        assert any(inside in page for inside in (b"quartermaster_", b"waiting_for")), host


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/health", "/metrics"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_what_is_only_read_refuses_to_be_written(path, method):
    assert (await get(path, method=method))[0] == 405
    assert (await get(path, method="HEAD"))[0] != 405


async def test_readiness_is_public_and_what_is_missing_needs_the_token(guarded):
    assert await get("/readyz") == (503, b'{"ready": false}')
    _, page = await get("/readyz", (b"authorization", b"Bearer " + TOKEN.encode()))
    assert b"waiting_for" in page


async def test_who_asks_for_vllms_path_of_health_is_told_whether_requests_are_served(guarded):
    assert await get("/health") == await get("/readyz") == (503, b'{"ready": false}')


async def test_a_process_that_has_not_started_is_not_ready_by_itself_either():
    assert await get("/readyz", query=b"of=process") == (503, b'{"ready": false}')


@pytest.mark.parametrize("header", [b"", b"Bearer ", b"Bearer wrong", TOKEN.encode(), b"Bearer \xff"])
async def test_with_one_it_is_closed_to_everybody_else(guarded, header):
    status, page = await get("/metrics", (b"authorization", header))
    assert status == 401
    assert b"quartermaster_" not in page


async def test_a_holder_of_the_token_reads_the_metrics(guarded):
    assert (await get("/metrics", (b"authorization", b"Bearer " + TOKEN.encode())))[0] == 200
    assert (await get("/healthz"))[0] == 200


GATEWAYS = (NOT_STARTED[0], json.dumps(NOT_STARTED[1]).encode())
SDK = (b"accept", b"application/json")
ANYTHING, BEARER, API_KEY = (b"accept", b"*/*"), (b"authorization", b"Bearer qm-a.b"), (b"api-key", b"qm-a.b")
BROWSER = (b"accept", b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions", "/responses", "/messages", "/embeddings", "//v1/chat/completions",
        "/openai/deployments/llama/chat/completions", "/openai/v1/responses", "/engines/llama/completions",
        "/anthropic/v1/messages", "/complete", "/images/generations", "/models", "/v1beta/models/llama:generateContent",
        "/api/chat", "/api/generate", "/api/v1/chat/completions", "/api/v1/embeddings",
    ],
)  # fmt: skip
async def test_a_client_with_a_wrong_base_url_is_answered_by_the_gateway(path: str) -> None:
    """Not by the console, which would tell an SDK about cookies, in HTML."""
    assert await get(path, method="POST") == GATEWAYS


@pytest.mark.parametrize("headers", [[SDK, BEARER], [SDK], [ANYTHING, BEARER], [ANYTHING, API_KEY], [API_KEY]])
@pytest.mark.parametrize("path", ["/models", "/models/llama", "/openai/models", "/openai/deployments", "/files"])
async def test_so_is_one_that_reads_at_a_path_of_the_console_and_takes_no_page(path: str, headers: list) -> None:
    assert await get(path, *headers) == GATEWAYS


@pytest.mark.parametrize("path", ["/api/tags", "/api/version", "/api/v1/models"])
async def test_and_one_that_reads_where_the_management_api_has_nothing(path: str) -> None:
    assert await get(path, BROWSER) == GATEWAYS


@pytest.mark.parametrize("headers", [[BROWSER], [BROWSER, BEARER], [ANYTHING], []])
@pytest.mark.parametrize("path", ["/", "/models/llama", "/models/a/chat/completions", "/pools", "/no-such-page"])
def test_what_a_browser_or_a_monitor_asks_for_stays_the_consoles(path: str, headers: list) -> None:
    assert not is_gateways(path)
    assert not is_clients({"type": "http", "method": "GET", "path": path, "headers": headers})


@pytest.mark.parametrize(
    "path", ["/", "/login", "/logout", "/admin/login/", "/api/v1/pools", "/join/x", "/oidc/a/login/"]
)
def test_what_has_a_pattern_of_its_own_is_no_clients(path: str) -> None:
    for method in ("GET", "POST"):
        scope = {"type": "http", "method": method, "path": path, "headers": [SDK, BEARER]}
        assert not is_gateways(path)
        assert not is_clients(scope)


def test_no_path_of_the_management_api_is_taken_for_a_clients() -> None:
    for path in ELSEWHERE:
        with pytest.raises(Resolver404):
            resolve(path)
