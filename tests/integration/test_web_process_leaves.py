"""One of two web processes behind one port is stopped: their clients notice nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil
import pytest

from tests.support.instance import Up

KEPT, NEW = 6, 2  # clients with one connection as long as the server keeps it; clients with one for each request


@pytest.fixture
def up(tmp_path):
    instance = Up(tmp_path / "home", QUARTERMASTER_WEB_PROCESSES="2", QUARTERMASTER_LEAVE_S="2").start()
    try:
        yield instance.wait_ready()
    finally:
        instance.stop()


class Client(threading.Thread):
    """Asks again and again, one request at a time, and never repeats one that failed."""

    def __init__(self, up, kept, stop):
        super().__init__(daemon=True)
        self.kept, self.stop, self.seen = kept, stop, Counter()
        self.body = json.dumps(
            {"model": up.demo()["model"], "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}
        )
        self.headers = {"authorization": f"Bearer {up.demo()['keys']['premium']}", "content-type": "application/json"}
        self.connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=60)
        self.start()

    def run(self):
        while not self.stop.is_set():
            try:
                self.connection.request("POST", "/v1/chat/completions", self.body, self.headers)
                answer = self.connection.getresponse()
                answer.read()
                reason = answer.headers.get("x-quartermaster-reason", "")
                self.seen["done" if answer.status == 200 else f"{answer.status} {reason}"] += 1
            except (OSError, http.client.HTTPException) as error:
                self.seen[type(error).__name__] += 1
                self.connection.close()
            if not self.kept:
                self.connection.close()
            time.sleep(0.02)


@pytest.mark.parametrize("names", [["web-1"], pytest.param(["web", "web-1", "web"], marks=pytest.mark.slow)])
def test_of_two_web_processes_one_stops_and_no_request_fails(up, names, figure: Callable[[str], None]):
    stop = threading.Event()
    clients = [Client(up, number < KEPT, stop) for number in range(KEPT + NEW)]
    up.wait(lambda: all(client.seen["done"] > 3 for client in clients))
    for name in names:  # the next one ends before the last one is back: what comes meanwhile waits for it
        up.wait(lambda name=name: (up.home / "run" / f"{name}.pid").exists())
        process = psutil.Process(up.pid(name))
        os.kill(process.pid, signal.SIGTERM)
        process.wait(60)
        before = [client.seen["done"] for client in clients]
        up.wait(lambda before=before: all(c.seen["done"] > n + 3 for c, n in zip(clients, before, strict=True)))
    stop.set()
    for client in clients:
        client.join(60)
    seen = sum((client.seen for client in clients), Counter())
    figure(f"SIGTERM of {', '.join(names)}: {seen['done']} served, {seen.total() - seen['done']} failed")
    assert set(seen) == {"done"}
