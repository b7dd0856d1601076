"""Puts a replica together and binds its port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from scheduling.core.engine.step_time import load_preset
from scheduling.engines.simulated.adapters import Adapters
from scheduling.engines.simulated.api import Api
from scheduling.engines.simulated.engine import Engine, EngineLimits
from scheduling.engines.simulated.http import Connection
from scheduling.engines.simulated.prefix_cache import PrefixCache
from scheduling.engines.simulated.runner import Runner


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a replica is started. None means: what the preset says."""

    model: str
    preset: str = "llama-3-8b-a100"
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    slots: int | None = None
    kv_tokens: int | None = None
    token_budget: int | None = None
    max_model_len: int | None = None
    speed: float = 1.0
    seed: int = 0
    priority_scheduling: bool = False
    max_queued: int | None = None
    prefix_cache: bool = False
    api_key: str = ""
    dev_mode: bool = False  # it answers /server_info
    adapters: tuple[tuple[str, str], ...] = ()  # LoRA adapters that it starts with: name and path
    max_adapters: int | None = None  # so many it keeps
    runtime_lora: bool = False  # it can be asked to load adapters


class SimulatedServer:
    """One replica in this event loop. A subclass with another ``api_type`` speaks otherwise."""

    api_type: ClassVar[type[Api]] = Api

    def __init__(self, options: EngineOptions) -> None:
        """Raises ValueError for an unknown preset or limits that cannot work."""
        if not options.speed > 0:
            raise ValueError(f"speed must be above 0, not {options.speed}")
        self.options = options
        self.preset = load_preset(options.preset)
        kv_tokens = options.kv_tokens or self.preset.kv_tokens
        self.limits = EngineLimits(
            slots=options.slots or self.preset.slots,
            kv_tokens=kv_tokens,
            token_budget=options.token_budget or self.preset.token_budget,
            # like vLLM's --max-model-len auto: what was not asked for shrinks to what fits
            max_model_len=options.max_model_len or min(self.preset.max_model_len, kv_tokens // 16 * 16),
            priority_scheduling=options.priority_scheduling,
            max_queued=options.max_queued,
        )
        self.engine = Engine(self.limits)
        self.port = options.port
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._runner: Runner | None = None
        self.api: Api | None = None

    @property
    def url(self) -> str:
        return f"http://{self.options.host}:{self.port}"

    async def start(self) -> None:
        """Binds the port. Raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        self._runner = Runner(self.engine, self.preset.step_time, self.options.speed, loop)
        self.api = api = self.api_type(
            self._runner,
            model=self.options.model,
            preset=self.preset,
            max_model_len=self.limits.max_model_len,
            seed=self.options.seed,
            api_key=self.options.api_key,
            dev_mode=self.options.dev_mode,
            adapters=Adapters(dict(self.options.adapters), self.options.max_adapters),
            runtime_lora=self.options.runtime_lora,
            cache=PrefixCache(self.engine.total_blocks) if self.options.prefix_cache else None,
        )
        self._server = await loop.create_server(
            lambda: Connection(api.handle, self._connections, loop),
            self.options.host,
            self.options.port,
            backlog=2048,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends at once, as vLLM does by default: open requests lose their connection."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            self._runner.close()
        for connection in tuple(self._connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()


@asynccontextmanager
async def serving(options: EngineOptions) -> AsyncIterator[SimulatedServer]:
    """A running replica for the time of a ``with``."""
    server = SimulatedServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
