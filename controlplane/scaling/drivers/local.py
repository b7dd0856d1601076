"""Engines as processes on the machine of ``make up``.

The driver only writes down which replicas there should be, one file each in ``HOME/replicas``; the supervisor starts,
restarts and ends the processes (:mod:`controlplane.embedded.replicas`), with a command that is its own or that of
``QUARTERMASTER_REPLICA_COMMAND``: nobody with access to the catalog alone can have a command run.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from controlplane.embedded.home import write_private
from controlplane.embedded.replicas import FOLDER, SUPPORT
from controlplane.scaling.drivers import DriverError, Order, Replica, driver
from scheduling.core.types import PoolSpec


@driver("local")
class LocalDriver:
    """Replicas of one pool on this machine."""

    def __init__(self, pool: PoolSpec, home: Path | None = None) -> None:
        self._pool = pool
        self._home = (home or settings.ENV.home).absolute()
        self._folder = self._home / FOLDER

    def replicas(self) -> Sequence[Replica]:
        replicas = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                paper = json.loads(path.read_text())
                if paper["pool"] == self._pool.id:
                    replicas.append(Replica(path.stem, f"http://127.0.0.1:{int(paper['port'])}"))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # being written, or not ours
        return replicas

    def in_turn(self, names: Sequence[str]) -> None:
        return None

    def grow(self, order: Order) -> None:
        if not (self._home / "run" / SUPPORT).exists():
            raise DriverError(
                "the driver 'local' needs the supervisor of `make up` on the worker's machine; choose another driver"
            )
        self._folder.mkdir(mode=0o700, exist_ok=True)
        taken = {replica.name for replica in self.replicas()}
        index = 1
        while len(taken) < order.replicas:
            name = f"{self._pool.id[:50]}-r{index}"
            if name not in taken and not (self._folder / f"{name}.json").exists():
                paper = {"pool": self._pool.id, "port": _free_port(), "index": index}
                write_private(self._folder / f"{name}.json", paper)
                taken.add(name)
            index += 1

    def shrink(self, order: Order) -> None:
        for replica in order.remove:
            (self._folder / f"{replica.name}.json").unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
