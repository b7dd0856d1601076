"""SQLite's connection of a thread that asks again and again: it stays open from one call to the next.

Opening one reads the whole schema, which takes 2 ms of CPU, and closing the last one empties the write-ahead log into
the database: together that was more than half of what a batch of the ledger cost. Who keeps a connection gives it back
before the process forks, since no child may have it, and when another file has taken the database's place.
PostgreSQL's connections are kept by its pool.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tenants.connections import own_connection

P = ParamSpec("P")
R = TypeVar("R")
_File = tuple[int, int] | None


class Kept:
    """One thread's. ``wrapper`` is Django's, of that thread."""

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self._wrapper = wrapper
        self._file: _File = None  # that is open
        self._used = False
        self._lock = threading.RLock()  # held while the connection is used
        with _registering:
            _all.add(self)

    @contextmanager
    def use(self) -> Iterator[None]:
        """For one call, in its thread."""
        with self._lock:
            if self._wrapper.connection is not None and self._file != _file_of(self._wrapper):
                self._wrapper.close()
            self._used = True
            try:
                yield
            finally:
                self._used = False
                close_old_connections()  # one that has failed

    def opened(self) -> None:
        """Its connection was, just now."""
        if self._used:
            self._wrapper.close_at = None  # else Django closes it after whatever is done with it
            self._file = _file_of(self._wrapper)

    def before_fork(self) -> None:
        """Waits for the call that is made now, if it is not this thread's. By hand: another thread may not close it."""
        self._lock.acquire()
        connection, self._wrapper.connection = self._wrapper.connection, None
        if connection is not None:
            connection.close()

    def after_fork(self) -> None:
        self._lock.release()


def kept_connection(function: Callable[P, R]) -> Callable[P, R]:
    """:func:`tenants.connections.own_connection` for what one thread calls again and again, in no transaction."""

    own = own_connection(function)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        connection: Any = connections[DEFAULT_DB_ALIAS]
        if connection.in_atomic_block or connection.vendor != "sqlite" or connection.is_in_memory_db():
            return own(*args, **kwargs)
        kept: Kept | None = getattr(_thread, "kept", None)
        if kept is None:
            kept = _thread.kept = Kept(connection)
        with kept.use():
            return function(*args, **kwargs)

    return wrapper


def _file_of(wrapper: BaseDatabaseWrapper) -> _File:
    try:
        found = os.stat(wrapper.settings_dict["NAME"])
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _opened(sender: Any, connection: BaseDatabaseWrapper, **_: Any) -> None:
    kept: Kept | None = getattr(_thread, "kept", None)
    if kept is not None and connection.alias == DEFAULT_DB_ALIAS:
        kept.opened()


def _before_fork() -> None:
    _registering.acquire()
    _forking.extend(_all)
    for kept in _forking:
        kept.before_fork()


def _after_fork() -> None:
    while _forking:
        _forking.pop().after_fork()
    _registering.release()


_thread = threading.local()
_registering = threading.RLock()
_all: weakref.WeakSet[Kept] = weakref.WeakSet()
_forking: list[Kept] = []
connection_created.connect(_opened, dispatch_uid="tenants.kept_connection")
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
