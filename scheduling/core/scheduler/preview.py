"""What waits, in the order in which it would run if nothing else came.

Question: when is it whose turn, and why then?
A scheduler is copied (:func:`copy_of`) and the copy decides in a pool whose replicas free one slot after the other:
each request that runs occupies its slot for the pool's mean occupation, those that run now are spread evenly over it.
So it follows every rule of the real decisions (rights, limits, relegation, room for the large), and its times are what
that mean makes of them. Prompts are prefilled one after the other at each replica, as fast as it was measured to. The
copied scheduler is not touched.
Cost: copying is O(waiting): with its queue up to ``EXACT_UP_TO`` requests; beyond, they are pushed into a fresh queue
of the same policy, which knows nothing of turns given so far. Then one decision per slot that is freed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from scheduling.core.capacity.uncounted import NO_BEGINNINGS
from scheduling.core.policies.contracts import QueuePart, ShowsParts
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.scheduler.step import work_of
from scheduling.core.types import PREFILL_PER_S, BackendView, PoolView, QueuedRequest

EXACT_UP_TO = 500  # requests that wait; more are pushed anew
HORIZON_S = 3600.0  # what would start later than this is not waited for


@dataclass(frozen=True, slots=True)
class Planned:
    """A waiting request, at its place in the order."""

    request: QueuedRequest
    start_s: float | None  # when it would start, on the clock of ``now_s``; None: not within sight
    backend: str
    why: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The first of what waits, and the parts that its policy's queue consists of."""

    planned: tuple[Planned, ...]
    parts: tuple[QueuePart, ...]
    exact: bool  # whether the order knows of the turns given so far


@dataclass(slots=True)
class Copied:
    """A scheduler of its own, and whether it is in the same place as the one it was made from."""

    scheduler: Scheduler
    exact: bool


def copy_of(scheduler: Scheduler, now_s: float, exact_up_to: int = EXACT_UP_TO) -> Copied:
    """Everything that waits, once more. Requests and policies, which never change, are shared."""
    if len(scheduler) > exact_up_to:
        fresh = scheduler.empty()
        for request in scheduler:
            fresh.offer(request, now_s)
        return Copied(fresh, exact=False)
    memo: dict[int, object] = {id(request): request for request in scheduler}
    return Copied(scheduler.copied(memo), exact=True)


def preview(copied: Copied, view: PoolView, now_s: float, most: int, occupation_s: float) -> Preview:
    """Plays a copy forward until ``most`` requests have started, or nothing more would within :data:`HORIZON_S`.

    Args:
        copied: spent by this.
        view: the pool now; its objects stay as they are.
        occupation_s: how long a slot is occupied, on average.
    """
    scheduler = copied.scheduler
    parts = parts_of(scheduler, now_s)
    # the line that places a request where it is is asked for before anything moves
    why = {request.id: scheduler.explain(request) for request in scheduler} if copied.exact else {}
    pool = replace(
        view,
        backends={name: replace(backend) for name, backend in view.backends.items()},
        running_by_entitlement=dict(view.running_by_entitlement),
    )
    ends = _running(pool, now_s, occupation_s)
    prefilled_s: dict[str, float] = {}  # replica -> when all that was granted there has its first token

    def prefill(backend: str, tokens: int, at_s: float) -> None:
        replica = pool.backends[backend]
        if tokens and replica.prefill_credit:
            takes_s = tokens / (replica.prefill_per_s or PREFILL_PER_S)
            prefilled_s[backend] = max(at_s, prefilled_s.get(backend, at_s)) + takes_s
            heappush(ends, (prefilled_s[backend], len(planned), backend, "", 0, 0, tokens, 0))

    planned: list[Planned] = []
    at_s = now_s
    for b in pool.backends.values():
        prefill(b.id, b.prefill_used, now_s)
    while len(scheduler) and len(planned) < most:
        for grant in scheduler.step(pool, at_s):
            r = grant.request
            reason = why.get(r.id) or grant.reason.partition("; waited")[0]
            planned.append(Planned(r, at_s, grant.backend, reason))
            ends_s = at_s + occupation_s
            of_it = (r.entitlement, r.kv_tokens, work_of(r), 0, r.sequences)
            heappush(ends, (ends_s, len(planned), grant.backend, *of_it))
            prefill(grant.backend, r.prefill_tokens, at_s)
        if not ends or ends[0][0] > now_s + HORIZON_S:
            break
        at_s, _, backend, entitlement, kv_tokens, work, prefill_tokens, sequences = heappop(ends)
        if prefill_tokens:
            freed = pool.backends[backend]
            freed.prefill_used -= prefill_tokens
            freed.prefill_owned = min(freed.prefill_owned, freed.prefill_used)
            if not freed.prefill_used:
                freed.uncounted = NO_BEGINNINGS
        else:
            _free(pool, backend, entitlement, kv_tokens, work, sequences)
    for request in scheduler:
        if len(planned) >= most:
            break
        planned.append(Planned(request, None, "", why.get(request.id) or scheduler.explain(request)))
    return Preview(tuple(planned[:most]), parts, copied.exact)


def parts_of(scheduler: Scheduler, now_s: float) -> tuple[QueuePart, ...]:
    """The parts of the policy's queue; empty for a queue that shows none."""
    queue = scheduler.queue
    return tuple(queue.parts(now_s)) if isinstance(queue, ShowsParts) else ()


# the last two: prompt tokens, of a first token instead of an end; sequences
_End = tuple[float, int, str, str, int, int, int, int]


def _running(pool: PoolView, now_s: float, occupation_s: float) -> list[_End]:
    """When the running requests are expected to end. How many run on each replica and for each entitlement is known,
    which ones is not. Where a request has several sequences, each ends by itself, and as many of them as there are
    requests end one."""
    counts = pool.running_by_entitlement.items()
    owners = [name for _, name in sorted((i / count, name) for name, count in counts for i in range(count))]
    slots: list[tuple[BackendView, int]] = [(b, i) for b in pool.backends.values() for i in range(b.running)]
    slots.sort(key=lambda slot: (slot[1] / max(1, slot[0].running), slot[0].id))
    ends: list[_End] = []
    for i, (backend, _) in enumerate(slots):
        share = max(1, backend.running)
        of, before = i * len(owners) // len(slots), (i - 1) * len(owners) // len(slots)
        entitlement = owners[of] if of != before else ""
        ends.append((
            now_s + occupation_s * (i + 1) / len(slots), -len(slots) + i, backend.id, entitlement,
            backend.kv_used // share, int(backend.work_tokens // share), 0, 1,
        ))  # fmt: skip
    heapify(ends)
    return ends


def _free(pool: PoolView, backend: str, entitlement: str, kv_tokens: int, work: int, sequences: int) -> None:
    where = pool.backends[backend]
    where.running = max(0, where.running - sequences)
    where.kv_used = max(0, where.kv_used - kv_tokens)
    where.work_tokens = max(0.0, where.work_tokens - work)
    running = pool.running_by_entitlement
    if entitlement:
        running[entitlement] = max(0, running.get(entitlement, 0) - sequences)
