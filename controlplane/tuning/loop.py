"""The tuning loop of a pool: watch the canary, compute queue boundaries, search better settings on recent traffic.

:func:`tend` does what is due. It may be called at any time, by any process, any number of times: all of its state is in
the database, and a stored replay is not made again. The pool's leader starts it every ten seconds. A worker that is
killed leaves at most a canary that is not watched, which the next call ends.

A **study** (:mod:`controlplane.tuning.studies`) is one window of traffic and the search on it
(:mod:`scheduling.tuning.search`), which takes a share of one processor and goes on from call to call. What served and
what came into its last round are kept as trials. The winner becomes a canary for one interval (automatic mode) or waits
until somebody starts it (advise mode). If the pool's simulated figures are too far from live ones, it waits in
automatic mode, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.tuning import replicas
from controlplane.tuning.canary import watch_canary
from controlplane.tuning.partitions import repartition
from controlplane.tuning.proposals import judge_proposal
from controlplane.tuning.studies import continue_study, start_waiting_canary
from tenants import tuning
from tenants.models import Pool, Trial, TrialState, TuningMode

RECALIBRATE, RECALIBRATE_SOON = timedelta(minutes=15), timedelta(minutes=2)
ENOUGH = 500  # requests of a calibration that is kept for a quarter of an hour
CALIBRATION_WINDOW = timedelta(minutes=30)


def tend(
    slug: str, *, oldest_waits_s: Mapping[str, float] | None = None, leader: str = "", now: datetime | None = None
) -> str:
    """Does what is due in one pool; returns what that was. ``oldest_waits_s``: by tier, how long the oldest request
    waits now [s]. ``leader``: the process that leads the pool, if known."""
    now = now or timezone.now()
    pool = Pool.objects.filter(slug=slug).first()
    if pool is None:
        return "no such pool"
    chosen = tuning.tuning_of(pool)
    _recalibrate(pool, now)
    canary = Trial.objects.filter(pool=pool, state=TrialState.CANARY).select_related("base", "version").first()
    if canary is not None:
        pool.refresh_from_db()  # calibrating took seconds: the canary may be newer than the row
        return watch_canary(pool, canary, chosen.loop, oldest_waits_s or {}, leader, now)
    if judged := judge_proposal(pool, chosen.loop, now):
        return judged
    if chosen.mode == TuningMode.OFF:
        return "off"
    settings = chosen.loop
    automatic = chosen.mode == TuningMode.AUTOMATIC
    if automatic and (started := start_waiting_canary(pool, settings, now)):
        return started
    return repartition(pool, settings, automatic, now) or continue_study(pool, settings, automatic, now)


def _recalibrate(pool: Pool, now: datetime) -> None:
    """Measures again how fast the engines are: every quarter of an hour with requests, sooner if the last measurement
    had few of them."""
    last = replicas.latest(pool.slug)
    every = RECALIBRATE if last is None or last.requests >= ENOUGH else RECALIBRATE_SOON
    if last is None or now - last.at >= every:
        replicas.recalibrate(pool, now - CALIBRATION_WINDOW, now)
