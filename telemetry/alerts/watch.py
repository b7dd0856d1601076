"""Looks at the alert rules for the pools this process leads: opens alerts, and resolves them.

Called from the dispatch service's telemetry thread with each published snapshot, so exactly one process watches a pool.
Open alerts are read from the database at every look: what another leader, or a person, did meanwhile counts. How long
something has been wrong is in memory only: a change of leader begins to count anew, and tells later rather than twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.db import DatabaseError
from django.db.models import Q

from telemetry.alerts import lifecycle
from telemetry.alerts.conditions import OF_TENANT_ONLY, Costs, Seen, Shares, Timer, limit_in_words, right, seen, wrong
from telemetry.alerts.delivery import start_delivery
from telemetry.models import Alert, AlertRule, RuleKind
from tenants.connections import is_outage, own_connection

log = logging.getLogger(__name__)

EVERY_S = 5.0
COSTS_S = 60.0  # sums over the ledger are not made more often

_Key = tuple[int, str, str]  # rule, pool, subject


class AlertWatch:
    """The rules' memory in one process."""

    def __init__(
        self,
        start_delivery: Callable[[], None] = start_delivery,
        looked: Callable[[str, float], None] | None = None,
        costs: Callable[[float], Costs] | None = None,
    ) -> None:
        """``looked`` is called with each pool whose rules were evaluated, and the time: a rule that is not evaluated
        counts as unknown, not as fine. ``costs``: the tenants' costs on the day of a time."""
        self._read_costs = costs
        self._costs: tuple[float, Costs] = (float("-inf"), {})
        self._start_delivery = start_delivery
        self._looked = looked
        self._looked_s: dict[str, float] = {}
        self._timers: dict[_Key, Timer] = {}

    def look(self, snapshot: Mapping[str, Any], shares: Shares) -> None:
        """At most every five seconds per pool. Never raises."""
        pool, now_s = snapshot["pool"], snapshot["at"]
        if 0.0 <= now_s - self._looked_s.get(pool, float("-inf")) < EVERY_S:
            return
        self._looked_s[pool] = now_s
        try:
            news = self._look(pool, snapshot, shares, now_s)
            if self._looked is not None:
                self._looked(pool, now_s)
            if news:
                self._start_delivery()
        except DatabaseError as error:
            log.warning("alert rules of pool %s: the database does not answer (%s)", pool, type(error).__name__)
        except Exception:
            log.exception("the alert rules of pool %s could not be looked at", pool)

    @own_connection
    def _look(self, pool: str, snapshot: Mapping[str, Any], shares: Shares, now_s: float) -> bool:
        """Whether there is something new to deliver."""
        rules = list(AlertRule.objects.filter(enabled=True))
        lasting = Alert.objects.filter(Q(pool=pool) | Q(pool=""), resolved_at=None, rule__isnull=False)
        open_alerts = {(a.rule_id, a.pool, a.subject): a for a in lasting}
        news, looked = False, set()
        costs = self._costs_now(rules, now_s)
        for key, rule, one in _subjects(rules, pool, snapshot, shares, costs, open_alerts):
            looked.add(key)
            try:
                news |= self._judge(key, rule, one, open_alerts.get(key), now_s)
            except Exception as error:
                if is_outage(error):
                    raise  # for all of them
                log.exception("alert rule %s could not be judged for %r; the others are", rule.name, key[2])
        for key in [k for k in self._timers if k[1] in (pool, "") and k not in looked]:
            del self._timers[key]  # its rule, its subject or its alert is gone
        return news

    def _costs_now(self, rules: Sequence[AlertRule], now_s: float) -> Costs:
        """Empty where no rule asks for them."""
        if self._read_costs is None or not any(rule.kind == RuleKind.COST for rule in rules):
            return {}
        if not 0.0 <= now_s - self._costs[0] < COSTS_S:
            self._costs = (now_s, self._read_costs(now_s))
        return self._costs[1]

    def _judge(self, key: _Key, rule: AlertRule, one: Seen | None, alert: Alert | None, now_s: float) -> bool:
        timer = self._timers.setdefault(key, Timer())
        if alert is None:
            if not timer.lasts(one is not None and wrong(rule, one.value), now_s, rule.for_s) or one is None:
                return False
            line = one.line + limit_in_words(rule) + "."
            held_s = now_s if timer.since_s is None else timer.since_s
            began_s = held_s if one.since_s is None else one.since_s
            fired = lifecycle.fire(
                rule, pool=key[1], subject=key[2], tenant=one.tenant, line=line, value=one.value, at_s=now_s,
                began_s=began_s,
            )  # fmt: skip
            del self._timers[key]  # not before it is stored: the next look tries again
            return fired
        if not timer.lasts(one is None or right(rule, one.value), now_s, rule.for_s):
            return False
        resolved = lifecycle.resolve(
            Alert.objects.filter(pk=alert.pk), one.line if one else "There is nothing to see any more"
        )
        del self._timers[key]
        return resolved


def _subjects(
    rules: Sequence[AlertRule],
    pool: str,
    snapshot: Mapping[str, Any],
    shares: Shares,
    costs: Costs,
    open_alerts: Mapping[Any, Alert],
) -> Iterator[tuple[_Key, AlertRule, Seen | None]]:
    """Everything the rules see here, and what they saw when an alert began and do not see any more."""
    for rule in rules:
        place = "" if rule.kind in OF_TENANT_ONLY else pool
        try:
            now = seen(rule, snapshot, shares, costs)
        except Exception:
            log.exception("alert rule %s cannot be looked at in pool %s; the others are", rule.name, pool)
            continue
        gone = {subject for (of, where, subject) in open_alerts if of == rule.pk and where == place} - now.keys()
        for subject in sorted(now.keys() | gone):
            yield (rule.pk, place, subject), rule, now.get(subject)
