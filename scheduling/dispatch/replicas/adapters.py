"""Which replicas have which LoRA adapters, and which one loads another: by what engines list, not by what they were
told.

A replica's list is read with each look at it. Where the pool allows it and requests wait for an adapter that no replica
with a free slot has, one replica is asked to load it; whether it did is again what it lists then. What was seen goes
into shared state, where ``admit`` places by it, before the leader grants by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from scheduling.core.types import AdapterSpec, PoolSpec
from scheduling.dispatch.replicas.watched import WHY_CHARS
from scheduling.engines.client import EngineError, EngineKind, EngineModel, EngineRefused
from scheduling.state.store import PoolStore
from scheduling.state.types import StateUnavailable

log = logging.getLogger("quartermaster.dispatch")

FRESH_S: Final = 10.0  # a list that was read so long ago stands while the engine does not answer
FIRST_PAUSE_S: Final = 10.0  # until a replica is asked again for what it could not load, doubling
MAX_PAUSE_S: Final = 300.0
GIVE_UP_S: Final = 3.0  # who waits for an adapter that is nowhere and cannot be loaded is refused after so long
SHOWN: Final = 64  # adapters of one replica that nobody configured


class ListsModels(Protocol):
    """What is needed of a replica: :class:`scheduling.engines.client.EngineClient` in part."""

    async def models(self) -> list[EngineModel]: ...

    async def load_adapter(self, name: str, source: str) -> None: ...


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """A replica's adapters as the leader sees them."""

    states: Mapping[str, str]  # by the names that engines use: loaded, loading, missing, failed, unknown, unconfigured
    why: str = ""  # what could not be loaded or read, and what the engine said


@dataclass(slots=True)
class _Failure:
    why: str
    until_s: float
    pause_s: float


@dataclass(slots=True)
class _Replica:
    loaded: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    read_s: float | None = None  # when it last said; None: never
    why: str = ""
    loading: set[str] = field(default_factory=set)
    failures: dict[str, _Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that serves now."""

    id: str
    control: ListsModels
    running: int
    slots: int


class AdapterHomes:
    """The adapters of one pool for one term of leadership. Times are the loop's."""

    def __init__(
        self,
        store: PoolStore,
        epoch: int,
        start: Callable[[Coroutine[Any, Any, None], str], object],
        clock: Callable[[], float],
        on_home: Callable[[], None],
    ) -> None:
        """``start`` runs a task of the term; ``on_home`` is called when an adapter has come to a replica."""
        self._store = store
        self._epoch = epoch
        self._start = start
        self._clock = clock
        self._on_home = on_home
        self._specs: dict[str, AdapterSpec] = {}
        self._may_load = False
        self._replicas: dict[str, _Replica] = {}
        self._published: Mapping[str, tuple[bool, frozenset[str]]] | None = None  # what shared state has
        self._nowhere_since: dict[str, float] = {}
        self._unseen: set[str] = set()  # inherited from another leader, whose word stands until they were looked at

    def __bool__(self) -> bool:
        """Whether the pool has any."""
        return bool(self._specs)

    def inherit(self, replicas: Iterable[str]) -> None:
        """These serve, and were not looked at yet: what shared state says of them stands until they were."""
        self._unseen = set(replicas)

    def configure(self, pool: PoolSpec, kind: EngineKind) -> None:
        """Follows the catalog."""
        had = bool(self._specs)
        self._specs = {adapter.name: adapter for adapter in pool.adapters}
        self._may_load = pool.load_adapters and kind.loads_adapters
        for replica in self._replicas.values():
            for name in replica.failures.keys() - self._specs.keys():
                del replica.failures[name]
        if self._specs or had:
            self._published = None
            self._start(self._try_to_publish(), "adapters")

    def of(self, replica: str) -> frozenset[str]:
        """What a replica has."""
        state = self._replicas.get(replica)
        return state.loaded if state is not None else frozenset()

    def status(self, replica: str) -> AdapterStatus:
        r = self._replicas.get(replica, _Replica())
        states = {name: self._state(r, name) for name in sorted(self._specs)} | dict.fromkeys(r.others, "unconfigured")
        failed = (f"{name} {failure.why}" for name, failure in sorted(r.failures.items()))
        return AdapterStatus(states, "; ".join(filter(None, [r.why, *failed]))[: 4 * WHY_CHARS])

    @staticmethod
    def _state(r: _Replica, name: str) -> str:
        if name in r.loaded:
            return "loaded"
        if name in r.loading:
            return "loading"
        if name in r.failures:
            return "failed"
        return "unknown" if r.read_s is None else "missing"

    async def look(self, replica: str, control: ListsModels) -> None:
        """Reads what a replica has now. Never raises :class:`EngineError`; what cannot be read for a while is unknown,
        and then it has none."""
        if not self._specs:
            self._unseen.discard(replica)
            self._replicas.pop(replica, None)
            return
        r = self._replicas.setdefault(replica, _Replica())
        now_s = self._clock()
        try:
            models = await control.models()
        except EngineError as error:
            r.why = f"its models cannot be read: {error}"[:WHY_CHARS]
            if r.read_s is None or now_s - r.read_s > FRESH_S:
                r.read_s, r.loaded, r.others = None, frozenset(), ()
        else:
            names = {model.id for model in models}
            r.read_s, r.why, before = now_s, "", r.loaded
            r.loaded = frozenset(names & self._specs.keys())
            r.others = tuple(sorted(m.id for m in models if m.parent and m.id not in self._specs)[:SHOWN])
            for name in r.loaded:
                r.failures.pop(name, None)
            if lost := before - r.loaded:
                log.warning("backend %s: adapters are gone: %s", replica, ", ".join(sorted(lost)))
        self._unseen.discard(replica)
        await self._try_to_publish()

    def forget(self, replica: str) -> None:
        """It does not serve any more: what it had is not known."""
        unseen = replica in self._unseen
        self._unseen.discard(replica)
        if (self._replicas.pop(replica, None) is not None or unseen) and self._specs:
            self._start(self._try_to_publish(), "adapters")

    # --- loading

    def want(self, names: Iterable[str], serving: list[Candidate]) -> None:
        """Requests wait for these. Where none that has one can take more, one that lacks it is asked to load it."""
        for name in names:
            spec = self._specs.get(name)
            if spec is None or any(name in r.loading for r in self._replicas.values()):
                continue
            homes = [c for c in serving if name in self.of(c.id)]
            if any(c.running < c.slots for c in homes):
                continue  # they wait for something else
            cold = [c for c in serving if self._may_ask(c.id, spec) and (not homes or c.running < c.slots)]
            if cold:
                chosen = min(cold, key=lambda c: (c.running, c.id))
                self._replicas.setdefault(chosen.id, _Replica()).loading.add(name)
                self._start(self._load(chosen, spec), f"load-{chosen.id}-{name}")

    def hopeless(self, names: Iterable[str], serving: list[Candidate]) -> set[str]:
        """Which of these no replica has had for a while, and none can load."""
        now_s, hopeless = self._clock(), set()
        for name in set(names):
            spec = self._specs.get(name)
            all_read = all(self._was_read(c.id) for c in serving)
            if (
                not serving
                or (spec is not None and not all_read)
                or any(name in self.of(c.id) for c in serving)
                or any(name in r.loading for r in self._replicas.values())
                or (spec is not None and any(self._may_ask(c.id, spec) for c in serving))
            ):
                self._nowhere_since.pop(name, None)
            elif now_s - self._nowhere_since.setdefault(name, now_s) >= GIVE_UP_S:
                hopeless.add(name)
        for name in self._nowhere_since.keys() - set(names):
            del self._nowhere_since[name]
        return hopeless

    def _was_read(self, replica: str) -> bool:
        r = self._replicas.get(replica)
        return r is not None and r.read_s is not None

    def _may_ask(self, replica: str, spec: AdapterSpec) -> bool:
        """Whether a replica may be asked to load an adapter now."""
        r = self._replicas.get(replica)
        if not self._may_load or not spec.source or (r is not None and spec.name in r.loaded):
            return False
        failure = r.failures.get(spec.name) if r is not None else None
        return failure is None or failure.until_s <= self._clock()

    async def _load(self, chosen: Candidate, spec: AdapterSpec) -> None:
        replica, started_s, why = chosen.id, self._clock(), ""
        log.info("backend %s: asked to load adapter %s from %s", replica, spec.name, spec.source)
        try:
            await chosen.control.load_adapter(spec.name, spec.source)
        except EngineRefused as error:
            why = str(error)  # it may say so because it has it already
            if error.status == 404 and "detail" in error.detail:
                why += " (does it run with LoRA enabled, and runtime loading allowed?)"
        except EngineError as error:
            why = str(error)
        finally:
            r = self._replicas.get(replica)
            if r is not None:
                r.loading.discard(spec.name)
        if replica not in self._replicas:
            return  # it was taken out of service meanwhile
        await self.look(replica, chosen.control)
        r = self._replicas.get(replica)
        if r is None:
            return
        if spec.name in r.loaded:
            log.info("backend %s: has adapter %s after %.1f s", replica, spec.name, self._clock() - started_s)
            self._on_home()
            return
        before = r.failures.get(spec.name)
        pause_s = FIRST_PAUSE_S if before is None else min(MAX_PAUSE_S, 2 * before.pause_s)
        why = f"could not be loaded from {spec.source}: " + (why or "it said that it did, and does not list it")
        r.failures[spec.name] = _Failure(why[:WHY_CHARS], self._clock() + pause_s, pause_s)
        log.warning("backend %s: adapter %s %s; not asked again for %.0f s", replica, spec.name, why, pause_s)
        await self._try_to_publish()
        self._on_home()  # another replica may be asked

    # --- shared state

    async def publish(self, *, again: bool = False) -> None:
        """Says in shared state who has what. ``again``: also where nothing changed, as it may have been lost."""
        if self._unseen or (not self._specs and self._published == {}):
            return
        homes = {
            name: (
                any(self._may_ask(replica, spec) for replica in self._replicas),
                frozenset(replica for replica, r in self._replicas.items() if name in r.loaded),
            )
            for name, spec in self._specs.items()
        }
        if again or homes != self._published:
            await self._store.set_adapters(self._epoch, homes)
            self._published = homes

    async def _try_to_publish(self) -> None:
        try:
            await self.publish()
        except StateUnavailable:
            self._published = None  # the next look says it
