"""For whom preemptible requests make room, when no replica has any (``docs/reference/admission.md``). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.admission import RIGHTS, cap_of
from scheduling.core.types import PoolView, QueuedRequest
from scheduling.state.store import NO_CAP
from scheduling.state.types import EvictItem

AT_ONCE = 20  # requests for which room is made in one decision


def most_running(request: QueuedRequest) -> int:
    """How many of its entitlement may run at most."""
    return cap_of(request.service_class, request.concurrency) or NO_CAP


def evictions(waiting: Iterable[QueuedRequest], view: PoolView, policy: str) -> list[EvictItem]:
    """Those within their r_e whose class lets them: owners of reserved capacity first, then in order of arrival."""
    running = dict(view.running_by_entitlement)
    several = sum(backend.ready for backend in view.backends.values()) > 1
    entitled = [r for r in waiting if RIGHTS[r.service_class].evicts]
    entitled.sort(key=lambda r: (not RIGHTS[r.service_class].reserved, r.seq))
    items: list[EvictItem] = []
    for r in entitled:
        limit = r.concurrency or NO_CAP
        if running.get(r.entitlement, 0) >= limit:
            continue
        running[r.entitlement] = running.get(r.entitlement, 0) + 1
        exclude = r.exclude_backend if several else ""
        why = f"{r.service_class.value} within its baseline, a preemptible request made room"
        items.append(EvictItem(r.id, r.attempt, limit, exclude, policy, why))
        if len(items) == AT_ONCE:
            break
    return items
