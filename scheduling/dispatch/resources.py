"""What the dispatchers of one process share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import httpx

from scheduling.core.capacity.kv_overcommit import MAX_OVERCOMMIT
from scheduling.dispatch.ports import EpochFloor, TelemetryPort
from scheduling.dispatch.replicas.watched import EngineFactory
from scheduling.state.resp import RespConnection


@dataclass(frozen=True, slots=True)
class Resources:
    redis_url: str
    resp: RespConnection
    holder: str  # unique per process start
    telemetry: TelemetryPort
    telemetry_thread: Executor  # one thread: the ports are written for that
    epochs: EpochFloor
    database: Executor  # for blocking questions to the database
    engine: Callable[[httpx.AsyncClient], EngineFactory] | None = None  # None: by the pool's kind of engine
    kv_overcommit: float = MAX_OVERCOMMIT  # at most
    prefill_preemption: bool = True  # the prefill of long prompts may be interrupted
    may_lead: Callable[[], bool] = lambda: True  # whether this process may lead pools in this Redis
