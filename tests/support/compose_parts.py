"""The parts of the compose file as processes: its commands, environment and secret files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.instance import ROOT
from tests.support.ports import free_port

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


class Parts:
    """Containers as processes: what is a name in compose's networks is an address here, and each has a HOME.

    ``tree`` is the version that is started from now on; what runs goes on with its own."""

    def __init__(self, folder: Path, database: str, redis: str) -> None:
        self.folder = folder
        self.tree = ROOT
        self.secrets = folder / "secrets"
        subprocess.run([ROOT / "deploy" / "make-secrets.sh", self.secrets], check=True, capture_output=True)
        for name, value in {"database-url": database, "redis-url": redis}.items():
            (self.secrets / name).chmod(0o600)
            (self.secrets / name).write_text(value)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def service(self, name: str) -> dict[str, Any]:
        """As this version's compose file has it."""
        found = yaml.safe_load((self.tree / "docker-compose.yml").read_text(encoding="utf-8"))["services"][name]
        assert isinstance(found, dict)
        return found

    def environ(self, service: str, container: str, **more: str) -> dict[str, str]:
        given = {
            name: str(value).replace("/run/secrets/", f"{self.secrets}/")
            for name, value in self.service(service)["environment"].items()
        }
        own = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")}
        home = self.folder / container
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return own | given | {"QUARTERMASTER_HOME": str(home), "PATH": path} | more

    def command(self, service: str) -> list[str]:
        command: list[str] = self.service(service).get("command") or ["python", "-m", "controlplane.web.serve"]
        return [sys.executable if word == "python" else word for word in command]

    def run(self, service: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """As ``docker compose run`` or ``exec``."""
        command = [sys.executable if word == "python" else word for word in words] or self.command(service)
        return subprocess.run(
            command,
            cwd=self.tree, env=self.environ(service, service, **more), check=True, capture_output=True, text=True,
        )  # fmt: skip

    def start(self, service: str, container: str, **more: str) -> None:
        with (self.folder / f"{container}.log").open("ab") as log:
            self.running[container] = subprocess.Popen(
                self.command(service),
                cwd=self.tree, env=self.environ(service, container, **more), stdout=log, stderr=log,
            )  # fmt: skip

    def serve(self, *, slots: int = 32, speed: float = 1.0) -> str:
        """Tables, an engine, a worker, a standby and the shipped catalog; a key of its entitlement."""
        self.run("migrate")
        port = free_port()
        engine = [
            sys.executable, "-m", "scheduling.engines.simulated", "--model", MODEL, "--port", str(port),
            "--slots", str(slots), "--kv-tokens", "32000", "--speed", str(speed),
        ]  # fmt: skip
        self.running["vllm"] = subprocess.Popen(engine, cwd=self.tree, stdout=subprocess.DEVNULL)
        for name in ("worker", "standby"):
            self.start(name, name)
        catalog = self.folder / "catalog.yaml"
        text = (self.tree / "deploy" / "catalog.yaml").read_text(encoding="utf-8")
        catalog.write_text(text.replace("http://vllm:8000", f"http://127.0.0.1:{port}"), encoding="utf-8")
        self.run("web", "python", "manage.py", "apply", "--yes", "-f", str(catalog))
        return self.shell(
            "from tenants import services; from tenants.audit import SYSTEM; from tenants.models import Entitlement; "
            "print(services.issue_key(actor=SYSTEM, name='test', entitlement=Entitlement.objects.get())"
            ".credential.text)"
        )

    def shell(self, code: str) -> str:
        """What it prints."""
        return self.run("web", "python", "manage.py", "shell", "--no-imports", "-c", code).stdout.strip()

    def healthy(self, service: str, container: str) -> bool:
        """Its health check, as compose would run it inside."""
        _, *test = self.service(service)["healthcheck"]["test"]
        command = [sys.executable if word == "python" else word for word in test]
        return subprocess.run(
            command, cwd=self.tree, env=self.environ(service, container), capture_output=True, check=False
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
