"""Webhooks through a proxy: over TLS by CONNECT, with the names left to the proxy."""

from __future__ import annotations

import base64
import contextlib
import http.server
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import override_settings

from telemetry.alerts import webhook
from telemetry.alerts.webhook import WebhookError, post, verify
from tests.support.tls import write_certificate

SECRET = "a-webhook-secret-of-tests"


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@dataclass
class World:
    """A receiver that is called ``hooks.test``, which only the proxy can look up, and the proxy."""

    proxy: str
    port: int  # of the receiver
    asked: list[str] = field(default_factory=list)  # what the proxy was asked for
    received: list[tuple[Any, bytes]] = field(default_factory=list)  # headers and body
    refuses: bool = False


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[World]:
    certificate = write_certificate(tmp_path / "hooks.pem", names=["hooks.test"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    monkeypatch.setattr(webhook, "authorities", lambda: ssl.create_default_context(cafile=str(certificate)))
    made = World("", 0)

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.received.append((self.headers, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            made.asked.append(self.path)
            wanted = b"Basic " + base64.b64encode(b"user:secret word")
            if made.refuses or self.headers.get("proxy-authorization", "").encode() != wanted:
                self.send_error(407)
                return
            with socket.create_connection(("127.0.0.1", made.port)) as there:
                self.send_response(200)
                self.end_headers()
                ends = {self.connection: there, there: self.connection}
                while True:
                    for ready in select.select(list(ends), [], [], 10)[0]:
                        if not (data := ready.recv(65536)):
                            return
                        ends[ready].sendall(data)

        def log_message(self, *args: Any) -> None:
            pass

    settings.QUARTERMASTER_WEBHOOK_HOSTS = "hooks.test,127.0.0.1"
    with serving(Receiver, context) as made.port, serving(Proxy) as port:
        settings.QUARTERMASTER_WEBHOOK_PROXY = f"http://user:secret%20word@127.0.0.1:{port}"
        yield made


def test_a_webhook_goes_through_the_proxy_which_looks_up_its_host_and_reads_nothing(world: World) -> None:
    post("https://hooks.test/alerts", SECRET, "alert-7", {"id": "alert-7"})
    assert world.asked == ["hooks.test:443"]
    ((headers, body),) = world.received
    assert verify(SECRET, body, headers["x-quartermaster-signature"], time.time())
    assert headers["proxy-authorization"] is None, "the proxy's password is the proxy's"


def test_hosts_that_are_not_listed_are_not_sent_to_through_the_proxy_either(world: World) -> None:
    with pytest.raises(WebhookError, match="QUARTERMASTER_WEBHOOK_HOSTS"):
        post("https://169.254.169.254/latest", SECRET, "alert-7", {})
    assert world.asked == []


def test_hosts_that_are_excepted_are_reached_directly(world: World, settings: Any) -> None:
    settings.QUARTERMASTER_WEBHOOK_PROXY_EXCEPT = ".svc.test, 127.0.0.1"
    post(f"https://127.0.0.1:{world.port}/alerts", SECRET, "alert-7", {})
    assert len(world.received) == 1
    assert world.asked == []


def test_a_proxy_that_refuses_is_named_without_its_password(world: World) -> None:
    world.refuses = True
    with pytest.raises(WebhookError, match=r"the proxy does not lead to the webhook .*407") as refused:
        post("https://hooks.test/alerts", SECRET, "alert-7", {})
    assert "secret" not in str(refused.value)
    assert world.received == []


def test_without_the_setting_no_proxy_is_used(world: World, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", settings.QUARTERMASTER_WEBHOOK_PROXY)
    settings.QUARTERMASTER_WEBHOOK_PROXY = ""
    post(f"https://127.0.0.1:{world.port}/alerts", SECRET, "alert-7", {})
    assert world.asked == []
    assert len(world.received) == 1


def test_an_ipv6_address_among_the_hosts_that_need_no_proxy_stops_no_webhook() -> None:
    excepted = {"QUARTERMASTER_WEBHOOK_PROXY": "http://127.0.0.1:9", "QUARTERMASTER_WEBHOOK_PROXY_EXCEPT": "::1, [::2]"}
    with override_settings(**excepted), webhook._client() as client:
        direct, through = (client._transport_for_url(httpx.URL(f"https://{host}/")) for host in ("[::1]", "[::3]"))
        assert client._transport_for_url(httpx.URL("https://[::2]/")) is direct
        assert direct is not through
