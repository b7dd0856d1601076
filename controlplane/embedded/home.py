"""The directory of one instance: which process runs on it, where its parts are, which ports it had last."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import IO, Any

MAX_SOCKET_PATH = 100  # the kernel's limit is 108 bytes, on macOS 104
PORTS = "ports.json"


class CannotStart(Exception):
    """The instance cannot start. The message says what is in the way and what to do."""


class Home:
    """``QUARTERMASTER_HOME`` of an embedded instance, locked while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run = self.path / "run"
        self.logs = self.path / "logs"
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Makes the directories and locks them for this process.

        Raises:
            CannotStart: another instance runs on this HOME, or it cannot be written.
        """
        try:
            for folder in (self.path, self.run, self.logs, self.path / "redis"):
                folder.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            lock = (self.run / "lock").open("a+")
        except OSError as error:
            raise CannotStart(
                f"{self.path} cannot be written ({error.strerror}). Set QUARTERMASTER_HOME to a directory that can be."
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise CannotStart(
                f"An instance already runs on {self.path} (process {lock.read().strip() or 'unknown'}). "
                "End it with Ctrl-C where it runs, or start a second one with its own "
                "QUARTERMASTER_HOME and QUARTERMASTER_PORT."
            ) from None
        self._lock = lock  # whether or not there is room for the number
        with contextlib.suppress(OSError):
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()

    def release(self) -> None:
        """Removes what described the running instance and unlocks. Its data stays."""
        for name in ("redis-url", "engines.json", "prepared", "replicas-supported"):
            (self.run / name).unlink(missing_ok=True)
        for pid in self.run.glob("*.pid"):
            pid.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def redis_socket(self) -> Path:
        """Where the embedded Redis listens: in HOME, or, where that path is too long for a socket, in a private
        directory under the system's temporary one."""
        path = self.path / "redis.sock"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"qm-{os.getuid()}-{digest}"
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o077 or folder.is_symlink():
            raise CannotStart(f"{folder} belongs to someone else. Set QUARTERMASTER_HOME to a shorter path.")
        return folder / "redis.sock"

    def has_port(self, name: str) -> bool:
        """Whether an earlier start chose a port for it."""
        return name in self._stored_ports()

    def _stored_ports(self) -> dict[str, int]:
        file = self.path / PORTS
        return {k: int(v) for k, v in json.loads(file.read_text()).items()} if file.exists() else {}

    def ports(self, names: list[str]) -> dict[str, int]:
        """A free loopback port for each name; the one it had last time where that is still free."""
        stored = self._stored_ports()
        chosen: dict[str, int] = {}
        listeners = []
        for name in names:
            for wanted in (stored.get(name, 0), 0):
                listener = socket.socket()
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listener.bind(("127.0.0.1", wanted))
                except OSError:
                    listener.close()
                    continue
                listeners.append(listener)  # kept until all are chosen, so that no two get the same
                chosen[name] = listener.getsockname()[1]
                break
        for listener in listeners:
            listener.close()
        write_private(self.path / PORTS, stored | chosen)
        return chosen


def write_private(path: Path, content: Any) -> None:
    """Writes JSON that only the owner may read, all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    draft.replace(path)


def require_free(host: str, port: int) -> None:
    """Raises:
    CannotStart: something else listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise CannotStart(
                f"Port {port} on {host} cannot be used ({error.strerror}). "
                f"Choose another: QUARTERMASTER_PORT={port + 1} make up"
            ) from None
