"""What Redis says of its memory."""

from __future__ import annotations

from typing import Final

KEEPS: Final = "noeviction"


def evicting_policy(info: bytes) -> str:
    """By which rule keys are deleted when memory is full, of the answer to ``INFO memory``; empty: none is, or it does
    not say. Without a limit it is never full."""
    said = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
    return deletes_by(said.get("maxmemory", "0"), said.get("maxmemory_policy", ""))


def deletes_by(maxmemory: object, policy: object) -> str:
    """The same of the two figures."""
    return "" if str(maxmemory) == "0" or policy == KEEPS else str(policy)
