"""Traces: every published format becomes the same list, and a bad line is named."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from scheduling.simulator.trace import TraceError, TraceRequest, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:01.2224550,879,55
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}
{"timestamp": 3000, "input_length": 12, "output_length": 3, "hash_ids": [0]}
"""


def write(tmp_path: Path, text: str, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_azure_times_count_from_the_first_request_with_all_their_digits(tmp_path: Path) -> None:
    requests = read_trace(write(tmp_path, AZURE))
    assert requests[0] == TraceRequest(0.0, 374, 44)
    assert requests[1].arrival_s == pytest.approx(4.314579, abs=1e-6)
    assert [r.output_tokens for r in requests] == [44, 109, 55]


def test_azures_stamps_of_2024_have_an_offset_and_no_digits_on_a_whole_second(tmp_path: Path) -> None:
    header, rows = AZURE.splitlines()[0], ["2024-05-10 00:00:00.500000+00:00,9,5", "2024-05-10 00:00:02+00:00,8,4"]
    requests = read_trace(write(tmp_path, "\n".join([header, *rows]) + "\n"))
    assert requests == [TraceRequest(0.0, 9, 5), TraceRequest(1.5, 8, 4)]


def test_a_trace_is_as_long_where_the_clocks_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, rows = AZURE.splitlines()[0], ["2024-03-31 01:30:00.0,9,5", "2024-03-31 03:30:00.0,8,4"]
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        requests = read_trace(write(tmp_path, "\n".join([header, *rows]) + "\n"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert requests[1].arrival_s == 7200.0


def test_mooncake_arrivals_that_share_a_stamp_are_spread_over_its_three_seconds(tmp_path: Path) -> None:
    requests = read_trace(write(tmp_path, MOONCAKE))
    assert [(r.arrival_s, r.input_tokens) for r in requests] == [(0.0, 6758), (1.5, 7322), (3.0, 12)]


def test_a_gz_file_reads_like_the_plain_one(tmp_path: Path) -> None:
    zipped = tmp_path / "trace.csv.gz"
    zipped.write_bytes(gzip.compress(AZURE.encode()))
    assert read_trace(zipped) == read_trace(write(tmp_path, AZURE))


def test_limit_and_duration_cut_from_the_start(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    assert len(read_trace(path, limit=2)) == 2
    assert len(read_trace(path, until_s=5.0)) == 2


def test_out_of_order_rows_are_put_in_order(tmp_path: Path) -> None:
    header, *rows = AZURE.splitlines()
    shuffled = "\n".join([header, rows[2], rows[0], rows[1]]) + "\n"
    assert read_trace(write(tmp_path, shuffled, "b")) == read_trace(write(tmp_path, AZURE, "a"))


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        (AZURE + "2023-11-16 18:16:05.0,abc,5\n", 5, "ContextTokens 'abc'"),
        (AZURE + "yesterday,1,5\n", 5, "TIMESTAMP 'yesterday'"),
        (AZURE + "2023-11-16 18:16:05.0,1\n", 5, "three columns"),
        (AZURE + "2023-11-16 18:16:05.0,1,-5\n", 5, "negative"),
        (MOONCAKE + "{broken\n", 4, "not a JSON object"),
        (MOONCAKE + '{"timestamp": 5, "input_length": 3}\n', 4, "output_length missing"),
        (MOONCAKE + '{"timestamp": "x", "input_length": 3, "output_length": 1}\n', 4, "timestamp"),
        (MOONCAKE + '{"timestamp": NaN, "input_length": 3, "output_length": 1}\n', 4, "timestamp"),
        (MOONCAKE + '{"timestamp": 5, "input_length": 1e3, "output_length": 1}\n', 4, "whole number"),
        (MOONCAKE + '{"timestamp": 5, "input_length": 99999999999, "output_length": 1}\n', 4, "more than"),
        ("a,b,c\n1,2,3\n", 1, "Azure header"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", 1, "no request"),
    ],
)
def test_a_bad_line_is_an_error_with_its_number(tmp_path: Path, text: str, line: int, hint: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path, text))
    assert caught.value.line == line
    assert hint in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_truncated_gz_is_an_error_not_a_shorter_trace(tmp_path: Path) -> None:
    zipped = tmp_path / "cut.csv.gz"
    zipped.write_bytes(gzip.compress((AZURE * 200).encode())[:-20])
    with pytest.raises(TraceError):
        read_trace(zipped)
