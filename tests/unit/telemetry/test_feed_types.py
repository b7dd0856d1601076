"""What the live feed sends is what the console's types of it say (``frontend/src/feed/types.ts``), which are kept by
hand: every member by name, and its value by type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from telemetry.feed import history, snapshots
from telemetry.feed.window import WINDOW_S, Window
from tests.support.telemetry_world import ENTITLEMENTS, NOW, record, refused, sample

TYPES = Path(__file__).parents[3] / "frontend" / "src" / "feed" / "types.ts"
Shape = dict[str, str]  # member -> its type, as written


def members(body: str) -> Shape:
    """Of an interface or an inline object; inner objects stay text."""
    inner: list[str] = []

    def put_aside(match: re.Match[str]) -> str:
        inner.append(match[0])
        return f"@{len(inner) - 1}"

    body = re.sub(r"/\*.*?\*/|//[^\n]*", "", body, flags=re.S)
    flat = re.sub(r"\{[^{}]*\}", put_aside, body)
    found = re.findall(r"(\w+)\??:\s*([^;]+?)\s*(?:;|$)", flat)
    return {name: re.sub(r"@(\d+)", lambda m: inner[int(m[1])], of) for name, of in found}


def interfaces() -> dict[str, Shape]:
    """Those of the file by name, with what they extend."""
    source = TYPES.read_text(encoding="utf-8")
    shapes: dict[str, Shape] = {}
    for name, bases, body in re.findall(
        r"^export interface (\w+)(?: extends (.+?))? \{\n(.*?)^\}", source, re.M | re.S
    ):
        shapes[name] = {}
        for base, left_out in re.findall(r'(?:Omit<)?(\w+)(?:, "(\w+)">)?', bases):
            shapes[name] |= {member: of for member, of in shapes[base].items() if member != left_out}
        shapes[name] |= members(body)
    return shapes


def is_a(value: Any, of: str) -> bool:
    """Whether a plain value is of a plain type of TypeScript: number, string, boolean, or texts to choose from."""
    literals = re.findall(r'"([^"]*)"', of)
    if literals:
        return value in literals
    kinds: dict[str, type[Any] | tuple[type[Any], ...]] = {"number": (int, float), "string": str, "boolean": bool}
    return of in kinds and isinstance(value, kinds[of]) and (isinstance(value, bool) == (of == "boolean"))


def unknown(value: Any, of: str, shapes: dict[str, Shape], path: str = "") -> list[str]:
    """The members of a value that its type does not have, or has as something else, by path."""
    of = "Record<string, number>" if of == "Counts" else of
    if (row := re.fullmatch(r"Record<string, (.+)>", of)) is not None:
        return [fault for item in value.values() for fault in unknown(item, row[1], shapes, f"{path}[]")]
    if not isinstance(value, dict):
        return [] if is_a(value, of) else [f"{path}: {value!r} is no {of}"]
    if of in ("number", "string", "boolean"):
        return [f"{path}: an object is no {of}"]
    shape: Shape = {}
    for part in of.split(" & "):
        shape |= shapes[part] if part in shapes else members(part.strip("{} "))
    found = [f"{path}.{name}" for name in value if name not in shape]
    for name in value.keys() & shape.keys():
        found += unknown(value[name], shape[name], shapes, f"{path}.{name}")
    return found


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    window = Window()
    window.expire(NOW - WINDOW_S)  # it was watched for its whole length
    for one in (record(1), record(2, slo_met=False), refused(3)):
        window.add([one], NOW)
    return dict(snapshots.snapshot(sample(), window, ENTITLEMENTS, 1))


def test_the_console_knows_every_member_of_a_snapshot_and_of_its_points(snapshot: dict[str, Any]) -> None:
    shapes = interfaces()
    assert unknown(snapshot, "Snapshot", shapes) == []
    assert unknown(history.point(snapshot), "Point", shapes) == []


@pytest.mark.parametrize("member", ["oldest_s", "attainment", "served_per_s", "window_s"])
def test_a_member_that_the_console_does_not_know_is_found(member: str, snapshot: dict[str, Any]) -> None:
    shapes = interfaces()
    lacking = {
        name: {m: re.sub(rf"\b{member}\b", "other", of) for m, of in shape.items() if m != member}
        for name, shape in shapes.items()
    }
    assert any(path.endswith(f".{member}") for path in unknown(snapshot, "Snapshot", lacking))


@pytest.mark.parametrize(
    ("member", "of", "other"),
    [
        ("oldest_s", "number", "string"),
        ("policy", "string", "number"),
        ("kv_usage", "number", "boolean"),
        ("scope", '"all" | "own"', '"mine"'),
        ("refusals", "Counts", "number"),
        ("queue_ms", "Percentiles", "number"),
    ],
)
def test_a_member_of_another_type_is_found(member: str, of: str, other: str, snapshot: dict[str, Any]) -> None:
    pattern = rf"\b{member}\?: {re.escape(of)}"
    wrong = interfaces()
    for shape in wrong.values():
        for name, was in shape.items():
            shape[name] = other if (name, was) == (member, of) else re.sub(pattern, f"{member}?: {other}", was)
    assert any(f".{member}" in path for path in unknown(snapshot, "Snapshot", wrong))
