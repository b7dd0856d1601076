"""A process of tasks that was forked with a lock that nobody releases ends at once, and not with its first task."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from controlplane.celery import end_unless


def forked(ask: Callable[[], object]) -> int:
    """How a fork that asks first ends: its exit code, or minus a signal."""
    pid = os.fork()
    if pid == 0:
        end_unless(ask, 0.2)
        os._exit(7)
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
