"""`make up` asks its own web server itself, whatever proxy the shell names."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controlplane.embedded.up import readiness


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"ready": true}')

    def log_message(self, *_: object) -> None:
        pass


def test_a_proxy_of_the_environment_is_not_asked_whether_the_instance_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert readiness(f"http://127.0.0.1:{server.server_address[1]}") == (True, {"ready": True})
        server.shutdown()
