"""The strategic loop in a worker."""

from __future__ import annotations

from collections.abc import Mapping

from celery import shared_task

from controlplane.tuning import loop, recent
from telemetry.tasks import minutely

minutely.append(recent.sample)


@shared_task(name="telemetry.tend_pool", ignore_result=True, expires=30)
def tend_pool(pool: str, oldest_waits_s: Mapping[str, float] | float = 0.0, leader: str = "") -> None:
    """What is due in a pool's strategic loop. Lost or doubled, it changes nothing."""
    if not isinstance(oldest_waits_s, Mapping):  # a leader of the release before says one figure for all tiers
        oldest_waits_s = {"": oldest_waits_s}
    loop.tend(pool, oldest_waits_s=oldest_waits_s, leader=leader)
