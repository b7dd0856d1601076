"""Batches in a worker."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import threading
from typing import Any

from celery import shared_task
from celery.signals import worker_shutting_down
from django.conf import settings

from controlplane.batches import services
from scheduling.core.types import Catalog
from telemetry.tasks import minutely
from tenants import specs


def _make_stopping() -> Any:
    """Made before the worker forks, so that it can tell its tasks."""
    try:
        return multiprocessing.Event()
    except OSError:  # no shared memory: then tasks are threads (``controlplane.embedded.up``)
        return threading.Event()


_stopping = _make_stopping()
_catalog: Catalog | None = None  # the last one that was read in this process


@worker_shutting_down.connect
def _stop(**_: Any) -> None:
    _stopping.set()


@shared_task(name="batches.work", ignore_result=True)
def work(batch: int = 0) -> None:
    """Works on open batches for a while, and rings for the next. A lost message is made up for within seconds."""
    if not services.due():
        return
    asyncio.run(_work())
    if not _stopping.is_set() and services.due():
        work.apply_async((batch,), retry=False)


async def _work() -> None:
    from controlplane.batches.executor import Executor
    from controlplane.batches.gateway import SurplusGateway
    from controlplane.wiring import gateway_config  # it imports the leader's parts, among them what rings for this
    from scheduling.catalog import CatalogCache

    env = settings.ENV
    gateway = SurplusGateway(gateway_config(env), CatalogCache(_load, specs.catalog_version), env.redis_url)
    await gateway.start()
    try:
        holder = f"batch-{secrets.token_hex(6)}"
        await Executor(gateway, holder, most_running=env.batch_in_flight, stopping=_stopping.is_set).run()
    finally:
        await gateway.drain(0)
        await gateway.stop()


def _load() -> Catalog:
    """The catalog, read once for each version: this process begins anew every few seconds."""
    global _catalog
    if _catalog is None or _catalog.version != specs.catalog_version():
        _catalog = specs.load_catalog()
    return _catalog


minutely.append(services.tidy)
