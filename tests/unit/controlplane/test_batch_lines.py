"""An input file is refused as a whole, with the line and the reason, before any of it runs."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from controlplane.batches import lines

CHAT = "/v1/chat/completions"


def line(n: int = 1, **changes: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
    return {"custom_id": f"r-{n}", "method": "POST", "url": CHAT, "body": body} | changes


def check(*rows: Any, most_lines: int = 10, most_bytes: int = 1000) -> lines.Checked:
    data = b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    return lines.check(io.BytesIO(data), CHAT, {"demo", "default"}, most_lines, most_bytes)


def test_lines_that_can_be_run_are_counted_and_blank_ones_are_not() -> None:
    found = check(line(1), b"", b"  ", line(2, body={"model": "default"}))
    assert (found.total, found.problems) == (2, [])
    assert found.model == "demo"


def test_a_byte_order_mark_before_the_first_line_is_no_part_of_it() -> None:
    data = b"\xef\xbb\xbf" + json.dumps(line(1)).encode() + b"\r\n" + json.dumps(line(2)).encode()
    assert lines.check(io.BytesIO(data), CHAT, {"demo"}, 10, 1000).problems == []
    assert [one.custom_id for one in lines.read(io.BytesIO(data), 1000)] == ["r-1", "r-2"]
    assert lines.check(io.BytesIO(b"\xef\xbb\xbf"), CHAT, {"demo"}, 10, 1000).problems[0]["code"] == "empty_file"
    found = check(line(1), b"\xef\xbb\xbf" + json.dumps(line(2)).encode())
    assert [(p["line"], p["code"]) for p in found.problems] == [(2, "invalid_json_line")]


@pytest.mark.parametrize(
    ("row", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[" * 900, "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        ([1], "invalid_json_line", None),
        ({"custom_id": "x"}, "invalid_json_line", "method"),
        (line(custom_id=""), "invalid_custom_id", "custom_id"),
        (line(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/completions"), "mismatched_endpoint", "url"),
        (line(body=3), "invalid_body", "body"),
        (line(body={"stream": False}), "invalid_body", "body.model"),
        (line(body={"model": "other"}), "model_not_found", "model"),
        (line(body={"model": "demo", "stream": True}), "invalid_body", "body.stream"),
        (line(body={"model": "demo", "x": "y" * 1000}), "line_too_long", None),
    ],
)
def test_a_line_that_cannot_be_run_is_named_with_its_reason(row: Any, code: str, param: str | None) -> None:
    found = check(line(7), row)
    assert [(p["line"], p["code"], p["param"]) for p in found.problems] == [(2, code, param)]


def test_a_custom_id_stands_once() -> None:
    found = check(line(1), line(2), line(1))
    assert [(p["line"], p["code"]) for p in found.problems] == [(3, "duplicate_custom_id")]


def test_what_is_said_of_a_file_is_bounded_and_so_is_what_is_read_of_it() -> None:
    assert [p["code"] for p in check(*(line(n) for n in range(12))).problems] == ["too_many_tasks"]
    assert len(check(*[b"{"] * 500, most_lines=1000).problems) == lines.MAX_PROBLEMS
    assert [p["code"] for p in check().problems] == ["empty_file"]


def test_lines_are_read_as_they_were_checked() -> None:
    data = b"\n" + json.dumps(line(3)).encode()
    [read] = lines.read(io.BytesIO(data), 1000)
    assert (read.number, read.custom_id, json.loads(read.body)["model"]) == (2, "r-3", "demo")


def test_lines_that_are_done_are_passed_over_and_keep_their_numbers() -> None:
    file = io.BytesIO(b"\n".join(json.dumps(line(n)).encode() for n in range(1, 5)))
    assert [(one.number, one.custom_id) for one in lines.read(file, 1000, without={1, 3})] == [(2, "r-2"), (4, "r-4")]
