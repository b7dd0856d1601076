"""Ledger records into rows: idempotent by request id, in bulk, and never stopped by one bad record.

The only writer of :class:`telemetry.models.LedgerEntry`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime

from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, connection, transaction

from scheduling.core.ledger import LedgerRecord
from telemetry.models import LedgerEntry

log = logging.getLogger(__name__)

BATCH = 500  # rows per transaction: short enough that SQLite's other writers hardly wait
_LARGEST = 2**63 - 1
_LIMITS = {f.name: f.max_length for f in LedgerEntry._meta.fields if getattr(f, "max_length", None)}


def write(records: Sequence[LedgerRecord]) -> None:
    """Stores records; those already stored stay as they were.

    Raises:
        django.db.OperationalError, django.db.InterfaceError: the database is away. Nothing is lost when the caller
            hands in the same records again.
    """
    own = not connection.in_atomic_block  # inside a caller's transaction its connection is not ours to close
    if own:
        close_old_connections()
    try:
        for start in range(0, len(records), BATCH):
            _write_batch([entry_of(record) for record in records[start : start + BATCH]])
    except (OperationalError, InterfaceError):
        if own:
            connection.close()  # the next attempt begins with a fresh one
        raise
    finally:
        if own:
            close_old_connections()


def entry_of(record: LedgerRecord) -> LedgerEntry:
    """An unsaved row. Text is cut to its column and freed of NUL (PostgreSQL refuses it), numbers are held in range."""
    return LedgerEntry(
        request_id=_text("request_id", record.request_id),
        pool=_text("pool", record.pool),
        model=_text("model", record.model),
        tenant=_text("tenant", record.tenant),
        tier=_text("tier", record.tier),
        entitlement=_text("entitlement", record.entitlement),
        key_id=_text("key_id", record.key_id),
        gateway=_text("gateway", record.gateway),
        outcome=_text("outcome", record.outcome),
        reason=_text("reason", record.reason),
        status=min(max(record.status, 0), 32767),
        streamed=record.streamed,
        attempts=min(max(record.attempts, 0), 2**31 - 1),
        backend=_text("backend", record.backend),
        policy=_text("policy", record.policy),
        why=_text("why", record.why),
        input_tokens_est=_whole(record.input_tokens_est),
        output_tokens_est=record.output_tokens_est if math.isfinite(record.output_tokens_est) else 0.0,
        output_bound=_whole(record.output_bound),
        input_tokens=_whole(record.input_tokens),
        output_tokens=_whole(record.output_tokens),
        received_at=_moment(record.received_s),
        queued_at=None if record.queued_s is None else _moment(record.queued_s),
        granted_at=None if record.granted_s is None else _moment(record.granted_s),
        first_token_at=None if record.first_token_s is None else _moment(record.first_token_s),
        done_at=_moment(record.done_s),
        ttft_slo_s=record.ttft_slo_s,
        tbt_slo_s=record.tbt_slo_s,
        ttlt_slo_s=record.ttlt_slo_s,
        slo_met=record.slo_met,
    )


def _write_batch(entries: list[LedgerEntry]) -> None:
    try:
        with transaction.atomic():
            LedgerEntry.objects.bulk_create(entries, ignore_conflicts=True)
    except (OperationalError, InterfaceError):
        raise
    except (DatabaseError, ValueError) as error:
        # One row the database will never take must not hold up all others for ever.
        log.warning(
            "a batch of %d ledger entries was refused (%s); writing one by one", len(entries), type(error).__name__
        )
        for entry in entries:
            try:
                with transaction.atomic():
                    LedgerEntry.objects.bulk_create([entry], ignore_conflicts=True)
            except (OperationalError, InterfaceError):
                raise
            except (DatabaseError, ValueError):
                log.exception("ledger entry of request %r cannot be stored and is dropped", entry.request_id)


def _text(column: str, value: str) -> str:
    return value.replace("\x00", "")[: _LIMITS[column]]


def _whole(value: float) -> int:
    return min(max(int(value), 0), _LARGEST)


def _moment(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, tz=UTC)
