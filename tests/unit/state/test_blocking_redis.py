"""Pages, tasks and commands talk to Redis through one client: it waits once, and sends nothing twice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from controlplane.web.login_attempts import RedisStore
from scheduling.state.blocking import blocking_client
from telemetry.estimates.drift import DriftStore, DriftUnavailable
from telemetry.feed.store import LiveStore, LiveUnavailable
from telemetry.ledger.queue import QueueStore, QueueUnavailable

ROOT = Path(__file__).parents[3]


class Silent:
    """Takes connections and what they send, and answers nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self.taken:
            one.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda url: DriftStore(url).load(["llama"]), DriftUnavailable),
        (lambda url: LiveStore(url).heads(), LiveUnavailable),
        (lambda url: QueueStore(url).preview("llama"), QueueUnavailable),
        (lambda url: RedisStore(url).take("key", 1, 1), redis.RedisError),
        (lambda url: blocking_client(url).ping(), redis.RedisError),
    ],
)
def test_a_redis_that_does_not_answer_is_asked_once(
    silent: Silent, ask: Callable[[str], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(silent.url)
    assert len(silent.taken) == 1


def test_no_process_makes_a_blocking_client_of_its_own() -> None:
    packages = ("scheduling", "telemetry", "tenants", "controlplane")
    found = [
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if "redis.Redis.from_url(" in path.read_text(encoding="utf-8")
    ]
    assert found == ["scheduling/state/blocking.py"]
