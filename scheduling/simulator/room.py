"""What a granted request gives back of its pool's room, and when: the one place of the simulator that does.

:meth:`scheduling.core.scheduler.loop.Scheduler.step` books what its grants take; :func:`take` does the same for a
request that was admitted without the scheduler.
"""

from __future__ import annotations

from scheduling.core.scheduler.step import RESERVED, work_of
from scheduling.core.types import PoolView, QueuedRequest


def take(view: PoolView, request: QueuedRequest, backend: str) -> None:
    """A request begins on a replica."""
    replica = view.backends[backend]
    replica.running += request.sequences
    replica.kv_used += request.kv_tokens
    replica.take_prefill(request, request.service_class in RESERVED)
    replica.work_tokens += work_of(request)
    running = view.running_by_entitlement
    running[request.entitlement] = running.get(request.entitlement, 0) + request.sequences


def first_token(view: PoolView, request: QueuedRequest, backend: str) -> None:
    """Its prompt is prefilled."""
    view.backends[backend].give_prefill(request, request.service_class in RESERVED)


def end(view: PoolView, request: QueuedRequest, backend: str) -> None:
    """It has ended, after :func:`first_token`."""
    replica = view.backends[backend]
    replica.running -= request.sequences
    replica.kv_used -= request.kv_tokens
    replica.work_tokens -= work_of(request)
    view.running_by_entitlement[request.entitlement] -= request.sequences
