"""Recorded arrivals and lengths, read from the formats people publish.

One trace is a list of :class:`TraceRequest` in order of arrival, times in seconds from the first. Formats are told
apart by their first line, not by the file's name; gz is opened as it is:

* **Azure LLM inference 2023/2024** CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``;
* **Mooncake** JSONL: ``{"timestamp": ms, "input_length", "output_length", "hash_ids"}``. Its stamps come in steps of
  3,000 ms, so arrivals that share a stamp are spread evenly up to the next one (``spread``);
* **recordings** of a pool (:mod:`scheduling.simulator.recording`): what an engine ran of them.

ServeGen publishes distributions instead of requests: :mod:`scheduling.simulator.servegen`.

A line that cannot be read is an error with the file's name and the line's number: a trace with holes is another trace.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from scheduling.simulator.recording import Recording, RecordingError, is_recording, read_recording
from scheduling.simulator.workload import Tier


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request."""

    arrival_s: float  # from the trace's first request
    input_tokens: int
    output_tokens: int
    tenant: str = ""  # where the recording says who asked
    tier: str = ""  # where it says under which contract
    blocks: tuple[int, ...] = ()  # where it says which blocks the prompt consists of (Mooncake)


class TraceError(ValueError):
    """A trace that cannot be read: says which file, which line, and what was expected there."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path}, line {line}: {problem}")
        self.path, self.line, self.problem = path, line, problem


Row = tuple[float, int, int, tuple[int, ...]]
MAX_LINE = 1024 * 1024  # characters
MAX_TOKENS = 10_000_000  # more than any model takes
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


def read_trace(
    path: Path | str, *, limit: int | None = None, until_s: float | None = None, most_bytes: int | None = None
) -> list[TraceRequest]:
    """Reads a trace file.

    :param limit: at most this many requests; ``until_s``: only those that arrived earlier than this after the first.
    :param most_bytes: of the file as text, unpacked: a file that holds more is an error.
    :raises TraceError: unreadable line, unknown format, empty file.
    :raises OSError: no such file.
    """
    path = Path(path)
    rows: list[Row] = []
    with open_text(path, most_bytes) as stream:
        first = _first_line(path, stream)
        if is_recording(first):
            return _recorded(path, first, stream, limit, until_s)
        reader, spread_s = _format_of(path, first)
        for row in reader(path, first, stream):
            rows.append(row)
            # Arrivals may stand slightly out of order, so a little more is read than is wanted.
            if limit is not None and len(rows) >= 2 * limit + 1000:
                break
    if not rows:
        raise TraceError(path, 1, "the file holds no request")
    rows.sort(key=lambda row: row[0])
    start = rows[0][0]
    requests = [TraceRequest(at - start, given, out, blocks=blocks) for at, given, out, blocks in rows]
    if spread_s:
        requests = spread(requests, spread_s)
    if until_s is not None:
        requests = [request for request in requests if request.arrival_s < until_s]
    return requests[:limit]


def read_tiers(path: Path | str, *, most_bytes: int | None = None) -> tuple[Tier, ...]:
    """The contracts a recording was made under; none for other formats. Raises TraceError and OSError."""
    path = Path(path)
    with open_text(path, most_bytes) as stream:
        first = _first_line(path, stream)
        return _recording(path, first, stream).tiers if is_recording(first) else ()


def _recording(path: Path, first: str, stream: io.TextIOBase) -> Recording:
    try:
        return read_recording(path, chain([(1, first)], _lines(path, stream, 1)))
    except RecordingError as problem:
        raise TraceError(path, problem.line, problem.problem) from problem


def _recorded(
    path: Path, first: str, stream: io.TextIOBase, limit: int | None, until_s: float | None
) -> list[TraceRequest]:
    rows = [row for row in _recording(path, first, stream).rows if row.ran]
    if not rows:
        raise TraceError(path, 2, "no request of the recording ran")
    start = rows[0].arrival_s
    requests = [
        TraceRequest(row.arrival_s - start, row.input_tokens, row.output_tokens, row.tenant, row.tier) for row in rows
    ]
    return [request for request in requests if until_s is None or request.arrival_s < until_s][:limit]


def spread(requests: list[TraceRequest], step_s: float) -> list[TraceRequest]:
    """Spreads requests that share one stamp evenly over ``step_s`` [s], keeping their order."""
    result: list[TraceRequest] = []
    index = 0
    while index < len(requests):
        stamp = requests[index].arrival_s
        group = index
        while group < len(requests) and requests[group].arrival_s == stamp:
            group += 1
        size = group - index
        result.extend(
            replace(requests[index + place], arrival_s=stamp + step_s * place / size) for place in range(size)
        )
        index = group
    return result


class _Capped(io.RawIOBase):
    """Reads another stream, and raises TraceError after so many bytes: a gz of 400 KB may hold 400 MB."""

    def __init__(self, path: Path, inner: IO[bytes], most_bytes: int) -> None:
        self._path, self._inner, self._left, self._most = path, inner, most_bytes, most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._inner.read(min(len(into), self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise TraceError(self._path, 1, f"it holds more than {self._most // 1024 // 1024} MiB, unpacked")
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_text(path: Path, most_bytes: int | None = None) -> io.TextIOBase:
    """A file to read as text, unpacked where it is gz. Raises OSError when there is none; reading raises TraceError
    after ``most_bytes`` of what it holds."""
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    inner = cast("IO[bytes]", (gzip.open if zipped else open)(path, "rb"))
    capped = inner if most_bytes is None else io.BufferedReader(_Capped(path, inner, most_bytes))
    return io.TextIOWrapper(cast("BinaryIO", capped), encoding="utf-8", newline="")


def _first_line(path: Path, stream: io.TextIOBase) -> str:
    try:
        return _bounded(path, 1, stream.readline(MAX_LINE + 1))
    except (OSError, EOFError, UnicodeDecodeError) as problem:
        raise TraceError(path, 1, f"not a text or gz file ({problem})") from problem


def _bounded(path: Path, number: int, line: str) -> str:
    if len(line) > MAX_LINE:
        raise TraceError(path, number, f"the line is longer than {MAX_LINE:,} characters")
    return line


def _format_of(path: Path, first: str) -> tuple[Callable[[Path, str, io.TextIOBase], Iterator[Row]], float]:
    columns = [column.strip().lower() for column in first.split(",")]
    if columns[:3] == ["timestamp", "contexttokens", "generatedtokens"]:
        return _azure, 0.0
    if first.lstrip().startswith("{"):
        return _mooncake, 3.0
    raise TraceError(
        path, 1, "expected the Azure header 'TIMESTAMP,ContextTokens,GeneratedTokens' or a Mooncake JSON object"
    )


def _lines(path: Path, stream: io.TextIOBase, start: int) -> Iterator[tuple[int, str]]:
    number = start
    try:
        while line := stream.readline(MAX_LINE + 1):
            number += 1
            if _bounded(path, number, line).strip():
                yield number, line
    except (OSError, EOFError, UnicodeDecodeError) as problem:
        raise TraceError(path, number + 1, f"the file ends in the middle or is damaged ({problem})") from problem


def _azure(path: Path, _first: str, stream: io.TextIOBase) -> Iterator[Row]:
    for number, line in _lines(path, stream, 1):
        cells = next(csv.reader([line]))
        if len(cells) < 3:
            raise TraceError(path, number, f"expected three columns, found {len(cells)}")
        try:
            at = _epoch_s(cells[0].strip())
        except ValueError as problem:
            raise TraceError(path, number, f"TIMESTAMP {cells[0]!r} is not a date and time") from problem
        given = _tokens(path, number, "ContextTokens", cells[1])
        yield at, given, _tokens(path, number, "GeneratedTokens", cells[2]), ()


def _epoch_s(stamp: str) -> float:
    """Azure's stamps: seven digits of a second in 2023, an offset from UTC (or none) in 2024; none means UTC."""
    matched = _STAMP.fullmatch(stamp)
    if matched is None:
        raise ValueError(stamp)
    whole, fraction, offset = matched.groups()
    return datetime.fromisoformat(whole + (offset or "+00:00")).timestamp() + float(f"0{fraction or ''}")


def _mooncake(path: Path, first: str, stream: io.TextIOBase) -> Iterator[Row]:
    def rows() -> Iterator[tuple[int, str]]:
        yield 1, first
        yield from _lines(path, stream, 1)

    for number, line in rows():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise TraceError(path, number, f"not a JSON object ({problem})") from problem
        if not isinstance(entry, dict):
            raise TraceError(path, number, "not a JSON object")
        missing = [name for name in ("timestamp", "input_length", "output_length") if name not in entry]
        if missing:
            raise TraceError(path, number, f"{', '.join(missing)} missing")
        stamp = entry["timestamp"]
        if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not math.isfinite(stamp):
            raise TraceError(path, number, f"timestamp {stamp!r} is not a number of milliseconds")
        yield (
            stamp / 1000.0,
            _tokens(path, number, "input_length", entry["input_length"]),
            _tokens(path, number, "output_length", entry["output_length"]),
            _blocks(path, number, entry.get("hash_ids", [])),
        )


def _blocks(path: Path, number: int, ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise TraceError(path, number, "hash_ids is not a list of whole numbers")
    return tuple(ids)


def _tokens(path: Path, number: int, column: str, value: object) -> int:
    try:
        tokens = int(str(value))
    except ValueError as problem:
        raise TraceError(path, number, f"{column} {value!r} is not a whole number of tokens") from problem
    if tokens < 0:
        raise TraceError(path, number, f"{column} is negative ({tokens})")
    if tokens > MAX_TOKENS:
        raise TraceError(path, number, f"{column} is more than {MAX_TOKENS:,} ({tokens})")
    return tokens
