"""A collector: takes OTLP/HTTP on a loopback port, decodes its protobuf, and can be told to fail or to hang."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """``spans`` are those that arrived, ``raw`` the bytes they came in."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.raw = b""
        self.requests = 0
        self.status = 200
        self.answering = threading.Event()
        self.answering.set()
        self.url = ""

    def take(self, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        self.raw += body
        for group in message.resource_spans:
            self.resources.append(plain(group.resource.attributes))
            for scope in group.scope_spans:
                self.spans += scope.spans

    def of(self, request_id: str) -> dict[str, Span]:
        """A request's spans by name; the whole one is ``request``."""
        roots = [s for s in self.spans if plain(s.attributes).get("quartermaster.request_id") == request_id]
        [root] = roots
        names = {s.name: s for s in self.spans if s.trace_id == root.trace_id and s is not root}
        return {"request": root, **names}


def plain(attributes: Any) -> dict[str, Any]:
    """OTLP's typed values as Python's."""

    def value(v: Any) -> Any:
        kind = v.WhichOneof("value")
        return [value(e) for e in v.array_value.values] if kind == "array_value" else getattr(v, kind)

    return {a.key: value(a.value) for a in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.requests += 1
            receiver.answering.wait(30)
            if receiver.status == 200:
                assert self.path == "/v1/traces", self.path
                assert self.headers["content-type"] == "application/x-protobuf"
                receiver.take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(receiver.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.answering.set()
        server.shutdown()
        thread.join()
        server.server_close()
