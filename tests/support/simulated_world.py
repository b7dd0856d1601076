"""A gateway in front of simulated engines: real answers of every endpoint, with everything of ``gateway_world``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from scheduling.core.types import BackendSpec
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from scheduling.gateway.answers.stored import ResponseStore
from scheduling.gateway.config import GatewayConfig
from scheduling.gateway.ports import Routes
from tests.support.gateway_world import World, gateway_world

UPSTREAM = "simulated-upstream"


@asynccontextmanager
async def simulated_world(
    redis_url: str,
    pool_id: str,
    *,
    engines: int = 1,
    config: GatewayConfig | None = None,
    routes: Collection[Routes] = (),
    responses: ResponseStore | None = None,
    **options: Any,
) -> AsyncIterator[tuple[World, list[SimulatedServer]]]:
    """The pool of the world has only these replicas. ``options`` are the engines' own."""
    engine = EngineOptions(**({"model": UPSTREAM, "speed": 50.0, "prefix_cache": True} | options))
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(
            gateway_world(redis_url, pool_id, engines=0, config=config, routes=routes, responses=responses)
        )
        servers = [await stack.enter_async_context(serving(replace(engine, seed=engine.seed))) for _ in range(engines)]
        backends = tuple(
            BackendSpec(f"{pool_id}-s{n}", pool_id, server.url, 64, server.limits.kv_tokens)
            for n, server in enumerate(servers)
        )
        await world.configure(
            pool={
                "backends": backends, "upstream_model": engine.model, "max_model_len": servers[0].limits.max_model_len,
            }
        )  # fmt: skip
        for backend in backends:
            await world.store.set_ready(world.epoch, backend.id, backend)
        yield world, servers
