"""Charts as SVG: small files, the same bytes for the same figures, readable on light and dark.

A drawing is a grid of panels. A panel has lines over numbers, or groups of bars over names; every panel of a drawing
shares one legend. Written by hand: a drawing library would be the heaviest dependency of all, for lines and bars, and
its files differ from version to version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 380, 250  # of a panel, axes and titles included
FEW = 12  # places of a line that are marked and named one by one
ALONE = 560  # width of a panel that has no neighbour
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 34, 42
# Okabe and Ito's colours, which stay apart for the colour-blind; the second of each pair is for dark pages.
COLOURS = (
    ("#0072b2", "#56a9e0"), ("#d55e00", "#ff8a3d"), ("#009e73", "#2fc79b"), ("#b0578d", "#e08abb"),
    ("#8a6d00", "#e6c84b"), ("#3a9bc4", "#8fd0f0"), ("#5b5b5b", "#c2c2c2"), ("#7b3fb5", "#b58be6"),
)  # fmt: skip
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-weight:600}.m{fill:#57606a;font-size:11px}"
    ".g{stroke:#d8dee4;fill:none}.a{stroke:#8c959f;fill:none}.p{fill:#fff}.l{fill:none;stroke-width:2;stroke-linejoin:round}"
)
DARK = "text{fill:#e6edf3}.m{fill:#9198a1}.g{stroke:#2f353d}.a{stroke:#656c76}.p{fill:#0d1117}"


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one bar of every group. ``ys`` may hold nan: nothing is drawn there."""

    name: str
    ys: tuple[float, ...]
    xs: tuple[float, ...] = ()  # a line's own places; else those of its panel


@dataclass(frozen=True, slots=True)
class Panel:
    """``xs`` are numbers for lines, names for bars."""

    title: str
    y_label: str
    xs: tuple[float, ...] | tuple[str, ...]
    series: tuple[Series, ...]
    x_label: str = ""
    log_x: bool = False
    log_y: bool = False
    y_most: float | None = None  # top of the axis; else what the figures need


def draw(title: str, panels: Sequence[Panel], columns: int = 2) -> str:
    """The drawing. Raises ValueError without panels, or with figures that do not match their xs."""
    if not panels or any(len(s.ys) != len(s.xs or p.xs) for p in panels for s in p.series):
        raise ValueError("a drawing needs panels, and each series as many figures as its panel has places")
    columns = min(columns, len(panels))
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    wide = ALONE if columns == 1 else WIDTH
    width = columns * wide
    legend, head = _legend(names, width)
    height = head + math.ceil(len(panels) / columns) * HEIGHT
    light = "".join(f".s{n}{{stroke:{a}}}.f{n}{{fill:{a}}}" for n, (a, _) in enumerate(COLOURS))
    dark = "".join(f".s{n}{{stroke:{b}}}.f{n}{{fill:{b}}}" for n, (_, b) in enumerate(COLOURS))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}{light}@media(prefers-color-scheme:dark){{{DARK}{dark}}}</style>",
        f'<rect class="p" width="{width}" height="{height}" rx="8"/>',
        f'<text class="t" x="14" y="22" style="font-size:14px">{escape(title)}</text>',
        *legend,
    ]
    for place, panel in enumerate(panels):
        x, y = place % columns * wide, head + place // columns * HEIGHT
        out += [f'<g transform="translate({x},{y})">', *_panel(panel, names, wide), "</g>"]
    return "\n".join([*out, "</svg>\n"])


def _legend(names: Sequence[str], width: int) -> tuple[list[str], int]:
    out, x, y = [], 14, 42
    for number, name in enumerate(names):
        wide = 26 + 7 * len(name)
        if x + wide > width and x > 14:
            x, y = 14, y + 18
        colour = number % len(COLOURS)
        out.append(f'<rect class="f{colour}" x="{x}" y="{y - 9}" width="12" height="10" rx="2"/>')
        out.append(f'<text class="m" x="{x + 17}" y="{y}">{escape(name)}</text>')
        x += wide
    return out, y + 12


def _panel(panel: Panel, names: Sequence[str], wide: int) -> list[str]:
    right, bottom = wide - RIGHT, HEIGHT - BOTTOM
    ys = [y for series in panel.series for y in series.ys if math.isfinite(y) and (y > 0 or not panel.log_y)]
    ticks = _log_ticks(ys) if panel.log_y else _ticks(min([0.0, *ys]), panel.y_most or max([1e-9, *ys]))
    to_y = _scale(ticks[0], ticks[-1], bottom, TOP, panel.log_y)
    out = [f'<text class="t" x="{LEFT}" y="18">{escape(panel.title)}</text>']
    for tick in ticks:
        y = to_y(tick)
        out.append(f'<path class="g" d="M{LEFT} {y:.1f}H{right}"/>')
        out.append(f'<text class="m" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick_label(tick)}</text>')
    out.append(f'<path class="a" d="M{LEFT} {to_y(max(0.0, ticks[0])):.1f}H{right}"/>')
    turned, label = f"translate(13,{(TOP + bottom) / 2:.0f}) rotate(-90)", escape(panel.y_label)
    out.append(f'<text class="m" transform="{turned}" text-anchor="middle">{label}</text>')
    middle, label = (LEFT + right) / 2, escape(panel.x_label)
    out.append(f'<text class="m" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>')
    if isinstance(panel.xs[0], str):
        return [*out, *_bars(panel, names, to_y, right, ticks[0])]
    return [*out, *_lines(panel, names, to_y, right)]


def _bars(panel: Panel, names: Sequence[str], to_y: Callable[[float], float], right: int, low: float) -> list[str]:
    out, base = [], to_y(max(0.0, low))
    step = (right - LEFT) / len(panel.xs)
    wide = 0.8 * step / len(panel.series)
    for place, name in enumerate(panel.xs):
        middle = LEFT + (place + 0.5) * step
        out.append(_x_label(middle, escape(str(name))))
        for number, series in enumerate(panel.series):
            value = series.ys[place]
            if not math.isfinite(value) or (panel.log_y and value <= 0):
                continue
            x, y = middle + (number - len(panel.series) / 2) * wide, to_y(value)
            out.append(
                f'<rect class="f{names.index(series.name) % len(COLOURS)}" x="{x:.1f}" y="{min(y, base):.1f}" '
                f'width="{wide * 0.9:.1f}" height="{max(abs(base - y), 0.8):.1f}" rx="1.5"/>'
            )
    return out


def _lines(panel: Panel, names: Sequence[str], to_y: Callable[[float], float], right: int) -> list[str]:
    shared = [float(x) for x in panel.xs]
    every = [x for series in panel.series for x in series.xs or shared]
    marked = shared if len(shared) <= FEW else _ticks(min(0.0, *every), max(every))
    low, high = min(*every, *marked), max(every)
    to_x = _scale(low, high, LEFT + 8, right - 8, panel.log_x)
    out = [_x_label(to_x(x), _tick_label(x)) for x in marked if x <= high]
    for series in panel.series:
        colour = names.index(series.name) % len(COLOURS)
        points = [
            (to_x(x), to_y(y))
            for x, y in zip(series.xs or shared, series.ys, strict=True)
            if math.isfinite(y) and (y > 0 or not panel.log_y)
        ]
        if points:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            out.append(f'<path class="l s{colour}" d="M{path}"/>')
        if len(points) <= FEW:
            out += [f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
    return out


def _x_label(x: float, text: str) -> str:
    return f'<text class="m" x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{text}</text>'


def _tick_label(tick: float) -> str:
    return f"{tick / 1000:g}k" if abs(tick) >= 10_000 else f"{tick:g}"


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Callable[[float], float]:
    """A value's place between two ends of an axis."""
    if log:
        low, high = math.log10(low), math.log10(high)
    span = (high - low) or 1.0

    def place(value: float) -> float:
        at = math.log10(value) if log else value
        return start + (end - start) * min(1.0, max(0.0, (at - low) / span))

    return place


def _ticks(low: float, high: float) -> list[float]:
    """Five or so round numbers around an interval."""
    raw = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(ys: Sequence[float]) -> list[float]:
    """Powers of ten around the figures."""
    low, high = (min(ys), max(ys)) if ys else (1.0, 10.0)
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]
