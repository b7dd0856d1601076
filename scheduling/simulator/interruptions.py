"""Long prompts of a replayed pool that are taken back from their engines, by the live rule
(:mod:`scheduling.core.scheduler.prefill_preemption`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from scheduling.core.scheduler.prefill_preemption import Claim, GrantedBeside, LongPrompt, again_in_s, preemptions
from scheduling.core.types import LONG_TOKENS, Grant, PoolView, QueuedRequest
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import to_s
from scheduling.simulator.workload import SimRequest


class Interruptions:
    """Of one pool; ``count``: how many there were."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._beside = GrantedBeside()
        self._computed: dict[str, int] = {}  # computed tokens of prompts that were interrupted
        self._asked: set[str] = set()  # whose gateways have been told, and have not hung up yet
        self.count = 0

    def claims(self, grants: Sequence[Grant], lack_credit: Iterable[QueuedRequest], now_s: float) -> list[Claim]:
        """Who would wait for long prompts after these grants."""
        self._beside.granted(grants, self._view)
        claims = self._beside.waiting(self._view, now_s)
        if not any(backend.computes_long for backend in self._view.backends.values()):
            return []
        return claims + [Claim(request) for request in lack_credit]

    def found(
        self,
        claims: Sequence[Claim],
        running: Mapping[str, Life],
        begun: Set[str],
        requests: Mapping[str, SimRequest],
        now_s: float,
        goes_before: Callable[[QueuedRequest, QueuedRequest], bool],
    ) -> tuple[list[tuple[Life, int]], float]:
        """Whose prefill ends for these claims, each with the tokens that are predicted to be computed; and in how many
        seconds one more may be (0: none). ``begun``: the ones that have a first token."""
        prompts = [
            LongPrompt(requests[name].queued, str(life.replica), held, to_s(life.sim.arrival_fs))
            for name, life in running.items()
            if (held := life.sim.queued.prefill_tokens) >= LONG_TOKENS and name not in begun
        ]
        found = []
        for each in preemptions(claims, prompts, self._view, now_s, goes_before):
            name = each.prompt.request.id
            if name not in self._asked:
                self._asked.add(name)
                found.append((running[name], each.computed))
        return found, again_in_s(prompts, now_s)

    def answered(self, request_id: str) -> None:
        """Its gateway has hung up, or it was too late for that."""
        self._asked.discard(request_id)

    def happened(self, request_id: str, computed: int) -> None:
        self.count += 1
        self._computed[request_id] = computed

    def resumed(self, request_id: str) -> int:
        """It is granted again; what was computed of its prompt [tokens], 0 for any other."""
        return self._computed.pop(request_id, 0)
