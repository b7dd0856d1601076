"""The strategic loop in a worker."""

from __future__ import annotations

from celery import shared_task

from controlplane.tuning import loop, recent
from telemetry.tasks import minutely

minutely.append(recent.sample)


@shared_task(name="telemetry.tend_pool", ignore_result=True, expires=30)
def tend_pool(pool: str, oldest_wait_s: float = 0.0, leader: str = "") -> None:
    """What is due in a pool's strategic loop. Lost or doubled, it changes nothing."""
    loop.tend(pool, oldest_wait_s=oldest_wait_s, leader=leader)
