"""Drawings of what experiments showed: the token-pools paper's figures 2 to 6 from our own telemetry, and our own.

Each takes what ``--json`` wrote. Where two runs belong into one drawing (admission on and off) it is made when both are
given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from controlplane.lab.plot import Panel, Series, draw
from scheduling.core.percentiles import nearest_rank

Report = Mapping[str, Any]
BIN_S: Final = 5.0
SECONDS: Final = "seconds"


def drawings(reports: Iterable[Report]) -> dict[str, str]:
    """SVG by name (no ending), as many as these runs allow."""
    images: dict[str, str] = {}
    runs = {(f["experiment"], f["admission"], f["headroom_slots"] != 0): f for f in reports}
    on, off = runs.get(("pools-1", "on", False)), runs.get(("pools-1", "off", False))
    if on is not None and off is not None:
        images["token-pools-2-queue"] = draw("Figure 2: running and waiting requests on 16 slots", _queues(on, off))
        images["token-pools-3-latency"] = draw("Figure 3: end to end, P99 of each 5 s", _latencies(on, off))
    if on is not None:
        images["token-pools-4-slots"] = draw("Figure 4: slots by entitlement", [_running(on, "token pools")])
    if (two := runs.get(("pools-2", "on", False))) is not None:
        images["token-pools-5-priority"] = draw("Figure 5: a node fails at 30 s and is back at 120 s", _priority(two))
        images["token-pools-6-service"] = draw("Figure 6: latency and throughput under changing weights", _service(two))
    quiet = [r for r in (runs.get(("noisy-neighbour", "on", h)) for h in (False, True)) if r is not None]
    if len(quiet) == 2:
        images["noisy-neighbour"] = draw("20 quiet tenants alone and beside the noise", _noise(*quiet))
    if (lost := runs.get(("outage", "on", False))) is not None:
        images["outage"] = draw("Half the replicas die at 30 s and are back at 120 s", _outage(lost))
    return images


def _names(run: Report) -> list[str]:
    return list(dict.fromkeys(row["entitlement"] for row in run["phases"]))


def _line(name: str, points: Iterable[tuple[float, float | None]]) -> Series:
    kept = [(x, y) for x, y in points if y is not None]
    return Series(name, tuple(y for _, y in kept), tuple(x for x, _ in kept))


def _panel(title: str, y_label: str, lines: Sequence[Series], y_most: float | None = None) -> Panel:
    lines = [line for line in lines if line.ys]  # who was never refused has no line of refusals
    last = max((x for line in lines for x in line.xs), default=0.0)
    marks = tuple(float(x) for x in range(0, int(last) + 1, 30 if last > 120 else 15))
    return Panel(title, y_label, marks, tuple(lines), x_label=SECONDS, y_most=y_most)


def _sampled(run: Report, name: str, value: Callable[[Mapping[str, Any]], float | None]) -> Series:
    return _line(name, ((s["at_s"], value(s)) for s in run["samples"]))


def _of(run: Report, entitlement: str, key: str) -> Series:
    return _sampled(run, entitlement, lambda s: s["entitlements"].get(entitlement, {}).get(key))


def _binned(
    run: Report, name: str, chosen: Callable[[Mapping[str, Any]], float | None], fold: Callable[[list[float]], float]
) -> Series:
    """What ``fold`` makes of the values of the requests sent in each bin; none where nothing was sent."""
    bins: dict[int, list[float]] = {}
    for row in run["requests"]:
        value = chosen(row)
        if value is not None:
            bins.setdefault(math.floor(row["sent_s"] / BIN_S), []).append(value)
    return _line(name, ((n * BIN_S + BIN_S / 2, fold(bins[n])) for n in sorted(bins)))


def _p99(values: list[float]) -> float:
    return nearest_rank(values, 0.99) or 0.0


def _rate(run: Report, name: str, counts: Callable[[Mapping[str, Any]], float | None]) -> Series:
    """How many of the requests sent in each bin count [per second]; no line where none ever did."""
    times = [row["sent_s"] for row in run["requests"] if counts(row) is not None]
    bins = Counter(math.floor(at / BIN_S) for at in times)
    last = max((math.floor(row["sent_s"] / BIN_S) for row in run["requests"]), default=-1)
    first = min(bins, default=last + 1)
    return _line(name, ((n * BIN_S + BIN_S / 2, bins[n] / BIN_S) for n in range(first, last + 1)))


def _queues(on: Report, off: Report) -> list[Panel]:
    panels = []
    for title, run in (("(a) with token pools", on), ("(b) without admission control", off)):
        waiting = _sampled(run, "waiting", lambda s: s["waiting"] + s["engine_waiting"])
        running = _sampled(run, "running", lambda s: s["running"] - s["engine_waiting"])
        panels.append(_panel(title, "requests", [running, waiting], y_most=50))
    return panels


def _whole_s(row: Mapping[str, Any]) -> float | None:
    return row["done_s"] - row["sent_s"] if row["status"] == 200 and not row["reason"] else None


def _latencies(on: Report, off: Report) -> list[Panel]:
    panels = []
    for title, run in (("(a) with token pools", on), ("(b) without admission control", off)):
        lines = [_binned(run, name, _mine(name, _whole_s), _p99) for name in _names(run)]
        panels.append(_panel(title, SECONDS, lines, y_most=25))
    return panels


def _mine(name: str, value: Callable[[Mapping[str, Any]], float | None]) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda row: value(row) if row["entitlement"] == name else None


def _running(run: Report, title: str) -> Panel:
    there_are = _sampled(run, "slots there are", lambda s: s["slots"])
    return _panel(title, "slots", [*(_of(run, name, "running") for name in _names(run)), there_are])


def _admitted(row: Mapping[str, Any]) -> float | None:
    return 1.0 if row["status"] == 200 else None


def _denied(row: Mapping[str, Any]) -> float | None:
    return 1.0 if row["reason"] == "low_priority" else None


def _priority(run: Report) -> list[Panel]:
    names = _names(run)
    rates = [
        *(_rate(run, f"{name} admitted", _mine(name, _admitted)) for name in names),
        *(_rate(run, f"{name} denied", _mine(name, _denied)) for name in names),
    ]
    delays = [
        _binned(run, name, _mine(name, lambda row: row["queue_s"] if row["status"] == 200 else None), _p99)
        for name in names
    ]
    return [
        _running(run, "In flight"),
        _panel("Service debt", "", [_of(run, name, "debt") for name in names]),
        _panel("Weight", "", [_of(run, name, "weight") for name in names]),
        _panel("Admitted, and denied for low priority", "per second", rates),
        _panel("Wait for a slot, P99 of each 5 s", SECONDS, delays),
    ]


def _service(run: Report) -> list[Panel]:
    lines = [_binned(run, name, _mine(name, lambda row: row["ttft_s"]), _p99) for name in _names(run)]
    tokens = _sampled(run, "output tokens", lambda s: s["output_tokens_per_s"])
    return [_panel("P99 TTFT of each 5 s", SECONDS, lines), _panel("Output tokens", "per second", [tokens])]


def _noise(without: Report, spared: Report) -> list[Panel]:
    panels = []
    for figure, title in (("queue_p95_s", "p95 wait for a slot"), ("ttft_p95_s", "p95 time to first token")):
        bars = tuple(
            Series(phase, tuple(float(run["findings"][phase][figure] or 0.0) for run in (without, spared)))
            for phase in ("alone", "noisy")
        )
        panels.append(Panel(title, SECONDS, ("no headroom", f"headroom {spared['headroom_slots']}"), bars))
    return panels


def _outage(run: Report) -> list[Panel]:
    waits = run["findings"]["retry_after_histogram"]
    sent = _rate(run, "sent", lambda _row: 1.0)
    heights = Series("refusals", tuple(float(count) for count in waits.values()))
    names = _names(run)
    return [
        _running(run, "In flight"),
        _panel("Weight", "", [_of(run, name, "weight") for name in names if not name.startswith("spot")]),
        _panel("Requests sent, retries included", "per second", [sent]),
        Panel("What Retry-After told in the outage", "refusals", tuple(waits), (heights,), x_label="seconds from"),
    ]
