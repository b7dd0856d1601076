"""Tells running processes that the catalog changed. A notification: they poll anyway, losing one costs two seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

import redis
from django.conf import settings

from scheduling.state.blocking import blocking_client

CHANNEL = "qm:catalog"

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def _client(url: str) -> redis.Redis:
    return blocking_client(url)


class RedisNotifier:
    """Publishes the version on ``qm:catalog``. A Redis that is away costs half a second and one log line."""

    def __init__(self) -> None:
        self._silent = False

    def __call__(self, version: int) -> None:
        url = getattr(settings, "QUARTERMASTER_REDIS_URL", "")
        if not url:
            return
        try:
            _client(url).publish(CHANNEL, str(version))
        except redis.RedisError as error:
            if not self._silent:
                log.warning(
                    "catalog notification: Redis is away (%s); processes notice by polling", type(error).__name__
                )
            self._silent = True
        else:
            self._silent = False


listeners: list[Callable[[int], None]] = [RedisNotifier()]


def notify(version: int) -> None:
    """Calls every listener. None of them may fail the write that was already committed."""
    for listener in listeners:
        try:
            listener(version)
        except Exception:
            log.exception("catalog notification: a listener failed")
