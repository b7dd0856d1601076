"""Credits, speeds and KV overcommit of a simulated pool's replicas, found while it serves, by the live rules.

:class:`scheduling.core.capacity.prefill_credit.PrefillCredit`,
:class:`scheduling.core.engine.prefill_speed.PrefillSpeed`, :class:`scheduling.core.engine.token_time.TokenTime` and
:class:`scheduling.core.capacity.kv_overcommit.KvUse` are fed as the leader feeds them: once a second with each engine's
counters, after each decision with whether requests wait for nothing but credit, and with what ended requests used. A
decode replica's credit is its share of what the prefill replicas have (:func:`scheduling.core.placement.legs.share`),
as :class:`scheduling.dispatch.replicas.phases.Phases` offers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scheduling.core.capacity.kv_overcommit import KvUse
from scheduling.core.capacity.kv_room import KvRoom
from scheduling.core.capacity.kv_sharing import EngineUse
from scheduling.core.capacity.prefill_credit import Counters, PrefillCredit, Prompts
from scheduling.core.engine.prefill_speed import PrefillSpeed
from scheduling.core.engine.token_time import TokenTime, compare
from scheduling.core.placement.legs import share
from scheduling.core.types import Phase, PoolView
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.kernel import FS

EVERY_S = 1.0  # between two looks at an engine's counters, as the leader scrapes


@dataclass(frozen=True, slots=True)
class Watched:
    """An engine, its step budget [tokens], and its prefill credit (None: found here)."""

    engine: ContinuousEngine
    budget: int
    credit: int | None
    phase: Phase = Phase.BOTH


class EngineWatch:
    """``engines`` by the names of their replicas. What is found stands in the view. ``turnaround_s``: from a first
    token to the prompt that follows from it."""

    def __init__(self, engines: Mapping[str, Watched], view: PoolView, turnaround_s: float = 0.0) -> None:
        self._engines = dict(engines)
        self._view = view
        self._both, self._prefill, self._decode = (
            [name for name, each in engines.items() if each.phase is phase]
            for phase in (Phase.BOTH, Phase.PREFILL, Phase.DECODE)
        )
        self._prompts = Prompts()
        self._limited = dict.fromkeys(engines, False)
        self._speeds = {name: PrefillSpeed() for name in engines}
        self._token_times = {name: TokenTime() for name in engines}
        self._typed = {name: backend.speed for name, backend in view.backends.items()}
        self.kv_use = KvUse()
        self._kv_tokens = {name: backend.kv_tokens for name, backend in view.backends.items()}  # of their caches
        self._rooms = {name: KvRoom() for name in engines}
        self._credits: dict[str, PrefillCredit] = {}
        for name, each in engines.items():
            credit = self._credits[name] = PrefillCredit(prompts=self._prompts, turnaround_s=turnaround_s)
            credit.set_budget(each.budget)
        self._show_credits()

    def _compare(self, now_s: float) -> None:
        """Lets the view have how fast the replicas are that write answers, beside each other."""
        for alike in (self._both, self._decode):
            compare(now_s, [(self._token_times[name], self._typed[name]) for name in alike])
            for name in alike:
                time, seen = self._token_times[name], self._view.backends[name]
                seen.speed, seen.token_us = time.speed or self._typed[name], time.token_us

    def give(self, name: str, credit: int | None) -> None:
        """Another prefill credit for a replica from now on; None: found here."""
        self._engines[name] = replace(self._engines[name], credit=credit)
        self._show_credits()

    def _show_credits(self) -> None:
        """As they are granted of."""
        inforce = {n: self._credits[n].credit if e.credit is None else e.credit for n, e in self._engines.items()}
        for name in self._both:
            self._view.backends[name].prefill_credit = inforce[name]
        for name in self._decode:
            shared = share((inforce[one] for one in self._prefill), len(self._decode))
            self._view.backends[name].prefill_credit = shared

    def decided(self, waits: bool, prompts: Iterable[int]) -> None:
        """After a decision that granted all it could. ``waits``: a request is left over; ``prompts``: lengths of what
        was granted [tokens]."""
        self._prompts.add(prompts)
        for name in self._both:
            self._limited[name] = waits and self._credits[name].binds(self._view.backends[name])
        lack = [self._credits[name].lacked_at(self._view.backends[name]) for name in self._decode]
        for name in self._prefill:
            self._limited[name] = waits and any(lack)

    def waiting(self, name: str) -> int:
        """Sequences in an engine's own queue."""
        engine = self._engines[name].engine
        return len(engine.inbox) - engine.taken + len(engine.live) - len(engine.admitted)

    def hurry(self, name: str) -> float:
        """:attr:`scheduling.core.capacity.prefill_credit.PrefillCredit.hurry` of a replica."""
        return self._credits[name].hurry

    def taken_back(self, name: str, tokens: int) -> None:
        """A prompt of so many tokens was taken back from an engine."""
        self._credits[name].lost(tokens)
        self._speeds[name].taken_back()

    def look(self, now_s: float, running: Mapping[str, tuple[int, int]], tbt_s: float | None = None) -> None:
        """Takes every engine's counters, and lets the view have the credits, speeds and KV tokens that follow.
        ``running``: by entitlement, how many run and the KV tokens that they reserve; ``tbt_s``: the strictest time
        between tokens that is promised to one of them."""
        expected = self.kv_use.expected(running)
        for name, each in self._engines.items():
            engine, credit, seen = each.engine, self._credits[name], self._view.backends.get(name)
            sums = engine.counters
            computed = sums.prompt_tokens - sums.cached_tokens
            counted = Counters(now_s, sums.steps, computed, sums.output_tokens, self.waiting(name))
            credit.seen(counted, self._limited[name], self._speeds[name].tokens_per_s)
            self._speeds[name].seen(counted, self._limited[name], each.budget)
            self._token_times[name].seen(now_s, sums.between_fs / FS, sums.between)
            if seen is not None:
                seen.prefill_per_s = self._speeds[name].tokens_per_s
                kv_tokens, room = self._kv_tokens[name], self._rooms[name]
                room.pressure.seen(now_s, engine.kv.usage, sums.preemptions)
                waiting = counted.waiting / max(1, counted.waiting + len(engine.admitted))
                use = EngineUse(engine.kv.usage, kv_tokens, seen.kv_used, waiting, sums.steps)
                room.look(now_s, use, expected, tbt_s)
                seen.kv_tokens = room.offered(kv_tokens)
        self._compare(now_s)
        self._show_credits()
