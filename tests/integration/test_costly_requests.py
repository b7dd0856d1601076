"""What anybody may send is parsed in time that grows with its length, not with its square.

A web process of its own: what it spent is its CPU time, so that other work on the machine does not count.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.support.web_process import WebProcess

pytestmark = pytest.mark.timeout(300)  # a process is started, on a busy machine

HEAD_BYTES = 30_000  # just below QUARTERMASTER_MAX_HEADER_BYTES
HANDSHAKES = 20
CPU_S = 0.5  # for one refused request; 30,000 escaped quotes in a cookie took 1.5 to 10 s

ESCAPED = b'a="' + b'\\"' * (HEAD_BYTES // 2) + b'"'
PARAMETERS = b'a/b; c="' + b";" * HEAD_BYTES
PAGE = b"GET /login HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n%s: %s\r\n\r\n"
HANDSHAKE = (
    b"GET /ws/live HTTP/1.1\r\nhost: 127.0.0.1:%d\r\norigin: http://127.0.0.1:%d\r\nupgrade: websocket\r\n"
    b"connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"cookie: qm_session_%d=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; %s\r\n\r\n"
)


@pytest.fixture(scope="module")
def web(tmp_path_factory, redis_server) -> Iterator[WebProcess]:
    process = WebProcess(tmp_path_factory.mktemp("web") / "home", redis_server.url)
    process.migrate()
    process.start()
    try:
        process.get("/login")  # what is loaded once
        yield process
    finally:
        process.stop()


def spent(web: WebProcess, request: bytes) -> tuple[float, bytes]:
    """CPU seconds until the answer is there, and the answer."""
    before = web.cpu_s
    with socket.create_connection(("127.0.0.1", web.port), timeout=90) as connection:
        connection.sendall(request)
        answer = b""
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in answer and (data := connection.recv(65536)):
                answer += data
    return web.cpu_s - before, answer


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        (b"cookie", ESCAPED, b"200"),
        (b"cookie", b'b=1; a="' + b"\\\\" * (HEAD_BYTES // 2) + b'"; c=2', b"200"),
        (b"accept", PARAMETERS, b"431"),
        (b"content-type", PARAMETERS, b"431"),
        (b"content-type", b'a/b; c="' + b'\\"' * (HEAD_BYTES // 2), b"431"),
    ],
)
def test_a_strangers_head_costs_a_page_no_more_than_its_length(web, name, value, status):
    cpu_s, answer = spent(web, PAGE % (name, value))
    assert cpu_s < CPU_S
    assert answer.split(b" ", 2)[1] == status


def test_a_strangers_cookie_does_not_stop_the_event_loop_at_a_handshake(web):
    """Its parser takes lines of 8 KiB, and Channels reads the cookies on the event loop, on which all streams are."""
    cookie = b'a="' + b"\\\\" * 4_000 + b'"'
    cpu_s = 0.0
    for _ in range(HANDSHAKES):
        each_s, answer = spent(web, HANDSHAKE % (web.port, web.port, web.port, cookie))
        assert answer.split(b" ", 2)[1] == b"403"  # nobody has this session
        cpu_s += each_s
    assert cpu_s < CPU_S
