"""``... gate FILE IMPORTS MODULE ARGUMENT...``: imports first, waits for a file, then runs a module.

Importing takes most of a start. Web, worker and standby do it while the database is being prepared, and go on when it
is.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import time
from pathlib import Path

WEB = "controlplane.asgi"
STANDBY = "controlplane.wiring"
WORKER = (
    "controlplane.celery,controlplane.wiring,telemetry.tasks,controlplane.lab.tasks,controlplane.tuning.tasks,controlplane.batches.tasks,celery.bin.celery,"
    "celery.apps.worker,celery.worker.components,celery.worker.consumer,celery.concurrency.prefork,kombu.transport.redis"
)
# What a study imports. In a process of tasks it may come late; in a thread it would hold up who leads pools.
LATE = "skopt"


def main() -> None:
    opened, imported, module, *arguments = sys.argv[1:]
    importlib.import_module("django").setup()
    for name in imported.split(","):
        importlib.import_module(name)
    parent = os.getppid()
    while not Path(opened).exists():
        if os.getppid() != parent:
            return
        time.sleep(0.02)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
