"""Which replica runs it: routing policies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.core.registry import routing
from scheduling.core.types import BackendView, QueuedRequest


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

    def choose(self, request: QueuedRequest, backends: Iterable[BackendView]) -> BackendView | None:
        best: BackendView | None = None
        for backend in backends:
            if not backend.room_for(request.kv_tokens) or backend.id == request.exclude_backend:
                continue
            if best is None or (backend.work_tokens, backend.running, backend.id) < (
                best.work_tokens,
                best.running,
                best.id,
            ):
                best = backend
        return best
