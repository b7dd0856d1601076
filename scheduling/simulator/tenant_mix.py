"""Made-up traffic of several tenants of each shipped tier, as a recording that any lab replays.

What each tenant asks for, in proportion to the others of its tier (:data:`DEMANDS`):

* *even*: the same;
* *falling*: 1, 1/2, 1/3 ...;
* *one-loud*: the first ten times as much as each of the others;
* *pulses*: the same on the mean, all of it in the first twelve seconds of each minute of its own;
* *crowds*: the same on the mean, twenty at once.

A tier's part of all requests is its share of :data:`scheduling.simulator.contracts.SHIPPED`. Each tier may have a kind
of its own, so that one asks for long prompts and another for short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.recording import Recorded, Recording, write_recording
from scheduling.simulator.workload import MIXES, poisson

TENANTS = {"premium": 3, "standard": 5, "batch": 3}
LOUD = 10.0  # times as much as each of the others
PULSE_S, EVERY_S = 12.0, 60.0
CROWD, CROWD_S = 20, 0.5  # requests at once, and within how long they come
DEMANDS: dict[str, Callable[[int], float]] = {
    "even": lambda place: 1.0,
    "falling": lambda place: 1.0 / (place + 1),
    "one-loud": lambda place: 1.0 if place else LOUD,
    "pulses": lambda place: 1.0,
    "crowds": lambda place: 1.0,
}


def tenant_mix(
    count: int, rate: float, seed: int, kind: str, demand: str, kinds: Mapping[str, str] | None = None
) -> Recording:
    """About ``count`` requests, ``rate`` per second on the mean, with the lengths and arrivals of a kind of
    :data:`scheduling.simulator.workload.MIXES`; ``kinds``: by tier, where it is another one. Raises KeyError for a kind
    or demand that does not exist."""
    span_s, rows, kinds = count / rate, [], kinds or {}
    for tier in SHIPPED:
        arrivals, draw = MIXES[kinds.get(tier.name, kind)]
        asks = [DEMANDS[demand](place) for place in range(TENANTS[tier.name])]
        for place, ask in enumerate(asks):
            name = f"{tier.name}-{place + 1}"
            gaps, lengths = Random(f"{seed} arrivals {name}"), Random(f"{seed} prompts {name}")
            theirs = rate * tier.share * ask / sum(asks)
            for at in ARRIVALS.get(demand, arrivals)(gaps, theirs):
                if at >= span_s:
                    break
                given, out = draw(lengths)
                rows.append(Recorded(at, given, out, name, tier.name, name, wait_s=0.0))
    named = ", ".join([kind, demand, *(f"{tier} {its}" for tier, its in sorted(kinds.items()))])
    return Recording(named, SHIPPED, tuple(sorted(rows, key=lambda row: row.arrival_s)))


def pulses(random: Random, rate: float) -> Iterator[float]:
    """Arrivals [s], for ever: Poisson in the first :data:`PULSE_S` of each :data:`EVERY_S`, ``rate`` on the mean. When
    the first one begins is drawn."""
    offset_s = random.uniform(0.0, EVERY_S)
    for busy_s in poisson(random, rate * EVERY_S / PULSE_S):
        number, within_s = divmod(busy_s, PULSE_S)
        yield offset_s + number * EVERY_S + within_s


def crowds(random: Random, rate: float) -> Iterator[float]:
    """Arrivals [s], for ever: :data:`CROWD` within :data:`CROWD_S`, ``rate`` on the mean. Not in order where two crowds
    meet."""
    for begun_s in poisson(random, rate / CROWD):
        for _ in range(CROWD):
            yield begun_s + random.uniform(0.0, CROWD_S)


ARRIVALS: dict[str, Callable[[Random, float], Iterator[float]]] = {"pulses": pulses, "crowds": crowds}


def write_tenant_mix(
    path: Path, count: int, rate: float, seed: int, kind: str, demand: str, kinds: Mapping[str, str] | None = None
) -> int:
    """Writes :func:`tenant_mix` and returns how many requests it has. Raises OSError."""
    recording = tenant_mix(count, rate, seed, kind, demand, kinds)
    with path.open("w", encoding="utf-8") as out:
        write_recording(recording, out)
    return len(recording.rows)
