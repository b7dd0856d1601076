"""Recorded traffic of a pool: a file that any lab can replay, without a word of what was said.

JSON lines. The first names the pool and its tiers, with what was promised; every other is one request: arrival [s]
after the first one, sizes [tokens], who (tenant, tier, entitlement), category, what was expected of it, when things
happened [s after its arrival; null: it did not come to that], and its outcome. One that was in flight when it was
recorded has the tokens that it had by then, and its age as ``ttlt_s``. Prompts, answers, keys and request ids are not
in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from scheduling.core.outcomes import Reason
from scheduling.core.types import ServiceClass, Slo
from scheduling.simulator.workload import Tier

FORMAT = 1
IN_FLIGHT = "in_flight"  # outcome of a request that waited or ran when it was recorded
MARK = "quartermaster_recording"
DECIDED_ANEW = frozenset(
    reason.value
    for reason in (
        Reason.CONCURRENCY, Reason.TOKEN_BUDGET, Reason.KV_BUDGET, Reason.LOW_PRIORITY, Reason.QUEUE_FULL,
        Reason.QUEUE_TIMEOUT, Reason.SUPERSEDED, Reason.NO_BACKEND, Reason.REBUILDING,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a recording."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    tenant: str
    tier: str
    entitlement: str = ""
    category: str = ""
    expected_tokens: float = 0.0  # of output, before it ran
    output_bound: int = 0
    wait_s: float | None = None  # until it was granted
    ttft_s: float | None = None
    ttlt_s: float = 0.0
    outcome: str = "completed"
    reason: str = ""
    backend: str = ""

    @property
    def ran(self) -> bool:
        """Whether an engine worked on it until it ended, so that a replay knows all that there was to serve."""
        return self.outcome not in ("refused", IN_FLIGHT) and self.wait_s is not None

    @property
    def whole(self) -> bool:
        """Whether its answer came whole, so that nobody saw its first token."""
        return self.outcome == "completed" and self.wait_s is not None and self.ttft_s is None

    @property
    def turned_away(self) -> bool:
        """Whether its pool refused it for a reason that a replay with admission decides anew."""
        return not self.ran and self.reason in DECIDED_ANEW

    @property
    def in_flight(self) -> bool:
        """Whether it waited or ran when it was recorded: load as far as is known, of whom nobody knows how it ends."""
        return self.outcome == IN_FLIGHT


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests in order of arrival, and the contracts under which they came."""

    pool: str
    tiers: tuple[Tier, ...]
    rows: tuple[Recorded, ...]

    @property
    def span_s(self) -> float:
        return self.rows[-1].arrival_s - self.rows[0].arrival_s if self.rows else 0.0


def write_recording(recording: Recording, out: Any) -> None:
    """Writes it to an open text stream."""
    tiers = [_tier_row(tier) for tier in recording.tiers]
    out.write(json.dumps({MARK: FORMAT, "pool": recording.pool, "tiers": tiers}, ensure_ascii=False) + "\n")
    for row in recording.rows:
        cells = {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(row).items()}
        out.write(json.dumps(cells, ensure_ascii=False) + "\n")


def is_recording(first_line: str) -> bool:
    """Whether a file that begins like this is a recording."""
    return first_line.lstrip().startswith("{") and f'"{MARK}"' in first_line


def read_recording(path: Path, lines: Iterable[tuple[int, str]]) -> Recording:
    """A recording from numbered lines, the head first. Raises RecordingError with the line's number."""
    rest = iter(lines)
    number, first = next(rest)
    head = _object(number, first)
    if head.get(MARK) != FORMAT:
        raise RecordingError(number, f"this recording has format {head.get(MARK)!r}; this release reads {FORMAT}")
    try:
        tiers = tuple(_tier(row) for row in head["tiers"])
        pool = str(head["pool"])
    except (KeyError, TypeError, ValueError) as problem:
        raise RecordingError(number, f"the head names no pool and tiers as it should ({problem!r})") from problem
    rows = sorted(_rows(rest, {tier.name for tier in tiers}), key=lambda row: row.arrival_s)
    if not rows:
        raise RecordingError(number, "the recording holds no request")
    return Recording(pool, tiers, tuple(rows))


class RecordingError(ValueError):
    """A line that cannot be read."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line, self.problem = line, problem


_TEXT = {f.name for f in fields(Recorded) if f.type == "str"}
_MAY_LACK = {"wait_s", "ttft_s"}
_FIELDS = {f.name for f in fields(Recorded)}


def _rows(lines: Iterator[tuple[int, str]], tiers: set[str]) -> Iterator[Recorded]:
    for number, line in lines:
        raw = _object(number, line)
        missing = {"arrival_s", "input_tokens", "output_tokens", "tenant", "tier"} - set(raw)
        if missing:
            raise RecordingError(number, f"{', '.join(sorted(missing))} missing")
        if raw["tier"] not in tiers:
            raise RecordingError(number, f"tier {raw['tier']!r} is not in the head; there are: {', '.join(tiers)}")
        yield Recorded(**{name: _value(number, name, value) for name, value in raw.items() if name in _FIELDS})


def _value(number: int, name: str, value: object) -> Any:
    if name in _TEXT:
        return str(value)
    if value is None and name in _MAY_LACK:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise RecordingError(number, f"{name} {value!r} is not a number of at least 0")
    return int(value) if name in ("input_tokens", "output_tokens", "output_bound") else float(value)


def _object(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise RecordingError(number, f"not a JSON object ({problem})") from problem
    if not isinstance(row, dict):
        raise RecordingError(number, "not a JSON object")
    return row


def _tier_row(tier: Tier) -> dict[str, Any]:
    return {
        "name": tier.name, "rank": tier.rank, "weight": tier.weight, "service_class": tier.service_class.value,
        "ttft_s": tier.slo.ttft_s, "tbt_s": tier.slo.tbt_s, "ttlt_s": tier.slo.ttlt_s,
    }  # fmt: skip


def _tier(row: Mapping[str, Any]) -> Tier:
    slo = Slo(ttft_s=row.get("ttft_s"), tbt_s=row.get("tbt_s"), ttlt_s=row.get("ttlt_s"))
    return Tier(
        str(row["name"]), slo, int(row["rank"]), float(row["weight"]), service_class=ServiceClass(row["service_class"])
    )
