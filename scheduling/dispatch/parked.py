"""Waiting requests whose gateway does not listen: not selectable until it does.

A dead gateway's requests wait on in shared state until their heartbeat runs out. Offered to the scheduler they would
stand at the head of the queue and cost a script call per tick, so they stay here; a gateway that only lost its
subscription is asked after once a second. Pure: the caller asks and tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.core.types import QueuedRequest


class Parked:
    """Parked requests by gateway. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._parked: dict[str, dict[str, QueuedRequest]] = {}
        self._since: dict[str, float] = {}
        self._gateway_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._gateway_of)

    def __iter__(self) -> Iterator[QueuedRequest]:
        for parked in self._parked.values():
            yield from parked.values()

    @property
    def gateways(self) -> list[str]:
        """Those that are known not to listen."""
        return list(self._parked)

    def holds(self, gateway: str) -> bool:
        """Whether this gateway was found not to listen and has not been heard of since."""
        return gateway in self._parked

    def park(self, request: QueuedRequest, now_s: float) -> None:
        """Keeps a request; its gateway counts as away from now on. One with the same id is replaced."""
        self._since.setdefault(request.gateway, now_s)
        self._parked.setdefault(request.gateway, {})[request.id] = request
        self._gateway_of[request.id] = request.gateway

    def withdraw(self, request_id: str) -> None:
        """Forgets a request that left the queue, if it is here."""
        gateway = self._gateway_of.pop(request_id, None)
        if gateway is None:
            return
        del self._parked[gateway][request_id]
        if not self._parked[gateway]:
            del self._parked[gateway], self._since[gateway]

    def back(self, gateway: str) -> list[QueuedRequest]:
        """It listens again: takes out and returns what was parked."""
        parked = list(self._parked.pop(gateway, {}).values())
        self._since.pop(gateway, None)
        for request in parked:
            del self._gateway_of[request.id]
        return parked

    def longest_s(self, now_s: float) -> float:
        """For how long the first of them has been away."""
        return now_s - min(self._since.values(), default=now_s)

    def clear(self) -> None:
        self._parked.clear()
        self._since.clear()
        self._gateway_of.clear()
