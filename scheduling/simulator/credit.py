"""Prefill credits of a simulated pool's replicas, found while it serves, by the rule that finds them live.

:class:`scheduling.core.prefill_credit.PrefillCredit` is fed as the leader feeds it: once a second with each engine's
counters, and after each decision with whether requests wait for nothing but credit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduling.core.prefill_credit import Counters, PrefillCredit, Prompts
from scheduling.core.types import PoolView
from scheduling.simulator.continuous import ContinuousEngine

EVERY_S = 1.0  # between two looks at an engine's counters, as the leader scrapes


class AutomaticCredits:
    """``engines`` by the names of their replicas, each with its step budget [tokens]: those whose credit is automatic.
    Begins with what the rule begins with, and writes into the view."""

    def __init__(self, engines: Mapping[str, tuple[ContinuousEngine, int]], view: PoolView) -> None:
        self._engines = {name: engine for name, (engine, _) in engines.items()}
        self._view = view
        self._prompts = Prompts()
        self._limited = dict.fromkeys(engines, False)
        self._credits: dict[str, PrefillCredit] = {}
        for name, (_, budget) in engines.items():
            credit = self._credits[name] = PrefillCredit(prompts=self._prompts)
            credit.set_budget(budget)
            view.backends[name].prefill_credit = credit.credit

    def __bool__(self) -> bool:
        return bool(self._engines)

    def decided(self, waits: bool, prompts: Iterable[int]) -> None:
        """After a decision that granted all it could. ``waits``: a request is left over; ``prompts``: lengths of what
        was granted [tokens]."""
        self._prompts.add(prompts)
        for name, credit in self._credits.items():
            self._limited[name] = waits and credit.binds(self._view.backends[name])

    def look(self, now_s: float) -> None:
        """Takes every engine's counters, and lets the view have the credits that follow."""
        for name, credit in self._credits.items():
            engine = self._engines[name]
            told = engine.counters
            waiting = len(engine.inbox) - engine.taken + len(engine.live) - len(engine.admitted)
            credit.seen(
                Counters(now_s, told.steps, told.prefill_tokens, told.output_tokens, waiting), self._limited[name]
            )
            self._view.backends[name].prefill_credit = credit.credit
