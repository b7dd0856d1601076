"""What runs before anything is installed: one setup at a time in a clone."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

SETUP = """
import sys
from pathlib import Path
from controlplane.embedded import bootstrap
bootstrap.ROOT = sys.argv[1]
bootstrap.make_venv = lambda: Path(sys.argv[1], "begun").touch()
bootstrap.main([])
"""


def test_two_setups_at_once_in_one_clone_go_one_after_the_other(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the first one, at work
        second = subprocess.Popen([sys.executable, "-c", SETUP, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        with second:
            assert "waiting" in second.stdout.readline()
            assert not (tmp_path / "begun").exists()
            fcntl.flock(folder, fcntl.LOCK_UN)
            assert second.wait(30) == 0
    finally:
        os.close(folder)
    assert (tmp_path / "begun").exists()
