"""A program of the operator's that can get and end engines: a cloud's API, a batch system, a person's pager.

It is told how many replicas there should be, with the id of the decision, and for a removal which ones have drained
(``telemetry/alerts/webhook.py`` for signature and id). Its host has to be on ``QUARTERMASTER_WEBHOOK_HOSTS``. It
registers engines with ``POST /api/v1/backends`` and ``"managed": true``; those that were removed are taken out of the
catalog by us.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from django.conf import settings

from controlplane.scaling.drivers import DriverError, Order, Replica, driver
from scheduling.core.types import PoolSpec
from telemetry.alerts.webhook import WebhookError, post

PAUSES_S = (0.5, 2.0, 0.0)  # after each attempt


@driver("webhook")
class WebhookDriver:
    def __init__(self, pool: PoolSpec, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        self._pool = pool
        self._pauses_s = pauses_s

    def replicas(self) -> list[Replica] | None:
        return None

    def in_turn(self, names: Sequence[str]) -> None:
        return None

    def grow(self, order: Order) -> None:
        self._tell("grow", order)

    def shrink(self, order: Order) -> None:
        self._tell("shrink", order)

    def _tell(self, action: str, order: Order) -> None:
        if not settings.QUARTERMASTER_WEBHOOK_SECRET:
            raise DriverError("QUARTERMASTER_WEBHOOK_SECRET is empty, so the call cannot be signed; set it")
        content = {
            "id": order.id,
            "action": action,
            "pool": self._pool.id,
            "model": self._pool.upstream_model,
            "replicas": order.replicas,
            "remove": [{"name": r.name, "url": r.url} for r in order.remove],
            "reason": order.why,
        }
        url = str(self._pool.scaling.params["url"])
        for number, pause_s in enumerate(self._pauses_s, 1):
            try:
                return post(url, settings.QUARTERMASTER_WEBHOOK_SECRET, order.id, content)
            except WebhookError as error:
                if number == len(self._pauses_s):
                    raise DriverError(f"{error}, {number} times") from error
            time.sleep(pause_s)
        return None
