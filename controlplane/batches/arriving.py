"""What uploads that have not ended take of the temporary folder: of a tenant, and in all, in this process.

Memory, where that folder is one. The declared size counts from the beginning, what comes without one as it comes. A
tenant takes no more than it leaves free: who comes next finds as much, however many declare files that never come.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.batches.services import no_room
from scheduling.core.outcomes import Reason
from scheduling.gateway.errors import Refusal

OF_TENANT, IN_ALL = 2, 8  # times the largest file


class Upload:
    """One of them."""

    def __init__(self, arriving: Arriving, tenant: str, room: int) -> None:
        self._arriving = arriving
        self._tenant = tenant
        self._room = room  # bytes that the tenant may still store
        self._counted = 0

    def is_of(self, size: int) -> None:
        """It has so many bytes by now, or says that it will. Raises Problem or Refusal where they are too many."""
        more = size - self._counted
        if more <= 0:
            return
        of_tenant, others = self._arriving.bytes_of(self._tenant)
        if of_tenant + more > self._room:
            raise no_room()
        of_all = of_tenant + others
        for arrived, limit, whose in (
            (of_tenant, self._arriving.most_of_tenant, "this tenant"), (of_all, self._arriving.most, "all"),
        ):  # fmt: skip
            free = limit - arrived - more
            if free < 0 or (whose == "all" and of_tenant + more > free):
                what = f"bytes of uploads of {whose}"
                raise Refusal(Reason.TENANT_CONNECTIONS, close=True, inflight=arrived, limit=limit, what=what)
        self._count(more)

    def _count(self, more: int) -> None:
        self._counted += more
        self._arriving.add(self._tenant, more)

    def ended(self) -> None:
        self._count(-self._counted)


class Arriving:
    """All of them."""

    def __init__(self, largest: int) -> None:
        self.most_of_tenant, self.most = OF_TENANT * largest, IN_ALL * largest
        self._bytes: dict[str, int] = {}

    @contextmanager
    def upload(self, tenant: str, room: int) -> Iterator[Upload]:
        one = Upload(self, tenant, room)
        try:
            yield one
        finally:
            one.ended()

    def bytes_of(self, tenant: str) -> tuple[int, int]:
        """Of the tenant, and of all others."""
        mine = self._bytes.get(tenant, 0)
        return mine, sum(self._bytes.values()) - mine

    def add(self, tenant: str, more: int) -> None:
        self._bytes[tenant] = self._bytes.get(tenant, 0) + more
        if not self._bytes[tenant]:
            del self._bytes[tenant]
