"""What the gateway needs of the parts that start it: the server's limits, metrics, and paths that others serve.

Called on its event loop: implementations must be fast and never block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scheduling.core.ledger.record import LedgerRecord

if TYPE_CHECKING:
    from scheduling.gateway.entry.auth import Access
    from scheduling.gateway.entry.guard import Head
    from scheduling.gateway.stages import Call


class Places(Protocol):
    """The connections of the server in front of the gateway."""

    @property
    def most(self) -> int:
        """In all."""

    @property
    def per_address(self) -> int:
        """From one address; 0: no such limit."""


class GatewayMetrics(Protocol):
    def ended(self, record: LedgerRecord) -> None:
        """A request with a valid key reached its terminal state."""

    def rejected(self, reason: str, status: int) -> None:
        """A request without a valid key, or outside any route, was answered."""

    def usage_rejected(self, pool: str, backend: str) -> None:
        """An engine's usage could not be true, or was missing: the request is charged by our own count."""

    def answer_rejected(self, pool: str, backend: str, cause: str) -> None:
        """An engine's answer was not passed on. ``cause``: broken (not of the API's shape) or foreign (another's)."""

    def prefill_preempted(self, pool: str, backend: str) -> None:
        """A long prompt was taken back from an engine, to resume later."""

    def storm_refused(self, pool: str, tenant: str, reason: str) -> None:
        """A request of a key that storms was refused without asking; it has no record."""

    def state_available(self, available: bool) -> None:
        """Redis became reachable or unreachable."""

    def gauge(self, name: str, value: float | None) -> None:
        """Sets a gauge by its name without prefix (``GatewayApp._every_second`` has all of them). None: not known, as
        the clock skew may be."""


class Routes(Protocol):
    """Paths under ``/v1`` that ask no engine, e.g. files and batches. The key was checked, the body was not read."""

    def serves(self, path: str) -> bool:
        """Whether it is one of them."""

    async def serve(self, call: Call, access: Access, head: Head) -> None:
        """Answers. A ``Refusal`` that it raises is answered by the gateway."""
