"""Sends alerts from the process that opened or ended them, on a thread of its own.

A Celery task would wait behind studies and lab runs, which take minutes, and without a worker, which is when a pool has
no leader, nobody would run it. Attempts are claimed in the database, so several processes do not send the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import DatabaseError

from telemetry.alerts import lifecycle, notify
from telemetry.alerts.attempts import BATCH
from tenants.connections import own_connection

log = logging.getLogger(__name__)

# After a call: what failed is due again after 10, 20 and 40 s; from then on each minute's task looks after it.
PAUSES_S = (0.0, 11.0, 21.0, 41.0)


@own_connection
def send_due() -> None:
    """One attempt at everything that is due."""
    for deliver in (notify.deliver, lifecycle.deliver):
        while deliver() == BATCH:
            pass


class Delivery:
    """One thread, for as long as there may be something to send."""

    def __init__(self, send: Callable[[], None] = send_due, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        self._send = send
        self._pauses_s = pauses_s
        self._called = threading.Event()
        self._lock = threading.Lock()
        self._runs = False

    def call(self) -> None:
        """Something is due. Does not wait for it."""
        with self._lock:
            self._called.set()
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="alerts", daemon=True).start()

    def _run(self) -> None:
        turn = 0
        while True:
            if self._called.wait(self._pauses_s[turn]):
                self._called.clear()
                turn = 0
            try:
                self._send()
            except DatabaseError as error:
                log.warning("alerts: the database does not answer (%s)", type(error).__name__)
            except Exception:
                log.exception("alerts could not be sent")
            turn += 1
            with self._lock:
                if turn == len(self._pauses_s):
                    if not self._called.is_set():
                        self._runs = False
                        return
                    turn = 0


_delivery = Delivery()


def start_delivery() -> None:
    """Of this process."""
    _delivery.call()
