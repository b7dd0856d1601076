"""This gateway's requests in shared state: receives their grants, and keeps their leases alive.

Grants come as notifications on ``qm:gw:<id>``, which may be lost; the renewal, every third of a lease, returns the true
state. It also shows a loss of state, or that a node took over which lacks what came last: requests of which it knows
less than this gateway are announced again. Ejections of replicas are notifications, too (``qm:ejected``); a read of the
pool after each renewal finds those that were lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from scheduling.core.outcomes import Reason
from scheduling.gateway.stages import Submitted, ended_by_others
from scheduling.state.codec import decode_notice
from scheduling.state.notices import (
    CancelNotice,
    CompletionNotice,
    EvictionNotice,
    GrantNotice,
    PreemptionNotice,
    RefusalNotice,
    SupersededNotice,
)
from scheduling.state.store import PoolStore
from scheduling.state.types import BATCH, SERVICE_MS, AnnounceStatus, Renewal, RenewStatus, StateUnavailable

log = logging.getLogger(__name__)

CROSSED_S = 0.5  # by then an answer of shared state that crossed an ejection has arrived
KNOWN_S = 10.0  # which replicas are ready is not known any more if it was seen longer ago


class InFlight:
    """The open calls by request id. ``calls`` is filled before ``admit`` is sent: a grant may overtake its answer."""

    def __init__(
        self,
        gateway_id: str,
        stores: Callable[[str], PoolStore],
        renew_every_s: float,
        in_service: Callable[[str], bool],
        measure: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``in_service``: whether a replica is configured and not draining, so that one that is not ready was
        ejected. ``measure`` is called after each round."""
        self._measure = measure
        self.calls: dict[str, Submitted] = {}
        self._in_service = in_service
        self._seen_ready: dict[str, set[str]] = {}  # pool -> replicas, since its state was last lost
        self._looked_s = float("-inf")  # loop time
        self._turn_s: dict[str, float] = {}  # pool -> expected wait for a slot, likewise
        self._gateway_id = gateway_id
        self._stores = stores
        self._every_s = renew_every_s
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway-renew")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def renew_now(self) -> None:
        """Starts the next renewal at once: Redis is back, or notifications may have been lost."""
        self._wake.set()

    def heard(self, payload: bytes) -> None:
        """A notification arrived on this gateway's channel."""
        notice = decode_notice(payload)
        submitted = self.calls.get(notice.request_id)
        if submitted is None:
            return
        if isinstance(notice, CancelNotice):
            submitted.call.interrupt(Reason.OPERATOR)
            return
        if isinstance(notice, CompletionNotice):
            if (hold := submitted.call.hold) is not None:
                hold.complete_encoded(notice.secret, notice.completion)
            return
        if isinstance(notice, EvictionNotice):
            # ">=": the answer that names a later attempt may still be on its way
            if notice.attempt >= submitted.attempt:
                submitted.call.interrupt(Reason.EVICTED)
            return
        if isinstance(notice, SupersededNotice):
            if notice.attempt >= submitted.attempt:
                submitted.retry_s = notice.retry_ms / 1000
                submitted.call.interrupt(Reason.SUPERSEDED)
            return
        if isinstance(notice, PreemptionNotice):
            submitted.preempted(notice)
            return
        if isinstance(notice, RefusalNotice):
            if submitted.waiter is not None and notice.attempt == submitted.attempt:
                submitted.call.interrupt(notice.reason)
            return
        submitted.notice = notice
        submitted.wake()

    def ejected(self, backend: str) -> None:
        """A replica was ejected: what runs there and has sent its client nothing moves elsewhere.

        Grants of that replica may still be on their way to us, so it looks twice, the second time well before a
        replica can be back.
        """
        loop = asyncio.get_running_loop()
        loop.call_soon(self._move_off, backend)
        loop.call_later(CROSSED_S, self._move_off, backend)

    def _move_off(self, backend: str, only: set[tuple[str, str]] | None = None) -> None:
        for submitted in self.calls.values():
            concerned = backend in (submitted.backend, submitted.prefill_at) and (
                only is None or (submitted.id, backend) in only
            )
            if concerned and not submitted.call.responding and not submitted.moving:
                submitted.call.interrupt(Reason.BACKEND_LOST)

    def works(self, pool: str, backend: str) -> bool:
        """Whether a replica is ready, as far as is known: without Redis or a leader nobody knows."""
        old = asyncio.get_running_loop().time() - self._looked_s > KNOWN_S
        return not old and backend in self._seen_ready.get(pool, ())

    def turn_s(self, pool: str) -> float:
        """Expected wait for a slot of a request that begins to wait now [s], by the last look at the pool; 0: not
        known."""
        return self._turn_s.get(pool, 0.0)

    @property
    def waiting(self) -> int:
        return sum(submitted.waiter is not None for submitted in self.calls.values())

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._every_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self.round()
                if self._measure is not None:
                    await self._measure()
            except StateUnavailable:
                continue
            except Exception:
                log.exception("a renewal failed")  # and the next one must still be tried

    async def round(self) -> None:
        """Renews everything once. Raises :class:`StateUnavailable`."""
        pools: dict[str, list[Submitted]] = {}
        for submitted in self.calls.values():
            if submitted.admitted and not submitted.call.closed and not submitted.moving:
                pools.setdefault(submitted.access.pool.id, []).append(submitted)
        for pool, calls in pools.items():
            store = self._stores(pool)
            for start in range(0, len(calls), BATCH):
                batch = [c for c in calls[start : start + BATCH] if not c.call.closed and not c.moving]
                # a grant on the other connection may overtake the answer: it counts what ran when we asked
                ran = {c.id for c in batch if c.waiter is None and c.backend}
                renewals = await store.renew(self._gateway_id, [(c.id, c.attempt, c.served()) for c in batch])
                lost = []
                for submitted, renewal in zip(batch, renewals, strict=True):
                    if submitted.call.closed or submitted.moving or submitted.attempt != renewal.attempt:
                        continue
                    waits = renewal.status is RenewStatus.WAITS
                    if renewal.status is RenewStatus.UNKNOWN or (waits and submitted.id in ran):
                        lost.append(self._announce(store, submitted))
                    else:
                        self._heed(submitted, renewal)
                await asyncio.gather(*lost)
            await self._look(pool, store, calls)
        for pool in self._seen_ready.keys() - pools.keys():
            self._turn_s.pop(pool, None)
            del self._seen_ready[pool]  # nothing runs there: what is remembered would be old when something does

    async def _look(self, pool: str, store: PoolStore, calls: list[Submitted]) -> None:
        """Moves requests off a replica that is no longer ready, in case the notification of its ejection was lost."""
        there = {(c.id, c.backend) for c in calls if c.backend}  # a grant may overtake the answer
        view = await store.view()
        if not view.leader or view.rebuilding_ms > 0:  # the list of ready replicas is not known
            self._seen_ready.pop(pool, None)
            self._turn_s.pop(pool, None)
            return
        ready = {name for name, backend in view.backends.items() if backend.ready}
        slots = sum(backend.slots for backend in view.backends.values() if backend.ready)
        self._turn_s[pool] = (view.waiting + 1) * (view.service_ms or SERVICE_MS) / 1000 / max(1, slots)
        gone = self._seen_ready.get(pool, set()) - ready
        self._seen_ready[pool] = ready
        self._looked_s = asyncio.get_running_loop().time()
        for backend in gone:
            if self._in_service(backend):
                self._move_off(backend, there)

    def _heed(self, submitted: Submitted, renewal: Renewal) -> None:
        match renewal.status:
            case RenewStatus.HOLDS:
                if submitted.waiter is not None:  # the notification was lost
                    submitted.notice = GrantNotice(
                        submitted.id, submitted.attempt, renewal.backend, renewal.policy, renewal.why, renewal.prefill
                    )
                    submitted.wake()
            case RenewStatus.ENDED:
                submitted.call.interrupt(ended_by_others(renewal.reason))
            case RenewStatus.STALE:
                submitted.call.interrupt(Reason.LEASE_LOST)

    async def _announce(self, store: PoolStore, submitted: Submitted) -> None:
        access, estimated = submitted.access, submitted.estimated
        result = await store.announce(
            access.entitlement, access.pool, submitted.queued_request(), estimated.estimate,
            submitted.identified.body_bytes, estimated.facts, submitted.backend, submitted.served(),
            prefill=submitted.prefill, sent_s=submitted.call.now_s(),
        )  # fmt: skip
        if result.status is AnnounceStatus.ENDED:
            submitted.call.interrupt(ended_by_others(result.reason))
