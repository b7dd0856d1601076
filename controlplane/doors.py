"""How many connections a web process holds, and how many of them one address may have.

Whoever comes when the house is full is told so at once. A few places more are kept for those who ask how it is
(``/healthz``, ``/readyz``, ``/metrics``): what watches the process must not be shut out by what overloads it.
"""

from __future__ import annotations

import enum
import logging
import resource

log = logging.getLogger("controlplane.serve")

KEPT_FREE = 64  # connections over the limit that may only ask for these paths
ALWAYS_OPEN = (b"/healthz", b"/readyz", b"/metrics")
OWN_FILES = 256  # database, Redis, logs, libraries
RETRY_S = 2


class Place(enum.Enum):
    """What a new connection gets."""

    FREE = "free"
    FULL = "full"  # the process has as many as it may
    ADDRESS = "address"  # its address has
    NONE = "none"  # not even those kept free


class Doors:
    """Counts connections. ``per_address`` 0: no such limit (all clients come through one proxy)."""

    def __init__(self, most: int, per_address: int) -> None:
        self.most = most
        self._per_address = per_address
        self._inside = 0
        self._of: dict[str, int] = {}

    def enter(self, address: str) -> Place:
        """Counts a connection in; :meth:`leave` must follow, whatever it got."""
        self._inside += 1
        count = self._of[address] = self._of.get(address, 0) + 1
        if self._inside > self.most + KEPT_FREE:
            return Place.NONE
        if self._inside > self.most:
            return Place.FULL
        return Place.ADDRESS if 0 < self._per_address < count else Place.FREE

    def leave(self, address: str) -> None:
        self._inside -= 1
        left = self._of[address] - 1
        if left:
            self._of[address] = left
        else:
            del self._of[address]


def affordable(most: int) -> int:
    """``most``, or what the process's limit of open files allows: each request may need one connection more, to an
    engine. Raises the soft limit to the hard one where that helps."""
    needed = 2 * (most + KEPT_FREE) + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return most
    fits = max(1, (soft - OWN_FILES) // 2 - KEPT_FREE)
    log.warning("%d connections need %d open files, this process may have %d: taking %d", most, needed, soft, fits)
    return fits
