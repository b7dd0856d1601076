"""How much waits inside the engines, where no policy reaches it: vLLM's ``num_requests_waiting`` of a simulated run.

A request waits in its engine from when it was sent there until the engine first works on it. What a preemption puts
back is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import to_s


@dataclass(frozen=True, slots=True)
class Stay:
    """One request's time in its engine's queue [fs]."""

    replica: int
    sent_fs: int
    begun_fs: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Requests that wait in one engine, over time and engines."""

    mean: float
    p99: float  # for 99 of 100 seconds it is no more
    most: int


def stays_of(lives: Iterable[Life]) -> list[Stay]:
    """Of requests that were sent to their engines when they arrived."""
    return [Stay(life.replica, life.sim.arrival_fs, life.start_fs) for life in lives]


def waiting(stays: Iterable[Stay], replicas: int) -> Waiting:
    """How many wait per engine from the first request that is sent to the last that is begun; nothing waits in an
    engine that no request was sent to."""
    rows = sorted(stays, key=lambda stay: stay.replica)
    if not rows:
        return Waiting(0.0, 0.0, 0)
    begin, end = min(row.sent_fs for row in rows), max(row.begun_fs for row in rows)
    for_s: dict[int, float] = {}  # by how many wait
    for _, of_one in groupby(rows, key=lambda stay: stay.replica):
        changes: dict[int, int] = {}
        for stay in of_one:
            if stay.begun_fs > stay.sent_fs:
                changes[stay.sent_fs] = changes.get(stay.sent_fs, 0) + 1
                changes[stay.begun_fs] = changes.get(stay.begun_fs, 0) - 1
        count, since = 0, begin
        for at in sorted(changes):
            for_s[count] = for_s.get(count, 0.0) + to_s(at - since)
            count, since = count + changes[at], at
        for_s[count] = for_s.get(count, 0.0) + to_s(end - since)
    span = to_s(end - begin) * replicas
    if span <= 0.0:
        return Waiting(0.0, 0.0, max(for_s))
    for_s[0] = for_s.get(0, 0.0) + span - sum(for_s.values())
    passed, p99 = 0.0, 0
    for count in sorted(for_s):
        passed, p99 = passed + for_s[count], count
        if passed >= 0.99 * span:
            break
    mean = sum(count * seconds for count, seconds in for_s.items()) / span
    return Waiting(mean, float(p99), max(count for count, seconds in for_s.items() if seconds > 0))
