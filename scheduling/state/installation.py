"""Whose Redis this is: the mark of the installation whose workers use it, so that a second one is noticed.

Two installations on one Redis would lead each other's pools, by catalogs that differ. The mark is the same in all
processes of an installation (of every version that knows it), says nothing of what it is made of, and ends by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from scheduling.state.resp import RespConnection
from scheduling.state.types import StateUnavailable

KEY: Final = "qm:installation"
KEPT_MS: Final = 15_000  # after the last claim


async def claim(resp: RespConnection, mark: str, others: Collection[str] = ()) -> str:
    """Says that this Redis is that installation's; whose it is, which may be another's. ``others``: further marks of
    the same installation, which this one takes the place of.

    A Redis that is not marked and takes no writes now (it is full, say) is the caller's: nobody else has it, and a full
    one needs a leader. Raises StateUnavailable.
    """
    found = await resp.call("GET", KEY)
    if found is None:
        try:
            if await resp.call("SET", KEY, mark, "NX", "PX", KEPT_MS) is not None:
                return mark
        except StateUnavailable:
            if await resp.call("GET", KEY) is None:
                return mark
            raise
        found = await resp.call("GET", KEY) or b""
    if found is not None and found.decode(errors="replace") in others:
        await resp.call("SET", KEY, mark, "PX", KEPT_MS)
        return mark
    # A copy of another installation's Redis may have its mark without an end, and nobody who keeps it.
    if found == mark.encode() or await resp.call("PTTL", KEY) == -1:
        await resp.call("PEXPIRE", KEY, KEPT_MS)
    return str(found.decode(errors="replace"))
