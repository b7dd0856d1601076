"""Numbered laws of scheduling, checked in tests and the simulator after every step and on sampled live steps.

Each law is a statement about one step: what the view said before, what was granted, what waits after. A law is checked
on grants, not on totals: leases that were announced again after a loss of state may lie over a capacity, but no grant
may ever be made there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from scheduling.core.placement.pace_wait import pace_wait_until_s
from scheduling.core.scheduler.prefill_preemption import waits_for
from scheduling.core.scheduler.step import BASELINE, BURSTS, RESERVED
from scheduling.core.types import (
    PREFILL_PER_S,
    BackendView,
    Grant,
    PoolView,
    QueuedRequest,
    ServiceClass,
    prefill_fits,
)

LAWS: dict[int, str] = {
    1: "no request goes to a replica whose slots all have a sequence, and none to one that is not ready",
    2: "no replica holds more KV tokens than it has",
    3: "no entitlement runs more than its concurrency",
    4: "work is conserved: nothing waits that has room, unless the step's bound was reached, room is kept free, or an "
    "interrupted prompt waits for its replica",
    5: "nothing is granted after its expiry",
    6: "only what waited is granted, and only once",
    7: "nothing is lost: what waited is granted, expired or waits still",
    8: "no replica is granted prompt tokens beyond its prefill credit (owners: twice it), but for one prompt alone",
    9: "a replica is kept for a prompt only while that waits and lacks nothing there but prefill credit",
    10: "what is for an adapter is granted only where that is loaded",
    11: "who was promised a time between tokens gets no replica too slow for it while it may wait for a faster one",
    12: "the last free slots, the headroom, are granted only within a baseline",
}


@dataclass(frozen=True, slots=True)
class Violation:
    law: int
    detail: str

    def __str__(self) -> str:
        about = f" ({LAWS[self.law]})" if self.law in LAWS else ""  # engines have laws of their own, with other numbers
        return f"law {self.law}{about}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Before:
    """What a step started from; taken before it, because ``step`` books its grants in the view."""

    backends: Mapping[str, BackendView]
    running: Mapping[str, int]
    waiting: Mapping[str, QueuedRequest]


def remember(view: PoolView, waiting: Iterable[QueuedRequest]) -> Before:
    """Copies what :func:`check_step` compares with. O(replicas + waiting)."""
    return Before(
        {name: copy(backend) for name, backend in view.backends.items()},
        dict(view.running_by_entitlement),
        {request.id: request for request in waiting},
    )


def _free(backends: Mapping[str, BackendView]) -> int:
    """Free slots."""
    return sum(b.slots - b.running for b in backends.values() if b.ready and b.running < b.slots)


def _within_baseline(request: QueuedRequest, running: Mapping[str, int]) -> bool:
    full = 0 < request.concurrency <= running.get(request.entitlement, 0)
    return request.service_class in BASELINE and not full


def check_step(
    before: Before,
    grants: Sequence[Grant],
    after: Iterable[QueuedRequest],
    now_s: float,
    *,
    max_grants: int = 100,
    kv_hold: bool = False,
    credit_holds: Mapping[str, str] | None = None,
    waits_for_replica: Collection[str] = (),
    rights: bool = False,
    headroom: int = 0,
    unreserved: Collection[str] = (),
    owners_first: bool = True,
) -> list[Violation]:
    """All laws broken by one step; empty when it was right.

    ``after`` is what waits now; ``kv_hold`` says that a replica is kept free for a large request (law 4 then rests);
    ``credit_holds`` for which request each replica is kept that is (law 4 then looks at the others);
    ``waits_for_replica`` who waits for one that has its prompt cached or is fast enough (law 4 then looks at others);
    ``rights`` that some service classes may run more than their concurrency (law 3 then leaves them out); the last
    ``headroom`` free slots are kept from who is beyond its baseline or has none; ``unreserved``: entitlements whose
    promise the pool cannot keep now; ``owners_first``: whether owners had precedence to the end of the step (law 4 else
    gives a waiting one no more room than others).
    """

    def owner(request: QueuedRequest) -> bool:
        owns = rights and request.service_class in RESERVED and request.entitlement not in unreserved
        return owns and running.get(request.entitlement, 0) < request.concurrency

    def waits_as_owner(request: QueuedRequest) -> bool:
        return owners_first and owner(request)

    broken: list[Violation] = []
    backends = {name: copy(backend) for name, backend in before.backends.items()}
    running = dict(before.running)
    granted: set[str] = set()
    for grant in grants:
        request = grant.request
        if request.id in granted or request.id not in before.waiting:
            broken.append(Violation(6, f"{request.id} granted {'twice' if request.id in granted else 'unasked'}"))
        granted.add(request.id)
        if request.expires_s is not None and request.expires_s <= now_s:
            broken.append(Violation(5, f"{request.id} granted {now_s - request.expires_s:.3f} s late"))
        if _too_slow(grant, before.backends, now_s):
            broken.append(Violation(11, f"{request.id} on {grant.backend}"))
        if rights and _free(backends) <= headroom > 0 and not _within_baseline(request, running):
            broken.append(Violation(12, f"{request.id} with {_free(backends)} free"))
        broken.extend(_book(grant, backends, running, BURSTS if rights else (), owner(request)))
    left = {request.id: request for request in after}
    for request_id, request in before.waiting.items():
        expired = request.expires_s is not None and request.expires_s <= now_s
        if request_id not in granted and request_id not in left and not expired:
            broken.append(Violation(7, request_id))
    credit_holds = credit_holds or {}
    for name, request_id in credit_holds.items():
        waits, backend = left.get(request_id), backends[name]
        if (
            waits is None
            or not backend.has_slot_and_kv(waits.kv_tokens, owner(waits))
            or backend.room_for(waits.kv_tokens, waits.prefill_tokens, waits_as_owner(waits))
        ):
            broken.append(Violation(9, f"{name} for {request_id}"))
    if len(grants) < max_grants and not kv_hold:
        others = {name: backend for name, backend in backends.items() if name not in credit_holds}
        spared = _free(backends) <= headroom
        ready = [backend for backend in backends.values() if backend.ready]
        others_wait = [request for request in left.values() if request.id not in waits_for_replica]
        broken.extend(
            _idle(others_wait, others, ready, running, now_s, BURSTS if rights else (), spared, waits_as_owner)
        )
    return broken


def _too_slow(grant: Grant, backends: Mapping[str, BackendView], now_s: float) -> bool:
    """Whether a replica that is too slow for the request was chosen before its wait for a faster one was over."""
    request, backend = grant.request, backends.get(grant.backend)
    if backend is None or backend.keeps(request.pace_us) or request.resumes_at:
        return False
    ready = [b for b in backends.values() if b.ready and b.serves(request.adapter)]
    others = [b for b in ready if b.id != request.exclude_backend]
    faster = any(b.keeps(request.pace_us) and b.takes(request.kv_tokens) for b in others or ready)
    prefill_per_s = PoolView(dict(backends), {}).prefill_per_s(PREFILL_PER_S)
    return faster and now_s < pace_wait_until_s(request, prefill_per_s)


def _book(
    grant: Grant,
    backends: dict[str, BackendView],
    running: dict[str, int],
    unlimited: Collection[ServiceClass],
    owner: bool,
) -> list[Violation]:
    request, broken = grant.request, []
    backend = backends.get(grant.backend)
    if backend is None or not backend.ready or backend.running >= backend.slots:
        broken.append(Violation(1, f"{request.id} on {grant.backend}"))
    if backend is not None:
        if not backend.serves(request.adapter):
            broken.append(Violation(10, f"{request.id} on {grant.backend}, which lacks {request.adapter}"))
        if backend.kv_used + request.kv_tokens > backend.kv_tokens:
            used = f"{backend.kv_used} + {request.kv_tokens} of {backend.kv_tokens}"
            broken.append(Violation(2, f"{request.id} on {grant.backend}: {used}"))
        if not prefill_fits(backend.prefill_credit, backend.prefill_seen(owner), request.prefill_tokens):
            used = f"{backend.prefill_seen(owner)} + {request.prefill_tokens} of {backend.prefill_credit}"
            broken.append(Violation(8, f"{request.id} on {grant.backend}: {used}"))
        backend.running += request.sequences
        backend.kv_used += request.kv_tokens
        backend.take_prefill(request, request.service_class in RESERVED)
    runs = running.get(request.entitlement, 0)
    if 0 < request.concurrency <= runs and request.service_class not in unlimited:
        broken.append(Violation(3, f"{request.entitlement} runs {runs} of {request.concurrency}"))
    running[request.entitlement] = runs + request.sequences
    return broken


def _idle(
    waiting: Iterable[QueuedRequest],
    backends: Mapping[str, BackendView],
    ready: Collection[BackendView],
    running: Mapping[str, int],
    now_s: float,
    unlimited: Collection[ServiceClass],
    spared: bool,
    owner: Callable[[QueuedRequest], bool],
) -> list[Violation]:
    open_ = [backend for backend in backends.values() if backend.ready and backend.running < backend.slots]
    if not open_:
        return []
    for request in waiting:
        if request.expires_s is not None and request.expires_s <= now_s:
            continue
        full = 0 < request.concurrency <= running.get(request.entitlement, 0)
        if full and request.service_class not in unlimited:
            continue
        if spared and (full or request.service_class not in BASELINE):
            continue
        adapter = request.adapter
        resumes_at = waits_for(request, ready)
        strict = any(b.id != request.exclude_backend and b.serves(adapter) for b in ready)
        for backend in open_:
            fits = backend.room_for(request.kv_tokens, request.prefill_tokens, owner(request))
            if resumes_at not in ("", backend.id):
                continue
            if fits and backend.serves(adapter) and not (strict and backend.id == request.exclude_backend):
                return [Violation(4, f"{request.id} waits while {backend.id} has room")]
    return []
