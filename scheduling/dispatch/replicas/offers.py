"""What shared state is told of a pool's replicas, under the leader's epoch: which may get work, with what room and
prefill credit, and how far to trust what is believed to be cached there.

What a loss of state or a failed write left wrong, :meth:`Offers.withdraw` and :meth:`Offers.correct` put right once a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from scheduling.core.policies.routing import uncounted_s
from scheduling.core.types import Phase, PoolSpec
from scheduling.dispatch.replicas.phases import Phases
from scheduling.dispatch.replicas.prompt_caches import PromptCaches
from scheduling.dispatch.replicas.watched import LeaseCounts, WatchedBackend, limits_of, prefills, serves
from scheduling.engines.client import EngineMetrics
from scheduling.state.store import PoolStore
from scheduling.state.types import BackendTotals, PoolSnapshot, StateUnavailable

ON_ITS_WAY_S = 0.05  # what was granted so long before a look may not have been in the engine


class Offers:
    """The offers of one pool's replicas for one term of leadership."""

    def __init__(
        self,
        store: PoolStore,
        epoch: int,
        backends: Mapping[str, WatchedBackend],
        phases: Phases,
        leases: LeaseCounts,
        on_ready: Callable[[], None],
    ) -> None:
        """``backends`` and ``leases``: the monitor's own. ``on_ready`` is called when room appears."""
        self._store = store
        self._epoch = epoch
        self._backends = backends
        self._phases = phases
        self._leases = leases
        self._on_ready = on_ready
        self.caches = PromptCaches()
        self._uncounted_s = 0.0  # of what is expected to be cached [seconds of prefill]
        self._said_prefill = False  # in shared state: that prefill replicas are ready

    def configure(self, pool: PoolSpec) -> None:
        self.caches.keep_only({spec.id for spec in pool.backends})
        self._uncounted_s = uncounted_s(pool.routing, pool.routing_params)

    async def changed(self, backend: WatchedBackend) -> None:
        """A replica has another state."""
        spec = self._phases.offer(backend) if self._phases.answers(backend) else None
        await self._store.set_ready(self._epoch, backend.spec.id, spec, ejected=backend.state == "ejected")
        if prefills(backend):
            await self.prefill()
            await self._decode()

    @property
    def has_prefill(self) -> bool:
        """Whether the pool has prefill replicas, or shared state still says so."""
        return self._phases.apart or self._said_prefill

    async def prefill(self) -> None:
        """Tells shared state which prefill replicas are ready; their leases are the prompts that they compute."""
        slots = self._phases.slots()
        legs = await self._store.set_prefill(self._epoch, slots)
        self._said_prefill = bool(slots)
        self._leases.of |= {b.spec.id: legs.get(b.spec.id, 0) for b in self._backends.values() if prefills(b)}

    async def _decode(self) -> None:
        """What decode replicas are offered with follows the prefill replicas."""
        for name, backend in list(self._backends.items()):
            if backend.spec.phase is Phase.DECODE and serves(backend):
                offer = self._phases.offer(backend) if self._phases.answers(backend) else None
                await self._store.set_ready(self._epoch, name, offer)
        self._on_ready()

    async def longest(self) -> None:
        """A context became known: those with a shorter one draw what they would refuse until that is written."""
        for name, backend in list(self._backends.items()):
            offer = self._phases.offer(backend)
            if offer.longest and self._phases.answers(backend):
                with suppress(StateUnavailable):  # reconcile writes it when Redis is back
                    await self._store.set_ready(self._epoch, name, offer)

    async def prefilled(self, backend: WatchedBackend, metrics: EngineMetrics, asked_s: float) -> None:
        """Returns the prefill credit of whole answers, whose first token nobody sees: those that do not wait in the
        engine have been prefilled."""
        idle = not self._leases.of.get(backend.spec.id, 1)
        if idle or not serves(backend) or not limits_of(backend)[0].prefill_tokens:
            return
        if backend.spec.phase is not Phase.BOTH:
            return  # gateways see the end of each prompt
        age_s = asyncio.get_running_loop().time() - asked_s + ON_ITS_WAY_S
        try:
            hurry = backend.credit.hurry
            await self._store.prefilled(self._epoch, backend.spec.id, metrics.waiting, age_s, hurry=hurry)
        except StateUnavailable:
            return  # the next look says it again

    # --- once a second

    async def cached(self, snapshot: PoolSnapshot) -> None:
        """Tells shared state how far to trust what it expects to be cached on each replica, where the routing uses
        that. Nothing is known where prefill replicas compute the prompts, since the expectation is of the decode
        replicas."""
        for name, shared in snapshot.backends.items():
            backend = self._backends.get(name)
            if backend is None or not shared.ready:
                continue
            self.caches.look(name, shared.expected_tokens, shared.prompt_tokens)
            wanted = (-1, 0)
            if self._uncounted_s and not self._phases.apart:
                wanted = self.caches.bound(name, self._uncounted_s * backend.prefill_per_s)
            if wanted != (shared.cache_trust, shared.uncounted_most):
                await self._store.set_cached(self._epoch, name, *wanted)

    async def withdraw(self, snapshot: PoolSnapshot) -> None:
        """Takes out of shared state what may not get work."""
        for name, totals in snapshot.backends.items():
            backend = self._backends.get(name)
            if totals.ready and (backend is None or not self._phases.answers(backend)):
                ejected = backend is not None and backend.state == "ejected"
                await self._store.set_ready(self._epoch, name, None, ejected=ejected)

    async def correct(self, snapshot: PoolSnapshot) -> None:
        """Writes again what a replica offers where shared state has something else."""
        for name, backend in list(self._backends.items()):
            shared = snapshot.backends.get(name)
            offered: tuple[int, ...] | None = None
            if shared and shared.ready:
                offered = _offered_of(shared)
            offer = self._phases.offer(backend)
            wanted = (
                offer.slots, offer.kv_tokens, offer.prefill_tokens, offer.longest, offer.speed, offer.token_us,
            )  # fmt: skip
            if self._phases.answers(backend) and (offered != wanted or backend.told_resumes != offer.resumes):
                backend.told_resumes = offer.resumes
                await self._store.set_ready(self._epoch, name, offer)
                self._on_ready()


def _offered_of(shared: BackendTotals) -> tuple[int, ...]:
    """What shared state says of a replica that a leader sets."""
    return (
        shared.slots, shared.kv_tokens, shared.prefill_credit, shared.longest, shared.speed, shared.token_us,
    )  # fmt: skip
