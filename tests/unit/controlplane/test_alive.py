"""The health check of worker and standby."""

from __future__ import annotations

import os
from pathlib import Path

from controlplane import alive


def test_it_is_alive_while_its_file_is_young(tmp_path: Path) -> None:
    (tmp_path / alive.NAME).touch()
    os.utime(tmp_path / alive.NAME, (1000, 1000))
    assert alive.main(tmp_path, 1000 + alive.LATE_S) == 0
    assert alive.main(tmp_path, 1001 + alive.LATE_S) == 1


def test_one_that_never_began_is_not(tmp_path: Path) -> None:
    assert alive.main(tmp_path, 1000) == 1
