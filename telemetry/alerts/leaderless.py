"""Alerts of rules about pools that nobody leads: opened by web processes, which see it; ended by the next leader.
Without Redis nobody leads any pool, and where it refuses writes, nobody sees who does.

Several processes may see the same at once: the database keeps one alert per rule and pool. A start is no outage: a
leader that a process has not seen since its own start has :data:`START_S` from then on to appear.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from django.db import DatabaseError

from telemetry.alerts import lifecycle
from telemetry.alerts.conditions import limit_in_words
from telemetry.alerts.delivery import start_delivery
from telemetry.feed.sources import LEADER, REDIS, Outage
from telemetry.models import AlertRule, RuleKind
from tenants.connections import own_connection

log = logging.getLogger(__name__)

EVERY_S = 5.0
NO_LEADER, NO_REDIS, REFUSED = 1.0, 2.0, 3.0  # an alert's value: why
START_S = 60.0  # as long as `make up` waits until everything is ready


class LeaderWatch:
    """Called once a second with what cannot be seen."""

    def __init__(
        self, start_delivery: Callable[[], None] = start_delivery, pools: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """``pools``: all that are configured."""
        self._start_delivery = start_delivery
        self._pools = pools
        self._looked_s = float("-inf")
        self._started_s: float | None = None  # the first look

    def look(self, away: Sequence[Outage], now_s: float) -> None:
        """Opens what is due, at most every five seconds. Never raises."""
        if self._started_s is None:
            self._started_s = now_s
        headless = [one for one in self._of_pools(away) if self._may_judge(one, self._started_s, now_s)]
        if not headless or 0.0 <= now_s - self._looked_s < EVERY_S:
            return
        self._looked_s = now_s
        try:
            if self._open(headless, now_s):
                self._start_delivery()
        except DatabaseError as error:
            log.debug("rules about leaders: the database does not answer (%s)", type(error).__name__)
        except Exception:
            log.exception("rules about leaders could not be looked at")

    def _of_pools(self, away: Sequence[Outage]) -> list[Outage]:
        headless = [one for one in away if one.source == LEADER]
        for one in away:
            if one.source == REDIS:
                headless += [replace(one, pool=pool) for pool in self._pools()]
        return headless

    @staticmethod
    def _may_judge(one: Outage, started_s: float, now_s: float) -> bool:
        """Whether the leader was seen since this process started, or has had the time to appear."""
        seen = not one.at_least and one.since >= started_s
        return seen or now_s - started_s >= START_S

    @own_connection
    def _open(self, headless: Sequence[Outage], now_s: float) -> bool:
        news = False
        for rule in AlertRule.objects.filter(enabled=True, kind=RuleKind.NO_LEADER):
            for one in headless:
                if rule.pool not in ("", one.pool) or now_s - one.since < rule.for_s:
                    continue
                if rule.alerts.filter(pool=one.pool, resolved_at=None).exists():
                    continue
                since = one.since_in_words() + limit_in_words(rule)
                line, value = f"Pool {one.pool} has had no leader {since}.", NO_LEADER
                if one.source == REDIS:
                    said = f"has refused what it is asked ({one.refuses})" if one.refuses else "has not answered"
                    line = f"Redis {said} {since}: pool {one.pool} refuses new requests."
                    value = REFUSED if one.refuses else NO_REDIS
                news |= lifecycle.fire(
                    rule, pool=one.pool, subject="", tenant="", line=line, value=value, at_s=one.since,
                    began_s=one.since,
                )  # fmt: skip
        return news
