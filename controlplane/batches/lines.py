"""The lines of an input file: read with bounds, and checked before any of them runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import IO, Any

import msgspec

from scheduling.gateway.bodies.explain import explained

MAX_PROBLEMS = 100  # of a file; then it is read no further
MAX_CUSTOM_ID = 512  # characters
BLANK = b" \t\r\n"
MARK = b"\xef\xbb\xbf"  # a byte order mark, as Windows' programs begin UTF-8 with


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None


_line = msgspec.json.Decoder(_Line).decode
_body = msgspec.json.Decoder(_Body).decode


@dataclass(slots=True)
class Line:
    """A request of a batch. ``number`` counts the file's lines, the first is 1."""

    number: int
    custom_id: str
    body: bytes
    model: str = ""
    tries: int = 0  # that ended with a fault which may pass
    runs: int = 0  # in this claim


@dataclass(slots=True)
class Checked:
    """What a file was found to be."""

    total: int = 0
    model: str = ""  # of its first line whose model the key may use
    problems: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: int | None, code: str, message: str, param: str | None = None) -> None:
        self.problems.append({"code": code, "line": line, "message": message, "param": param})


def numbered(file: IO[bytes], most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines that are not blank, with their numbers. One above ``most_bytes`` is None, and the last."""
    number = 0
    while data := file.readline(most_bytes + 1):
        number += 1
        if number == 1:
            data = data.removeprefix(MARK)
        if len(data) > most_bytes:
            yield number, None
            return
        if data.strip(BLANK):
            yield number, data


def check(file: IO[bytes], endpoint: str, models: Collection[str], most_lines: int, most_bytes: int) -> Checked:
    """Reads a whole file. ``models``: the names that the batch's key may use for its model."""
    checked, seen = Checked(), set[bytes]()
    for number, data in numbered(file, most_bytes):
        if len(checked.problems) >= MAX_PROBLEMS:
            break
        if data is None:
            checked.add(number, "line_too_long", f"This line is longer than {most_bytes} bytes.")
            break
        checked.total += 1
        if checked.total > most_lines:
            checked.add(number, "too_many_tasks", f"A batch has at most {most_lines} lines. Send several batches.")
            break
        _check_line(checked, number, data, endpoint, models, seen)
    if not checked.total and not checked.problems:
        checked.add(None, "empty_file", "The input file has no lines.")
    return checked


def _check_line(
    checked: Checked, number: int, data: bytes, endpoint: str, models: Collection[str], seen: set[bytes]
) -> None:
    try:
        line = _line(data)
    except msgspec.ValidationError as problem:
        checked.add(number, "invalid_json_line", *explained(str(problem), _Line))
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        checked.add(number, "invalid_json_line", f"This line is not valid JSON: {str(problem)[:200]}.")
        return
    if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID:
        checked.add(number, "invalid_custom_id", f"custom_id has 1 to {MAX_CUSTOM_ID} characters.", "custom_id")
        return
    digest = blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if digest in seen:
        checked.add(number, "duplicate_custom_id", "Another line has this custom_id.", "custom_id")
    seen.add(digest)
    if line.method != "POST":
        checked.add(number, "invalid_method", "method must be POST.", "method")
    if line.url != endpoint:
        checked.add(number, "mismatched_endpoint", f"url must be the batch's endpoint, {endpoint}.", "url")
    try:
        body = _body(line.body)
    except msgspec.ValidationError as problem:
        message, param = explained(str(problem), _Body)
        checked.add(number, "invalid_body", f"body: {message}", f"body.{param}" if param else "body")
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        checked.add(number, "invalid_body", f"body is not valid JSON: {str(problem)[:200]}.", "body")
        return
    if body.model in models:
        checked.model = checked.model or body.model
    else:
        checked.add(number, "model_not_found", "This model does not exist or the batch's key cannot use it.", "model")
    if body.stream:
        checked.add(number, "invalid_body", "A line of a batch is not streamed: leave out stream.", "body.stream")


def read(file: IO[bytes], most_bytes: int, without: Collection[int] = ()) -> Iterator[Line]:
    """The requests of a file that was checked, but for those of some lines."""
    for number, data in numbered(file, most_bytes):
        if data is None:
            return
        if number in without:
            continue
        line = _line(data)
        yield Line(number, line.custom_id, bytes(line.body), _body(line.body).model)
