"""An embedded instance for one experiment: its own HOME and port, a catalog from a manifest, ended at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from scheduling.state.blocking import blocking_client

ROOT = Path(__file__).resolve().parents[2]
START_S, STOP_S = 120.0, 60.0


class ExperimentError(RuntimeError):
    """The instance could not be started or set up; the text says what to do."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Instance:
    """``with Instance(home, **settings) as instance:`` runs ``make up``'s supervisor without its demo load."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")} | {
            "QUARTERMASTER_HOME": str(home),
            "QUARTERMASTER_PORT": str(self.port),
            "DEMO_LOAD": "off",
            "ENGINE": "",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.demo: dict[str, Any] = {}

    def __enter__(self) -> Instance:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "experiment.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "controlplane.embedded", "--with-parent"],  # however that ends
                cwd=ROOT, env=self._environ, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_ready()
            self.demo = json.loads((self.home / "demo.json").read_text(encoding="utf-8"))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    @property
    def pool(self) -> str:
        return str(self.demo["pool"])

    @property
    def model(self) -> str:
        return str(self.demo["model"])

    @property
    def admin(self) -> dict[str, str]:
        """The header that opens the management API to its admin."""
        return {"Authorization": f"Bearer {self.demo['admin']['token']}"}

    def pid(self, name: str) -> int:
        """The process of this name (``worker``, ``engine-0``); 0 while there is none."""
        try:
            return int((self.home / "run" / f"{name}.pid").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # ended, or just being written
            return 0

    def leader_pid(self) -> int:
        """The process that leads the pool: the worker or its standby; 0 while nobody does."""
        url = (self.home / "run" / "redis-url").read_text(encoding="utf-8")
        with blocking_client(url, timeout_s=5.0) as client:
            holder = client.hget(f"qm:{{{self.pool}}}:meta", "leader")
        return int(holder.decode().split("-")[-2]) if holder else 0

    def engine_url(self, name: str) -> str:
        """Where a simulated engine answers."""
        return f"http://127.0.0.1:{json.loads((self.home / 'ports.json').read_text(encoding='utf-8'))[name]}"

    def apply(self, *items: dict[str, Any]) -> None:
        """Makes the catalog says what these manifest objects say. Raises ExperimentError with the refusal's text."""
        book = yaml.safe_dump({"apiVersion": "quartermaster/v1", "kind": "List", "items": list(items)})
        path = self.home / "experiment.yaml"
        path.write_text(book, encoding="utf-8")
        done = subprocess.run(  # noqa: S603  # our own command
            [sys.executable, "manage.py", "apply", "-f", str(path), "--yes"],
            cwd=ROOT, env=self._environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ExperimentError(f"the experiment's catalog were refused:\n{done.stdout}{done.stderr}")

    @contextlib.contextmanager
    def api(self) -> Iterator[httpx.Client]:
        """The management API as its admin."""
        with httpx.Client(base_url=f"{self.url}/api/v1", headers=self.admin, timeout=30) as client:
            yield client

    def issue_key(self, entitlement: str) -> str:
        with self.api() as api:
            answer = api.post("/keys/", json={"entitlement": entitlement, "name": "experiment"}, follow_redirects=True)
        if answer.status_code != 201:
            raise ExperimentError(f"no key for {entitlement}: {answer.status_code} {answer.text}")
        return str(answer.json()["key"])

    def await_live(self, entitlements: set[str], seconds: float = 30.0) -> None:
        """Waits until the leader serves these entitlements, all bound."""
        end = time.monotonic() + seconds
        states: dict[str, str] = {}
        while time.monotonic() < end:
            with self.api() as api:
                answer = api.get("/live")
            if answer.status_code == 200:
                rows = answer.json()["pools"].get(self.pool, {}).get("entitlements", {})
                states = {name: row["state"] for name, row in rows.items()}
                if all(states.get(name) == "bound" for name in entitlements):
                    return
            time.sleep(0.25)
        raise ExperimentError(f"not all entitlements are served after {seconds:g} s: {states}")

    def _wait_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            time.sleep(0.1)
        raise ExperimentError(f"the instance did not start; see {self.home / 'experiment.log'}")
