"""A process of tasks that was forked with a lock that nobody releases ends at once, and not with its first task."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from controlplane.celery import end_unless
from controlplane.embedded.child import AUTOGROUP
from controlplane.garbage_collection import YOUNG_OBJECTS


def forked(ask: Callable[[], object]) -> int:
    """How a fork that asks first ends: its exit code, or minus a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            end_unless(ask, 0.2)
            os._exit(7)
        finally:  # whatever is raised, never a second pytest on the first one's pipes
            os._exit(8)
    end = time.monotonic() + 60
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(done[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # other threads of this process
@pytest.mark.parametrize(("held", "ends"), [(True, -signal.SIGALRM), (False, 7)], ids=["held", "free"])
def test_a_forked_process_ends_where_the_lock_it_inherited_is_held(held: bool, ends: int) -> None:
    lock = threading.Lock()
    if held:
        lock.acquire()
    assert forked(lock.acquire) == ends


def priorities(nice: int) -> list[str]:
    """A process' nice, whether it leads its session, and what its session's group has, once it has given way."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os\n"
            "from controlplane.embedded.child import AUTOGROUP, give_way\n"
            f"give_way({nice})\n"
            # Empty for a process of no session's group, as a container's first process and its children are.
            "group = AUTOGROUP.read_text(encoding='ascii').split()[-1:]\n"
            "print(os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0) == os.getpid(), *group)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.split()


def groups_have_a_nice() -> bool:
    """Whether this kernel groups processes by session and lets us say a group's nice: not in every sandbox."""
    echo = f"echo 1 > {AUTOGROUP} && cat {AUTOGROUP}"
    found = subprocess.run(["/bin/sh", "-c", echo], start_new_session=True, capture_output=True, text=True)
    return found.stdout.endswith(" nice 1\n")


def test_a_process_gives_way_to_those_of_other_sessions_too() -> None:
    if not groups_have_a_nice():
        pytest.skip("this kernel does not group processes by session")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities(10) == [str(min(19, before + 10)), "True", "10"]
    assert priorities(0)[:2] == [str(before), "False"]


def test_a_worker_looks_for_cycles_as_rarely_as_a_web_process_once_it_is_ready() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import gc, controlplane.celery\n"
            "from celery.signals import worker_ready\n"
            "before = gc.get_threshold()[0]\n"
            "worker_ready.send(sender=None)\n"
            "print(before, gc.get_threshold()[0], gc.get_freeze_count() > 0)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    before, after, frozen = found.stdout.split()
    assert int(before) < int(after) == YOUNG_OBJECTS  # before: 700, or what this Python begins with
    assert frozen == "True"
