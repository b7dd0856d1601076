"""A web process of its own (``python -m controlplane.web.serve``), with a database that is migrated: to be attacked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from tests.support import migrated
from tests.support.instance import ROOT
from tests.support.ports import free_port

LIMIT_S = 90  # generous: other tests may share the machine


class WebProcess:
    """One web process on ``home``. ``settings`` are names of the environment without their prefix."""

    def __init__(self, home: Path, redis_url: str, **settings: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home.parent / f"{home.name}-{self.port}.log"
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("QUARTERMASTER_", "DJANGO_"))} | {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "QUARTERMASTER_HOME": str(home),
            "QUARTERMASTER_PORT": str(self.port),
            "QUARTERMASTER_REDIS_URL": redis_url,
            "QUARTERMASTER_DRAIN_S": "0",
            **{f"QUARTERMASTER_{name.upper()}": value for name, value in settings.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None

    def manage(self, code: str) -> str:
        """Runs Python with Django on the same database, migrated before; returns what it printed."""
        self.migrate()
        return self._run([sys.executable, "-c", f"import django; django.setup()\n{code}"])

    def migrate(self) -> None:
        if "QUARTERMASTER_DATABASE_URL" not in self.environ:
            migrated.put_into(self.home)
        elif not (self.home / "migrated").exists():
            self._run([sys.executable, "manage.py", "migrate", "-v0"])
            (self.home / "migrated").touch()

    def _run(self, command: list[str]) -> str:
        self.home.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> WebProcess:
        self.home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controlplane.web.serve"], cwd=ROOT, env=self.environ, stdout=log, stderr=log
            )
        end = time.monotonic() + LIMIT_S
        while self.get("/healthz")[0] != 200:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(LIMIT_S)
            self.process = None

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    @property
    def rss(self) -> int:
        """Resident memory [bytes]."""
        assert self.process is not None
        return psutil.Process(self.process.pid).memory_info().rss

    @property
    def cpu_s(self) -> float:
        assert self.process is not None
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system
