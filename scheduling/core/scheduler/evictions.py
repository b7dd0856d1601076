"""For which requests preemptible ones are evicted where no replica has room (``docs/reference/admission.md``). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.rights import RIGHTS
from scheduling.core.types import PoolView, QueuedRequest

AT_ONCE = 20  # requests for which room is made in one decision


def entitled_to_room(waiting: Iterable[QueuedRequest], view: PoolView) -> list[QueuedRequest]:
    """Those within their r_e whose class lets them: owners of reserved capacity first, then in order of arrival."""
    running = dict(view.running_by_entitlement)
    entitled = [r for r in waiting if RIGHTS[r.service_class].evicts]
    entitled.sort(key=lambda r: (not RIGHTS[r.service_class].reserved, r.seq))
    claimants: list[QueuedRequest] = []
    for r in entitled:
        if 0 < r.concurrency <= running.get(r.entitlement, 0):
            continue
        running[r.entitlement] = running.get(r.entitlement, 0) + r.sequences
        claimants.append(r)
        if len(claimants) == AT_ONCE:
            break
    return claimants
