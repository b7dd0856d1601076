"""What a prompt waited for inside its engine: prompts granted there before it that had no first token yet.

An engine computes prompts in about the order in which they arrive, so the time from grant to first token is shared out
by prompt tokens: those ahead to the engine's queue, its own to prefill. That is an upper bound for the queue: what of
the prompts ahead was computed before the grant is not recorded. From the ledger alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from telemetry.models import LedgerEntry

LONGEST = timedelta(minutes=5)  # a prompt received so long before is computed by now
MAX_ROWS = 20_000
_COLUMNS = ("tenant", "backend", "input_tokens", "granted_at", "first_token_at", "done_at")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A granted request; seconds of the epoch. Without a first token its prompt is taken as computed when it ended."""

    tenant: str
    backend: str
    tokens: int
    granted_s: float
    computed_s: float


@dataclass(slots=True)
class Ahead:
    """Prompts before one, or before several, in the same engine."""

    requests: int = 0
    tokens: int = 0
    by_tenant: dict[str, int] = field(default_factory=dict)  # prompt tokens, the most first where shown

    def add(self, prompt: Prompt) -> None:
        self.requests += 1
        self.tokens += prompt.tokens
        self.by_tenant[prompt.tenant] = self.by_tenant.get(prompt.tenant, 0) + prompt.tokens

    def ranked(self) -> dict[str, int]:
        return dict(sorted(self.by_tenant.items(), key=lambda item: (-item[1], item[0])))


def prompt_of(row: LedgerEntry) -> Prompt | None:
    """None where it never ran."""
    if row.granted_at is None or not row.backend:
        return None
    computed = row.first_token_at or row.done_at
    return Prompt(row.tenant, row.backend, row.input_tokens, row.granted_at.timestamp(), computed.timestamp())


def ahead_of(row: LedgerEntry) -> Ahead | None:
    """What was ahead of a request in its engine at its grant; None where it never ran."""
    own = prompt_of(row)
    if own is None or row.granted_at is None:
        return None
    before = LedgerEntry.objects.filter(
        pool=row.pool, received_at__gte=row.granted_at - LONGEST, received_at__lt=row.granted_at, backend=row.backend,
        granted_at__lt=row.granted_at, done_at__gt=row.granted_at,
    ).exclude(pk=row.pk)  # fmt: skip
    result = Ahead()
    for other in before.only(*_COLUMNS)[:MAX_ROWS]:
        prompt = prompt_of(other)
        if prompt is not None and prompt.computed_s > own.granted_s:
            result.add(prompt)
    return result


def split(own: Prompt, ahead: Ahead) -> tuple[float, float]:
    """``(queue, prefill)`` [s] of the time from grant to first token, by prompt tokens."""
    whole_s = max(0.0, own.computed_s - own.granted_s)
    share = ahead.tokens / (ahead.tokens + own.tokens) if ahead.tokens + own.tokens > 0 else 0.0
    return whole_s * share, whole_s * (1 - share)


def ahead_of_tenant(tenant: str, prompts: Iterable[Prompt]) -> tuple[Ahead, float, int]:
    """Over a tenant's requests: what was ahead of them in their engines, the time that took [s], and of how many."""
    result, waited_s, behind = Ahead(), 0.0, 0
    open_by_backend: dict[str, list[tuple[float, int, Prompt]]] = {}
    for number, own in enumerate(sorted(prompts, key=lambda prompt: prompt.granted_s)):
        waiting = open_by_backend.setdefault(own.backend, [])
        while waiting and waiting[0][0] <= own.granted_s:
            heapq.heappop(waiting)
        if own.tenant == tenant and waiting:
            mine = Ahead()
            for _, _, prompt in waiting:
                mine.add(prompt)
                result.add(prompt)
            waited_s += split(own, mine)[0]
            behind += 1
        heapq.heappush(waiting, (own.computed_s, number, own))
    return result, waited_s, behind


def recent(pool: str, since: object, until: object) -> list[Prompt]:
    """Prompts that were granted in a pool, of requests received in a span; at most :data:`MAX_ROWS`, the newest."""
    rows = (
        LedgerEntry.objects.filter(pool=pool, received_at__gte=since, received_at__lt=until, granted_at__isnull=False)
        .order_by("-received_at", "-id")
        .only(*_COLUMNS)[:MAX_ROWS]
    )
    return [prompt for row in rows if (prompt := prompt_of(row)) is not None]
