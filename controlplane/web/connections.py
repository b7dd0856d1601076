"""How many connections a web process holds, and how many of them one address may have.

A connection over a limit is refused at once. A few more places are kept for health and metrics
(:data:`ALWAYS_OPEN`), so that an overload does not shut out what watches the process.
"""

from __future__ import annotations

import enum
import logging
import resource
from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from controlplane.env import SettingsError

log = logging.getLogger("controlplane.web.serve")

KEPT_FREE = 64  # connections over the limit that may only ask for these paths
KEPT_FREE_PER_ADDRESS = 16
ALWAYS_OPEN = (b"/healthz", b"/readyz", b"/health", b"/metrics")
OWN_FILES = 256  # database, Redis, logs, libraries
RETRY_S = 2


class Place(enum.Enum):
    """What a new connection gets."""

    FREE = "free"
    FULL = "full"  # the process has as many as it may
    ADDRESS = "address"  # its address has


class ConnectionLimits:
    """Counts connections, WebSockets among them. ``per_address`` 0: no such limit. ``proxies``: addresses and networks
    without one, because many clients come through them. A connection over a limit takes one of the places kept for
    health, or none: it never takes a place from those within theirs."""

    def __init__(self, most: int, per_address: int, most_sockets: int = 1000, proxies: Sequence[str] = ()) -> None:
        self.most = most
        self.most_sockets = most_sockets
        self.inside = 0
        self.sockets = 0  # of these
        self.refused: Counter[str] = Counter()  # by reason, what was answered before any application ran
        self.per_address = per_address
        self.leaving = False  # the process is about to end: connections take no further request
        self._proxies = [ip_network(proxy) for proxy in proxies]
        self._of: dict[str, int] = {}
        self._kept = 0
        self._kept_of: dict[str, int] = {}

    def enter(self, address: str) -> tuple[Place, bool]:
        """What a connection gets, and whether it was counted in; then :meth:`leave` must follow."""
        count = self._of.get(address, 0)
        if self.inside < self.most:
            if not 0 < self.per_address <= count or self._is_proxy(address):
                self.inside += 1
                self._of[address] = count + 1
                return Place.FREE, True
            place = Place.ADDRESS
        else:
            place = Place.FULL
        kept = self._kept_of.get(address, 0)
        if self._kept >= KEPT_FREE or kept >= KEPT_FREE_PER_ADDRESS:
            return place, False
        self._kept += 1
        self._kept_of[address] = kept + 1
        return place, True

    def leave(self, address: str, place: Place) -> None:
        if place is Place.FREE:
            self.inside -= 1
            counts = self._of
        else:
            self._kept -= 1
            counts = self._kept_of
        left = counts[address] - 1
        if left:
            counts[address] = left
        else:
            del counts[address]

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)

    def enter_socket(self) -> bool:
        """Whether a connection may become a WebSocket; then :meth:`leave_socket` must follow."""
        if self.sockets >= self.most_sockets:
            return False
        self.sockets += 1
        return True

    def leave_socket(self) -> None:
        self.sockets -= 1


def affordable(most: int) -> int:
    """``most``, or what the process's limit of open files allows: each request may need one connection more, to an
    engine. Raises the soft limit to the hard one where that helps. Raises SettingsError if it allows none."""
    needed = 2 * (most + KEPT_FREE) + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return most
    fits = (soft - OWN_FILES) // 2 - KEPT_FREE
    if fits < 1:
        raise SettingsError(
            f"This process may have {soft} open files and needs {2 * (1 + KEPT_FREE) + OWN_FILES} at least: raise the "
            "hard limit (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile of Docker)."
        )
    log.warning("%d connections need %d open files, this process may have %d: taking %d", most, needed, soft, fits)
    return fits
