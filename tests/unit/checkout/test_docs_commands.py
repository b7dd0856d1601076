"""Every command that a document names exists."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
COMMANDS = get_commands()
OURS = {name for name, app in COMMANDS.items() if not str(app).startswith("django.")}


def code(page: Path) -> list[str]:
    """Code spans, and the lines of code blocks."""
    text, found = page.read_text(encoding="utf-8"), []
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        found += block.splitlines()
    text = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found += [line.strip() for line in re.findall(r"^ {4}(\S.*)$", text, flags=re.MULTILINE)]
    return found + re.findall(r"`([^`\n]+)`", text)


def pages() -> list[pytest.param]:  # type: ignore[valid-type]
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]


@pytest.mark.parametrize("page", pages())
def test_make_targets_exist(page: Path):
    named = {target for line in code(page) for target in re.findall(r"(?:^|[ =])make ([a-z][a-z-]*)", line)}
    assert named <= TARGETS, named - TARGETS


@pytest.mark.parametrize("page", pages())
def test_management_commands_exist(page: Path):
    named = {name for line in code(page) for name in re.findall(r"manage\.py ([a-z_]+)", line)}
    assert named <= set(COMMANDS), named - set(COMMANDS)


@pytest.mark.parametrize("page", pages())
def test_modules_that_are_run_exist(page: Path):
    """`python -m NAME` of this repository: nothing is imported but the packages around it."""
    named = {name for line in code(page) for name in re.findall(r"python -m ([a-z_][\w.]*)", line)}
    ours = {name for name in named if (ROOT / name.split(".")[0]).is_dir()}
    assert not {name for name in ours if find_spec(name) is None}


@pytest.mark.parametrize("page", pages())
def test_options_of_own_commands_exist(page: Path):
    unknown = set()
    for line in code(page):
        for name, rest in re.findall(r"manage\.py ([a-z_]+)([^#|;]*)", line):
            if name not in OURS:
                continue
            known = options_of(name)
            unknown |= {
                f"{name} {option}" for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", rest) if option not in known
            }
    assert not unknown


@cache
def options_of(command: str) -> set[str]:
    return _options(load_command_class(COMMANDS[command], command).create_parser("manage.py", command))


def _options(parser) -> set[str]:
    """Those of a parser and of its sub-commands."""
    options = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        for sub in (action.choices or {}).values() if hasattr(action, "add_parser") else ():
            options |= _options(sub)
    return options
