"""The run on PostgreSQL collects only folders in which a test may use the database."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.database_tests import FOLDERS_WITHOUT, TESTS, in_a_folder_without, misplaced


def item(path: str, *, marked: bool = False, fixtures: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        path=TESTS / path,
        nodeid=f"tests/{path}::test",
        fixturenames=fixtures,
        get_closest_marker=lambda name: marked if name == "django_db" else None,
    )


@pytest.mark.parametrize("folder", FOLDERS_WITHOUT)
def test_a_folder_that_is_left_out_exists(folder: str) -> None:
    assert (TESTS / folder).is_dir()
    assert in_a_folder_without(TESTS / folder)


@pytest.mark.parametrize("uses", [{"marked": True}, {"fixtures": ("resp", "db")}, {"fixtures": ("transactional_db",)}])
def test_a_database_test_that_postgresql_would_miss_is_named(uses: dict[str, Any]) -> None:
    seen = [item("unit/gateway/test_a.py"), item("unit/gateway/test_b.py", **uses), item("unit/core/test_c.py", **uses)]
    assert misplaced(seen) == ["tests/unit/gateway/test_b.py::test"]


def test_folders_whose_name_only_begins_alike_are_collected() -> None:
    assert not in_a_folder_without(TESTS / "unit" / "gateways" / "test_a.py")
    assert not in_a_folder_without(Path("elsewhere"))
