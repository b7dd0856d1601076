"""Database access from threads that are not requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection
from django.db.backends.signals import connection_created

P = ParamSpec("P")
R = TypeVar("R")

_thread = threading.local()
_READ_ONLY = "25006"  # PostgreSQL's code


def takes_no_writes(error: BaseException | None) -> bool:
    """Whether a PostgreSQL said that it is read-only: a standby, or a primary whose place another has taken."""
    return getattr(error.__cause__, "sqlstate", None) == _READ_ONLY if error is not None else False


def is_outage(error: BaseException | None) -> bool:
    """Whether the database cannot be asked, or takes nothing from anybody: no fault of what was asked or written."""
    return isinstance(error, OperationalError | InterfaceError) or takes_no_writes(error)


def own_connection(function: Callable[P, R]) -> Callable[P, R]:
    """Django gives connections back at the end of a request; a function called elsewhere has to do it itself.

    A database that was restarted is then found again by the next call, and an idle thread holds no connection. Inside a
    caller's transaction the connection is the caller's and is left alone.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if connection.in_atomic_block:
            return function(*args, **kwargs)
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return wrapper


def give_back_connection() -> None:
    """Before a thread waits for something else: a process that is forked meanwhile must not inherit an open SQLite."""
    if not connection.in_atomic_block:
        close_old_connections()


@contextmanager
def lock_wait(seconds: float) -> Iterator[None]:
    """What this thread asks of SQLite meanwhile waits no longer for another writer; then it is an ``OperationalError``.

    (PostgreSQL's own limits hold for every connection.)
    """
    before = getattr(_thread, "lock_wait_s", None)
    _wait(seconds)
    try:
        yield
    finally:
        _wait(before)


def _wait(seconds: float | None) -> None:
    _thread.lock_wait_s = seconds
    if connection.connection is not None:
        _limit_lock_wait(None, connection)


def _limit_lock_wait(sender: Any, connection: Any, **_: Any) -> None:
    if connection.vendor != "sqlite":
        return
    seconds = getattr(_thread, "lock_wait_s", None)
    if seconds is None and sender is not None:
        return  # it is new, and waits as it is configured
    wait_s = connection.settings_dict["OPTIONS"].get("timeout", 5.0) if seconds is None else seconds
    connection.connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")


connection_created.connect(_limit_lock_wait, dispatch_uid="tenants.connections.lock_wait")
