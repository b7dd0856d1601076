"""One line in the log per outage, also from those who would write one per attempt.

Our own clients report a dependency's change of state. Others (Channels' receiver, Celery's consumer, Django for each
request while the database is away) report every try, with a traceback. :class:`Repeats` lets the first one through, as
one line, and leaves the others out until it has been quiet for a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.core.exceptions import SuspiciousOperation
from django.db.utils import InterfaceError, OperationalError

QUIET_S = 60.0  # longer than Celery's longest pause between two tries (32 s)
DATABASE_AWAY = (OperationalError, InterfaceError)
_MOST = 1000  # kinds remembered
_JUDGED = "quartermaster_judged"  # logging.config adds filters without taking away those it added before


class Repeats(logging.Filter):
    """For one logger of a library: drops what repeats itself. ``database_only``: only what an unreachable database
    causes counts as a repetition, everything else passes as it is."""

    def __init__(self, database_only: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._database_only = database_only
        self._clock = clock
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or getattr(record, _JUDGED, False):
            return True
        error = record.exc_info[1] if record.exc_info else None
        if self._database_only and not isinstance(error, DATABASE_AWAY):
            return True
        # what a stranger sent is in the words of a suspicion: every one would be new
        about = "" if isinstance(error, SuspiciousOperation) else str(record.msg)
        kind = (about, type(error).__name__)
        now = self._clock()
        last = self._last.get(kind)
        if len(self._last) >= _MOST:
            self._last.clear()
        self._last[kind] = now
        if last is not None and now - last < QUIET_S:
            return False
        said = " ".join(record.getMessage().split())
        if error is not None:
            said += f" ({' '.join(f'{type(error).__name__}: {error}'.split())})"
        record.msg, record.args = "%s; repetitions are left out", (said,)
        record.exc_info = record.exc_text = None
        setattr(record, _JUDGED, True)
        return True
