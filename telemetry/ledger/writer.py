"""Ledger records into rows: idempotent by request id, in bulk, and never stopped by one bad record.

The only writer of :class:`telemetry.models.LedgerEntry`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from math import modf
from operator import attrgetter, gt
from typing import Any

from django.db import (
    DataError,
    Error,
    IntegrityError,
    OperationalError,
    close_old_connections,
    connection,
    transaction,
)

from scheduling.core.admission.batch_account import ACCOUNT, owner_of
from scheduling.core.ledger.record import MAX_TOKENS, LedgerRecord, sane
from scheduling.core.outcomes import Reason
from scheduling.core.types import MAX_SEQUENCES
from telemetry.models import LedgerEntry

log = logging.getLogger(__name__)

BATCH = 500  # rows per transaction: short enough that SQLite's other writers hardly wait
# How long a locked table of PostgreSQL is waited for (an index is built, say): the thread that waits also publishes
# what screens and alert rules see of every pool. Hardly at all where the last try failed.
LOCK_MS, LOCKED_MS = 1000, 100
_lock_ms = LOCK_MS
Row = tuple[Any, ...]
Moments = Callable[[Iterable[float | None]], Iterable[Any]]
# What the database says of a row. All else it says of itself: that it is away, read-only, without a table or a right.
OF_A_ROW = (DataError, IntegrityError, ValueError)

_FIELDS = [f for f in LedgerEntry._meta.concrete_fields if not f.primary_key]
# Columns in the order of a row: by what is done to their values, so that a row needs no table of names.
_TEXTS = {f.name: f.max_length for f in _FIELDS if f.max_length}
_TOKENS = ("input_tokens_est", "output_bound", "input_tokens", "output_tokens", "cached_tokens")
_AS_THEY_ARE = ("streamed", "ttft_slo_s", "tbt_slo_s", "ttlt_slo_s", "slo_met", "output_rank")
_BOUNDED = (
    "status",
    "attempts",
    "interruptions",
    "sequences",
    "client_retry",
    "ran_before_s",
    "output_tokens_est",
    "output_tokens_p90",
)
_MOMENTS = ("received_at", "queued_at", "granted_at", "first_token_at", "done_at")
_ORDER = (*_TEXTS, *_TOKENS, *_AS_THEY_ARE, *_BOUNDED, *_MOMENTS)
_COLUMNS = [str({f.name: f.column for f in _FIELDS}[name]) for name in _ORDER]
_REQUEST_ID, _REASON = _ORDER.index("request_id"), _ORDER.index("reason")
_texts_of, _tokens_of = attrgetter(*_TEXTS), attrgetter(*_TOKENS)
_as_they_are_of = attrgetter(*_AS_THEY_ARE)
_times_of = attrgetter("received_s", "queued_s", "granted_s", "first_token_s", "done_s")
_LONGEST = tuple(_TEXTS.values())
# Straight SQL: model instances and their preparation cost four times the insert itself, and the worker writes as many
# rows as all gateways together end requests. Both databases know this form of "ignore what is there".
_STORED = f"SELECT request_id, reason FROM {LedgerEntry._meta.db_table} WHERE request_id IN "  # noqa: S608 our own names
# By the number of its row a sum of the hour knows what is new (telemetry.ledger.rollup): one that is put right is new.
_TAKE_BACK = f"DELETE FROM {LedgerEntry._meta.db_table} WHERE request_id IN "  # noqa: S608 our own names
_INSERT = (
    f"INSERT INTO {LedgerEntry._meta.db_table} ({', '.join(_COLUMNS)}) "  # noqa: S608 our own names
    f"VALUES ({', '.join(['%s'] * len(_COLUMNS))}) ON CONFLICT (request_id) DO NOTHING"
)


def write(records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
    """Stores records; those already stored stay as they were, but for one that was lost with its gateway: what that
    gateway says of it later stands in its place. Those that were not stored before, each once, so that who adds them up
    counts none twice (one in another's place is among them); to count none too few, hand in ``BATCH`` at most.

    Raises:
        django.db.Error: the database is away, or takes nothing for now (read-only, a table that is locked, or it or a
            right is missing). Nothing is lost when the caller hands in the same records again.
    """
    own = not connection.in_atomic_block  # inside a caller's transaction its connection is not ours to close
    if own:
        close_old_connections()
    stored: list[LedgerRecord] = []
    try:
        moments_of = moments()
        for start in range(0, len(records), BATCH):
            batch = _put_right([*_rows(records[start : start + BATCH], moments_of)])
            new = _write_batch([row for row, _ in batch])
            for row, record in batch:
                if row[_REQUEST_ID] in new:
                    new.remove(row[_REQUEST_ID])  # the same request once more in this batch is none
                    stored.append(record)
        return stored
    except Error:
        if own:
            connection.close()  # the next attempt begins with a fresh one
        raise
    finally:
        if own:
            close_old_connections()


def _rows(records: Sequence[LedgerRecord], moments_of: Moments) -> Iterator[tuple[Row, LedgerRecord]]:
    for record in records:
        try:
            yield row_of(record, moments_of), record
        except (ArithmeticError, ValueError, OSError):  # a time that no calendar has
            log.exception("the ledger entry of request %r cannot be stored and is dropped", record.request_id)


def _put_right(batch: list[tuple[Row, LedgerRecord]]) -> list[tuple[Row, LedgerRecord]]:
    """Without what is said to be lost, where the same batch says how it ended."""
    known = {row[_REQUEST_ID] for row, _ in batch if row[_REASON] != Reason.GATEWAY_LOST}
    return [(row, r) for row, r in batch if row[_REASON] != Reason.GATEWAY_LOST or row[_REQUEST_ID] not in known]


def row_of(record: LedgerRecord, moments_of: Moments) -> Row:
    """A record's values in the order of the insert, its figures within what a request can have (``sane``).

    Text is cut to its column and freed of NUL (PostgreSQL refuses it), numbers are held in range.
    ``moments_of``: what the database takes for times [epoch s].
    """
    record = sane(record)
    if record.entitlement.endswith(ACCOUNT):  # a line of a batch is its entitlement's
        record = replace(record, entitlement=owner_of(record.entitlement))
    texts = _texts_of(record)
    if any(map(gt, map(len, texts), _LONGEST)) or "\x00" in "".join(texts):
        texts = tuple([text.replace("\x00", "")[:limit] for text, limit in zip(texts, _LONGEST, strict=True)])
    return (
        *texts,
        *[n if type(n) is int and 0 <= n <= MAX_TOKENS else _whole(n) for n in _tokens_of(record)],
        *_as_they_are_of(record),
        min(max(record.status, 0), 32767),
        min(max(record.attempts, 0), 2**31 - 1),
        min(max(record.interruptions, 0), 2**31 - 1),
        min(max(record.sequences, 1), MAX_SEQUENCES),
        min(max(record.client_retry, 0), 32767),
        record.ran_before_s if 0 <= record.ran_before_s < math.inf else 0.0,
        record.output_tokens_est if math.isfinite(record.output_tokens_est) else 0.0,
        record.output_tokens_p90 if math.isfinite(record.output_tokens_p90) else 0.0,
        *moments_of(_times_of(record)),
    )


def moments() -> Moments:
    """What ``row_of`` makes of times: what Django's adapters make of them, at a fifth of their cost for SQLite."""
    if connection.vendor == "sqlite":
        return _as_texts
    adapt = connection.ops.adapt_datetimefield_value
    return lambda times: [None if at_s is None else adapt(datetime.fromtimestamp(at_s, UTC)) for at_s in times]


def _as_texts(times: Iterable[float | None]) -> list[str | None]:
    """The rows of a batch share their seconds, so that of each time only its fraction is made into text."""
    texts: list[str | None] = []
    for at_s in times:
        if at_s is None:
            texts.append(None)
            continue
        part, second_s = modf(at_s)
        micros = round(part * 1e6)  # as datetime rounds
        if 0 < micros < 1_000_000:
            texts.append(f"{_second(second_s)}.{micros:06d}")
        else:
            texts.append(datetime.fromtimestamp(at_s, UTC).isoformat(" ")[:-6])
    return texts


@lru_cache(maxsize=4096)
def _second(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(" ")[:-6]  # without its +00:00


def _write_batch(rows: list[Row]) -> set[str]:
    """The ids of those that were not stored before."""
    try:
        return _insert(rows)
    except OF_A_ROW as error:
        # One row the database will never take must not hold up all others for ever.
        log.warning(
            "a batch of %d ledger entries was refused (%s); writing one by one", len(rows), type(error).__name__
        )
        new: set[str] = set()
        for row in rows:
            try:
                new |= _insert([row])
            except OF_A_ROW:
                log.exception("the ledger entry of request %r cannot be stored and is dropped", row[_REQUEST_ID])
        return new


def _insert(rows: list[Row]) -> set[str]:
    global _lock_ms
    ids = [row[_REQUEST_ID] for row in rows]
    told = [row[_REQUEST_ID] for row in rows if row[_REASON] != Reason.GATEWAY_LOST]
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(f"SET LOCAL lock_timeout = {_lock_ms}")
            cursor.execute(f"{_STORED}({', '.join(['%s'] * len(ids))})", ids)
            before = dict(cursor.fetchall())
            wrong = [name for name in told if before.get(name) == Reason.GATEWAY_LOST]
            if wrong:
                cursor.execute(f"{_TAKE_BACK}({', '.join(['%s'] * len(wrong))})", wrong)
            cursor.executemany(_INSERT, rows)
    except OperationalError:
        _lock_ms = LOCKED_MS
        raise
    _lock_ms = LOCK_MS
    return set(ids) - before.keys() | set(wrong)


def _whole(value: float) -> int:
    return min(max(int(value), 0), MAX_TOKENS)
