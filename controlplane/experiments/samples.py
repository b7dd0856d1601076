"""The pool at one instant, as the live feed had it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one instant, as the live feed had it. ``engine_waiting``: in the engines' own queues."""

    at_s: float
    waiting: int
    running: int
    engine_waiting: int
    slots: int
    entitlements: dict[str, dict[str, float]] = field(default_factory=dict)
    output_tokens_per_s: float = 0.0


def sample_of(at_s: float, pool: dict[str, Any]) -> Sample:
    """A sample from a pool's snapshot (docs/reference/feed.md)."""
    keep = ("running", "waiting", "weight", "debt", "burst")
    rows = pool["entitlements"]
    return Sample(
        at_s=at_s,
        waiting=pool["queue"]["depth"],
        running=pool["running"],
        engine_waiting=sum(int(b.get("engine_waiting", 0)) for b in pool["backends"].values()),
        slots=sum(b["slots"] for b in pool["backends"].values() if b["state"] == "ready"),
        entitlements={name: {key: row[key] for key in keep if key in row} for name, row in rows.items()},
        output_tokens_per_s=pool.get("tokens_per_s", {}).get("output", 0.0),
    )
