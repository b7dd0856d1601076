"""Slow work on the ledger, started by the leader's recorder; losing or doubling a start changes nothing."""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from controlplane.lab import runs
from controlplane.tuning import loop, recent
from telemetry.alerts import lifecycle
from telemetry.estimates import learned
from telemetry.ledger import rollup
from telemetry.models import LedgerEntry

log = logging.getLogger(__name__)

CHUNK = 1000  # rows per statement: a writer never waits long behind a purge
MOST_CHUNKS = 500  # per start; the next hour goes on


def purge(days: int) -> int:
    """Deletes entries received more than ``days`` days ago, oldest first, in bounded chunks. Returns how many went.

    Whole hours only, so that an hour that is added up anew is either all there or not at all.
    """
    before = rollup.floor_hour(timezone.now() - timedelta(days=days))
    gone = 0
    for _ in range(MOST_CHUNKS):
        ids = list(
            LedgerEntry.objects.filter(received_at__lt=before)
            .order_by("received_at", "id")
            .values_list("id", flat=True)[:CHUNK]
        )
        if not ids:
            break
        gone += LedgerEntry.objects.filter(id__in=ids).delete()[0]
    return gone


@shared_task(name="telemetry.roll_up", ignore_result=True, expires=50)
def roll_up() -> None:
    """Adds the ledger up by the hour, takes the long-term samples, keeps what predictions were corrected by, and
    delivers what alerts are due."""
    failures: list[Exception] = []
    for work in (rollup.roll_up, recent.sample, learned.keep, _ring_lab, lifecycle.tidy, lifecycle.deliver):
        try:
            work()
        except Exception as error:
            log.exception("%s failed; what else is due goes on", work.__name__)
            failures.append(error)
    if failures:
        raise failures[0]  # the task has failed, and says so


def _ring_lab() -> None:
    for run in runs.still():
        run_lab.apply_async((run,), retry=False)


@shared_task(name="telemetry.deliver_alerts", ignore_result=True, expires=50)
def deliver_alerts() -> None:
    """Delivers what alerts are due, when one began or ended."""
    lifecycle.deliver()


@shared_task(name="telemetry.purge_ledger", ignore_result=True, expires=3000)
def purge_ledger() -> None:
    """Applies ``QUARTERMASTER_RETENTION_DAYS`` to the ledger."""
    rollup.roll_up()  # what goes has been added up
    gone = purge(settings.QUARTERMASTER_RETENTION_DAYS)
    learned.purge(settings.QUARTERMASTER_RETENTION_DAYS)
    if gone:
        log.info("retention: deleted %d ledger entries older than %d days", gone, settings.QUARTERMASTER_RETENTION_DAYS)


@shared_task(name="telemetry.tend_pool", ignore_result=True, expires=30)
def tend_pool(pool: str, oldest_wait_s: float = 0.0, leader: str = "") -> None:
    """What is due in a pool's strategic loop. A doorbell: lost or doubled, it changes nothing."""
    loop.tend(pool, oldest_wait_s=oldest_wait_s, leader=leader)


@shared_task(name="telemetry.run_lab", ignore_result=True)
def run_lab(run: int) -> None:
    """Some pieces of a lab run, and a ring for the next. A lost ring is made up for by the minute's roll-up."""
    if runs.work(run):
        run_lab.apply_async((run,), retry=False)
