"""Sorts of requests, and the digest that a gateway would send with one. Needs nothing but the core."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.core.inside_engine.digest import encode
from scheduling.core.types import QueuedRequest, ServiceClass, Slo

FAILS_AT = 1234  # prompt tokens at which failing_scheduler.py fails


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of request."""

    name: str
    prompt: int  # tokens
    output: int
    slo: Slo
    rank: int = 0
    service_class: ServiceClass = ServiceClass.GUARANTEED
    expected: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    digest: bool = True
    shared: int = 0  # tokens at the beginning that all of this sort have

    def __post_init__(self) -> None:
        assert self.shared < self.prompt


def digest_of(kind: Kind) -> str:
    lengths, probabilities = kind.expected
    request = QueuedRequest(
        "", 0, 0.0, kind.name, "", "", kind.rank, 1.0, kind.service_class, kind.prompt, kind.output,
        float(kind.output), 0, ttft_deadline_s=kind.slo.ttft_s, ttlt_deadline_s=kind.slo.ttlt_s,
        output_lengths=lengths, output_probabilities=probabilities,
    )  # fmt: skip
    return encode(request, kind.slo, 0.0)
