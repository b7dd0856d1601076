"""What the dispatch loop hands upward, without knowing who takes it.

The shell plugs the telemetry floor in here. Its methods are called from one dedicated thread, never from the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduling.core.capacity.engine_limits import EngineFacts
from scheduling.core.engine.calibration import StepFit
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import PoolSpec, PoolView, Standing
from scheduling.dispatch.replicas.adapters import AdapterStatus


@dataclass(frozen=True, slots=True)
class StepStatus:
    """What the log of an engine's own scheduler says of its step times."""

    fit: StepFit | None  # None: not known yet
    believed: bool  # others go by it
    recent_error: float | None  # of the last steps, which it was not fitted to; None: none came since
    drifts: int  # how often it did not hold any more, in this term of leadership
    why: str = ""  # why the log is not read now


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """A replica as the health monitor sees it. Figures are None until they were observed."""

    id: str
    state: str  # ready | probing | ejected | asleep | waking (it starts, as its pool had none on purpose) | draining
    why: str  # one line for people
    observed_s: float  # epoch seconds of the last successful scrape, 0 if never
    engine_running: int | None = None  # vllm:num_requests_running
    engine_waiting: int | None = None
    kv_usage: float | None = None  # 0..1
    output_tokens_per_s: float | None = None
    input_tokens_per_s: float | None = None
    gpu_util: float | None = None  # 0..1
    gpu_mem_used_bytes: float | None = None
    gpu_mem_total_bytes: float | None = None
    engine_facts: EngineFacts = field(default_factory=EngineFacts)  # by the engine, of its limits
    slots: int = 0  # in force: what it is offered with, before pauses
    kv_tokens: int = 0
    kv_offered: int = 0  # that may be reserved of these, as requests use less than they reserve
    prefill_credit: int = 0  # prompt tokens; 0: no bound
    generates: bool = False  # it was seen to, although its figures cannot be read
    limits_why: str = ""  # what is less than was typed, and why
    credit_why: str = ""
    credit_short: float = 0.0  # share of the last seconds in which requests waited for nothing but its prefill credit
    token_s: float = 0.0  # mean time between the tokens of an answer there; 0: not known
    speed: float | None = None  # 0..1 of the fastest replica of its pool, as these times show; None: not known
    speed_why: str = ""  # why it gets less work than others
    full_step: tuple[int, float] = (0, 0.0)  # tokens, and what it was measured to take, at least [s]; 0: not known
    steps: StepStatus | None = None  # None: engines of its kind log none
    adapters: AdapterStatus | None = None  # None: its pool has none
    wake_fails: bool = False  # it is asleep, and was not woken when requests waited
    foreign: int | None = None  # requests in the engine that were not granted here, lasting; None: not known


@dataclass(frozen=True, slots=True)
class Sample:
    """A pool at one moment, once a second, from its leader."""

    at_s: float
    pool: PoolSpec
    leader: str
    epoch: int
    policy: str  # "priority@1"
    view: PoolView  # leases by backend and entitlement, from Redis
    waiting: dict[str, int]  # entitlement -> requests waiting
    oldest_wait_s: float
    bucket_levels: dict[str, float]  # entitlement -> tokens
    backends: Sequence[BackendStatus]
    standings: dict[str, Standing] = field(default_factory=dict)  # entitlement -> weight, debt, burst
    shares: dict[str, float] = field(default_factory=dict)  # entitlement -> share of its class's tokens, once known
    kv_used: dict[str, int] = field(default_factory=dict)  # entitlement -> tokens reserved by what runs
    served_per_s: dict[str, float] = field(default_factory=dict)  # entitlement -> tokens/s by the meter
    totals_rebuilt: int = 0  # how often totals in Redis differed from the leases and were written anew
    ledger_unread: int = 0  # entries of the ledger stream that could not be read, set aside in Redis
    clock_skew_s: float | None = None  # of the leader's clock, ahead of Redis'; None: not known
    ledger_since_s: float | None = None  # since when ended requests are not stored [epoch s]; None: they are
    state_lost_s: float = 0.0  # when the pool's data in Redis was found lost [epoch s of Redis]; 0: never
    bucket_gaps: dict[str, float] = field(default_factory=dict)  # entitlement -> tokens too many, by the bucket audit
    turnaround_s: float | None = None  # from a first token in shared state to the next prompt in its engine
    oldest_waits_s: dict[str, float] = field(default_factory=dict)  # tier -> of the oldest request that waits
    wanted: bool = False  # requests wait or came lately, and no replica serves: one should be woken or added
    wakes_in_s: float = 0.0  # until the pool is expected to serve, where no replica does; 0: one does, or unknown
    waiting_sequences: dict[str, int] = field(default_factory=dict)  # entitlement -> places that what waits will take
    headroom: int = 0  # free slots that are kept for baselines now
    parts: dict[str, int] = field(default_factory=dict)  # queue, band or bubble of the policy -> requests waiting in it


class TelemetryPort(Protocol):
    def write_ledger(self, pool: str, records: Sequence[LedgerRecord]) -> None:
        """Stores records; idempotent by request id. Raises when the database is away: they are kept and tried again."""

    def bucket_debts(
        self, pool: str, budgets: Mapping[str, tuple[float, float]], before_s: float, now_s: float
    ) -> dict[str, float]:
        """Tokens that each bucket lacks now by what ended before ``before_s``. ``budgets``: entitlement ->
        (tokens/s, depth). Raises when the database is away."""

    def sample(self, sample: Sample) -> None:
        """Takes a pool's state for the live feed and metrics. Must not raise for a dashboard's sake."""

    def pools(self, names: Collection[str]) -> None:
        """Every few seconds: the pools there are, led here or not. What was shown of others may be forgotten."""


class EpochFloor(Protocol):
    """The highest epoch ever given, kept where a lost Redis cannot take it back."""

    def read(self, pool: str) -> int: ...

    def raise_to(self, pool: str, epoch: int) -> None: ...
