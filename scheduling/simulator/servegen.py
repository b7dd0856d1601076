"""Arrivals of many tenants at once, from ServeGen's published client statistics.

ServeGen publishes no requests but what describes them, in two files: for every client and window of 600 s the rate
and the family, shape and scale of its gaps (CSV ``client,window_start_s,rate_rps,cv_iat,dist,param1,param2``), and
for every client and longer windows the distributions of its lengths (JSON lines ``{"client", "window_start_s",
"input_tokens": {tokens: probability}, "output_tokens": ...}``). Requests are drawn from them: each client is a
renewal process whose gaps keep their family and shape while its rate follows the windows; a request's input and
output are drawn independently, from the latest window of its client that has begun (or its first one).

The rates are those of a whole service, hundreds per second, so they are scaled; every client's by the same factor.
"""

from __future__ import annotations

import csv
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random

from scheduling.simulator.kernel import rng
from scheduling.simulator.trace import TraceError, TraceRequest, open_text

COLUMNS = ["client", "window_start_s", "rate_rps", "cv_iat", "dist", "param1", "param2"]
WINDOW_S = 600.0
FAMILIES = {"Gamma": 0.05, "Weibull": 0.1}  # with the smallest shape that is drawn: below, one gap is the whole run


@dataclass(frozen=True, slots=True)
class Window:
    """One client in 600 s. ``shape`` is that of its gaps; their mean is what the rate says."""

    start_s: float
    rate: float  # requests/s
    family: str
    shape: float

    def gap(self, random: Random) -> float:
        """A gap whose mean is 1."""
        if self.family == "Gamma":
            return random.gammavariate(self.shape, 1.0 / self.shape)
        return random.weibullvariate(1.0, self.shape) / math.gamma(1.0 + 1.0 / self.shape)


@dataclass(frozen=True, slots=True)
class Pdf:
    """Token counts with their cumulated probabilities."""

    tokens: tuple[int, ...]
    cumulated: tuple[float, ...]

    def draw(self, random: Random) -> int:
        at = bisect_left(self.cumulated, random.random() * self.cumulated[-1])
        return self.tokens[min(at, len(self.tokens) - 1)]


@dataclass(frozen=True, slots=True)
class Mix:
    """Clients whose arrivals and lengths are both known, and those without lengths, which are left out."""

    windows: Mapping[str, tuple[Window, ...]]  # by client, in order of time
    lengths: Mapping[str, tuple[tuple[float, Pdf, Pdf], ...]]  # by client: (from, input, output)
    without_lengths: Mapping[str, tuple[Window, ...]]
    start_s: float  # the first instant that both files speak of

    def rate(self, from_s: float, until_s: float) -> float:
        """Mean requests/s of all clients with lengths between two instants of the recording."""
        return sum(_rate(windows, from_s, until_s) for windows in self.windows.values())

    def left_out(self, from_s: float, until_s: float) -> list[float]:
        """Mean requests/s of each client that sends something then and has no lengths."""
        rates = (_rate(windows, from_s, until_s) for windows in self.without_lengths.values())
        return [rate for rate in rates if rate > 0]


def _rate(windows: tuple[Window, ...], from_s: float, until_s: float) -> float:
    overlaps = ((w.rate, min(until_s, w.start_s + WINDOW_S) - max(from_s, w.start_s)) for w in windows)
    return sum(rate * max(0.0, overlap) for rate, overlap in overlaps) / (until_s - from_s)


def is_servegen(path: Path) -> bool:
    """Whether a file begins with ServeGen's columns of rates. Raises OSError when it cannot be opened."""
    with open_text(path) as stream:
        try:
            return [cell.strip() for cell in stream.readline().split(",")] == COLUMNS
        except (OSError, EOFError, UnicodeDecodeError):
            return False  # the trace's reader says what is wrong with it


def read_mix(rates: Path, lengths: Path) -> Mix:
    """Reads both files. Raises TraceError with the line's number, OSError when there is no such file."""
    pdfs = _read_lengths(lengths)
    windows = _read_rates(rates)
    described = {client: rows for client, rows in windows.items() if client in pdfs}
    if not described:
        raise TraceError(lengths, 1, f"describes none of the clients of {rates}")
    start = min(rows[0][0] for rows in pdfs.values())
    return Mix(described, pdfs, {client: rows for client, rows in windows.items() if client not in pdfs}, start)


def generate(mix: Mix, seed: int, scale: float, from_s: float, span_s: float) -> list[TraceRequest]:
    """Requests of ``span_s`` seconds from ``from_s`` (of the recording) on, every rate multiplied by ``scale``."""
    requests: list[TraceRequest] = []
    for client, windows in mix.windows.items():
        gaps, sizes = rng(seed, f"servegen/{client}/gaps"), rng(seed, f"servegen/{client}/lengths")
        pdfs = mix.lengths[client]
        for at in _arrivals(windows, gaps, scale, from_s, from_s + span_s):
            _, prompt, out = pdfs[max(0, bisect_right(pdfs, at, key=lambda row: row[0]) - 1)]
            requests.append(TraceRequest(at - from_s, prompt.draw(sizes), max(1, out.draw(sizes)), client))
    requests.sort(key=lambda request: (request.arrival_s, request.tenant))
    return requests


def _arrivals(windows: tuple[Window, ...], random: Random, scale: float, from_s: float, until_s: float) -> list[float]:
    """One client's arrivals: gaps of mean 1 in the time of its own rate, which runs faster where the rate is high."""
    times: list[float] = []
    need = -1.0
    for window in windows:
        start, end = max(from_s, window.start_s), min(until_s, window.start_s + WINDOW_S)
        rate = window.rate * scale
        if end <= start or rate <= 0.0:
            continue
        if need < 0.0:
            need = window.gap(random) * random.random()  # the process did not begin just now
        now = start
        while now + need / rate < end:
            now += need / rate
            times.append(now)
            need = window.gap(random)
        need -= (end - now) * rate
    return times


def _read_rates(path: Path) -> dict[str, tuple[Window, ...]]:
    windows: dict[str, list[Window]] = {}
    with open_text(path) as stream:
        try:
            lines = list(csv.reader(stream))
        except (OSError, EOFError, UnicodeDecodeError, csv.Error) as problem:
            raise TraceError(path, 1, f"damaged, or not a CSV file ({problem})") from problem
    for number, cells in enumerate(lines[1:], 2):
        if len(cells) != len(COLUMNS):
            raise TraceError(path, number, f"expected the columns {','.join(COLUMNS)}, found {len(cells)}")
        client, start, rate, _, family, shape, _ = cells
        if family not in FAMILIES:
            raise TraceError(path, number, f"dist {family!r}: known are {', '.join(FAMILIES)}")
        window = Window(
            _number(path, number, "window_start_s", start),
            _number(path, number, "rate_rps", rate),
            family,
            max(FAMILIES[family], _number(path, number, "param1", shape)),
        )
        windows.setdefault(client, []).append(window)
    if not windows:
        raise TraceError(path, 2, "the file holds no client")
    return {client: tuple(sorted(rows, key=lambda row: row.start_s)) for client, rows in sorted(windows.items())}


def _read_lengths(path: Path) -> dict[str, tuple[tuple[float, Pdf, Pdf], ...]]:
    rows_of: dict[str, list[tuple[float, Pdf, Pdf]]] = {}
    with open_text(path) as stream:
        number = 0
        try:
            for line in stream:
                number += 1
                if not line.strip():
                    continue
                entry = json.loads(line)
                row = (float(entry["window_start_s"]), _pdf(entry["input_tokens"]), _pdf(entry["output_tokens"]))
                rows_of.setdefault(str(entry["client"]), []).append(row)
        except (EOFError, OSError, UnicodeDecodeError) as problem:
            raise TraceError(path, number + 1, f"the file ends in the middle or is damaged ({problem})") from problem
        except KeyError as problem:
            raise TraceError(path, number, f"{problem} missing") from problem
        except (TypeError, ValueError, AttributeError) as problem:
            raise TraceError(path, number, f"not an object with two length distributions ({problem})") from problem
    if not rows_of:
        raise TraceError(path, 1, "the file holds no length distribution")
    return {client: tuple(sorted(rows, key=lambda row: row[0])) for client, rows in rows_of.items()}


def _pdf(raw: Mapping[str, float]) -> Pdf:
    pairs = sorted((int(tokens), float(share)) for tokens, share in raw.items())
    if not pairs or pairs[0][0] < 0 or min(share for _, share in pairs) < 0 or sum(share for _, share in pairs) <= 0:
        raise ValueError("tokens and probabilities must be at least 0, and some above")
    return Pdf(tuple(max(1, tokens) for tokens, _ in pairs), tuple(accumulate(share for _, share in pairs)))


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as problem:
        raise TraceError(path, line, f"{column} {text!r} is not a number") from problem
    if not math.isfinite(value) or value < 0:
        raise TraceError(path, line, f"{column} {text!r} must be a number of at least 0")
    return value
