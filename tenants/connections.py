"""Database access from threads that are not requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import close_old_connections, connection

P = ParamSpec("P")
R = TypeVar("R")


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
