"""Log lines as JSON objects, one a line, for what collects the logs of many processes (``QUARTERMASTER_LOG_FORMAT``).

python-json-logger would give the object, and takes ``extra``; what a line is here for, it has not: the fields that
messages name, a bounded length, and how many lines were left out.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any

from controlplane.log_dedup import MAX_LINE_CHARS

log = logging.getLogger(__name__)

FIELDS = ("request", "pool", "tenant", "entitlement", "backend", "key")
_MOST_NAME = 200  # characters of such a field: a name of ours is shorter
_MOST_TEXT = (MAX_LINE_CHARS - 2048) // 2  # of the message, and of the traceback; the rest is for fields
_PLACEHOLDER = re.compile(rf"(?:\b({'|'.join(FIELDS)}) )?%[-#0 +]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa]")


@lru_cache(maxsize=1000)
def _named(template: str) -> tuple[tuple[str, int], ...]:
    """The fields that a message names before a placeholder, as in ``pool %s``, with that placeholder's place."""
    places = enumerate(_PLACEHOLDER.finditer(template.replace("%%", "")))
    return tuple((match[1], place) for place, match in places if match[1])


def _bounded(text: str, most: int) -> str:
    """The beginning of a text that takes at most ``most`` characters as JSON, where a letter may take twelve."""
    kept = text[:most]
    while (takes := len(json.dumps(kept)) - 2) > most:
        kept = kept[: len(kept) * most // takes]
    return text if len(kept) == len(text) else f"{kept}... ({len(text) - len(kept)} characters more)"


class JsonLine(logging.Formatter):
    """A record as one JSON object of bounded length.

    ``time`` (UTC), ``level``, ``logger``, ``process`` (its number) and ``message``; where known :data:`FIELDS`,
    ``exception`` with its traceback, and ``left_out``: how many like it
    :class:`~controlplane.log_dedup.Flood` left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": _bounded(record.getMessage(), _MOST_TEXT),
        }
        line |= self._fields(record)
        trace = ""
        if record.exc_info:
            trace = record.exc_text or self.formatException(record.exc_info)
        elif record.stack_info:
            trace = self.formatStack(record.stack_info)
        if trace:
            line["exception"] = _bounded(trace, _MOST_TEXT)
        if missed := getattr(record, "left_out", 0):
            line["left_out"] = missed
        return json.dumps(line, default=str)

    @staticmethod
    def _fields(record: logging.LogRecord) -> dict[str, str]:
        """What the message names, and what its caller gave as ``extra``."""
        found: dict[str, str] = {}
        args = record.args
        if isinstance(record.msg, str) and args and not isinstance(args, Mapping):
            for name, place in _named(record.msg):
                if place < len(args):
                    found.setdefault(name, _bounded(str(args[place]), _MOST_NAME))
        for name in FIELDS:
            if isinstance(value := record.__dict__.get(name), str) and value:
                found[name] = _bounded(value, _MOST_NAME)
        return found


def take_what_bypasses_logging() -> None:
    """Python's warnings, and errors that end the process or a thread, become lines of the log: by themselves they are
    text."""
    logging.captureWarnings(True)

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("the process ends by an error", exc_info=(kind, error, trace))

    def thread_ended(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = args.thread.name if args.thread is not None else "?"
            log.error("thread %s ended by an error", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))

    sys.excepthook, threading.excepthook = ended, thread_ended
