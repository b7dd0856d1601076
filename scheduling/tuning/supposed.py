"""A recording as it would have been with more of everything, or with somebody more.

What is supposed of a pool itself (shares, replicas, tenants) is :func:`tenants.drafts.as_if`'s; this is the traffic's
part of it. Pure: rows in, rows out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scheduling.simulator.kernel import rng
from scheduling.simulator.recording import Recorded


def busier(rows: Sequence[Recorded], load: float) -> tuple[Recorded, ...]:
    """The same requests, ``load`` times as fast: bursts keep their shape, and all of it takes less time."""
    return tuple(replace(row, arrival_s=row.arrival_s / load) for row in rows)


def joined(rows: Sequence[Recorded], name: str, like: str, times: float) -> tuple[Recorded, ...]:
    """With a tenant ``name`` that sends ``times`` as many requests as the entitlement ``like`` does, of the same sizes
    and the same tier, in order of arrival. Its requests do not come in the same moments: each copy of that
    entitlement's stream is turned by a part of the recording, as on a ring, so that bursts stay bursts."""
    copied = [row for row in rows if (row.entitlement or row.tenant) == like]
    if not copied:
        return tuple(rows)
    start, span = rows[0].arrival_s, rows[-1].arrival_s - rows[0].arrival_s
    draw = rng(0, f"newcomer {name}")
    newcomers: list[Recorded] = []
    for number in range(math.ceil(times)):
        share = min(1.0, times - number)
        turned = draw.uniform(0.1, 0.9) * span
        newcomers += [
            replace(
                row, arrival_s=start + _on_ring(row.arrival_s - start + turned, span), tenant=name, entitlement=name
            )
            for row in copied
            if share >= 1.0 or draw.random() < share
        ]
    return tuple(sorted([*rows, *newcomers], key=lambda row: row.arrival_s))


def _on_ring(moment_s: float, span_s: float) -> float:
    return moment_s % span_s if span_s > 0 else 0.0
