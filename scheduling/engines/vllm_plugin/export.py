"""Metrics and log over HTTP, from a thread of the engine's process.

``/metrics`` for Prometheus, ``/steps`` the last steps and requests as JSON lines (``?after=N&began=B``: the steps since
then, which is how the pool's leader collects them), ``/state`` what is in use. vLLM's own
``/metrics`` lives in another process than its scheduler, and a file would need a disk, a path and rotation on every
host. Off unless a port is set; loopback unless a host is; nothing can be changed through it.
"""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from scheduling.engines.vllm_plugin.log import Log

AFTER = re.compile(r"/steps\?after=(?P<after>[0-9]{1,15})(?:&began=(?P<began>[0-9a-f]{1,32}))?")
PATIENCE_S = 2.0  # for a reader that says nothing or takes nothing; the next one waits meanwhile


def serve(log: Log, host: str, port: int) -> HTTPServer:
    """Serves ``log`` until the process ends, or until ``shutdown``. Port 0 takes any. Raises ``OSError`` where the
    port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S
        server_version = "quartermaster"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", log.metrics())
            elif self.path == "/steps":
                self._answer(200, "application/jsonl", "".join(line + "\n" for line in log.lines()))
            elif (asked := AFTER.fullmatch(self.path)) is not None:
                lines = log.since(int(asked["after"]), asked["began"] or "")
                self._answer(200, "application/jsonl", "".join(line + "\n" for line in lines))
            elif self.path == "/state":
                self._answer(200, "application/json", json.dumps(log.state()))
            else:
                self._answer(404, "text/plain", "There are /metrics, /steps and /state.\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a line for each scrape helps nobody."""

    class Server(HTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A reader that went away is no error of the engine."""

    server = Server((host, port), Handler)
    Thread(target=server.serve_forever, name="quartermaster-export", daemon=True).start()
    return server
