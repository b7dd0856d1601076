"""Class bands: what an entitlement was promised comes before any order among its requests.

Question: which service class is served first?
Formula: band 0 dedicated and guaranteed, 1 elastic, 2 spot, 3 preemptible; the first band in which something has room,
and within it the policy.
Inputs: service class of the entitlement.
Cost: O(bands) on top of the policy's.
Who starves: lower bands, while higher ones fill the pool; ``max_wait_s`` ends it.
Source: token pools, Table 1 and 4.3 (spot and preemptible get the surplus only).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from scheduling.core.policies.contracts import (
    Maker,
    QueuePart,
    RequestQueue,
    Shares,
    counts_service,
    parts_of,
    shares_of,
)
from scheduling.core.policies.registry import modifier
from scheduling.core.policies.rounds import Round
from scheduling.core.types import QueuedRequest, ServiceClass

BAND_OF: dict[ServiceClass, int] = {
    ServiceClass.DEDICATED: 0,
    ServiceClass.GUARANTEED: 0,
    ServiceClass.ELASTIC: 1,
    ServiceClass.SPOT: 2,
    ServiceClass.PREEMPTIBLE: 3,
}
BANDS = ("reserved", "elastic", "spot", "preemptible")  # their names


@modifier("bands")
@dataclass(frozen=True, slots=True)
class Bands:
    """Reserved classes before elastic before spot before preemptible."""

    layer: ClassVar[int] = 1

    def around(self, make: Maker) -> Maker:
        return lambda group: BandQueue(tuple(make(f"{group}{band}/") for band in BANDS))


class BandQueue:
    """A :class:`scheduling.core.policies.contracts.RequestQueue` of one queue per band.

    ``band_of``: which of them a class is in; ``names``: what they are called, "" for one that is not spoken of.
    """

    def __init__(
        self,
        bands: tuple[RequestQueue, ...],
        names: tuple[str, ...] = BANDS,
        band_of: Mapping[ServiceClass, int] = BAND_OF,
    ) -> None:
        self._bands = bands
        self._names = names
        self._band_of = band_of
        self._home: dict[str, int] = {}  # request id -> band

    def __len__(self) -> int:
        return len(self._home)

    def __iter__(self) -> Iterator[QueuedRequest]:
        for band in self._bands:
            yield from band

    def parts(self, now_s: float) -> Iterator[QueuePart]:
        for name, band in zip(self._names, self._bands, strict=True):
            if name:
                yield QueuePart(f"{name} band", "band", len(band))
            yield from parts_of(band, name, now_s)

    def explain(self, request: QueuedRequest) -> str:
        band = self._band_of[request.service_class]
        explanation = self._bands[band].explain(request)
        return f"{self._names[band]} band, {explanation}" if self._names[band] else explanation

    def push(self, request: QueuedRequest, now_s: float) -> None:
        band = self._band_of[request.service_class]
        if self._home.get(request.id, band) != band:
            self.discard(request.id)
        self._home[request.id] = band
        self._bands[band].push(request, now_s)

    def discard(self, request_id: str) -> bool:
        band = self._home.pop(request_id, None)
        return band is not None and self._bands[band].discard(request_id)

    def select(self, round_: Round, now_s: float) -> QueuedRequest | None:
        for band in self._bands:
            if len(band) and (request := band.select(round_, now_s)) is not None:
                del self._home[request.id]
                return request
        return None

    def settle(self, request_id: str, input_tokens: int, output_tokens: int) -> bool:
        return any(counts_service(b) and b.settle(request_id, input_tokens, output_tokens) for b in self._bands)

    def shares(self, service_class: ServiceClass) -> Iterator[Shares]:
        yield from shares_of(self._bands[self._band_of[service_class]], service_class)
