"""Whatever a connection sends before, in, between and after its requests is bounded in bytes and in time.

Against a web process of its own: what it holds is read from the kernel. Attacks are bounded by ``ATTACK_BYTES``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest

from scheduling.gateway.entry.guard import LINGER_BYTES
from tests.support.web_process import WebProcess

ATTACK_BYTES = 8 * 1024 * 1024  # that a connection tries to send
HELD_BYTES = 2 * 1024 * 1024  # that the server may have taken of it: its limit, buffers of both kernels
RSS_BYTES = 24 * 1024 * 1024  # growth of the process by all attacks together: 4 MiB of trailers alone were 100 MB
HEAD_S, BODY_S = 1.5, 2.0
POST = b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def web(tmp_path_factory, redis_server) -> Iterator[WebProcess]:
    process = WebProcess(
        tmp_path_factory.mktemp("web") / "home",
        redis_server.url,
        header_timeout_s=str(HEAD_S),
        body_timeout_s=str(BODY_S),
        send_timeout_s="2",
    )
    process.migrate()
    process.start()
    try:
        yield process
    finally:
        process.stop()


def connect(web: WebProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", web.port), timeout=20)


def flood(web: WebProcess, begin: bytes, piece: bytes, limit: int = ATTACK_BYTES) -> tuple[int, bytes]:
    """Sends ``begin`` and then ``piece`` again and again until the server ends it; (bytes sent, its answer)."""
    block = piece * max(1, 65536 // len(piece))
    sent = 0
    with connect(web) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        connection.sendall(begin)
        connection.settimeout(0.5)
        try:
            while sent < limit:
                try:
                    sent += connection.send(block)
                    time.sleep(0.003)  # so that the kernel's buffers hold little of it
                except TimeoutError:  # the server does not read
                    break
        except OSError:
            pass
        connection.settimeout(20)
        return sent, read(connection)


def read(connection: socket.socket) -> bytes:
    """All that comes until the server closes; what a reset took away is lost."""
    answer = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            answer += data
    return answer


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/login", b"/healthz"])
@pytest.mark.parametrize(
    ("name", "begin", "piece"),
    [
        ("one endless chunk extension", b"5;a=", b"x"),
        ("endless small extensions", b"", b"5;abcdefghijklmnopqrstuvwxyz\r\nhello\r\n"),
        ("an endless chunk size", b"", b"0"),
        ("one endless trailer", b"0\r\na: ", b"x"),
        ("an endless trailer's name", b"0\r\n", b"x"),
        ("endless trailers", b"0\r\n", b"a:b\r\n"),
        ("a body of one-byte chunks", b"", b"1\r\nx\r\n"),
    ],
)
def test_what_frames_a_body_is_bounded(web, path, name, begin, piece):
    before = web.rss
    sent, answer = flood(web, POST % path + begin, piece)
    assert sent < HELD_BYTES, f"{name}: the server took {sent} bytes"
    assert web.rss - before < RSS_BYTES, name
    assert not answer or answer.split(b" ", 2)[1] in (b"200", b"401", b"405", b"431"), answer[:200]
    assert web.get("/healthz")[0] == 200


def test_a_request_whose_body_has_many_small_chunks_is_served(web):
    body = b"".join(b"14\r\n%020d\r\n" % number for number in range(20_000)) + b"0\r\nx-sum: 1\r\n\r\n"
    with connect(web) as connection:
        connection.sendall(POST % b"/login" + body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 403")  # Django read it, and misses the CSRF token


def test_a_key_sent_as_a_trailer_is_no_key(web):
    key = web.manage("from tests.support import worlds; print(worlds.build().keys['acme'].credential.text)").strip()
    asked = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n\r\n" % key.encode()
    with connect(web) as connection:
        connection.sendall(asked)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")  # it is a good one
    with connect(web) as connection:
        connection.sendall(
            b"GET /v1/models HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\nauthorization: Bearer %s\r\n\r\n" % key.encode()
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


def test_garbage_behind_a_request_is_bounded(web):
    for begin in (
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",  # after the last request
        b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n",  # a body that nobody asked for
        b"HEAD /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"",
    ):
        sent, _ = flood(web, begin, b"\r\n")
        assert sent < 3 * HELD_BYTES, (begin, sent)


def test_requests_sent_ahead_are_few(web):
    """Thousands fit into one read, and each would be remembered until the one before it is answered."""
    wait = b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    ahead = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    with connect(web) as connection:
        connection.sendall(ahead * 5)
        deadline, answer = time.monotonic() + 20, b""
        while answer.count(b"HTTP/1.1 200") < 5 and time.monotonic() < deadline:
            answer += connection.recv(65536)
        assert answer.count(b"HTTP/1.1 200") == 5
    before = web.rss
    sent, answer = flood(web, wait + b"hello", ahead, limit=3 * ATTACK_BYTES)
    assert sent < LINGER_BYTES + HELD_BYTES  # thrown away as it comes
    assert web.rss - before < RSS_BYTES
    assert 0 < answer.count(b"HTTP/1.1 200") < 100


@pytest.mark.parametrize(
    "drip",
    [
        (b"", b"\r\n"),  # blank lines before a request
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n", b"a: b\r\n"),  # in a second head
        (POST % b"/login" + b"0\r\n", b"a: b\r\n"),  # in the trailer
        (POST % b"/login" + b"5;", b"a"),  # in a chunk extension
        (POST % b"/v1/chat/completions" + b"0\r\n", b"a: b\r\n"),
    ],
)
def test_drips_do_not_hold_a_place(web, drip):
    begin, piece = drip
    with connect(web) as connection:
        connection.sendall(begin)
        end = time.monotonic() + 30
        with contextlib.suppress(OSError):
            connection.settimeout(0.3)
            while time.monotonic() < end:
                connection.sendall(piece)
                try:
                    if connection.recv(65536) == b"":
                        break
                except TimeoutError:
                    continue
        assert time.monotonic() < end, "the server would listen for ever"


def test_an_answer_that_nobody_reads_is_dropped(web):
    """The connection, its place and its buffer are freed after the time a reader has."""
    with connect(web) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            for _ in range(3000):  # pages of answers, one after the other
                connection.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
                time.sleep(0.001)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if not any(c.raddr and c.raddr.port == connection.getsockname()[1] for c in connections_of(web)):
                break
            time.sleep(0.1)
        assert time.monotonic() < end


def connections_of(web):
    import psutil

    return psutil.Process(web.process.pid).net_connections("tcp")


def error(answer):
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
