"""The tree that was released last, to be upgraded from and rolled back to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.instance import ROOT, Up

# Where no tag is in the clone: the last commit whose entries in shared state say no format.
COMMIT = "312898d9e05eea2dda0f34e6c47bafe8707398ee"
BEFORE_SLEEP = "8c2dbd90d5e48fddec6a098a7a4c46773170b67f"  # before pools could sleep: a few migrations ago
TWELVE_WORDS = "25a2bbb722323b7d8c850f5af6fc7637ce4ac39d"  # the last commit with entries of format 1


def older_tree(to: Path, revision: str = "") -> Path:
    """Writes the tree of a revision to a folder: empty: the last tag, else :data:`COMMIT`. Skips the test where the
    clone does not have it."""
    tag = _git("describe", "--tags", "--abbrev=0", "HEAD^")
    if not revision:
        revision = tag if tag and _git("merge-base", "--is-ancestor", COMMIT, tag) is not None else COMMIT
    if _git("cat-file", "-e", f"{revision}^{{commit}}") is None:
        pytest.skip(f"{revision} is not in this clone")
    to.mkdir()
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(to)], input=archive.stdout, check=True)
    if (ROOT / "frontend" / "dist").is_dir():
        (to / "frontend" / "dist").symlink_to(ROOT / "frontend" / "dist")
    return to


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class UpOf(Up):
    """An instance of a tree, with the present environment, on a HOME that others may have used."""

    begins_empty = True  # its migrations are not ours

    def __init__(self, tree: Path, home: Path, **settings: str) -> None:
        super().__init__(home, **settings)
        self.root = tree
