"""Ledger records into rows: idempotent by request id, in bulk, and never stopped by one bad record.

The only writer of :class:`telemetry.models.LedgerEntry`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connection, transaction

from scheduling.core.batch_account import ACCOUNT, owner_of
from scheduling.core.ledger import MAX_TOKENS, LedgerRecord, sane
from telemetry.models import LedgerEntry

log = logging.getLogger(__name__)

BATCH = 500  # rows per transaction: short enough that SQLite's other writers hardly wait
Row = tuple[Any, ...]

_FIELDS = [f for f in LedgerEntry._meta.concrete_fields if not f.primary_key]
_LIMITS = {f.name: f.max_length for f in _FIELDS if f.max_length}
# Straight SQL: model instances and their preparation cost four times the insert itself, and the worker writes as many
# rows as all gateways together end requests. Both databases know this form of "ignore what is there".
_REQUEST_ID = next(index for index, f in enumerate(_FIELDS) if f.name == "request_id")
_STORED = f"SELECT request_id FROM {LedgerEntry._meta.db_table} WHERE request_id IN "  # noqa: S608 our own names
_INSERT = (
    f"INSERT INTO {LedgerEntry._meta.db_table} ({', '.join(str(f.column) for f in _FIELDS)}) "  # noqa: S608 our own names
    f"VALUES ({', '.join(['%s'] * len(_FIELDS))}) ON CONFLICT (request_id) DO NOTHING"
)


def write(records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    """Stores records; those already stored stay as they were. Those that were not stored before, each once, so that who
    adds them up counts none twice; to count none too few, hand in ``BATCH`` at most.

    Raises:
        django.db.OperationalError, django.db.InterfaceError: the database is away. Nothing is lost when the caller
            hands in the same records again.
    """
    own = not connection.in_atomic_block  # inside a caller's transaction its connection is not ours to close
    if own:
        close_old_connections()
    stored: list[LedgerRecord] = []
    try:
        for start in range(0, len(records), BATCH):
            batch = [(row_of(record), record) for record in records[start : start + BATCH]]
            new = _write_batch([row for row, _ in batch])
            for row, record in batch:
                if row[_REQUEST_ID] in new:
                    new.remove(row[_REQUEST_ID])  # the same request once more in this batch is none
                    stored.append(record)
        return stored
    except (OperationalError, InterfaceError):
        if own:
            connection.close()  # the next attempt begins with a fresh one
        raise
    finally:
        if own:
            close_old_connections()


def row_of(record: LedgerRecord) -> Row:
    """A record's values in the table's order, its figures within what a request can have (``sane``).

    Text is cut to its column and freed of NUL (PostgreSQL refuses it), numbers are held in range.
    """
    record = sane(record)
    if record.entitlement.endswith(ACCOUNT):  # a line of a batch is its entitlement's
        record = replace(record, entitlement=owner_of(record.entitlement))
    moment = connection.ops.adapt_datetimefield_value
    values = {
        "status": min(max(record.status, 0), 32767),
        "streamed": record.streamed,
        "attempts": min(max(record.attempts, 0), 2**31 - 1),
        "input_tokens_est": _whole(record.input_tokens_est),
        "output_tokens_est": record.output_tokens_est if math.isfinite(record.output_tokens_est) else 0.0,
        "output_bound": _whole(record.output_bound),
        "input_tokens": _whole(record.input_tokens),
        "output_tokens": _whole(record.output_tokens),
        "cached_tokens": _whole(record.cached_tokens),
        "ttft_slo_s": record.ttft_slo_s,
        "tbt_slo_s": record.tbt_slo_s,
        "ttlt_slo_s": record.ttlt_slo_s,
        "slo_met": record.slo_met,
        "output_tokens_p90": record.output_tokens_p90 if math.isfinite(record.output_tokens_p90) else 0.0,
        "output_rank": record.output_rank,
        "received_at": moment(_moment(record.received_s)),
        "queued_at": moment(_moment(record.queued_s)),
        "granted_at": moment(_moment(record.granted_s)),
        "first_token_at": moment(_moment(record.first_token_s)),
        "done_at": moment(_moment(record.done_s)),
    }
    for column, limit in _LIMITS.items():
        text = getattr(record, column)
        values[column] = text.replace("\x00", "")[:limit] if len(text) > limit or "\x00" in text else text
    return tuple([values[f.name] for f in _FIELDS])


def _write_batch(rows: list[Row]) -> set[str]:
    """The ids of those that were not stored before."""
    try:
        return _insert(rows)
    except (OperationalError, InterfaceError):
        raise
    except (DatabaseError, ValueError) as error:
        # One row the database will never take must not hold up all others for ever.
        log.warning(
            "a batch of %d ledger entries was refused (%s); writing one by one", len(rows), type(error).__name__
        )
        new: set[str] = set()
        for row in rows:
            try:
                new |= _insert([row])
            except (OperationalError, InterfaceError):
                raise
            except (DatabaseError, ValueError):
                log.exception("the ledger entry of request %r cannot be stored and is dropped", row[_REQUEST_ID])
        return new


def _insert(rows: list[Row]) -> set[str]:
    ids = [row[_REQUEST_ID] for row in rows]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"{_STORED}({', '.join(['%s'] * len(ids))})", ids)
        before = {request_id for (request_id,) in cursor.fetchall()}
        cursor.executemany(_INSERT, rows)
    return set(ids) - before


def _whole(value: float) -> int:
    return min(max(int(value), 0), MAX_TOKENS)


def _moment(epoch_s: float | None) -> datetime | None:
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, tz=UTC)
