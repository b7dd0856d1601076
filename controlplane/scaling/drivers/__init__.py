"""Ways to have more or fewer engines: one file each, found by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from scheduling.core.types import PoolSpec


class DriverError(Exception):
    """It could not be done. The message says what failed and what to do, in words for people."""


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine that a driver answers for. ``name`` is the backend's."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked of a driver. ``id`` is the same when it is asked again; ``replicas`` counts managed ones only."""

    id: str
    replicas: int
    remove: tuple[Replica, ...] = ()  # drained: nothing runs there
    why: str = ""


class Driver(Protocol):
    """One pool's way to engines. Called from one thread; may block for seconds. Raises DriverError.

    Every method may be called again for the same order and then changes nothing more.
    """

    def replicas(self) -> Sequence[Replica] | None:
        """Those there are, also such as still start; None where the driver cannot see them: they are registered and
        removed by somebody else, through the management API."""

    def in_turn(self, names: Sequence[str]) -> Sequence[str] | None:
        """The order in which these replicas have to end, where the platform chooses which one ends next; None where the
        driver ends the ones it is told."""

    def grow(self, order: Order) -> None:
        """Sees to it that there are ``order.replicas``."""

    def shrink(self, order: Order) -> None:
        """Ends ``order.remove``, so that ``order.replicas`` are left."""


_FACTORIES: dict[str, Callable[[PoolSpec], Driver]] = {}


def driver(name: str) -> Callable[[Callable[[PoolSpec], Driver]], Callable[[PoolSpec], Driver]]:
    """Registers a class (or function) that makes a pool's driver."""

    def register(make: Callable[[PoolSpec], Driver]) -> Callable[[PoolSpec], Driver]:
        if name in _FACTORIES:
            raise ValueError(f"two scaling drivers are called {name!r}")
        _FACTORIES[name] = make
        return make

    return register


@cache
def drivers() -> dict[str, Callable[[PoolSpec], Driver]]:
    """All drivers by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _FACTORIES


def make_driver(pool: PoolSpec) -> Driver:
    """Raises:
    DriverError: the pool names a driver that does not exist.
    """
    make = drivers().get(pool.scaling.driver)
    if make is None:
        raise DriverError(f"there is no scaling driver {pool.scaling.driver!r}; there are: {', '.join(drivers())}")
    return make(pool)
