"""One line in the log per outage, also from those who would write one per attempt; and no flood, whoever causes it.

Our own clients report a dependency's change of state. Others (Channels' receiver, Celery's consumer, Django for each
request while the database is away) report every try, with a traceback. :class:`Repeats` lets the first one through, as
one line, and leaves the others out until it has been quiet for a minute.
What strangers, tenants and engines can cause to be written, as often as they like, passes :class:`Flood`, which every
line does: so many of a kind and so many in all. :class:`Line` bounds its length.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping

from django.core.exceptions import SuspiciousOperation

from tenants.connections import is_outage

QUIET_S = 60.0  # longer than Celery's longest pause between two tries (32 s)
_MOST = 1000  # kinds remembered
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+")
KIND_BURST, KIND_PER_S = 30.0, 0.5  # lines of one kind: at once, and from then on
ALL_BURST, ALL_PER_S = 500.0, 20.0  # lines of all kinds
LONG_TASK_S = 20.0  # longer than the pieces in which batches and lab runs are done
MAX_LINE_CHARS = 16 * 1024  # characters; a traceback is shorter
_JUDGED = "quartermaster_judged"  # logging.config adds filters without taking away those it added before


class Repeats(logging.Filter):
    """For one logger of a library: drops what repeats itself. ``database_only``: only what a database causes that
    is away or read-only counts as a repetition, everything else passes as it is; ``begins``: only messages that begin
    like this; ``by_words``: what says something else, numbers aside, is no repetition."""

    def __init__(
        self,
        database_only: bool = False,
        begins: str = "",
        by_words: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._database_only = database_only
        self._begins = begins
        self._by_words = by_words
        self._clock = clock
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or getattr(record, _JUDGED, False):
            return True
        error = record.exc_info[1] if record.exc_info else None
        if self._database_only and not is_outage(error):
            return True
        if not str(record.msg).startswith(self._begins):
            return True
        # what a stranger sent is in the words of a suspicion: every one would be new
        about = "" if isinstance(error, SuspiciousOperation) else str(record.msg)
        if self._by_words:
            about = _NUMBER.sub("#", record.getMessage())
        kind = (about, type(error).__name__)
        now = self._clock()
        last = self._last.get(kind)
        if len(self._last) >= _MOST:
            self._last.clear()
        self._last[kind] = now
        if last is not None and now - last < QUIET_S:
            return False
        message = " ".join(record.getMessage().split())
        if error is not None:
            message += f" ({' '.join(f'{type(error).__name__}: {error}'.split())})"
        record.msg, record.args = "%s; repetitions are left out", (message,)
        record.exc_info = record.exc_text = None
        setattr(record, _JUDGED, True)
        return True


class _Bucket:
    """Tokens that come back with time."""

    __slots__ = ("_burst", "_left", "_rate", "_since_s", "missed")

    def __init__(self, burst: float, rate: float, now_s: float) -> None:
        self._burst, self._rate, self._left, self._since_s = burst, rate, burst, now_s
        self.missed = 0  # lines left out since the last that passed

    def take(self, now_s: float) -> bool:
        self._left = min(self._burst, self._left + (now_s - self._since_s) * self._rate)
        self._since_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Routine(logging.Filter):
    """For Celery's log of tasks: drops those that succeeded soon, which was a line every few seconds of an idle worker,
    and more than half of its log. One that took long is shown with its time, and what failed always."""

    def filter(self, record: logging.LogRecord) -> bool:
        took_s = record.args.get("runtime") if isinstance(record.args, Mapping) else None
        return record.levelno > logging.INFO or not isinstance(took_s, float) or took_s >= LONG_TASK_S


class Flood(logging.Filter):
    """A handler's filter that bounds the log lines of each kind, and of all kinds together. A kind is the place in the
    code that logs, so strangers' input makes no new ones. The next line of a kind says how many were left out. Levels
    below INFO pass, since they are logged on request only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str, int], _Bucket] = {}
        self._all = _Bucket(ALL_BURST, ALL_PER_S, clock())

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        now_s = self._clock()
        kind = (record.name, record.pathname, record.lineno)
        with self._lock:
            bucket = self._kinds.get(kind)
            if bucket is None:
                if len(self._kinds) >= _MOST:
                    self._kinds.clear()
                bucket = self._kinds[kind] = _Bucket(KIND_BURST, KIND_PER_S, now_s)
            if not bucket.take(now_s) or not self._all.take(now_s):
                bucket.missed += 1
                return False
            missed, bucket.missed = bucket.missed, 0
        record.left_out = missed
        return True


def shown(text: str) -> str:
    """A text in which line ends and all else that is not printed are written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Line(logging.Formatter):
    """One record as text, of bounded length, with the number of those like it that :class:`Flood` left out. Its message
    is one line of letters: what an engine or a client said can neither begin another line nor command a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if len(text) > MAX_LINE_CHARS:
            text = f"{text[:MAX_LINE_CHARS]}... ({len(text) - MAX_LINE_CHARS} characters more)"
        missed = getattr(record, "left_out", 0)
        return f"{text} ({missed} lines like this one were left out)" if missed else text
