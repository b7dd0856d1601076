"""What a pool works on now, as rows of a recording.

A request has no ledger record before it ends. In an overload that is most of what loads the pool: a replay of ended
requests alone would find it half as busy as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from scheduling.simulator.recording import IN_FLIGHT, Recorded
from telemetry.api.common import Unavailable
from telemetry.api.queue import queue_store
from telemetry.ledger.queue import LiveRequest, QueueUnavailable

_FIELDS = [field.name for field in fields(Recorded)]
MOST_IN_FLIGHT = 20_000  # of those that wait, and of those that run
SAME_S = 1.0  # by which state time and ours may differ without being told apart: asking takes a moment


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that waits or runs. ``row``: as far as it has come, its arrival at 0."""

    id: str
    received_at: datetime
    row: Recorded


def in_flight(pool: str, now: datetime) -> list[InFlight] | None:
    """Requests in flight, by arrival; None where Redis does not say. None are in flight where there is no Redis."""
    try:
        store = queue_store()
    except Unavailable:
        return []
    try:
        now_s = store.now_s(pool)
        live = [*store.waiting(pool, most=MOST_IN_FLIGHT), *store.running(pool, most=MOST_IN_FLIGHT)]
    except QueueUnavailable:
        return None
    ahead_s = now_s - now.timestamp()
    ahead_s = ahead_s if abs(ahead_s) > SAME_S else 0.0
    found = {each.id: _as_row(each, now_s, ahead_s) for each in live}  # one that was granted meanwhile is read twice
    return sorted(found.values(), key=lambda one: (one.received_at, one.id))


def _as_row(live: LiveRequest, now_s: float, ahead_s: float) -> InFlight:
    request, entry = live.entry.queued_request(), live.entry
    age_s = max(0.0, now_s - request.arrival_s)
    row = Recorded(
        0.0, request.input_tokens, max(0, entry.served - request.input_tokens), request.tenant, request.tier,
        request.entitlement, "", request.output_tokens, request.output_bound,
        None if live.waits else max(0.0, entry.granted_ms / 1000 - request.arrival_s), None, age_s, IN_FLIGHT, "",
        "" if live.waits else entry.backend,
    )  # fmt: skip
    return InFlight(live.id, datetime.fromtimestamp(request.arrival_s - ahead_s, UTC), row)


def packed(requests: Iterable[InFlight]) -> list[dict[str, Any]]:
    """As JSON, for a window that is read again later."""
    return [{"id": one.id, "received_at": one.received_at.isoformat(), **asdict(one.row)} for one in requests]


def unpacked(rows: Iterable[dict[str, Any]]) -> list[InFlight]:
    """What :func:`packed` made."""
    return [
        InFlight(row["id"], datetime.fromisoformat(row["received_at"]), Recorded(**{k: row[k] for k in _FIELDS}))
        for row in rows
    ]
