"""A connection of the web server: uvicorn's protocol, of which everything is bounded (``docs/reference/limits.md``).

* a request head has a size and a time limit, refused before anything of ours runs (uvicorn has neither), and so has
  everything else that a connection can send or leave unread;
* a head leaves together with the first bytes of its body, in one system call (``controlplane/web/answers.py``).
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from controlplane.web.answers import ANSWER_LINES, CHUNKED_LINES, HeadWithBody, WithoutChunks, head_of
from controlplane.web.connections import ALWAYS_OPEN, RETRY_S, ConnectionLimits, Place
from controlplane.web.cycle import Cycle
from controlplane.web.websockets import BoundedSocket
from scheduling.core.outcomes import ENDINGS, Reason
from scheduling.gateway.asgi import ABORT, ANSWER, BEGIN, PEER, WRITE, Scope
from scheduling.gateway.endpoints import ENDPOINTS
from scheduling.gateway.entry.guard import LINGER_BYTES, LINGER_S
from scheduling.gateway.entry.request_ids import new_request_id
from scheduling.gateway.errors import reason_header
from scheduling.gateway.headers import NO_RETRY, retry_after

KEPT_HEAD_S = 2.0  # one that may only ask for health has this long for its head
FRAMING_BYTES = 32 * 1024  # chunk sizes, extensions and trailers of a body may be so large, and half of the body
PIECES, PIECE_BYTES = 4096, 16  # a body may have as many pieces of any size; more must have this mean size
UNWANTED_BYTES = 1024 * 1024  # of a body whose request was answered without it; of what nobody will read, in a second
SENT_AHEAD = 16  # requests that wait on one connection for the answer to an earlier one
MIN_READ = 64 * 1024  # bytes that a reader must take within the time to send, once its answer is complete
UNREAD_BYTES = 16 * 1024  # of an answer, in this process; from then on its application waits for its reader
UNSENT_BYTES = 64 * 1024  # ... in the kernel, which holds megabytes for a reader that stopped
FULL = "This server has reached its limit of connections. Try again in a moment."
TOO_MANY = "Your address has reached its limit of connections. Close some, or try again in a moment."
SOCKETS_FULL = "This server has as many WebSockets as it may. Try again in a moment."
OVERHEAD = "The body has too many small chunks, or too large chunk extensions or trailers."
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_TRAILERS: Any = deque(maxlen=0)  # swallows what is appended
# A request's path as it is most often asked for: nothing of these has to be taken apart.
_PLAIN = {path.encode("ascii"): path for path in ENDPOINTS}


class ClientConnection(HttpToolsProtocol):
    """Of which everything is bounded: the request head in size and time, what frames a body in size, requests sent
    ahead in number, and the time an answer waits unread."""

    head_bytes: int
    head_timeout_s: float
    send_timeout_s: float
    limits: ConnectionLimits

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _head_open = True  # between two requests, or inside a head
    _begun = False  # ... inside one
    _to_socket = False  # the present request asks for a WebSocket, and gets one
    _idle_since: float | None = None  # loop time of the last answer's end; None: another request has begun
    _head_size = 0
    _framing = 0  # bytes of the present body that are none of it: chunk sizes, extensions, trailers
    _body = 0  # bytes of the present body
    _pieces = 0  # ... in so many pieces
    _unsent = 0  # bytes when the write timer was set
    _running: RequestResponseCycle | None = None  # the request whose answer is due; uvicorn's cycle is the newest
    _place = Place.FREE
    _inside = False
    _last = False  # the newest request is the last one here: what is behind it is not looked at
    _lingers = False  # all is answered, and what still comes is read for a moment
    _refusal = b""  # of what came last, for when everything before it is answered
    _again = b""  # a head that is to be read again, without the wish for another protocol
    _address = ""
    _extensions: dict[str, Any]  # of its requests

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNREAD_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._address = self.client[0] if self.client else ""
        self._extensions = {
            ABORT: transport.abort, PEER: self._address, WRITE: self._write_piece, ANSWER: self._write_answer,
            BEGIN: self._begin_stream,
        }  # fmt: skip
        self._place, self._inside = self.limits.enter(self._address)
        if not self._inside:
            self._refuse_place()
        else:
            limit_s = self.head_timeout_s if self._place is Place.FREE else min(self.head_timeout_s, KEPT_HEAD_S)
            self._head_timer = self.loop.call_later(limit_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._leave()
        super().connection_lost(exc)
        # uvicorn tells only the newest request; the one that runs before it would go on for nobody.
        running = self._running
        if running is not None and running is not self.cycle and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        self._unset_keepalive_if_required()

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()
        if self._answering():
            self._refuse(400, "A WebSocket does not begin behind other requests.", Reason.INVALID_REQUEST)
            return
        if not self.limits.enter_socket():
            self._refuse(503, SOCKETS_FULL, Reason.SERVER_FULL)
            return
        self._unset_keepalive_if_required()
        try:
            super().handle_websocket_upgrade()
        except Exception:  # not a request that its parser takes
            self.limits.leave_socket()
            self.transport.abort()
            return
        other = self.transport.get_protocol()
        if isinstance(other, BoundedSocket):
            other.leaves(self._leave_socket)
        else:
            self._leave_socket()

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self.limits.leave(self._address, self._place)

    def _leave_socket(self) -> None:
        self.limits.leave_socket()
        self._leave()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if self._last:
            self._discard(size)
            return
        cycle, scope, in_head = self.cycle, self.scope, self._head_open
        if in_head:
            self._head_size += size
        body = self._body
        try:
            self._parse(data)
        except httptools.HttpParserError:
            if self._last:
                return
            self._refuse(400, "This is not a valid HTTP request.", Reason.INVALID_REQUEST)
        if self._head_open:
            if self._begun and self._head_timer is None and not self.transport.is_closing():
                # a further request on a kept connection, whose head did not come in one piece
                self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_late)
            if self._head_size > self.head_bytes and not self.transport.is_closing():
                self._refuse(431, f"The request head is larger than {self.head_bytes} bytes.", Reason.TOO_LARGE)
        elif not in_head and self.scope is scope:
            self._framing += size - (self._body - body)
            if self._framing > FRAMING_BYTES + self._body // 2:
                self._refuse(431, OVERHEAD, Reason.TOO_LARGE)
            elif cycle is not None and cycle.response_complete and self._body > UNWANTED_BYTES:
                self.transport.abort()  # answered already, and it goes on sending

    def _discard(self, size: int) -> None:
        """What comes behind the last request is taken slowly while answers are due: they are not lost by it, and a
        client that leaves is seen. Then as much and as long as the rest of a refused body."""
        self._body += size
        if self._lingers:
            if self._body > LINGER_BYTES:
                self.transport.abort()
        elif self._body > UNWANTED_BYTES:
            self._body = 0
            self.transport.pause_reading()
            self.loop.call_later(1.0, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Until the parser leaves after a head that asks for another protocol. What is not followed is ignored (RFC
        9110, 7.8): another parser reads that head again, without it, and then what came behind it."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as left:
                if not self._again:
                    if self._should_upgrade():
                        self.handle_websocket_upgrade()
                    return
                data, self._again = self._again + data[left.args[0] :], b""
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it

    def _without_upgrade(self) -> bytes:
        """The present head, written again without what asks for another protocol."""
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        return head if head.count(b"\n") == len(lines) + 1 else b""

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._begun = True
        self._idle_since = None  # only what begins a request ends the idle time: no blank line does

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._head_open = self._begun = False
        self._idle_since = None  # its head may have begun before the last answer ended
        self._framing = self._body = self._pieces = 0
        if self.transport.is_closing():
            raise _Enough
        # The last read may hold a body as well: count what really was head.
        if self._head_size > self.head_bytes and (
            len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > self.head_bytes
        ):
            self._refuse(431, f"The request head is larger than {self.head_bytes} bytes.", Reason.TOO_LARGE)
            raise _Enough
        self._head_size = 0
        if self._place is not Place.FREE and self.url.partition(b"?")[0] not in ALWAYS_OPEN:
            self._refuse_place()
            raise _Enough
        if len(self.pipeline) >= SENT_AHEAD:
            # No request behind an answer with "connection: close" was processed, so its client may send it again.
            self.pipeline[0][0].keep_alive = False
            self._last = True
            self._head_open = False
            self.limits.refused[Reason.SERVER_FULL.value] += 1
            raise _Enough
        parser = self.parser
        version = parser.get_http_version()
        hosts, other_coding, expects = 0, False, False
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                other_coding = True
            elif name == b"expect" and value.lower() == b"100-continue":
                expects = True
        if other_coding:
            # The parser takes any codings of which the last is chunked, and unpacks no other one.
            self._refuse(400, "The only transfer coding that this server reads is chunked.", Reason.INVALID_REQUEST)
            raise _Enough
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            # A proxy before this server may have gone by another one (RFC 9112, 3.2).
            self._refuse(400, "A request has one Host header.", Reason.INVALID_REQUEST)
            raise _Enough
        upgrade = parser.should_upgrade()
        self._to_socket = upgrade and self._should_upgrade()
        if upgrade and not self._to_socket:
            if any(name == b"upgrade" for name, _ in self.headers):
                self._again = self._without_upgrade()
                if self._again:
                    return
            if _has_body(self.headers):
                # A CONNECT, or a line end in a value. The parser leaves after the head: it would take the body for the
                # next request.
                self._refuse(400, "This is not a valid HTTP request.", Reason.INVALID_REQUEST)
                raise _Enough
        scope = self.scope = self._make_scope(version)  # type: ignore[assignment]
        if self._to_socket:
            return
        before = self.cycle
        cycle = self.cycle = Cycle(
            self,
            scope,
            (WithoutChunks if version == "1.0" else HeadWithBody)(self.transport, self.loop, self._end),
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self.limits.leaving,
            expects=expects and version != "1.0",
        )
        # The request has its headers. What comes after its body as "trailers" is nobody's.
        self.headers = _TRAILERS
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _make_scope(self, version: str) -> Scope:
        """What the application is told of the request whose head has come."""
        raw, query = self.url, b""
        path = _PLAIN.get(raw)
        if path is None:
            parsed = httptools.parse_url(raw)
            raw, query = parsed.path, parsed.query or b""
            path = raw.decode("ascii")
            if "%" in path:
                path = unquote(path)
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "method": self.parser.get_method().decode("ascii"),
            "path": self.root_path + path,
            "raw_path": self.root_path.encode("ascii") + raw,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
            "extensions": self._extensions,
        }

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _write_piece(self, piece: bytes) -> bool:
        """What uvicorn's ``send`` does with a piece of the running answer, without a task to wait for it."""
        cycle = self._running
        if cycle is None or self.flow.write_paused or not cycle.chunked_encoding or cycle.response_complete:
            return False
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _begin_stream(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """What uvicorn's ``send`` does with the first message of a streamed answer, without looking at each header."""
        cycle = self._running
        if cycle is None or self.flow.write_paused or cycle.response_started:
            return False
        head = head_of(cycle, CHUNKED_LINES[status], headers)
        if head is None:
            return False
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        if not cycle.disconnected:
            cycle.transport.write(head)
        return True

    def _write_answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """What uvicorn's ``send`` does with the two messages of a whole answer, in one write and without looking at
        each header: 1.6 us instead of 5.3."""
        cycle = self._running
        if cycle is None or self.flow.write_paused or cycle.response_started:
            return False
        if cycle.disconnected:
            return True
        head = head_of(cycle, ANSWER_LINES[status], headers)
        if head is None:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = cycle.chunked_encoding = False
        self.transport.write(head + body)
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._end()
        cycle.on_response()
        return True

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        self._pieces += 1
        if self._pieces > PIECES + self._body // PIECE_BYTES:
            self._refuse(431, OVERHEAD, Reason.TOO_LARGE)
        if self.transport.is_closing() or self._last:
            raise _Enough
        cycle = self.cycle
        if not (self._to_socket or cycle.response_complete) and cycle.add(body) > HIGH_WATER_LIMIT:  # type: ignore[attr-defined]
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        if self._again:
            return
        # A head that begins in the read that ended this message counts from the next read on.
        self._head_open, self._head_size = True, 0
        cycle = self.cycle
        if not (self.transport.is_closing() or self._to_socket or cycle.response_complete):
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                # One timer serves many requests: it looks at when the connection fell idle.
                self._idle_since = None if self._begun else self.loop.time()
                if self.timeout_keep_alive_task is None:
                    self._close_idle_after(self.timeout_keep_alive)
        if self._refusal and not (self._answering() or self._lingers or self.transport.is_closing()):
            if self._running is not None:
                self._running.transport.flush()  # type: ignore[attr-defined]
            self.transport.write(self._refusal)
            self._end()
        if self._write_timer is None and self.transport.get_write_buffer_size():
            self._watch_writes()

    def _end(self) -> None:
        """Closes, once everything is written. Who may still be sending is read for a moment: with unread bytes the
        kernel would reset the connection, and what the client has not read would be lost."""
        if not self._last:
            self.transport.close()
        elif not self._lingers and not self.transport.is_closing():
            self._lingers, self._body = True, 0
            self.pipeline.clear()  # nobody would get their answers
            self.transport.write_eof()
            self.transport.resume_reading()
            self.loop.call_later(LINGER_S, self._lingered)

    def _lingered(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_writes()

    def _close_idle_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # the end of the present answer sets it again
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._close_idle_after(left_s)
        elif not self._answering():
            super().timeout_keep_alive_handler()
            self._watch_writes()

    def _watch_writes(self) -> None:
        """From the end of an answer on nobody else waits for its reader."""
        if self._write_timer is None:
            self._unsent = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(self.send_timeout_s, self._unread)

    def _unread(self) -> None:
        self._write_timer = None
        left = self.transport.get_write_buffer_size()
        running = self._running
        if self.transport.is_closing():
            if left == 0 or self._unsent - left < MIN_READ:
                self.transport.abort()
                return
        elif left == 0 or (running is not None and running.response_started and not running.response_complete):
            return  # the next answer's application waits for its reader itself; one that has not begun may not
        elif self._unsent - left < MIN_READ:
            self.transport.abort()
            return
        self._watch_writes()

    def _answering(self) -> bool:
        """Whether a request on this connection has no complete answer yet."""
        running = self._running
        return running is not None and not running.response_complete

    def last_answer(self) -> None:
        """The process leaves: an answer that has not begun says that it is the last one here."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def close_idle(self) -> None:
        """One that has not asked yet is not idle: its first request may be on its way."""
        asked = self.cycle is not None and self.cycle.response_complete
        if asked and self._head_open and not self._head_size and not self._more_has_come():
            self.transport.close()

    def _more_has_come(self) -> bool:
        """Whether the kernel has something of this connection that was not read yet."""
        come = select.poll()
        come.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(come.poll(0))

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._place is not Place.FREE:
            self._refuse_place()
        else:
            self._refuse(408, f"The request head did not arrive within {self.head_timeout_s:g} s.", Reason.SLOW_REQUEST)

    def _refuse_place(self) -> None:
        if self._place is Place.ADDRESS:
            self._refuse(429, TOO_MANY, Reason.ADDRESS_CONNECTIONS)
        else:
            self._refuse(503, FULL, Reason.SERVER_FULL)

    def _refuse(self, status: int, message: str, reason: Reason) -> None:
        """Answers in the application's place and closes, after the answers to what was sent before. ``reason``: what it
        is called everywhere else."""
        if self.transport.is_closing() or self._last:
            return
        self.limits.refused[reason.value] += 1
        waits = self._answering() and (self._running is not self.cycle or not self.cycle.more_body)
        if self._answering() and not waits and self.cycle.response_started:
            self.transport.abort()  # no second answer inside a first one
            return
        kind = {429: "rate_limit_error", 503: "service_unavailable_error"}.get(status, "invalid_request_error")
        error = {"message": message, "type": kind, "param": None, "code": reason.value}
        body = json.dumps({"error": error}).encode()
        headers = [(b"x-request-id", new_request_id(time.time()).encode()), reason_header(reason)]
        headers += retry_after(RETRY_S) if ENDINGS[reason].retry else [NO_RETRY]
        answer = (
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\n%scontent-length: %d\r\n\r\n"
            % (b"".join(b"%s: %s\r\n" % header for header in headers), len(body))
            + body
        )
        if waits:
            self._stop_timer()
            self._last, self._refusal, self._body = True, answer, 0
            if self.cycle.more_body:  # the faulty one itself, which waits for its turn
                self.pipeline.popleft()
            return
        self.transport.write(answer)
        self.transport.close()
        self._watch_writes()


def protocol(
    head_bytes: int, head_timeout_s: float, connections: ConnectionLimits, send_timeout_s: float = 30.0
) -> type[ClientConnection]:
    """Connections that ``connections`` lets in. uvicorn makes them itself, so their bounds are the class's."""
    bounds = {"head_bytes": head_bytes, "head_timeout_s": head_timeout_s, "send_timeout_s": send_timeout_s}
    return type("ClientConnection", (ClientConnection,), bounds | {"limits": connections})


class _Enough(Exception):
    """Ends the parsing of a read whose connection was refused."""


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(n == b"transfer-encoding" or (n == b"content-length" and v.strip() != b"0") for n, v in headers)
