"""What a study may choose of a pool: its order, relegation, shares, room and routing, and the parameters of what it
chose.

One declaration, :data:`SPACE`. A dimension is a choice of words or a number, and may exist only where another dimension
has a certain value: an order's parameters are there where that order is chosen. Orders bring their own numbers with
their ranges (:data:`scheduling.tuning.space.SPACES`). A point is a mapping with a value for each dimension that exists,
and :meth:`Structure.serving` makes of it a whole setting of the pool, as policy versions keep it.

Not in the space: what a live pool cannot change by a policy version, and routing where requests say nothing of their
prefixes, as recordings of live pools do, because the simulated prefix caches would not see what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from scheduling.core.deadline import PACE_S
from scheduling.tuning.space import SPACES, Knob, params_of, queues_of
from scheduling.tuning.traffic import Room, Serving, Traffic

Point = Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words. The first is the default."""

    name: str
    options: tuple[str, ...]

    @property
    def default(self) -> str:
        return self.options[0]


@dataclass(frozen=True, slots=True)
class Dimension:
    """``where``: it exists in points that have one of these words there; none: in all."""

    what: Choice | Knob
    where: tuple[str, tuple[str, ...]] | None = None

    @property
    def name(self) -> str:
        return self.what.name

    def exists(self, point: Point) -> bool:
        return self.where is None or point.get(self.where[0]) in self.where[1]


ORDER, BANDS, RELEGATION, FAIR = "order", "bands", "relegation", "fair"
CREDIT, HEADROOM, ROUTING = "credit", "headroom", "routing"
OFF, WITHIN, ACROSS, AUTOMATIC, FIXED = "off", "within bands", "across bands", "automatic", "fixed"
QUICK_MS = 0.5  # alpha with less weight on length
UNIFIED = "unified"  # has bands and relegation within them of its own
ORDERS: Final = (UNIFIED, "hybrid", "edf", "mean_cost", "priority", "ewsjf")
PACED: Final = ("hybrid", "edf")  # have a pace of their own


def _of_orders() -> Iterator[Dimension]:
    for order in ORDERS:
        for knob in SPACES.get(order, ()):
            renamed = Knob(f"{order}.{knob.name}", knob.low, knob.high, knob.default, knob.log, knob.whole)
            yield Dimension(renamed, (ORDER, (order,)))


SPACE: Final[tuple[Dimension, ...]] = (
    Dimension(Choice(ORDER, ORDERS)),
    *_of_orders(),
    Dimension(Knob("pace_ms", 10.0, 400.0, 1e3 * PACE_S, log=True), (ORDER, PACED)),
    Dimension(Choice(BANDS, ("on", OFF)), (ORDER, tuple(order for order in ORDERS if order != UNIFIED))),
    Dimension(Choice(RELEGATION, (WITHIN, OFF, ACROSS))),  # within: where the order has it, else across
    Dimension(Choice("gives_way", ("spot", "elastic")), (RELEGATION, (ACROSS,))),
    Dimension(Choice(FAIR, (OFF, "on"))),
    Dimension(Knob("output_weight", 0.5, 8.0, 2.0, log=True), (FAIR, ("on",))),
    Dimension(Choice(CREDIT, (AUTOMATIC, FIXED))),
    Dimension(Knob("credit_steps", 0.25, 8.0, 1.0, log=True), (CREDIT, (FIXED,))),  # of a replica's step budget
    Dimension(Choice(HEADROOM, (AUTOMATIC, FIXED))),
    Dimension(Knob("headroom_share", 0.0, 0.5, 1 / 6), (HEADROOM, (FIXED,))),  # of all slots
    Dimension(Choice(ROUTING, ("prefix_affinity", "least_work"))),
    Dimension(Knob("skew_tokens", 1e3, 1e6, 1e5, log=True), (ROUTING, ("prefix_affinity",))),
)


class Structure:
    """The space of one pool on one window of traffic. ``serving``: what serves it now, for what is not in the space."""

    def __init__(self, traffic: Traffic, serving: Serving, *, places: bool = False) -> None:
        self._traffic = traffic
        self._serving = serving
        self.dimensions = tuple(d for d in SPACE if places or d.name not in (ROUTING, "skew_tokens"))

    def complete(self, point: Point) -> dict[str, float | str]:
        """The point with a value for each dimension that exists there: the default where it says none."""
        whole: dict[str, float | str] = {}
        for dimension in self.dimensions:
            if dimension.exists(whole):
                whole[dimension.name] = point.get(dimension.name, dimension.what.default)
        return whole

    def default(self) -> dict[str, float | str]:
        """What a new pool has."""
        return self.complete({})

    def anchors(self) -> list[dict[str, float | str]]:
        """Points worth a look before anything is known: every order at its defaults, and with what is late put aside
        across bands, the default with less weight on length, with shares, or with all slots lent, and one without
        bands."""
        soon: Point = {f"{UNIFIED}.alpha_ms": QUICK_MS}
        around: list[Point] = [
            soon,
            {**soon, RELEGATION: ACROSS},
            {FAIR: "on"},
            {HEADROOM: FIXED, "headroom_share": 0.0},
            {ORDER: "hybrid", BANDS: OFF, RELEGATION: ACROSS},
        ]
        for order in ORDERS:
            around += [{ORDER: order, RELEGATION: ACROSS}]
        return [self.complete(point) for point in around]

    def draw(self, random: Random) -> dict[str, float | str]:
        """A point drawn evenly: every word as likely, every number on its scale."""
        drawn: dict[str, float | str] = {}
        for dimension in self.dimensions:
            what, share = dimension.what, random.random()
            if isinstance(what, Choice):
                drawn[what.name] = what.options[min(len(what.options) - 1, int(share * len(what.options)))]
            else:
                drawn[what.name] = what.at(share)
        return self.complete(drawn)

    def serving(self, point: Point) -> Serving:
        """The whole setting that a point means."""
        order = str(point[ORDER])
        mine = {
            name.removeprefix(f"{order}."): float(value)
            for name, value in point.items()
            if name.startswith(f"{order}.") and not isinstance(value, str)
        }
        queues = queues_of(mine, [row.input_tokens for row in self._traffic.rows])
        params = params_of(mine, queues)
        pace_s = float(point.get("pace_ms", 1e3 * PACE_S)) / 1e3
        if "pace_ms" in point:
            params["pace_s"] = pace_s
        if queues:
            step = self._traffic.replicas[0].step_time
            params |= {"prefill_t0_ms": max(1e-3, step.t0 * 1e3), "prefill_us": max(0.0, step.a * 1e6)}
        modifiers: dict[str, dict[str, float | int | str]] = {}
        relegation = point[RELEGATION]
        if order == UNIFIED:
            params["relegate"] = int(relegation == WITHIN)
        else:
            if point[BANDS] == "on":
                modifiers["bands"] = {}
            relegation = ACROSS if relegation == WITHIN else relegation
        if relegation == ACROSS:
            modifiers["relegate"] = {"pace_s": pace_s, "low_class": str(point.get("gives_way", "spot"))}
        if point[FAIR] == "on":
            modifiers["fair"] = {"output_weight": float(point["output_weight"])}
        routing, routing_params = self._serving.routing, dict(self._serving.routing_params)
        if ROUTING in point:
            routing = str(point[ROUTING])
            routing_params = {"skew_tokens": float(point["skew_tokens"])} if "skew_tokens" in point else {}
        return Serving(order, params, modifiers, routing, routing_params, self._room(point))

    def _room(self, point: Point) -> Room:
        budget = max(replica.token_budget for replica in self._traffic.replicas)
        slots = sum(replica.slots for replica in self._traffic.answering)
        credit = max(1, round(float(point["credit_steps"]) * budget)) if point[CREDIT] == FIXED else None
        headroom = round(float(point["headroom_share"]) * slots) if point[HEADROOM] == FIXED else None
        return Room(credit, headroom)
