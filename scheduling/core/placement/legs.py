"""Which prefill replica computes a prompt whose answer another replica writes: its *leg*.

Question: which of the prefill replicas that are ready has least before this prompt?
How many prompts may be on their way at all is decided before, by the prefill credit of the decode replicas: each has an
equal share of what the prefill replicas have together (:func:`share`), so the policy chooses who is next. A leg then
goes where the fewest prompt tokens are open, among replicas with a free slot if there is one, so that no replica has
more than the mean and one prompt. Ties: fewest legs, then name. Where it failed before it does not go again while
another is ready.
The ``take_leg`` script says the same in Lua. A leg is a part of its lease: it ends at its own end or with the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BYTES_PER_S = 25e9  # of KV cache between two replicas, where it is simulated: a 200 Gbit/s network


@dataclass(frozen=True, slots=True)
class PrefillReplica:
    """A prefill replica that is ready, and the legs that are open there."""

    id: str
    slots: int
    running: int = 0
    tokens: int = 0  # of these legs' prompts


def choose_leg(replicas: Sequence[PrefillReplica], exclude: str = "") -> str | None:
    """The rule above; None where none is ready."""
    able = [r for r in replicas if r.id != exclude] or replicas
    if not able:
        return None
    return min(able, key=lambda r: (r.running >= r.slots, r.tokens, r.running, r.id)).id


def transfer_s(tokens: int, bytes_per_token: float) -> float:
    """How long a prompt's KV cache is on its way, where it is simulated."""
    return tokens * bytes_per_token / BYTES_PER_S


def share(amounts: Iterable[int], sharers: int) -> int:
    """The equal share of ``amounts``, those of the prefill replicas, that each of ``sharers`` decode replicas may use;
    0 (no bound) if one of them has no bound."""
    amounts = list(amounts)
    return 0 if not all(amounts) else max(1, sum(amounts) // max(1, sharers))
