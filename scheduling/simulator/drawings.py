"""What a scenario draws: figures of its runs, arranged as the paper's figure arranges them.

``[[figure]]`` in a scenario's file has panels, a panel has series. A series names runs and a metric of each, one for
every place on the x axis (one name stands for all places); ``versus`` makes it the change [%] against other runs. A
panel ``over_time`` has a place for each window of :mod:`scheduling.simulator.timeline`, and ``*`` in a metric stands
for the window's number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.simulator.timeline import WINDOWS

Look = Callable[[str, str], float]  # (run, metric) -> figure


@dataclass(frozen=True, slots=True)
class Curve:
    """``runs`` and ``metrics`` are one for each place, or a single one for all."""

    name: str
    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    versus: tuple[str, ...] = ()

    def values(self, places: int, look: Look) -> tuple[float, ...]:
        runs, metrics, versus = (_each(names, places) for names in (self.runs, self.metrics, self.versus or ("",)))
        values = []
        for place, (run, metric, base) in enumerate(zip(runs, metrics, versus, strict=True)):
            name = metric.replace("*", str(place))
            value = look(run, name)
            if base:
                other = look(base, name)
                value = 100.0 * (value / other - 1.0) if other else math.nan
            values.append(value)
        return tuple(values)

    def minutes(self, look: Look) -> tuple[float, ...]:
        """The middle of each window of its run: runs differ in how long they take."""
        window = look(self.runs[0], "window")
        return tuple(round((k + 0.5) * window / 60.0, 3) for k in range(WINDOWS))


@dataclass(frozen=True, slots=True)
class Axes:
    """One panel."""

    title: str
    y_label: str
    curves: tuple[Curve, ...]
    x_label: str = ""
    xs: tuple[float, ...] | tuple[str, ...] = ()
    over_time: bool = False
    log_x: bool = False
    log_y: bool = False
    y_most: float | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """A paper's figure, as our runs have it."""

    file: str  # without .svg
    title: str
    panels: tuple[Axes, ...]
    columns: int = 2

    @property
    def runs(self) -> set[str]:
        return {run for axes in self.panels for curve in axes.curves for run in (*curve.runs, *curve.versus)}


def parse_drawing(raw: Mapping[str, Any]) -> Drawing:
    """A drawing from a scenario's entry. Raises ValueError or TypeError for what it cannot be."""
    values = dict(raw)
    panels = []
    for panel in values.pop("panel", ()):
        settings = dict(panel)
        common = {name: settings.pop(name) for name in ("metrics",) if name in settings}
        curves = tuple(
            Curve(**dict[str, Any]({k: v if k == "name" else _names(v) for k, v in {**common, **curve}.items()}))
            for curve in settings.pop("series", ())
        )
        axes = Axes(**{**settings, "curves": curves, "xs": tuple(settings.get("xs", ()))})
        if not curves or bool(axes.xs) == axes.over_time:
            raise ValueError(f"panel {axes.title!r} needs series, and either xs or over_time")
        count = WINDOWS if axes.over_time else len(axes.xs)
        for curve in curves:
            for names in (curve.runs, curve.metrics, curve.versus or ("",)):
                _each(names, count)
        panels.append(axes)
    if not panels:
        raise ValueError("a figure needs panels")
    return Drawing(panels=tuple(panels), **values)


def _names(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _each(names: tuple[str, ...], places: int) -> tuple[str, ...]:
    if len(names) == 1:
        return names * places
    if len(names) != places:
        raise ValueError(f"{len(names)} names for {places} places: {', '.join(names)}")
    return names
