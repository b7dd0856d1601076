"""A lean load generator: so many connections, each sends its next request when the last answer is complete, or, once
it is, at a steady pace.

It runs in the loop of whoever measures, so that counters of other processes can be read at the very instants at which
its window begins and ends. Loopback only; a request is the same bytes every time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

EVENT = b"data: "
END = b"data: [DONE]\n\n"
NO_ERRORS = 1000  # after so many the window is over: nothing can be learnt from more


@dataclass(slots=True)
class Seen:
    """What a window held. Times are seconds."""

    seconds: float = 0.0
    answers: int = 0  # complete ones
    events: int = 0  # of streams, also of those not complete yet
    whole: list[float] = field(default_factory=list)  # request sent -> answer complete
    first: list[float] = field(default_factory=list)  # ... -> first byte of a stream's body
    gaps: list[float] = field(default_factory=list)  # between two reads of one stream
    errors: Counter[str] = field(default_factory=Counter)


def request(port: int, body: dict[str, object], key: str = "") -> bytes:
    """A chat request as it goes over the wire."""
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    if key:
        head += f"authorization: Bearer {key}\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self._sent_s = self._last_s = self._due_s = 0.0
        self._events = 0
        self._tail = b""
        self._complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._send()

    def _send(self) -> None:
        """Now, or when it is due. One that the answer before it has made late counts from when it was due."""
        self._events, self._last_s, self._tail, self._complete = 0, 0.0, b"", False
        now, interval_s = time.perf_counter(), self._load.interval_s
        if not interval_s:
            self._write(now)
            return
        self._due_s = self._due_s + interval_s if self._due_s else now + random.uniform(0, interval_s)
        if self._due_s <= now:
            self._write(self._due_s)
        else:
            asyncio.get_running_loop().call_later(self._due_s - now, lambda: self._write(time.perf_counter()))

    def _write(self, since_s: float) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._sent_s = since_s
            self._transport.write(self._load.wire)

    def data_received(self, data: bytes) -> None:
        load, now = self._load, time.perf_counter()
        before = self._events
        self._parser.feed_data(data)
        if self._events > before:
            if load.open:
                load.seen.events += self._events - before
                if before:
                    load.seen.gaps.append(now - self._last_s)
                else:
                    load.seen.first.append(now - self._sent_s)
            self._last_s = now
        if self._complete:
            if load.open:
                self._judge(now)
            if not load.over:
                self._send()

    def _judge(self, now: float) -> None:
        seen, events = self._load.seen, self._load.events
        status = self._parser.get_status_code()
        if status != 200:
            seen.errors[f"status {status}"] += 1
        elif events and (self._events != events or not self._tail.endswith(END)):
            seen.errors[f"a stream of {self._events} events"] += 1
        else:
            seen.answers += 1
            seen.whole.append(now - self._sent_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._load.over:
            self._load.seen.errors["connection lost"] += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- httptools

    def on_body(self, body: bytes) -> None:
        if self._load.events:
            self._events += body.count(EVENT)
            self._tail = (self._tail + body)[-len(END) :]

    def on_message_complete(self) -> None:
        self._complete = True


class Load:
    """A closed loop of ``connections``.

    Args:
        events: how many a whole stream has; 0: answers are not streamed.
        interval_s: between two requests of a connection; 0: the next follows the answer at once.
    """

    def __init__(self, port: int, wire: bytes, connections: int, events: int = 0, interval_s: float = 0.0) -> None:
        self.wire = wire
        self.events = events
        self.interval_s = interval_s
        self.seen = Seen()
        self.open = False  # the window: only then is anything counted
        self.over = False
        self._port = port
        self._connections = connections

    async def run(self, warm_s: float, seconds: float, mark: Callable[[], None]) -> Seen:
        """Warms up, then counts for ``seconds``; ``mark`` is called at both ends of the window."""
        loop = asyncio.get_running_loop()
        made = [
            (await loop.create_connection(lambda: Connection(self), "127.0.0.1", self._port))[1]
            for _ in range(self._connections)
        ]
        await asyncio.sleep(warm_s)
        mark()
        self.open, began = True, time.perf_counter()
        while (left := began + seconds - time.perf_counter()) > 0 and self.seen.errors.total() < NO_ERRORS:
            await asyncio.sleep(min(left, 0.5))
        self.open, self.seen.seconds = False, time.perf_counter() - began
        mark()
        self.over = True
        for connection in made:
            connection.close()
        return self.seen
