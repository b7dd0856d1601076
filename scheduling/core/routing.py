"""Which replica runs it: routing policies.

They place what waited. A request that finds a free slot and nobody waiting is placed by the ``admit`` script in the
same round trip as it is admitted, and that is always by least work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.core.contracts import Router
from scheduling.core.registry import routing
from scheduling.core.types import BackendView, QueuedRequest

USES_PREFIX = frozenset({"prefix_affinity"})  # for others nobody has to compute one


def least_loaded(request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
    """The replica with room and the least outstanding estimated tokens; then fewest running, then by name."""
    best: BackendView | None = None
    for backend in backends:
        if not backend.room_for(request.kv_tokens, request.prefill_tokens) or backend.id == request.exclude_backend:
            continue
        if best is None or (backend.work_tokens, backend.running, backend.id) < (
            best.work_tokens,
            best.running,
            best.id,
        ):
            best = backend
    return best


@routing("least_work")
@dataclass(frozen=True, slots=True)
class LeastWork:
    """Least outstanding work.

    Question: which replica with room runs this request?
    Key: outstanding estimated tokens, then running sequences, then name: the order of the ``admit`` script, so that a
    request is placed alike whether it waited or not.
    Inputs: view of each replica (leases, not the engine's word: it is exact and never stale).
    Cost: O(replicas). Who starves: none; a replica with slow requests simply gets fewer.
    Source: join the shortest queue, with work in place of length (Harchol-Balter 2013, ch. 24).
    """

    def router(self) -> Router:
        return self

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        return least_loaded(request, backends)


@routing("prefix_affinity")
@dataclass(frozen=True, slots=True)
class PrefixAffinity:
    """The replica that last ran this prefix, unless it has much more to do than the least loaded.

    Question: which replica with room still has this prompt's beginning in its KV cache?
    Key: where the same prefix (``QueuedRequest.prefix``) was sent last, if its outstanding work is at most
    ``skew_tokens`` above that of the least loaded replica with room; else least work. Requests without a prefix: least
    work.
    Inputs: view of each replica; the last ``remember`` prefixes and where they went.
    Cost: O(replicas), O(``remember``) memory. Who starves: none; the skew between replicas is bounded.
    Source: cache-aware routing with a load bound, as SGLang's router has it (Zheng et al. 2024); bounded loads after
    Mirrokni et al. 2018.
    """

    skew_tokens: float = 4096.0
    remember: int = 10_000

    def __post_init__(self) -> None:
        if self.skew_tokens < 0 or self.remember < 1:
            raise ValueError("skew_tokens must be at least 0 and remember at least 1")

    def router(self) -> Router:
        return _PrefixRouter(self)


class _PrefixRouter:
    def __init__(self, policy: PrefixAffinity) -> None:
        self._policy = policy
        self._ran_at: OrderedDict[int, str] = OrderedDict()  # prefix -> replica, least recently used first

    def __len__(self) -> int:
        return len(self._ran_at)

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        choice = list(backends)
        least = least_loaded(request, choice)
        if least is None or not request.prefix:
            return least
        chosen = self._warm(request, choice, least)
        self._ran_at[request.prefix] = chosen.id
        self._ran_at.move_to_end(request.prefix)
        if len(self._ran_at) > self._policy.remember:
            self._ran_at.popitem(last=False)
        return chosen

    def _warm(self, request: QueuedRequest, choice: list[BackendView], least: BackendView) -> BackendView:
        name = self._ran_at.get(request.prefix)
        if name is None or name == request.exclude_backend:
            return least
        for backend in choice:
            if backend.id == name:
                skewed = backend.work_tokens - least.work_tokens > self._policy.skew_tokens
                fits = backend.room_for(request.kv_tokens, request.prefill_tokens)
                return least if skewed or not fits else backend
        return least
