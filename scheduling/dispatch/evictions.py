"""The evictions that a leader asks shared state for (rule: ``scheduling/core/scheduler/evictions.py``)."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.rights import cap_of
from scheduling.core.scheduler.evictions import entitled_to_room
from scheduling.core.types import PoolView, QueuedRequest
from scheduling.state.store import NO_CAP
from scheduling.state.types import EvictItem


def most_running(request: QueuedRequest) -> int:
    """How many of its entitlement may run at most."""
    return cap_of(request.service_class, request.concurrency) or NO_CAP


def evictions(waiting: Iterable[QueuedRequest], view: PoolView, policy: str) -> list[EvictItem]:
    """Those that :func:`scheduling.core.scheduler.evictions.entitled_to_room` names."""
    several = sum(backend.ready for backend in view.backends.values()) > 1
    return [
        EvictItem(
            r.id, r.attempt, r.concurrency or NO_CAP, r.exclude_backend if several else "", policy,
            f"{r.service_class.value} within its baseline, a preemptible request made room",
        )
        for r in entitled_to_room(waiting, view)
    ]  # fmt: skip
