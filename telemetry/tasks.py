"""Slow work on the ledger, started by the leader's recorder; losing or doubling a start changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from telemetry import events
from telemetry.alerts import lifecycle, notify
from telemetry.estimates import learned
from telemetry.ledger import reservations, rollup
from telemetry.models import LedgerEntry

log = logging.getLogger(__name__)

CHUNK = 1000  # rows per statement: a writer never waits long behind a purge
MAX_CHUNKS = 500  # per start; the next hour goes on

# What else is due each minute, of parts that telemetry does not know: their modules of tasks add it.
minutely: list[Callable[[], object]] = []


def purge(days: int) -> int:
    """Deletes entries received more than ``days`` days ago, oldest first, in bounded chunks. Returns how many went.

    Whole hours only, so that an hour that is added up anew is either all there or not at all.
    """
    before = rollup.floor_hour(timezone.now() - timedelta(days=days))
    gone = 0
    for _ in range(MAX_CHUNKS):
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
    """Adds the ledger up by the hour, keeps what predictions were corrected by, delivers what alerts are due, and does
    what else is due each minute."""
    failures: list[Exception] = []
    due: list[Callable[[], object]] = [
        rollup.roll_up, reservations.record, learned.keep, lifecycle.tidy, lifecycle.deliver, notify.deliver, *minutely,
    ]  # fmt: skip
    for work in due:
        try:
            work()
        except Exception as error:
            log.exception("%s failed; what else is due goes on", work.__name__)
            failures.append(error)
    if failures:
        raise failures[0]  # the task has failed, and says so


@shared_task(name="telemetry.purge_ledger", ignore_result=True, expires=3000)
def purge_ledger() -> None:
    """Applies ``QUARTERMASTER_RETENTION_DAYS`` to the ledger."""
    rollup.roll_up()  # what goes has been added up
    gone = purge(settings.QUARTERMASTER_RETENTION_DAYS)
    learned.purge(settings.QUARTERMASTER_RETENTION_DAYS)
    events.purge(settings.QUARTERMASTER_RETENTION_DAYS)
    if gone:
        log.info("retention: deleted %d ledger entries older than %d days", gone, settings.QUARTERMASTER_RETENTION_DAYS)
