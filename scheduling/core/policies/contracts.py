"""The few interfaces between decisions and effects.

A policy answers one question. It is frozen (its parameters never change; a change is a new policy version) and keeps
no counters: what changes lives in the queue or router it makes and in the view it is handed. The live dispatch loop and
the simulator drive the same objects through :class:`scheduling.core.scheduler.loop.Scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeGuard, runtime_checkable

from scheduling.core.placement.rule import Warmth
from scheduling.core.policies.rounds import Round
from scheduling.core.types import BackendView, QueuedRequest, ServiceClass

Key = tuple[float, ...]


class RequestQueue(Protocol):
    """Waiting requests of one pool, in one policy's order. One owner, no locks."""

    def push(self, request: QueuedRequest, now_s: float) -> None:
        """Adds a request; one whose id is already there is replaced."""

    def discard(self, request_id: str) -> bool:
        """Removes a request wherever it stands; False when it was not there."""

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        """Removes and returns the request that goes next among those for which ``round_.fits`` holds, or None.

        A queue may keep what it learned for as long as it is handed the same :class:`Round`. Where ``round_.keeps_out``
        an entitlement none of its requests fits: a queue need not ask for each.
        """

    def explain(self, request: QueuedRequest) -> str:
        """One short line: the terms that put this request where it is."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[QueuedRequest]: ...


@runtime_checkable
class Contest(Protocol):
    """What a queue may offer besides: the answer to a question that engines ask at every arrival, without the push and
    the select that it would otherwise take."""

    def goes_before(self, request: QueuedRequest, round_: Round) -> bool:
        """Whether something that waits would be selected before ``request`` (which does not wait) if it were pushed."""


@dataclass(frozen=True, slots=True)
class QueuePart:
    """One of the parts that a queue consists of, for people: a band, a queue of similar prompts, what was relegated."""

    name: str
    kind: str  # band | queue | bubble | relegated
    waiting: int
    low: int | None = None  # prompt lengths it is for [tokens]
    high: int | None = None
    score: float | None = None  # of its oldest request; the largest goes first


@runtime_checkable
class ShowsParts(Protocol):
    """What a queue may offer besides: what it consists of."""

    def parts(self, now_s: float) -> Iterator[QueuePart]:
        """Its parts, in the order in which they are looked at. Changes nothing."""


def parts_of(queue: RequestQueue, within: str, now_s: float) -> Iterator[QueuePart]:
    """The parts of a queue that is itself a part: ``within`` names where."""
    if isinstance(queue, ShowsParts):
        for part in queue.parts(now_s):
            yield replace(part, name=f"{within}, {part.name}") if within else part


class OrderingPolicy(Protocol):
    """Which request goes next?"""

    @property
    def name(self) -> str:
        """What it is registered as."""

    def queue(self) -> RequestQueue:
        """A fresh, empty queue in this policy's order."""


@runtime_checkable
class WeighsBursts(Protocol):
    """What a policy or a modifier may offer besides: its order minds what each entitlement has had, so that who exceeds
    its concurrency may compete with those that do not (``Scheduler.step``)."""

    @property
    def weighs_bursts(self) -> bool:
        """Whether it does, with its parameters."""


def weighs_bursts(part: object) -> bool:
    """Of a policy or a modifier."""
    return isinstance(part, WeighsBursts) and part.weighs_bursts


@runtime_checkable
class RelegatesOwners(Protocol):
    """What a policy may offer besides: in its order late requests of one class give way to those of others that can be
    in time, so that owners of reserved capacity need not go first with all of theirs (``Scheduler.step``)."""

    @property
    def relegates_owners(self) -> bool:
        """Whether it does, with its parameters."""


def relegates_owners(policy: OrderingPolicy) -> bool:
    """Not where modifiers are around it: then others than it decide between entitlements."""
    return isinstance(policy, RelegatesOwners) and policy.relegates_owners


Maker = Callable[[str], RequestQueue]  # a fresh queue for a group of requests that compete with each other


class Modifier(Protocol):
    """What may be laid around any ordering policy: its queues become parts of a larger one.

    ``layer`` says how far out it stands, 0 outermost, so that the order in which modifiers are written means nothing.
    """

    layer: int

    @property
    def name(self) -> str:
        """What it is registered as."""

    def around(self, make: Maker) -> Maker:
        """Makes queues out of those that ``make`` gives. Asked once per composition: what its queues share (counters of
        a group, say) lives in what it returns."""


@runtime_checkable
class CountsService(Protocol):
    """What a queue may offer besides: it learns what a request that it gave out has really used."""

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        """It used so many tokens. False, and nothing happens, for an id that the queue did not give out or has
        forgotten."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a request used that has ended, wherever it was granted."""

    request_id: str
    entitlement: str
    service_class: ServiceClass
    weight: float
    input_tokens: int
    output_tokens: int
    sequences: int = 1  # that it was of those running


class Shares(Protocol):
    """How much each of a group of entitlements was served. Most requests are granted on arrival by a script: they count
    like requests that the queue gave out."""

    group: str

    def serve(self, served: Served) -> None:
        """A request ended that was not given out here."""

    def watch(self, running: Mapping[str, tuple[int, float]]) -> None:
        """How many sequences of each entitlement run now, wherever they were granted, and its weight."""

    def kept(self) -> dict[str, float]:
        """The counters without running requests, for the next leader."""

    def resume(self, kept: Mapping[str, float]) -> None:
        """Goes on from what another one kept. Before anything waits."""


@runtime_checkable
class KeepsShares(Protocol):
    """What a queue may offer besides: it counts who had how much."""

    def shares(self, service_class: ServiceClass) -> Iterator[Shares]:
        """Those in which entitlements of this class are counted; one may come twice."""


def shares_of(queue: RequestQueue, service_class: ServiceClass) -> Iterator[Shares]:
    """Those of a queue that is itself a part."""
    if isinstance(queue, KeepsShares):
        yield from queue.shares(service_class)


class Router(Protocol):
    """Chooses replicas for the requests of one pool; may remember where it sent what. One owner, no locks."""

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        """The replica, among those with room, or None."""


def counts_service(queue: object) -> TypeGuard[CountsService]:
    """``isinstance(queue, CountsService)``, found out once for each kind: at every end it is asked of every layer, and
    a protocol goes through all of its names each time."""
    kind = type(queue)
    counts = _COUNTS_SERVICE.get(kind)
    if counts is None:
        counts = _COUNTS_SERVICE[kind] = issubclass(kind, CountsService)
    return counts


_COUNTS_SERVICE: dict[type, bool] = {}


@runtime_checkable
class LearnsPlaces(Protocol):
    """What a router may offer besides: it learns where prompts ran that others placed."""

    def learn(self, places: Mapping[str, str]) -> None:
        """Replicas, the last first and a space between them, by the name of a point
        (``scheduling.core.placement.rule``)."""


@runtime_checkable
class KnowsCaches(Protocol):
    """What a router may offer besides: what it believes that replicas have computed already."""

    def warmth(self, request: QueuedRequest) -> Warmth | None:
        """What replicas are believed to have cached of the request's prompt; None: nothing is known of it."""


class RoutingPolicy(Protocol):
    """Which replica runs it?"""

    @property
    def name(self) -> str:
        """What it is registered as."""

    def router(self) -> Router:
        """A router that remembers nothing yet."""
