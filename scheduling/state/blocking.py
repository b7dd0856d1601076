"""The blocking Redis client of pages, tasks and commands. Gateways and the dispatch loop use ``resp.py``."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def blocking_client(url: str, *, timeout_s: float = 0.5) -> redis.Redis:
    """Connects at the first command. A command that is not answered within ``timeout_s``, and a connection that takes
    0.5 s, raise redis.RedisError.

    Nothing is sent twice: a write whose reply was lost may have happened, and whoever waits for a page waits once.
    """
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=0.5,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )
