"""An environment of its own, from a lock with hashes: what is in it never enters ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.embedded import bootstrap
from tests.support.instance import ROOT


def installed(name: str = "clients") -> Path:
    """The Python of ``.venv/NAME``, installed on first use from ``requirements-NAME.lock``. Skips where that cannot be
    done."""
    home, lock = ROOT / ".venv" / name, ROOT / f"requirements-{name}.lock"
    python = home / "bin" / "python"
    record, digest = home / "lock.sha256", hashlib.sha256(lock.read_bytes()).hexdigest()
    if record.exists() and record.read_text() == digest:
        return python
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    done = subprocess.run(
        [ROOT / ".venv/bin/uv", "pip", "install", "-q", "--python", python, "--require-hashes", "-r", lock],
        env=bootstrap.package_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        pytest.skip(f"{name} cannot be installed here: {done.stderr.strip()[-300:]}")
    record.write_text(digest)
    return python
