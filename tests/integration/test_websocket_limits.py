"""WebSockets within limits: in all, per user, per address, for strangers, and in what an open one may send."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.web_process import WebProcess

PER_USER, IN_ALL, CONNECTIONS = 4, 6, 12

SETUP = """
import json
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.auth import HASH_SESSION_KEY, BACKEND_SESSION_KEY, SESSION_KEY
from tests.support import worlds
world = worlds.build()
def session(user):
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    return store.session_key
print(json.dumps({name: session(user) for name, user in world.users.items()}))
"""


@dataclass
class Site:
    web: WebProcess
    sessions: dict[str, str]

    def handshake(self, *, user: str = "", cookie: str = "", **headers: str) -> tuple[int, bytes, socket.socket]:
        """The status of a handshake's answer, all of it, and the connection."""
        asked = {
            "host": f"127.0.0.1:{self.web.port}",
            "origin": self.web.url,
            "upgrade": "websocket",
            "connection": "upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
        } | headers
        path = asked.pop("path", "/ws/live")
        cookie = cookie or self.sessions.get(user, "")
        if cookie:
            asked["cookie"] = f"other=1; qm_session_{self.web.port}={cookie}"
        connection = socket.create_connection(("127.0.0.1", self.web.port), timeout=30)
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items())]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = connection.recv(65536)
            if not data:
                return 0, answer, connection
            answer += data
        status = int(answer.split(b" ", 2)[1])
        if status != 101:
            with contextlib.suppress(OSError):
                while data := connection.recv(65536):
                    answer += data
        return status, answer, connection

    def metric(self, name: str) -> float:
        page = self.web.get("/metrics")[1].decode()
        return float(next(line for line in page.splitlines() if line.startswith(f"quartermaster_{name} ")).split()[1])


@pytest.fixture(scope="module")
def site(tmp_path_factory, redis_server) -> Iterator[Site]:
    web = WebProcess(
        tmp_path_factory.mktemp("web") / "home", redis_server.url, max_connections=str(CONNECTIONS),
        max_connections_per_address="0", max_websockets=str(IN_ALL), max_websockets_per_user=str(PER_USER),
    )  # fmt: skip
    sessions = json.loads(web.manage(SETUP))
    web.start()
    try:
        yield Site(web, sessions)
    finally:
        web.stop()


@pytest.fixture(autouse=True)
def _nobody_else(site) -> None:
    deadline = time.monotonic() + 30
    while site.metric("websockets") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert site.metric("websockets") == 0


@contextlib.contextmanager
def all_closed() -> Iterator[list[socket.socket]]:
    connections: list[socket.socket] = []
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def code(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    reason = json.loads(body)["error"]["code"]
    assert f"x-quartermaster-reason: {reason}".encode() in head.lower()
    return reason


def frame(payload: bytes, opcode: int = 1, fin: bool = True) -> bytes:
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
    if size > 0xFFFF:
        length = b"\xff" + struct.pack("!Q", size)
    return bytes([(0x80 if fin else 0) | opcode]) + length + b"\0\0\0\0" + payload


def test_each_user_has_a_limit_of_sockets_of_their_own(site):
    with all_closed() as connections:
        statuses = []
        for _ in range(PER_USER + 2):
            status, answer, connection = site.handshake(user="alice")
            connections.append(connection)
            statuses.append(status)
        assert statuses == [101] * PER_USER + [429] * 2
        assert code(answer) == "user_connections"
        status, _, connection = site.handshake(user="carol")
        connections.append(connection)
        assert status == 101
    with all_closed() as connections:  # places come back
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            status, _, connection = site.handshake(user="alice")
            connections.append(connection)
            if status == 101:
                break
            time.sleep(0.1)
        assert status == 101


def test_a_process_has_a_limit_of_sockets_and_still_answers_health_checks(site):
    with all_closed() as connections:
        for user in ("alice", "carol"):
            for _ in range(IN_ALL // 2):
                status, _, connection = site.handshake(user=user)
                connections.append(connection)
                assert status == 101
        status, answer, connection = site.handshake(user="olga")
        connections.append(connection)
        assert (status, code(answer)) == (503, "server_full")
        assert site.metric("websockets") == site.metric("websockets_limit") == IN_ALL
        assert site.metric("connections") >= IN_ALL  # they count as connections for their whole life
        for _ in range(CONNECTIONS - IN_ALL):  # and these are all
            connections.append(socket.create_connection(("127.0.0.1", site.web.port)))
        assert site.web.get("/healthz")[0] == 200
        status, body = site.web.get("/login")
        assert status == 503
        assert json.loads(body)["error"]["code"] == "server_full"


@pytest.mark.parametrize("cookie", ["", "x", "../../etc/passwd", "A" * 4000])
def test_a_stranger_without_a_session_is_refused_before_the_database_is_asked(site, cookie):
    database = site.web.home / "db.sqlite3"
    hidden = database.with_name("away.sqlite3")
    database.rename(hidden)  # a look would make an empty one, or fail with a traceback
    try:
        status, answer, _ = site.handshake(cookie=cookie)
        assert (status, code(answer)) == (403, "no_key")
        assert not database.exists()
    finally:
        hidden.rename(database)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:{port}", 101),
        ("http://127.0.0.1", 403),
        ("http://127.0.0.1:1", 403),
        ("https://127.0.0.1:{port}", 403),
        ("http://localhost:{port}", 403),
        ("http://127.0.0.1:{port}.evil.example", 403),
        ("http://127.0.0.1:{port}/path", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_a_page_of_the_same_scheme_host_and_port_may_ask(site, origin, status):
    got, _, connection = site.handshake(user="alice", origin=origin.format(port=site.web.port))
    connection.close()
    assert got == status


def test_a_host_that_is_not_ours_does_not_vouch_for_itself(site):
    status, _, connection = site.handshake(user="alice", host="evil.example", origin="http://evil.example")
    connection.close()
    assert status == 403


def test_a_refused_handshake_is_no_error_in_the_log(site):
    before = site.web.log.stat().st_size
    for asked in ({"user": "alice", "origin": "http://evil.example"}, {"path": "/ws/other"}, {"user": ""}):
        status, _, connection = site.handshake(**asked)
        connection.close()
        assert status in (403, 404)
    assert site.web.get("/healthz")[0] == 200
    assert b"ERROR" not in site.web.log.read_bytes()[before:]


def ends(connection: socket.socket, seconds: float = 30) -> bool:
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        while True:
            try:
                if not connection.recv(65536):
                    break
            except TimeoutError:
                return False
    return True


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("a large message", frame(b"x" * 10_000)),
        ("many messages", frame(b'{"type": "resync"}') * 4000),
        ("many pings", frame(b"x" * 100, opcode=9) * 1000),
        ("one message in many empty fragments", frame(b"", fin=False) + frame(b"", opcode=0, fin=False) * 200),
        ("not a frame", b"\xff" * 100),
        ("not UTF-8", frame(b"\xff\xfe")),
    ],
)
def test_an_open_socket_may_send_little(site, name, sent):
    status, _, connection = site.handshake(user="alice")
    assert status == 101
    with connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        assert ends(connection), name
    assert site.web.get("/healthz")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-long": "y" * 10_000},
        {"sec-websocket-version": "12"},
        {"sec-websocket-key": "no"},
        {"path": "/ws/other"},
        {f"x-{n}": "1" for n in range(200)},
    ],
)
def test_a_handshake_that_cannot_be_is_answered_at_once(site, headers):
    status, _, connection = site.handshake(user="alice", **headers)
    assert 400 <= status < 500
    assert ends(connection)


def test_strangers_do_not_fill_the_log(site):
    before = site.web.log.stat().st_size
    for number in range(120):
        _, _, connection = site.handshake(path=f"/ws/{number}")
        connection.close()
        _, _, connection = site.handshake(origin=f"http://{number}.example")
        connection.close()
    for number in range(120):
        for request in (
            b"\x16\x03\x01 not http\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: %d.example\r\nconnection: close\r\n\r\n" % number,
            b"POST /login?%d HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % number,
            b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: h2c\r\nconnection: upgrade, close\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", site.web.port), timeout=20) as connection:
                connection.sendall(request)
                ends(connection, 20)
    written = site.web.log.read_bytes()[before:]
    lines = written.count(b"\n")
    assert lines < 200, written[-3000:].decode()
    assert site.web.get("/healthz")[0] == 200
