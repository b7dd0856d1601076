"""CHANGELOG.md has versions that a reader and a tool can follow."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## \[([^\]]+)\](?: - (\S+))?$", TEXT, flags=re.MULTILINE)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_versions_are_numbered_dated_and_newest_first():
    names, dates = [name for name, _ in HEADINGS], [day for _, day in HEADINGS]
    assert (names[0], dates[0]) == ("Unreleased", ""), "new entries go under [Unreleased], at the top"
    versions = [number(name) for name in names[1:]]
    assert versions == sorted(set(versions), reverse=True)
    days = [date.fromisoformat(day) for day in dates[1:]]
    assert days == sorted(days, reverse=True)


def test_the_tree_is_on_its_way_to_the_version_after_the_newest():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    base, _, development = named.partition(".dev")
    newest = HEADINGS[1][0]
    assert number(base) > number(newest) if development else named == newest, (
        f"pyproject.toml has {named}, the changelog's newest version is {newest}"
    )


def test_each_version_has_each_kind_of_change_once():
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, flags=re.MULTILINE)
        assert len(kinds) == len(set(kinds)), section.splitlines()[0]
        assert set(kinds) <= KINDS, section.splitlines()[0]
