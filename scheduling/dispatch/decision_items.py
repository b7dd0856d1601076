"""A leader's decisions as the scripts ``grant`` and ``evict`` take them."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.scheduler.evictions import entitled_to_room
from scheduling.core.types import Grant, PoolView, QueuedRequest
from scheduling.state.store import most_running
from scheduling.state.types import EvictItem, GrantItem


def grant_item(grant: Grant, policy: str) -> GrantItem:
    """``policy``: the one in force: ``priority@3``."""
    request = grant.request
    return GrantItem(
        request.id, request.attempt, grant.backend, most_running(request.service_class, request.concurrency), policy,
        grant.reason, request.uncounted_point, request.uncounted_tokens,
    )  # fmt: skip


def evict_items(waiting: Iterable[QueuedRequest], view: PoolView, policy: str) -> list[EvictItem]:
    """For the requests that :func:`scheduling.core.scheduler.evictions.entitled_to_room` names."""
    several = sum(backend.ready for backend in view.backends.values()) > 1
    return [
        EvictItem(
            r.id, r.attempt, r.concurrency, r.exclude_backend if several else "", policy,
            f"{r.service_class.value} within its baseline, a preemptible request made room",
        )
        for r in entitled_to_room(waiting, view)
    ]  # fmt: skip
