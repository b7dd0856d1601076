"""What the leader does for each request that ended, by the function calls it takes. One more for each is 0.1 us and
more of the core that all pools of a leader share.

The bounds are what was counted on 2026-12-01 with CPython 3.11 and a tenth more. Who needs more of them for something
worth it raises the bound and says why in ``docs/results/benchmarks.md``, *What the leader does for a request*.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from django.db import connection

from scheduling.core.ledger.record import LedgerRecord
from scheduling.state import codec
from telemetry.feed.window import Window
from telemetry.ledger import writer
from tests.support.call_counts import calls_each
from tests.support.telemetry_world import globex_record, record

ROWS = 500  # a transaction of the writer
READ = 4.5  # counted: 4
ROW = 5.5  # counted: 5
WRITTEN = 7.0  # counted: 6.3, with what a transaction takes, by 500
COUNTED_LIVE = 8.0  # counted: 7.1


def _ended(first: int, now_s: float) -> list[LedgerRecord]:
    rows = [(record, globex_record)[n % 2](first + n) for n in range(ROWS)]
    return [
        replace(r, received_s=now_s - 3, granted_s=now_s - 2, first_token_s=now_s - 2, done_s=now_s - 1) for r in rows
    ]


def test_reading_one_takes_no_more_calls_than_it_did() -> None:
    entries = [[b"r", codec.encode_ledger(r)] for r in _ended(0, time.time())]

    def read(fields: list[bytes]) -> None:
        codec.taken(fields, codec.decode_ledger_fields("llama", fields))

    assert calls_each(read, entries) <= READ


@pytest.mark.skipif(connection.vendor != "sqlite", reason="on PostgreSQL Django's own adapters make its values")
@pytest.mark.django_db
def test_writing_its_row_takes_no_more_calls_than_it_did() -> None:
    moments_of = writer.moments()
    assert calls_each(lambda r: writer.row_of(r, moments_of), _ended(0, time.time())) <= ROW
    batches = [_ended(ROWS * n, time.time()) for n in (1, 2, 3)]
    assert calls_each(writer.write, batches) / ROWS <= WRITTEN


def test_counting_it_for_the_dashboard_takes_no_more_calls_than_it_did() -> None:
    now_s = time.time()
    window = Window()
    batches = [_ended(ROWS * n, now_s) for n in (1, 2, 3)]
    assert calls_each(lambda batch: window.add(batch, now_s), batches) / ROWS <= COUNTED_LIVE
    assert window.pool.completed == 3 * ROWS
