"""What ended in a pool a moment ago, read back from the ledger: a new leader was not there to count it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, TextField
from django.db.models.functions import Cast

from scheduling.core.ledger.record import LedgerRecord
from telemetry.models import LedgerEntry
from tenants.connections import own_connection

MOST_REQUESTS = 5_000  # requests, the newest received: it is the leader that reads them, when it has most to do
LONGEST = timedelta(minutes=15)  # from being received to the end; there is no index of ends

_STORED = {field.name: field for field in LedgerEntry._meta.concrete_fields}
_NAMES = [
    (field.name, column)
    for field in fields(LedgerRecord)
    if (column := field.name.removesuffix("_s") + "_at" if field.name.endswith("_s") else field.name) in _STORED
] + [(name, name) for name in ("ttft_slo_s", "tbt_slo_s", "ttlt_slo_s")]
_TIMES = frozenset(name for name, column in _NAMES if isinstance(_STORED[column], DateTimeField))
# As text, which Python's own parser reads: the ORM's converters of times cost more than all the rest of a row.
_COLUMNS = [Cast(column, TextField()) if name in _TIMES else column for name, column in _NAMES]
_Ended = tuple[list[LedgerRecord], float]
Reread = Callable[[str, float], _Ended]


@own_connection
def ended_since(pool: str, since_s: float) -> _Ended:
    """The records, and from when on they are all of them; later than ``since_s`` where there were very many."""
    since = datetime.fromtimestamp(since_s, UTC)
    rows = LedgerEntry.objects.filter(pool=pool, received_at__gte=since - LONGEST, done_at__gte=since)
    values = list(rows.order_by("-received_at").values_list(*_COLUMNS)[:MOST_REQUESTS])
    names = [name for name, _ in _NAMES]
    ended = [LedgerRecord(**_read(dict(zip(names, row, strict=True)))) for row in values]
    return ended, max(since_s, ended[-1].received_s) if len(ended) == MOST_REQUESTS else since_s


def _read(values: dict[str, Any]) -> dict[str, Any]:
    for name in _TIMES:
        if (text := values[name]) is not None:
            moment = datetime.fromisoformat(text)  # SQLite's has no zone: it is UTC
            values[name] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return values
