"""How long one process waits for PostgreSQL.

A server that is down refuses, and that is told at once. One that is frozen (a stopped process, a disk that hangs, a
peer that is gone without a word) takes questions and answers nothing: no timeout of its own runs, and TCP sees nothing
wrong while its kernel acknowledges. So the time is taken here, at the one place where psycopg waits.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg import capabilities
from psycopg.abc import RV, PQGen

WORKER_S = 60.0  # one statement of a worker: batches of the ledger, sums, deletion of what is old
CANCEL_S = 1.0
CONNECT_S = 3

patience_s: float | None = None  # of this process, for one answer; None (management commands): without end


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer takes longer than :data:`patience_s`. The statement is cancelled where
    the server still hears of it: what nobody waits for should not go on.

    Raises, from whatever asked:
        psycopg.OperationalError: the database did not answer in time. The connection cannot be used again.
    """

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        if timeout is not None or patience_s is None:
            return super().wait(gen, interval, timeout)
        limit_s = patience_s
        until_s = time.monotonic() + limit_s
        try:
            return super().wait(gen, interval, limit_s)
        except psycopg.OperationalError:
            if time.monotonic() < until_s or self.pgconn.status != psycopg.pq.ConnStatus.OK:
                raise
            self._give_up()
            raise psycopg.OperationalError(f"the database did not answer within {limit_s:g} s") from None

    def _give_up(self) -> None:
        try:
            if capabilities.has_cancel_safe():  # the older way waits without end
                self.cancel_safe(timeout=CANCEL_S)
        except psycopg.Error:
            pass
        finally:
            self.pgconn.finish()


def waits(limit_s: float) -> None:
    """From now on this process waits so long for one answer of the database."""
    global patience_s
    patience_s = limit_s
