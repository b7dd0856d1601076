"""What each process of an instance takes of the processors, and the same taken by others that do nothing.

A batch slows people down in their engine and by what it takes of a machine that all processes share. Beside ``Burners``
only the second is left: what people notice of them is the machine's share.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from controlplane.embedded.child import die_with_parent, give_way
from controlplane.env import Env
from controlplane.experiments.instance import Instance

TASKS: Final = "tasks"  # the worker's processes of tasks
LEAST_SHARE: Final = 0.002  # of a processor: less is not burned
PERIOD_S: Final = 0.02
_BURN: Final = """
import sys, time
share, period = float(sys.argv[1]), float(sys.argv[2])
while True:
    began = time.process_time()
    until = time.monotonic() + period
    while time.process_time() - began < share * period:
        pass
    time.sleep(max(0.0, until - time.monotonic()))
"""


def children(pid: int) -> list[int]:
    """Of a process, as Linux tells them."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children") if pid > 0 else ():
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text(encoding="utf-8").split()]
    return found


Taken = dict[tuple[str, int], float]  # seconds of processor, by name and process


def taken(instance: Instance) -> Taken:
    """By all processes of the instance since each began."""
    found: Taken = {}
    for file in (instance.home / "run").glob("*.pid"):
        pid = instance.pid(file.stem)
        for name, one in ((file.stem, pid), *((TASKS, child) for child in children(pid) if file.stem == "worker")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                found[name, one] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return found


def between(before: Taken, after: Taken) -> dict[str, float]:
    """Seconds of processor by name. A process that began in between counts with all it took, one that ended with
    nothing."""
    by_name: dict[str, float] = {}
    for (name, pid), seconds in after.items():
        by_name[name] = by_name.get(name, 0.0) + seconds - before.get((name, pid), 0.0)
    return by_name


def _begin(nice: int) -> None:
    die_with_parent()
    give_way(nice)


@contextlib.contextmanager
def burners(shares: Mapping[str, float]) -> Iterator[None]:
    """A process for each of these, which takes its share of a processor; that of tasks gives way as they do."""
    started = [
        subprocess.Popen(  # noqa: S603  # our own words
            [sys.executable, "-S", "-c", _BURN, str(min(1.0, share)), str(PERIOD_S)],
            preexec_fn=partial(_begin, Env().task_nice if name == TASKS else 0),
            start_new_session=True,  # as each process of an instance has one
        )
        for name, share in shares.items()
        if share >= LEAST_SHARE
    ]
    try:
        time.sleep(PERIOD_S)
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
