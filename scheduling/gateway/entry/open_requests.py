"""How many requests are open in this process, and whether a key may open another one."""

from __future__ import annotations

from scheduling.core.outcomes import Reason
from scheduling.gateway.errors import Refusal
from scheduling.gateway.ports import Places

FEW = 16  # open requests that a tenant may have however full the process is


class OpenRequests:
    """Counts by key, by tenant and by the address that connections come from."""

    def __init__(self, most_of_key: int, places: Places | None) -> None:
        self.of_key: dict[str, int] = {}
        self.of_tenant: dict[str, int] = {}
        self._of_peer: dict[str, int] = {}
        self._all = 0
        self._most_of_key = most_of_key
        self._places = places

    def add(self, key: str, tenant: str, peer: str) -> None:
        """Counts one more. Raises :class:`Refusal` if its key or tenant is at its limit."""
        count = self.of_key.get(key, 0)
        if count >= self._most_of_key:
            raise Refusal(Reason.CONCURRENCY, close=True, inflight=count, limit=self._most_of_key)
        of_tenant = self.of_tenant.get(tenant, 0)
        if of_tenant >= FEW and self._places is not None:
            # As many as are still free: a tenant alone gets half of all places, two a third each, and whoever comes
            # next finds as many as each of them has (Choudhury and Hahne's dynamic thresholds). Nobody is refused
            # while there is room, nobody takes it all. Counted in requests: connections that are about to be refused
            # would take their places from everybody's share.
            free = self._places.most - self._all
            if self._places.per_address:
                free = min(free, self._places.per_address - self._of_peer.get(peer, 0))
            if of_tenant >= free:
                raise Refusal(
                    Reason.TENANT_CONNECTIONS, close=True, inflight=of_tenant, limit=max(FEW, free),
                    what="requests that this tenant may have open while it is nearly full",
                )  # fmt: skip
        self._all += 1
        self.of_key[key] = count + 1
        self.of_tenant[tenant] = of_tenant + 1
        self._of_peer[peer] = self._of_peer.get(peer, 0) + 1

    def remove(self, key: str, tenant: str, peer: str) -> None:
        """The one that was added with these names."""
        self._all -= 1
        for counts, name in ((self.of_key, key), (self.of_tenant, tenant), (self._of_peer, peer)):
            if left := counts[name] - 1:
                counts[name] = left
            else:
                del counts[name]
