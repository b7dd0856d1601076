"""What dispatch needs around it, in memory and controllable; Redis is real, or the reference model on virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scheduling.core.admission.budget import debts
from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.engine.calibration import LoggedStep
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import BackendSpec, Catalog, EntitlementSpec, PoolSpec
from scheduling.dispatch.pool_dispatcher import PoolDispatcher
from scheduling.dispatch.ports import Sample
from scheduling.dispatch.resources import Resources
from scheduling.engines.client import EngineMetrics, EngineProtocolError, EngineUnreachable, Probe, StepPage
from scheduling.state.resp import RespConnection

T = TypeVar("T")


async def until(condition: Callable[[], T], what: str = "", timeout_s: float = 30.0) -> T:
    """Waits until ``condition`` is true; its value."""
    async with asyncio.timeout(timeout_s):
        while not (value := condition()):
            await asyncio.sleep(0.01)
    return value


async def until_await(condition: Callable[[], Awaitable[T]], timeout_s: float = 30.0) -> T:
    async with asyncio.timeout(timeout_s):
        while not (value := await condition()):
            await asyncio.sleep(0.02)
    return value


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when everyone sleeps, and then at once."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everybody waits for something that virtual time cannot bring"
        self._loop.now += max(0.0, timeout)
        return super().select(0)


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(test())


class Inline(Executor):
    """Runs at once: threads and virtual time do not mix."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass
class Floors:
    """The epoch floor's table."""

    rows: dict[str, int] = field(default_factory=dict)
    down: bool = False

    def read(self, pool: str) -> int:
        if self.down:
            raise ConnectionError("database away")
        return self.rows.get(pool, 0)

    def raise_to(self, pool: str, epoch: int) -> None:
        if self.down:
            raise ConnectionError("database away")
        self.rows[pool] = max(epoch, self.rows.get(pool, 0))


@dataclass
class Telemetry:
    """Keeps what it is given; the next ``failures`` writes fail, the next ``unheard`` fail after they were kept."""

    records: list[LedgerRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    failures: int = 0
    unheard: int = 0  # a commit whose answer is lost: the same records come again
    calls: int = 0
    rolls: list[frozenset[str]] = field(default_factory=list)

    def write_ledger(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError("database away")
        self.records.extend(records)
        if self.unheard and records:
            self.unheard -= 1
            raise ConnectionError("the answer to the commit was lost")

    def bucket_debts(
        self, pool: str, budgets: Mapping[str, tuple[float, float]], before_s: float, now_s: float
    ) -> dict[str, float]:
        if self.failures:
            raise ConnectionError("database away")
        taken = [
            (r.entitlement, now_s - r.received_s, r.input_tokens + r.output_tokens)
            for r in sorted(self.records, key=lambda r: -r.received_s)
            if r.done_s < before_s
        ]
        return debts(taken, budgets)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)

    def pools(self, names: Collection[str]) -> None:
        self.rolls.append(frozenset(names))


@dataclass
class Engine:
    """A replica as health sees it."""

    reachable: bool = True
    generates: bool = True
    scrapable: bool = True
    counts: bool = True
    running: int = 0
    tokens_per_scrape: float = 0.0
    tokens: float = 0.0
    prompts_per_scrape: float = 0.0  # tokens of prompts
    prompts: float = 0.0
    engines: int = 1  # behind one address
    steps_per_scrape: float | None = None  # of all of them; None: it does not count them
    stepped: float = 0.0
    token_s: float | None = None  # between two tokens of an answer; None: it does not say
    between_s: float = 0.0
    probes: int = 0
    scrapes: int = 0
    says: EngineFacts = field(default_factory=EngineFacts)
    kv_tokens: int | None = None
    waiting: int = 0
    log: list[LoggedStep] = field(default_factory=list)  # of the scheduler inside
    log_began: str = "1"
    logs: bool = True
    asleep: bool = False
    can_sleep: bool = True  # it has the paths for it
    wake_takes_s: float = 0.0
    kv_usage: float | None = 0.5
    keeps_prefixes: bool = False
    preemptions: float = 0.0
    sleeps: int = 0
    wakes: int = 0

    async def sleep(self) -> None:
        self.sleeps += 1
        if not self.can_sleep:
            raise EngineUnreachable("POST /sleep answered 404")
        self.asleep = True

    async def wake(self) -> None:
        self.wakes += 1
        if not self.can_sleep:
            raise EngineUnreachable("POST /wake_up answered 404")
        await asyncio.sleep(self.wake_takes_s)
        self.asleep = False

    async def steps(self, after: int, began: str) -> StepPage:
        if not self.logs:
            raise EngineUnreachable("GET steps did not answer within 2 s")
        after = after if began == self.log_began else 0
        return StepPage(tuple(self.log[after:]), len(self.log), self.log_began)

    async def scrape(self) -> EngineMetrics:
        self.scrapes += 1
        if not self.reachable:
            raise EngineUnreachable("GET /metrics failed: connection refused")
        if not self.scrapable:
            raise EngineProtocolError("/metrics has no numbers")
        if self.generates:
            self.tokens += self.tokens_per_scrape
            self.prompts += self.prompts_per_scrape
            self.stepped += self.steps_per_scrape or 0.0
            self.between_s += self.tokens_per_scrape * (self.token_s or 0.0)
        return EngineMetrics(
            self.running, self.waiting, self.kv_usage, self.tokens, self.prompts, 0.0, self.preemptions, gpu_util=0.25,
            engines=self.engines, kv_tokens=self.kv_tokens, asleep=self.asleep, keeps_prefixes=self.keeps_prefixes,
            steps=None if self.steps_per_scrape is None else self.stepped,
            between_tokens_s=None if self.token_s is None else self.between_s, between_tokens=self.tokens,
        )  # fmt: skip

    async def facts(self, engines: int) -> EngineFacts:
        if not self.reachable:
            raise EngineUnreachable("GET /v1/models failed: connection refused")
        return self.says

    async def probe(self, timeout_s: float) -> Probe:
        self.probes += 1
        if not self.reachable:
            return Probe(False, "connection refused", 0.0)
        if not self.generates:
            await asyncio.sleep(timeout_s)
            return Probe(False, f"no answer within {timeout_s:g} s", timeout_s)
        self.tokens += self.counts
        return Probe(True, "one token in 1 ms", 0.001)


@dataclass
class Engines:
    """The fleet by backend id; made when first asked for."""

    by_id: dict[str, Engine] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Engine:
        return self.by_id.setdefault(name, Engine())

    def factory(self, _http: object = None) -> Callable[[BackendSpec, PoolSpec], Engine]:
        return lambda spec, pool: self[spec.id]


def catalog_of(pool: PoolSpec, *entitlements: EntitlementSpec, version: int = 1) -> Catalog:
    return Catalog(version, {pool.id: pool}, {e.id: e for e in entitlements}, {})


@asynccontextmanager
async def dispatching(
    url: str,
    catalog: Catalog,
    *,
    holder: str = "leader-a",
    engines: Engines | None = None,
    telemetry: Telemetry | None = None,
    floors: Floors | None = None,
    over_http: bool = False,
    prefill_preemption: bool = True,
) -> AsyncIterator[PoolDispatcher]:
    """A dispatcher of the catalog's only pool, running; ``over_http``: its replicas are real servers."""
    (pool_id,) = catalog.pools
    resp = RespConnection(url, name=f"test-{holder}")
    await resp.start()
    thread, database = ThreadPoolExecutor(1), ThreadPoolExecutor(2)
    engine = None if over_http else (engines or Engines()).factory
    resources = Resources(
        url,
        resp,
        holder,
        telemetry or Telemetry(),
        thread,
        floors or Floors(),
        database,
        engine,
        prefill_preemption=prefill_preemption,
    )
    dispatcher = PoolDispatcher(resources, pool_id, catalog)
    task = asyncio.create_task(dispatcher.run())
    try:
        yield dispatcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await resp.close()
        thread.shutdown()
        database.shutdown()
