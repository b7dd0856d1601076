"""Batches in a worker."""

from __future__ import annotations

import asyncio
import mmap
import secrets
from typing import TYPE_CHECKING, Any

from celery import shared_task
from celery.signals import worker_shutting_down
from django.conf import settings

from controlplane.batches import services
from controlplane.batches.room import Room
from scheduling.core.engine.step_time import StepTime
from scheduling.core.types import Catalog
from telemetry.tasks import minutely
from tenants import specs
from tenants.connections import own_connection
from tenants.models import Pool

if TYPE_CHECKING:
    from scheduling.gateway.estimate.forecasts import Forecasts

# A byte that the worker and its task processes share, made before the fork: the worker says in it that it stops. No
# ``multiprocessing.Event``: who is killed while he asks one leaves its lock behind, and all others wait for ever.
_stopping = mmap.mmap(-1, 1)
_catalog: Catalog | None = None  # the last one that was read in this process
_room: Room | None = None  # what is known of the pools: a task lasts for seconds
_learned: Forecasts | None = None  # of answers, while batches are open: reading it takes seconds where much is known


@worker_shutting_down.connect
def _stop(**_: Any) -> None:
    _stopping[0] = 1


@shared_task(name="batches.work", ignore_result=True)
def work(batch: int = 0) -> None:
    """Works on open batches for a while, and rings for the next. A lost message is made up for within seconds."""
    global _learned
    if services.due():
        asyncio.run(_work())
        if not _stops() and services.due():
            work.apply_async((batch,), retry=False)
            return
    _learned = None


async def _work() -> None:
    from controlplane.batches.executor import Executor
    from controlplane.batches.gateway import SurplusGateway
    from controlplane.gateway_config import gateway_config
    from scheduling.catalog import CatalogCache

    global _room, _learned
    env = settings.ENV
    if _room is None:
        _room = Room(_steps_of, env.batch_slowdown / 100, env.batch_in_flight)
    catalog = CatalogCache(_load, specs.catalog_version)
    gateway = SurplusGateway(gateway_config(env), catalog, env.redis_url, _room.kept, _learned)
    await gateway.start()
    _learned = gateway.learned
    try:
        holder = f"batch-{secrets.token_hex(6)}"
        await Executor(gateway, holder, _room, most_running=env.batch_in_flight, stopping=_stops).run()
    finally:
        await gateway.drain(0)
        await gateway.stop()


@own_connection
def _steps_of(pool: str) -> list[StepTime]:
    """How long steps of a pool's replicas take, as far as it was measured."""
    from controlplane.tuning.replicas import latest, logged_steps, replicas_of

    row = Pool.objects.filter(slug=pool).first()
    return [] if row is None else [one.step_time for one in replicas_of(row, latest(pool), logged_steps(pool))]


def _stops() -> bool:
    return _stopping[0] != 0


def _load() -> Catalog:
    """The catalog, read once for each version: this process begins anew every few seconds."""
    global _catalog
    if _catalog is None or _catalog.version != specs.catalog_version():
        _catalog = specs.load_catalog()
    return _catalog


minutely.append(services.tidy)
