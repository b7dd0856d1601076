"""The report on disk: from the first moment on a whole JSON file, whatever ends the process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class ReportFile:
    """Writes beside the file and puts it in place at once. What is no plain file (a pipe) gets the last state only."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be written: a replay may take an hour, so that is said before."""
        self.path = path.resolve()
        self._plain = self.path.is_file() or not self.path.exists()
        if self.path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {self.path.parent}")
        if not os.access(self.path.parent if self._plain else self.path, os.W_OK):
            raise PermissionError(f"{path} cannot be written")

    def write(self, report: dict[str, Any], *, last: bool = False) -> None:
        """Raises OSError."""
        text = json.dumps(report, indent=1) + "\n"
        if self._plain:
            beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            beside.write_text(text, encoding="utf-8")
            beside.replace(self.path)
        elif last:
            self.path.write_text(text, encoding="utf-8")
