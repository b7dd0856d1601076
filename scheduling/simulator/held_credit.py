"""What prompts hold of the prefill credit of a simulated pool's replicas, and how much of that still counts.

A grant holds its prompt's tokens until the first token is known to have come, and what is predicted to be prefilled
counts no more (:class:`scheduling.core.capacity.prefill_pace.PrefillPace`). Nobody sees the first token of an answer
that comes whole: it is known from a later stream's, or from the engine's queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.capacity.prefill_pace import WHOLE_AT_ONCE, PrefillPace, shows
from scheduling.core.placement.legs import share
from scheduling.core.scheduler.step import RESERVED
from scheduling.core.types import Phase, PoolView, QueuedRequest
from scheduling.simulator import room
from scheduling.simulator.engine import Sequence as Life
from scheduling.simulator.kernel import to_fs, to_s
from scheduling.simulator.replica import Replica


class HeldCredit:
    """Of all replicas, by their numbers; what counts is written into ``view``."""

    def __init__(self, replicas: Sequence[Replica], view: PoolView, signal_s: float) -> None:
        self._view = view
        self._turnaround_ms = to_s(to_fs(signal_s)) * 1000.0
        prefill_steps = [replica.token_budget for replica in replicas if replica.phase is Phase.PREFILL]
        shared = share(prefill_steps, sum(replica.phase is Phase.DECODE for replica in replicas))
        self._steps = [shared if replica.phase is Phase.DECODE else replica.token_budget for replica in replicas]
        self._paces = [PrefillPace() for _ in replicas]
        self.held = [0] * len(replicas)  # by what has no first token
        self._owned = [0] * len(replicas)  # of those: by owners of reserved capacity
        # whole answers that hold credit, as granted, and the ranks of their tiers
        self._unseen: list[dict[str, tuple[Life, int]]] = [{} for _ in replicas]
        self._bounded = any(replica.prefill_tokens != 0 for replica in replicas)

    def bound(self, bounded: bool) -> None:
        """Whether any replica has a credit from now on."""
        self._bounded = bounded
        if not bounded:
            for backend in self._view.backends.values():
                backend.prefill_used = backend.prefill_owned = 0

    def predict(self, now_s: float) -> None:
        """What counts of each replica's credit now."""
        if not self._bounded:
            return
        now_ms = now_s * 1000.0
        for number, backend in enumerate(self._view.backends.values()):
            used, step, pace = self.held[number], self._steps[number], self._paces[number]
            backend.prefill_used = pace.ahead(used, step, self._turnaround_ms, now_ms)
            backend.prefill_owned = min(self._owned[number], backend.prefill_used)
            backend.falls_s = pace.falls_in_ms(used, step, self._turnaround_ms, now_ms) / 1000.0

    def granted(self, number: int, request: QueuedRequest, whole: bool, now_s: float) -> None:
        need = request.prefill_tokens
        self._paces[number].granted(self.held[number], need, whole, now_s * 1000.0)
        self._hold(number, request, need)

    def unseen(self, number: int, life: Life, rank: int) -> None:
        """Nobody will see the first token of what was granted, of a tier of that rank."""
        self._unseen[number][life.sim.queued.id] = life, rank

    def unseen_before(self, life: Life, rank: int) -> list[Life]:
        """Whole answers that have been prefilled where this one has, of a tier of that rank."""
        unseen = list(self._unseen[life.replica].values())[:WHOLE_AT_ONCE]
        return [one for one, of in unseen if one.sim.arrival_fs < life.sim.arrival_fs and shows(rank, of)]

    def arrived(self, number: int, now_fs: int) -> list[Life]:
        """Whole answers that an engine has counted when it says how many wait; the latest grants it may not have."""
        until_fs = now_fs - to_fs(self._paces[number].unseen_ms(0.0, self._steps[number]) / 1000.0)
        return [life for life, _ in self._unseen[number].values() if life.sim.arrival_fs < until_fs]

    def prefilled(self, number: int, arrived: Sequence[Life], waiting: int) -> tuple[Sequence[Life], int]:
        """Of ``arrived``: those that wait in the engine no more, but for the last of them, which may be in the middle;
        and the prompt tokens of that one."""
        paced = self._paces[number].per_ms > 0
        done = max(0, len(arrived) - waiting - paced)
        begun = arrived[done : done + 1] if paced else []
        return arrived[:done], sum(life.sim.queued.prefill_tokens for life in begun)

    def idle(self, number: int, hurry: float, now_s: float) -> None:
        """Nothing waits in an engine although requests wait for its pool."""
        pace, step = self._paces[number], self._steps[number]
        if hurry != 1.0 and pace.ahead(self.held[number], step, self._turnaround_ms, now_s * 1000.0) > 0:
            pace.faster(hurry)

    def give_back(self, life: Life) -> None:
        """What a prompt holds, once."""
        self._unseen[life.replica].pop(life.sim.queued.id, None)
        room.first_token(self._view, life.sim.queued, str(life.replica))
        self._hold(life.replica, life.sim.queued, -life.sim.queued.prefill_tokens)

    def first_tokens(self, number: int, lives: Sequence[Life], begun: int | None, now_s: float) -> None:
        """What was given back was so because first tokens came. ``begun``: of what is still held, may be prefilled;
        None: a step."""
        given = sum(life.sim.queued.prefill_tokens for life in lives)
        oldest_ms = to_s(min(life.sim.arrival_fs for life in lives)) * 1000.0
        begun = self._steps[number] if begun is None else begun
        self._paces[number].first_token(self.held[number], given, oldest_ms, begun, now_s * 1000.0)

    def _hold(self, number: int, request: QueuedRequest, tokens: int) -> None:
        self.held[number] += tokens
        if request.service_class in RESERVED:
            self._owned[number] += tokens
