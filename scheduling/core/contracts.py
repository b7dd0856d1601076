"""The few interfaces between decisions and effects.

A policy answers one question. It is frozen (its parameters never change; a change is a new policy version) and keeps
no counters: what changes lives in the queue it makes and in the view it is handed. The live dispatch loop and the
simulator drive the same objects through :class:`scheduling.core.scheduler.Scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from scheduling.core.types import BackendView, PoolView, QueuedRequest

Key = tuple[float, ...]
Fits = Callable[[QueuedRequest], bool]


class RequestQueue(Protocol):
    """Waiting requests of one pool, in one policy's order. One owner, no locks."""

    def push(self, request: QueuedRequest, now_s: float) -> None:
        """Adds a request; one whose id is already there is replaced."""

    def discard(self, request_id: str) -> bool:
        """Removes a request wherever it stands; False when it was not there."""

    def select(self, view: PoolView, now_s: float, fits: Fits) -> QueuedRequest | None:
        """Removes and returns the request that goes next among those for which ``fits`` holds, or None.

        ``fits`` says whether the request's entitlement and at least one replica have room; it is monotone within one
        ``Scheduler.step`` (what did not fit will not fit until something ends). Each step comes with its own ``fits``
        object, so a queue may keep what it learned for as long as it is handed the same one.
        """

    def explain(self, request: QueuedRequest) -> str:
        """One short line: the terms that put this request where it is."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[QueuedRequest]: ...


@runtime_checkable
class Contest(Protocol):
    """What a queue may offer besides: the answer to a question that engines ask at every arrival, without the push and
    the select that it would otherwise take."""

    def goes_before(self, request: QueuedRequest, view: PoolView, fits: Fits) -> bool:
        """Whether something that waits would be selected before ``request`` (which does not wait) if it were pushed."""


class OrderingPolicy(Protocol):
    """Which request goes next?"""

    name: str

    def queue(self) -> RequestQueue:
        """A fresh, empty queue in this policy's order."""


class RoutingPolicy(Protocol):
    """Which replica runs it?"""

    name: str

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        """The replica, among those with room, or None."""
