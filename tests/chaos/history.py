"""What a run must have been like: one pass over what clients saw, the ledger and the state that is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.faults import Fault

# How a client may see a request end. "reset": its connection broke before the end, which it cannot take for one.
GOOD_ENDS = ("completed", "refused", "failed", "left", "reset", "not_connected")
# What the ledger may say instead where a gateway died, slept for longer than its lease, or lost its slot: nobody is
# left, or nobody is believed, who could tell how it ended.
NOBODY_KNOWS = ("gateway_lost", "lease_lost")
LOST_BEFORE_S, LOST_AFTER_S = 15.0, 6.0  # around a FLUSHALL: ledger entries that were not stored yet


@dataclass(slots=True)
class Seen:
    """One request as its client saw it; times are seconds since the load began."""

    tenant: str
    began_s: float
    streamed: bool
    end: str = "hung"
    reason: str = ""
    status: int = 0
    request_id: str = ""
    ended_s: float = 0.0
    output_tokens: int = 0
    estimate: int = 0  # what its bucket was charged at first [tokens]

    def as_json(self) -> dict[str, Any]:
        return {"what": "request", **asdict(self)}


@dataclass(slots=True)
class Left:
    """What is there when the load has ended."""

    totals: dict[str, str] = field(default_factory=dict)
    leases: int = 0
    waiting: int = 0
    open_on_engines: int = 0
    ready: bool = True
    differs: int = 0  # totals that differ from the leases
    used: dict[str, float] = field(default_factory=dict)  # depth - level of each entitlement's bucket [tokens]
    set_aside: int = 0  # ledger entries that could not be read


def check(
    seen: Sequence[Seen], ledger: Iterable[Mapping[str, Any]], left: Left, faults: Sequence[tuple[float, Fault]]
) -> list[str]:
    """Every law that was broken, in words. ``faults``: when each really came. ``ledger``: rows with ``request_id``,
    ``entitlement``, ``outcome``, ``reason``, ``input_tokens``, ``output_tokens``, ``input_tokens_est``,
    ``output_bound``."""
    rows = list(ledger)
    flushes = [at for at, fault in faults if fault.kind == "flush"]
    return [
        *_ends(seen),
        *_rows(seen, rows, flushes, any(f.target.startswith("web") for _, f in faults)),
        *_state(left),
        *([] if flushes else _buckets(seen, rows, left)),
    ]


def _ends(seen: Sequence[Seen]) -> list[str]:
    odd = Counter(one.end for one in seen if one.end not in GOOD_ENDS)
    return [f"{n} requests ended as {end!r}, which is no end" for end, n in sorted(odd.items())]


def _rows(seen: Sequence[Seen], rows: list[Mapping[str, Any]], flushes: list[float], web_fell: bool) -> list[str]:
    broken = []
    counts = Counter(row["request_id"] for row in rows)
    twice = [name for name, n in counts.items() if n > 1]
    if twice:
        broken.append(f"{len(twice)} requests are in the ledger more than once, such as {twice[0]}")
    ids = Counter(one.request_id for one in seen if one.request_id)
    if ids and max(ids.values()) > 1:
        broken.append("one request id was given to two requests")
    by_id = {row["request_id"]: row for row in rows}
    for one in seen:
        # a refusal holds nothing, and a gateway that is killed takes the refusals of its last second with it
        if not one.request_id or (one.end == "refused" and web_fell):
            continue
        row = by_id.get(one.request_id)
        if row is None:
            if not any(at - LOST_BEFORE_S <= one.ended_s <= at + LOST_AFTER_S for at in flushes):
                broken.append(
                    f"{one.request_id} ({one.end} {one.reason or one.status} after {one.ended_s:.1f} s) has no row"
                )
        elif one.end == "completed" and row["outcome"] != "completed":
            if row["reason"] not in NOBODY_KNOWS:
                broken.append(f"{one.request_id}: the client saw it complete, the ledger says {row['reason']}")
        elif one.end == "completed" and row["output_tokens"] != one.output_tokens:
            broken.append(f"{one.request_id}: {one.output_tokens} tokens, {row['output_tokens']} in the ledger")
        elif one.end == "refused" and row["outcome"] == "completed":
            broken.append(f"{one.request_id}: refused, but completed in the ledger")
    return broken


def _state(left: Left) -> list[str]:
    broken = []
    if left.totals:
        broken.append(f"totals are left: {left.totals}")
    for what, n in (
        ("leases are held", left.leases),
        ("requests wait", left.waiting),
        ("generations run", left.open_on_engines),
        ("ledger entries are set aside", left.set_aside),
    ):
        if n:
            broken.append(f"{n} {what} though every request has ended")
    if not left.ready:
        broken.append("the instance is not ready")
    return broken


def _buckets(seen: Sequence[Seen], rows: list[Mapping[str, Any]], left: Left) -> list[str]:
    """A bucket has paid what the ledger says was used. Where a gateway died, at most the charge."""
    charged = {one.request_id: one.estimate for one in seen if one.request_id}
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for row in rows:
        used = row["input_tokens"] + row["output_tokens"]
        unsure = row["reason"] in NOBODY_KNOWS
        bound = max(charged.get(row["request_id"], 0), row["input_tokens_est"] + row["output_bound"])
        least[row["entitlement"]] += 0 if unsure else used
        most[row["entitlement"]] += max(used, bound) if unsure else used
    broken = []
    for name, used in sorted(left.used.items()):
        if not least[name] - 2 <= used <= most[name] + 2:
            broken.append(f"the bucket of {name} paid {used:.0f} tokens, the ledger says {least[name]} to {most[name]}")
    return broken


def recovery(seen: Sequence[Seen], at_s: float, fault: Fault) -> float | None:
    """Seconds from a fault's end until a request that was sent after it has completed; None: none has."""
    over_s = at_s + fault.for_s
    done = [one.ended_s for one in seen if one.end == "completed" and one.began_s >= over_s]
    return min(done) - over_s if done else None
