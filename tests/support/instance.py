"""An instance that `make up` would start, with its own HOME and port, driven from a test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import redis

from tests.support import migrated
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 100  # generous: other tests may share the machine


def until(condition: Callable[[], Any], seconds: float = LIMIT_S) -> Any:
    """The first value of ``condition`` that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "this did not come in time"
        time.sleep(0.05)
    return found


class Up:
    """An instance with its own HOME and port."""

    root = ROOT  # whose code it runs
    begins_empty = False  # True: it applies the migrations itself, as a first start does

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = home.parent / f"{home.name}.out"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERMASTER_")} | {
            "QUARTERMASTER_HOME": str(home),
            "QUARTERMASTER_PORT": str(self.port),
            "DEMO_LOAD": "off",
            "QUARTERMASTER_TASK_NICE": "0",  # six busy test processes would leave tasks next to nothing
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Up:
        if not (self.begins_empty or "QUARTERMASTER_DATABASE_URL" in self.environ):
            migrated.put_into(self.home)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controlplane.embedded"],
                cwd=self.root,
                env=self.environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def get(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def wait_ready(self):
        self.wait(lambda: self.get("/readyz")[0] == 200)
        return self

    def wait(self, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.05)

    def demo(self):
        return json.loads((self.home / "demo.json").read_text())

    def admin(self):
        """The header that opens the management API to the demo's admin."""
        return {"Authorization": f"Bearer {self.demo()['admin']['token']}"}

    def manage(self, *words, given=""):
        """What ``manage.py`` prints."""
        command = [sys.executable, "manage.py", *words]
        return subprocess.run(
            command, cwd=self.root, env=self.environ, input=given, capture_output=True, text=True, check=True
        ).stdout

    def pid(self, name):
        return int((self.home / "run" / f"{name}.pid").read_text())

    def leader(self):
        """Which process leads the demo's pool: "worker" or "standby"; "" while none does."""
        url = (self.home / "run" / "redis-url").read_text().strip()
        with redis.Redis.from_url(url, decode_responses=True) as client:
            holder = client.hget(f"qm:{{{self.demo()['pool']}}}:meta", "leader") or ""
        names = [n for n in ("worker", "standby") if (self.home / "run" / f"{n}.pid").exists()]
        return next((n for n in names if f"-{self.pid(n)}-" in holder), "")

    def client(self, tier="standard", **options):
        import openai  # half a second; most tests speak HTTP themselves

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.demo()["keys"][tier], **options)

    def tree(self):
        return [self.process.pid, *(p.pid for p in psutil.Process(self.process.pid).children(recursive=True))]

    def stop(self, number=signal.SIGINT):
        """Ends it and returns its exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def gone(pids):
    end = time.monotonic() + 10
    alive = pids
    while alive and time.monotonic() < end:
        alive = [p for p in alive if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.05)
    return not alive


def bindable(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    return True
