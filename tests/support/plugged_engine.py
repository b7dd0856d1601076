"""The engine that tests of the plugin ask: step times of its own, and requests with a promise or without."""

from __future__ import annotations

from typing import Any

from scheduling.core.engine.step_time import StepTime
from scheduling.core.inside_engine.digest import encode
from scheduling.core.types import QueuedRequest, ServiceClass, Slo
from scheduling.engines.vllm_plugin.settings import Settings
from tests.support.vllm_stand_in import Clock, Plugged, Request

STEP = StepTime(t0=0.005, a=1e-4, b=1e-4, c=0.0, e=0.0, knee=0.0, a2=0.0)
COEFFICIENTS = {"t0": 0.005, "a": 1e-4, "b": 1e-4, "c": 0.0}
CHAT = Slo(ttft_s=0.5, tbt_s=0.05)
LATER = Slo(ttlt_s=60.0)


def digest(slo: Slo, *, rank: int = 0, output: float = 10.0, lengths: tuple[float, ...] = ()) -> str:
    even = tuple(1 / len(lengths) for _ in lengths)
    request = QueuedRequest(
        "", 0, 0.0, "e", "", "", rank, 1.0, ServiceClass.GUARANTEED, 0, 0, output, 0, ttft_deadline_s=slo.ttft_s,
        ttlt_deadline_s=slo.ttlt_s, output_lengths=lengths, output_probabilities=even,
    )  # fmt: skip
    return encode(request, slo, 0.0)


def plugged(clock: Clock, **given: Any) -> Plugged:
    stand_in = {name: given.pop(name) for name in ("budget", "seats", "blocks", "lora") if name in given}
    values = {"policy": "hybrid", "step_time": COEFFICIENTS, "learn": False, **given}
    return Plugged(Settings(**values), clock, **stand_in)


def ask(engine: Plugged, clock: Clock, name: str, prompt: int, output: int = 4, slo: Slo | None = None) -> Request:
    request = Request(name, prompt, output, digest=None if slo is None else digest(slo), arrival=clock.at)
    engine.add_request(request)
    return request
