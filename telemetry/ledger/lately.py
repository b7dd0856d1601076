"""What ended in a pool a moment ago, read back from the ledger: a new leader was not there to count it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduling.core.ledger import LedgerRecord
from telemetry.models import LedgerEntry
from tenants.connections import own_connection

MOST = 20_000  # requests that are looked at, the newest received
LONGEST = timedelta(minutes=15)  # from being received to the end; there is no index of ends

_STORED = {field.name for field in LedgerEntry._meta.concrete_fields}
_NAMES = [
    (field.name, column)
    for field in fields(LedgerRecord)
    if (column := field.name.removesuffix("_s") + "_at" if field.name.endswith("_s") else field.name) in _STORED
] + [(name, name) for name in ("ttft_slo_s", "tbt_slo_s", "ttlt_slo_s")]
_Ended = tuple[list[LedgerRecord], float]
Reread = Callable[[str, float], _Ended]


@own_connection
def ended_since(pool: str, since_s: float) -> _Ended:
    """The records, and from when on they are all of them; later than ``since_s`` where there were very many."""
    since = datetime.fromtimestamp(since_s, UTC)
    rows = LedgerEntry.objects.filter(pool=pool, received_at__gte=since - LONGEST).order_by("-received_at")
    values = list(rows.values_list(*(column for _, column in _NAMES))[:MOST])
    names = [name for name, _ in _NAMES]
    found = [LedgerRecord(**dict(zip(names, map(_plain, row), strict=True))) for row in values]
    whole_s = found[-1].received_s if len(found) == MOST else since_s
    return [record for record in found if record.done_s >= since_s], max(since_s, whole_s)


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value
