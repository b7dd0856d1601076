"""What the supervisor of `make up` does when a part cannot be started."""

from __future__ import annotations

import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from controlplane.embedded.child import Child
from controlplane.embedded.home import CannotStart, Home


def sleeper(tmp_path: Path) -> Child:
    for folder in ("logs", "run"):
        (tmp_path / folder).mkdir()
    return Child(
        "part",
        ["sleep", "60"],
        logs=tmp_path / "logs",
        run=tmp_path / "run",
        environ=dict(os.environ),
        cwd=tmp_path,
        stop_s=5,
    )


def test_a_part_runs_although_its_number_cannot_be_written(tmp_path: Path) -> None:
    child = sleeper(tmp_path)
    child.pid_file.mkdir()  # as on a full disk, where an opened log takes no more and a new file cannot be made
    try:
        assert child.start() is None
        assert child.running
    finally:
        child.pid_file.rmdir()
        child.wait_stopped(time.monotonic())


def test_a_part_that_cannot_be_started_now_is_tried_again_later(tmp_path: Path) -> None:
    child = sleeper(tmp_path)
    shutil.rmtree(tmp_path / "logs")
    try:
        first, second = child.start(), child.start()
        assert first == "part could not be started (No such file or directory); trying again in 0.3 s"
        assert second is not None
        assert second.endswith("in 0.6 s")
        assert not child.running
        (tmp_path / "logs").mkdir()
        assert child.start() is None
        assert child.running
    finally:
        child.wait_stopped(time.monotonic())


def test_a_home_is_locked_where_there_is_no_room_to_say_by_whom(tmp_path: Path) -> None:
    home = Home(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file may grow, as on a full disk
    try:
        home.acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(CannotStart, match="already runs"):
        Home(tmp_path).acquire()
    home.release()
