"""The parts of the compose file, started as compose would: its commands, environment and secret files, in its order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.compose_parts import Parts, wait
from tests.support.ports import free_port
from tests.support.postgresql import postgresql
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def parts(tmp_path: Path, private_redis: RedisServer) -> Iterator[Parts]:
    with ExitStack() as stack:
        database = stack.enter_context(postgresql(tmp_path))
        made = Parts(tmp_path, database, private_redis.url)
        stack.callback(made.stop)
        yield made


def test_two_web_processes_a_worker_and_a_standby_serve_and_one_may_go(parts: Parts) -> None:
    key, ports = parts.serve(), [free_port(), free_port()]
    for number, port in enumerate(ports):
        parts.start("web", f"web-{number}", QUARTERMASTER_PORT=str(port), QUARTERMASTER_HOST="127.0.0.1")
    ask = {"model": "llama-3.1-8b", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}

    def answer(port: int) -> bool:
        headers = {"authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        return httpx.post(url, json=ask, headers=headers, timeout=60).is_success

    for port in ports:
        wait(lambda port=port: answer(port))
    token = (parts.secrets / "metrics-token").read_text()
    for port in ports:
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {token}"})
        assert page.status_code == 200  # as prometheus.yml asks
        assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 401
    for name in ("worker", "standby"):
        wait(lambda name=name: parts.healthy(name, name))
    assert not parts.healthy("worker", "never-started")
    parts.running["web-0"].terminate()  # the proxy would leave it out
    assert parts.running["web-0"].wait(90) in (0, -signal.SIGTERM)  # it ends by the signal, once it has drained
    parts.running["worker"].kill()  # the standby leads
    parts.running["worker"].wait()
    wait(lambda: answer(ports[1]))
