"""One replica as its pool's leader knows it: what its watcher keeps of it, and what follows from that."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from scheduling.core.capacity.engine_limits import EngineFacts, SlotLimit, in_force
from scheduling.core.capacity.kv_room import KvRoom
from scheduling.core.capacity.kv_sharing import EngineUse
from scheduling.core.capacity.prefill_credit import PrefillCredit
from scheduling.core.engine.prefill_speed import PrefillSpeed
from scheduling.core.engine.step_model import StepModel
from scheduling.core.engine.token_time import TokenTime
from scheduling.core.types import BackendSpec, Phase, PoolSpec
from scheduling.dispatch.replicas.outliers import Outlier
from scheduling.dispatch.replicas.progress import ProgressWatch
from scheduling.engines.client import EngineKind, EngineMetrics, EngineModel, Probe, StepPage

PROBE_TIMEOUT_S = 10.0
FIRST_PROBE_TIMEOUT_S = 30.0  # an engine that has just started compiles on its first request
STALLED_PROBE_S = 4.0  # of one that runs requests and did not move for 15 s: 20 s in all
WAKE_S = 20.0  # until a sleeping engine serves, where it was not seen yet
WHY_CHARS = 300  # of an engine's error, as it is shown
FOREIGN_LOOKS = 5  # in a row: leases lag behind what engines run by moments


class EngineControl(Protocol):
    """What health needs of a replica: :class:`scheduling.engines.client.EngineClient` in part."""

    async def scrape(self) -> EngineMetrics | None: ...

    async def probe(self, timeout_s: float) -> Probe: ...

    async def facts(self, engines: int) -> EngineFacts: ...

    async def models(self) -> list[EngineModel]: ...

    async def load_adapter(self, name: str, source: str) -> None: ...

    async def steps(self, after: int, began: str) -> StepPage: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


EngineFactory = Callable[[BackendSpec, PoolSpec], EngineControl]


@dataclass(slots=True)
class WatchedBackend:
    spec: BackendSpec
    kind: EngineKind
    control: EngineControl
    state: str = "probing"
    why: str = "has not generated a token yet"
    metrics: EngineMetrics | None = None
    last: EngineMetrics | None = None  # likewise, also while they are not known
    observed_s: float = 0.0
    unread: str = ""  # why its figures are not known, although it was seen to generate since
    doubted: bool = False  # a gateway suspects it and no scrape has come back since
    watch: ProgressWatch = field(default_factory=ProgressWatch)
    outlier: Outlier = field(default_factory=Outlier)
    ask: bool = False  # gateways say that requests fail there: a real generation is to tell
    asked_s: float = float("-inf")
    model: str = ""  # that it is asked for
    longest: int = 0  # sequence of its pool [tokens]
    facts: EngineFacts | None = None  # None: not asked since it started
    context: int | None = None  # prompt and answer of one sequence, as its engine last said [tokens]
    asking: asyncio.Task[None] | None = None
    learned: SlotLimit = field(default_factory=SlotLimit)
    credit: PrefillCredit = field(default_factory=PrefillCredit)
    speed: PrefillSpeed = field(default_factory=PrefillSpeed)
    token_time: TokenTime = field(default_factory=TokenTime)
    kv_room: KvRoom = field(default_factory=KvRoom)
    prefill_preemption: bool = True  # the prefill of long prompts may be interrupted
    told_resumes: bool = False  # whether shared state knows that it resumes
    wanted_credit: int | None = None  # the pool's: None finds it, 0 is none, else so many tokens
    steps: StepModel = field(default_factory=StepModel)  # of what its own scheduler logs
    steps_read: tuple[int, str] = (0, "")  # as far as that was read
    steps_why: str = ""  # why it was not, the last time
    foreign: deque[int] = field(default_factory=lambda: deque(maxlen=FOREIGN_LOOKS))  # beyond our leases, by look
    limited: bool = False  # the latest decision left requests waiting that lack only its credit
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    wake_s: float = WAKE_S  # how long a wake takes: guessed, then as it last took
    dozing: bool = False  # it is being put to sleep
    woken_s: float | None = None  # since when it is being woken
    refused_wake: bool = False  # it could not be woken when it was asked to last
    wake_again_s: float = float("-inf")  # not before, after it refused
    task: asyncio.Task[None] | None = None
    reading: asyncio.Task[None] | None = None

    def replaced(self, metrics: EngineMetrics) -> bool:
        """Whether another process answers than the one that did last, however long nobody did in between."""
        before = self.last
        if any(count is not None for count in metrics.progress):
            self.last = metrics
        return before is not None and (metrics.restarted(before) or metrics.engines != before.engines)

    @property
    def prefill_per_s(self) -> float:
        """Prompt tokens a second: as measured while prompts were at hand throughout, else as its own steps say of full
        ones. 0: not known."""
        if self.speed.tokens_per_s or (fit := self.steps.believed) is None:
            return self.speed.tokens_per_s
        return fit.step_time.prefill_per_s(self.credit.budget)

    @property
    def full_step(self) -> tuple[int, float]:
        """Tokens of a full step, and how long it was measured to take under load, at least [s]. Where the engine does
        not say its budget: those of steps while prompts were at hand. A time of 0: not known."""
        budget = None if self.facts is None else self.facts.step_tokens
        return self.speed.step() if budget is None else (budget, self.speed.full_step_s(self.credit.budget))


@dataclass(slots=True)
class LeaseCounts:
    """How many leases each replica has, as shared state said at ``read_s`` of the loop's time."""

    of: dict[str, int] = field(default_factory=dict)
    read_s: float = float("-inf")


def address(spec: BackendSpec, kind: EngineKind) -> tuple[str, str, str]:
    """What makes it another engine, which has to be probed."""
    return spec.url, spec.api_key, kind.name


def wanted_credit(pool: PoolSpec, kind: EngineKind) -> int | None:
    """None finds it, 0 is none: an engine that reports nothing would keep a whole answer's credit to its end."""
    return pool.prefill_credit if kind.reports else 0


def patience_s(backend: WatchedBackend) -> float:
    """How long a probe of a replica that is ready may take."""
    if not backend.kind.takes_priority:
        return FIRST_PROBE_TIMEOUT_S  # it stands behind what the replica runs
    stalled = backend.metrics is not None and backend.metrics.running > 0
    return min(STALLED_PROBE_S, PROBE_TIMEOUT_S) if stalled else PROBE_TIMEOUT_S


def return_patience_s(first: bool) -> float:
    """How long a probe may take of one that is to become ready: for the first time since it was found, or again."""
    return FIRST_PROBE_TIMEOUT_S if first else PROBE_TIMEOUT_S


def facts_of(backend: WatchedBackend) -> EngineFacts:
    facts = backend.facts or EngineFacts()
    return facts if backend.metrics is None else replace(facts, kv_tokens=backend.metrics.kv_tokens)


def limits_of(backend: WatchedBackend) -> tuple[BackendSpec, str]:
    """The replica as its engine lets it be used, with its prefill credit; and why it is less than what was typed."""
    spec, why = in_force(backend.spec, facts_of(backend), backend.learned.slots, backend.longest)
    wanted = backend.wanted_credit
    # A replica's own figure stands, where it has one. Inside our scheduler the policy reaches what waits there.
    own = spec.prefill_tokens or (0 if backend.kind.takes_digest else backend.credit.credit)
    credit = own if wanted is None else wanted
    return replace(spec, prefill_tokens=credit, step_tokens=backend.credit.budget, resumes=resumes(backend)), why


def resumes(backend: WatchedBackend) -> bool:
    """Whether its engine keeps what it has computed of a prompt that is taken back from it. Of several behind one
    address (data parallel) another one may get it the next time."""
    metrics = backend.metrics
    keeps = metrics is not None and metrics.keeps_prefixes and metrics.engines == 1
    return keeps and backend.prefill_preemption and backend.spec.phase is Phase.BOTH


def engine_use(backend: WatchedBackend, reserved: int) -> EngineUse:
    """What its engine last said of its cache, of which so many tokens are ``reserved``."""
    kv_tokens, metrics = limits_of(backend)[0].kv_tokens, backend.metrics
    if metrics is None:
        return EngineUse(None, kv_tokens, reserved)
    waiting = metrics.waiting / max(1, metrics.waiting + metrics.running)
    return EngineUse(metrics.kv_usage, kv_tokens, reserved, waiting, metrics.steps_of_each)


def offer_of(backend: WatchedBackend) -> BackendSpec:
    """The replica with as many slots and KV tokens as may be used and reserved now."""
    spec, _ = limits_of(backend)
    slots = backend.outlier.offered(spec.slots, asyncio.get_running_loop().time())
    return replace(spec, slots=slots, kv_tokens=backend.kv_room.offered(spec.kv_tokens))


def serves(backend: WatchedBackend) -> bool:
    return backend.state == "ready" and not backend.spec.draining


def prefills(backend: WatchedBackend) -> bool:
    """Whether it computes prompts and nothing else."""
    return backend.spec.phase is Phase.PREFILL
