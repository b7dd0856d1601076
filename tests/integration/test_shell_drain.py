"""Stopping a web process: what runs may end, what is new is sent away, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import httpx
import psutil
import pytest
import redis

from tests.support.instance import Up

DRAIN_S, LEAVE_S = 8, 1  # so long a stream of 60 tokens may take, on a busy machine
pytestmark = pytest.mark.timeout(400)  # an instance starts, and its web process once more
UNREAD = 5  # clients that do not read what they asked for


@pytest.fixture
def up(tmp_path):
    instance = Up(tmp_path / "home", QUARTERMASTER_DRAIN_S=str(DRAIN_S), QUARTERMASTER_LEAVE_S=str(LEAVE_S)).start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


class Stream(threading.Thread):
    """A streamed chat, read to its end in a thread of its own."""

    def __init__(self, up, tokens):
        super().__init__(daemon=True)
        self.up, self.tokens = up, tokens
        self.text = ""
        self.begun = threading.Event()
        self.start()
        assert self.begun.wait(30)

    def run(self):
        with httpx.stream(
            "POST", f"{self.up.url}/v1/chat/completions", **chat(self.up, self.tokens), timeout=60
        ) as answer:
            for text in answer.iter_text():
                self.text += text
                self.begun.set()


def chat(up, tokens, **extra):
    demo = up.demo()
    body = {
        "model": demo["model"],
        "messages": [{"role": "user", "content": "Tell me."}],
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
    }
    return {"headers": {"authorization": f"Bearer {demo['keys']['premium']}"}, "json": body | extra}


def unread(up):
    """A client that asks for a long stream and never reads it."""
    request = httpx.Request("POST", f"{up.url}/v1/chat/completions", **chat(up, 4000))
    connection = socket.create_connection(("127.0.0.1", up.port))
    head = "".join(f"{k}: {v}\r\n" for k, v in request.headers.items())
    connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content)
    return connection


def running(up):
    """How many requests run in the demo's pool."""
    url = (up.home / "run" / "redis-url").read_text().strip()
    with redis.Redis.from_url(url) as client:
        return client.zcard(f"qm:{{{up.demo()['pool']}}}:leases")


def test_a_stopped_web_process_drains_refuses_and_ends_in_time(up):
    silent = [unread(up) for _ in range(UNREAD)]
    up.wait(lambda: running(up) >= UNREAD)
    short, long = Stream(up, 60), Stream(up, 4000)
    web = psutil.Process(up.pid("web"))
    os.kill(web.pid, signal.SIGTERM)
    began = time.monotonic()

    up.wait(lambda: up.get("/readyz")[0] == 503)
    assert "shutting down" in up.get("/readyz")[1].decode()
    while (refused := httpx.post(f"{up.url}/v1/chat/completions", **chat(up, 5, stream=False))).status_code != 503:
        assert refused.status_code == 200  # load balancers have a moment to leave
        assert refused.headers["connection"] == "close"
    assert refused.headers["x-quartermaster-reason"] == "shutting_down"

    short.join(30)
    assert short.text.rstrip().endswith("data: [DONE]")
    long.join(30)
    last = long.text.rstrip().rpartition("data: ")[2]
    assert json.loads(last)["error"]["code"] == "shutting_down"
    assert "[DONE]" not in long.text

    web.wait(DRAIN_S + 20)  # docs/reference/promises.md says five; a busy machine is no reason to fail
    print(f"\ngone {time.monotonic() - began:.1f} s after SIGTERM, {UNREAD} streams unread; the drain is {DRAIN_S} s")
    for connection in silent:
        connection.close()
    up.wait_ready()  # the supervisor has started another
