"""The page of promises: each of the forty once, and every test, variant and mutation that it names is there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.mutations.catalog import MUTATIONS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "promises.md").read_text()
COUNT, COLUMNS = 40, 5
ROW = re.compile(r"^\| (\d+) \|.*\|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[^`:]+\.py)(?:::([^`\[]+)(?:\[([^`]+)\])?)?`")
MUTATION = re.compile(r"mutation `([^`]+)`")
NO_TEST = re.compile(r"\b(not built|no test)\b", re.IGNORECASE)


@cache
def defined(path: str) -> set[str]:
    """The functions of a file, those of a class as ``Class::name``."""

    def of(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name
            elif isinstance(node, ast.ClassDef):
                yield from of(node.body, f"{prefix}{node.name}::")

    return set(of(ast.parse((ROOT / path).read_text()).body))


@cache
def texts(path: str) -> str:
    """A file of tests and what it imports of the tests' own modules, where tables of its cases may stand."""
    text = (ROOT / path).read_text()
    imported = [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
    files = (ROOT / f"{name.replace('.', '/')}.py" for name in imported if name.startswith("tests."))
    return text + "".join(file.read_text() for file in files if file.is_file())


def faults(page: str) -> Iterator[str]:
    """All that is wrong with a page, in words."""
    numbers = Counter(int(number) for number in ROW.findall(page))
    for number in sorted(numbers.keys() | set(range(1, COUNT + 1))):
        if numbers[number] != (number in range(1, COUNT + 1)):
            yield f"promise {number} stands there {numbers[number]} times"
    for row in ROW.finditer(page):
        cells = [cell.strip() for cell in row[0].strip("|").split(" | ")]
        if len(cells) != COLUMNS or not all(cells):
            yield f"promise {row[1]} has not all columns"
        elif not any(name for _, name, _ in NAMED.findall(cells[2])) and not NO_TEST.search(cells[2]):
            yield f"promise {row[1]} has no test and does not say so"
    for path, name, variant in NAMED.findall(page):
        if not (ROOT / path).is_file():
            yield f"{path} is not there"
        elif name and name not in defined(path):
            yield f"{path} has no {name}"
        elif variant and f'"{variant}"' not in texts(path):
            yield f"{path} has no variant {variant!r}"
    for name in set(MUTATION.findall(page)) - {mutation.name for mutation in MUTATIONS}:
        yield f"there is no mutation {name}"


def test_each_promise_stands_once_and_names_what_is_there() -> None:
    assert list(faults(PAGE)) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (r"\n\| 7 \|.*", r"", "promise 7 stands there 0 times"),
        (r"\n\| 8 \|.*", r"\g<0>\g<0>", "promise 8 stands there 2 times"),
        (r"\n\| 9 \|", r"\n| 41 |", "promise 41 stands there 1 times"),
        (r"(\n\| 24 \|[^|]*\|)[^|]*", r"\1 - ", "promise 24 has no test and does not say so"),
        (r"(\n\| 24 \|[^|]*\|)[^|]*\|", r"\1", "promise 24 has not all columns"),
        (r"test_exact_limits\.py", r"test_inexact_limits.py", "tests/integration/test_inexact_limits.py is not there"),
        (r"::test_streams_cost", r"::test_streams_take", "test_streams_take_neither_threads"),
        (r"\[silent end\]", r"[loud end]", "has no variant 'loud end'"),
        (r"mutation `one-salt`", r"mutation `no-salt`", "there is no mutation no-salt"),
    ],
    ids=["missing", "doubled", "41", "no test", "no column", "no file", "no function", "no variant", "no mutation"],
)
def test_a_page_that_is_wrong_is_told_what_is(old: str, new: str, told: str) -> None:
    changed = re.sub(old, new, PAGE, count=1)
    assert changed != PAGE
    assert any(told in fault for fault in faults(changed)), list(faults(changed))


def rows(page: str) -> dict[int, str]:
    return {int(row[1]): row[0] for row in ROW.finditer(page)}


def apart(page: str) -> Iterator[str]:
    """Where the page and the broken variants' own list differ, in words."""
    by_number = rows(page)
    for mutation in MUTATIONS:
        for number in re.findall(r"\(promise (\d+)\)", mutation.what):
            if mutation.name not in MUTATION.findall(by_number[int(number)]):
                yield f"promise {number} does not name the mutation {mutation.name} that is made for it"
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    for number, row in by_number.items():
        for name in MUTATION.findall(row):
            files = {test.partition("::")[0] for test in by_name[name].tests}
            if not files & {path for path, _, _ in NAMED.findall(row)}:
                yield f"promise {number} names no test that is to notice the mutation {name}"


def test_a_broken_variant_stands_with_its_promise_and_is_noticed_by_a_test_that_stands_there_too() -> None:
    assert list(apart(PAGE)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (r"mutation `head-without-end`", r"", "does not name the mutation head-without-end"),
        (
            r"tests/integration/test_hostile_bodies\.py",
            r"tests/integration/test_up.py",
            "the mutation parts-without-end",
        ),
    ],
    ids=["no mutation", "no test"],
)
def test_a_row_that_differs_from_its_variants_is_named(old: str, new: str, fault: str) -> None:
    changed = re.sub(old, new, PAGE)
    assert changed != PAGE
    assert any(fault in line for line in apart(changed)), list(apart(changed))


def test_the_page_counts_how_many_are_kept() -> None:
    rows = [found.group(0) for found in ROW.finditer(PAGE)]
    partly = sum("Partly" in row for row in rows)
    assert f"{len(rows) - partly} of {len(rows)} are shown as they are written, {partly} partly:" in PAGE
