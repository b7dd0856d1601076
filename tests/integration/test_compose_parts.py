"""The parts of the compose file, started as compose would: its commands, environment and secret files, in its order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.instance import ROOT
from tests.support.ports import free_port
from tests.support.postgresql import postgresql
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.timeout(400)
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


class Parts:
    """Containers as processes: what is a name in compose's networks is an address here, and each has a HOME."""

    def __init__(self, folder: Path, database: str, redis: str) -> None:
        self.folder = folder
        self.secrets = folder / "secrets"
        subprocess.run([ROOT / "deploy" / "make-secrets.sh", self.secrets], check=True, capture_output=True)
        for name, value in {"database-url": database, "redis-url": redis}.items():
            (self.secrets / name).chmod(0o600)
            (self.secrets / name).write_text(value)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def environ(self, service: str, container: str, **more: str) -> dict[str, str]:
        given = {
            name: str(value).replace("/run/secrets/", f"{self.secrets}/")
            for name, value in COMPOSE["services"][service]["environment"].items()
        }
        own = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")}
        home = self.folder / container
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return own | given | {"QUARTERMASTER_HOME": str(home), "PATH": path} | more

    def command(self, service: str) -> list[str]:
        command: list[str] = COMPOSE["services"][service].get("command") or ["python", "-m", "controlplane.web.serve"]
        return [sys.executable if word == "python" else word for word in command]

    def run(self, service: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """As ``docker compose run`` or ``exec``."""
        command = [sys.executable if word == "python" else word for word in words] or self.command(service)
        return subprocess.run(
            command, cwd=ROOT, env=self.environ(service, service, **more), check=True, capture_output=True, text=True
        )

    def start(self, service: str, container: str, **more: str) -> None:
        with (self.folder / f"{container}.log").open("ab") as log:
            self.running[container] = subprocess.Popen(
                self.command(service), cwd=ROOT, env=self.environ(service, container, **more), stdout=log, stderr=log
            )

    def healthy(self, service: str, container: str) -> bool:
        """Its health check, as compose would run it inside."""
        _, *test = COMPOSE["services"][service]["healthcheck"]["test"]
        command = [sys.executable if word == "python" else word for word in test]
        return subprocess.run(
            command, cwd=ROOT, env=self.environ(service, container), capture_output=True, check=False
        ).returncode == 0  # fmt: skip

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.terminate()
        for process in self.running.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = what()
        except httpx.TransportError:
            found = None
        if found:
            return found
        assert time.monotonic() < deadline, "this did not come in time"
        time.sleep(0.1)


@pytest.fixture
def parts(tmp_path: Path, private_redis: RedisServer) -> Iterator[Parts]:
    with ExitStack() as stack:
        database = stack.enter_context(postgresql(tmp_path))
        made = Parts(tmp_path, database, private_redis.url)
        stack.callback(made.stop)
        yield made


def test_two_web_processes_a_worker_and_a_standby_serve_and_one_may_go(parts: Parts, tmp_path: Path) -> None:
    parts.run("migrate")
    engine_port, ports = free_port(), [free_port(), free_port()]
    engine = [
        sys.executable, "-m", "scheduling.engines.simulated", "--model", MODEL, "--port", str(engine_port),
        "--slots", "32", "--kv-tokens", "32000",
    ]  # fmt: skip
    parts.running["vllm"] = subprocess.Popen(engine, cwd=ROOT, stdout=subprocess.DEVNULL)
    for number, port in enumerate(ports):
        parts.start("web", f"web-{number}", QUARTERMASTER_PORT=str(port), QUARTERMASTER_HOST="127.0.0.1")
    for name in ("worker", "standby"):
        parts.start(name, name)
    catalog = tmp_path / "catalog.yaml"
    text = (ROOT / "deploy" / "catalog.yaml").read_text(encoding="utf-8")
    catalog.write_text(text.replace("http://vllm:8000", f"http://127.0.0.1:{engine_port}"), encoding="utf-8")
    parts.run("web", "python", "manage.py", "apply", "--yes", "-f", str(catalog))
    key = parts.run(
        "web", "python", "manage.py", "shell", "--no-imports", "-c",
        "from tenants import services; from tenants.audit import SYSTEM; from tenants.models import Entitlement; "
        "print(services.issue_key(actor=SYSTEM, name='test', entitlement=Entitlement.objects.get())"
        ".credential.text)",
    ).stdout.strip()  # fmt: skip
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
