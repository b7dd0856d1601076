"""What a refused client was told to wait, and when its key came back.

The wait is in the record; the header is spread around it (``scheduling/gateway/headers.py``), so between the least and
the most of that spread it is not known whether a client came too early. Requests of one key cannot be told apart: the
next one of the key may be another client's, and is called so.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduling.core.outcomes import Outcome
from scheduling.gateway.headers import MAX_RETRY_S, SPREAD
from telemetry.models import LedgerEntry

Json = dict[str, Any]

SLACK_S = 0.01  # between a client's clock and ours
MOST_COUNTED = 1000


def retry_of(row: LedgerEntry) -> Json | None:
    """When the key of a refused request came back; None if it was not refused. ``told_s``: None if it was told no time,
    or an older release did not record it. ``obeyed``: None if the key did not come back, or came within the spread."""
    if row.outcome != Outcome.REFUSED:
        return None
    figures: Json = msgspec.json.decode(row.admission) if row.admission else {}
    retry_ms = figures.get("retry_ms")
    later = LedgerEntry.objects.filter(key_id=row.key_id, received_at__gt=row.done_at)
    following = later.order_by("received_at", "id").first() if row.key_id else None
    after_s = None if following is None else (following.received_at - row.done_at).total_seconds()
    retry: Json = {
        "told_s": None, "least_s": None, "most_s": None, "early": 0, "obeyed": None,
        "next": None if following is None else {
            "request_id": following.request_id, "after_s": round(after_s or 0.0, 3), "outcome": following.outcome,
            "reason": following.reason,
        },
    }  # fmt: skip
    if retry_ms is None:
        return retry
    told_s = retry_ms / 1000
    least_s, most_s = (min(MAX_RETRY_S, told_s * (1 + side * SPREAD)) for side in (-1, 1))
    retry |= {"told_s": told_s, "least_s": round(least_s, 3), "most_s": round(most_s, 3)}
    if after_s is not None:
        if after_s < least_s - SLACK_S:
            retry["obeyed"] = False
            until = row.done_at.timestamp() + least_s - SLACK_S
            early = later.order_by("received_at").values_list("received_at", flat=True)[:MOST_COUNTED]
            retry["early"] = sum(at.timestamp() < until for at in early)
        elif after_s >= most_s - SLACK_S:
            retry["obeyed"] = True
    return retry
