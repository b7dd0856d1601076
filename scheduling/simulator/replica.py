"""A backend of a simulated pool."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.engine.step_time import StepTime
from scheduling.core.policies.registry import make_ordering
from scheduling.core.types import FULL_SPEED, BackendView, Phase
from scheduling.simulator.continuous import ContinuousEngine
from scheduling.simulator.engine import EngineConfig


@dataclass(frozen=True, slots=True)
class Replica:
    """One backend: what its engine is, and how much is granted to it at once.

    ``prefill_tokens``: its prefill credit, prompt tokens granted whose first token has not come; 0 is no bound, None
    is found while it serves, as live. ``order``: how the engine takes what it was granted, an ordering policy by name:
    "fifo" as vLLM's fcfs does, "priority" as its priority scheduling by the number it is told
    (:mod:`scheduling.core.inside_engine.order`). ``cache_tokens``: its prefix cache; 0: as large as its KV cache.
    ``kv_bytes_per_token``: what a prefill replica hands over of each prompt token. ``speed``: how fast placement takes
    it to be, per mille of the fastest.
    """

    step_time: StepTime
    slots: int
    kv_tokens: int
    token_budget: int = 2048
    prefill_tokens: int | None = 0
    order: str = "fifo"
    cache_tokens: int = 0
    phase: Phase = Phase.BOTH
    kv_bytes_per_token: int = 0
    speed: int = FULL_SPEED

    def engine(self) -> ContinuousEngine:
        config = EngineConfig(
            self.step_time,
            token_budget=self.token_budget,
            max_seqs=self.slots,
            kv_tokens=self.kv_tokens,
            victims="priority" if self.order == "priority" else "tail",
        )
        return ContinuousEngine(config, make_ordering(self.order))

    def view(self, name: str) -> BackendView:
        """The replica as the scheduler sees it, with nothing on it."""
        credit = self.prefill_tokens or 0
        return BackendView(
            name, self.slots, self.kv_tokens, prefill_credit=credit, speed=self.speed, resumes=self.phase is Phase.BOTH
        )
