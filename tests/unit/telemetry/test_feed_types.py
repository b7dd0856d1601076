"""What the live feed sends is in the console's types of it (``frontend/src/feed/types.ts``), which are kept by hand."""

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


def unknown(value: Any, of: str, shapes: dict[str, Shape], path: str = "") -> list[str]:
    """The members of a value that its type does not have, by path."""
    if (row := re.fullmatch(r"Record<string, (.+)>", of)) is not None:
        return [fault for item in value.values() for fault in unknown(item, row[1], shapes, f"{path}[]")]
    if not isinstance(value, dict) or of == "Counts":
        return []
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
        window.add(one, NOW)
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
