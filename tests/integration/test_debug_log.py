"""The log at its lowest level: nothing in it lets a reader act as somebody else."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path

from tests.support.redis_server import RedisServer
from tests.support.web_process import WebProcess


def test_the_cookie_of_a_session_is_in_no_log(private_redis: RedisServer, tmp_path: Path):
    web = WebProcess(tmp_path / "home", private_redis.url, log_level="DEBUG")
    web.migrate()
    web.start()
    try:
        with socket.create_connection(("127.0.0.1", web.port), timeout=30) as connection:
            key = base64.b64encode(os.urandom(16)).decode()
            connection.sendall(
                f"GET /ws/live HTTP/1.1\r\nhost: 127.0.0.1:{web.port}\r\norigin: {web.url}\r\nupgrade: websocket\r\n"
                f"connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n"
                f"cookie: qm_session_{web.port}=of-somebody\r\n\r\n".encode()
            )
            assert connection.recv(65536).startswith(b"HTTP/1.1 ")
    finally:
        web.stop()
    written = web.log.read_text()
    assert " DEBUG " in written
    assert "of-somebody" not in written
