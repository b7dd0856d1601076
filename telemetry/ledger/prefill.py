"""What a prompt waited for inside its engine: prompts granted there before it that had no first token yet.

An engine computes prompts in about the order in which they arrive. Where the pool's engines were measured
(``Calibration``), the time that its own prompt needs is predicted from its length and from what was decoding beside it,
and what is left of the time from grant to first token is the engine's queue. Where they were not, that time is shared
out by prompt tokens: those ahead to the queue, its own to prefill, which is an upper bound for the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduling.core.engine.step_time import StepTime
from telemetry.ledger.selectors import tokens_unknown
from telemetry.models import Calibration, LedgerEntry

LONGEST = timedelta(minutes=15)  # a prompt received so long before is computed by now; shipped batch waits for ten
MAX_ROWS = 20_000
_COLUMNS = (
    "tenant", "backend", "input_tokens", "input_tokens_est", "reason", "granted_at", "first_token_at", "done_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prompt:
    """A granted request; seconds of the epoch. Without a first token its prompt is taken as computed when it ended, and
    where nobody knows its length, that is taken as it was estimated."""

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
    unknown = tokens_unknown(row.reason, row.granted_at, row.output_tokens)
    tokens = row.input_tokens_est if unknown else row.input_tokens
    return Prompt(row.tenant, row.backend, tokens, row.granted_at.timestamp(), computed.timestamp())


def ahead_of(row: LedgerEntry) -> Ahead | None:
    """What was ahead of a request in its engine when it was granted; None if it never ran."""
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


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a pool's engines were found to be, at the time nearest to a request."""

    step_time: StepTime
    token_budget: int
    overhead_s: float

    def predicted_s(self, prompt_tokens: int, decodes: int = 0, context: int = 0) -> float:
        """From grant to first token, of a prompt with nothing ahead of it."""
        return self.overhead_s + self.step_time.prefill_run(prompt_tokens, self.token_budget, decodes, context)


def speed_of(pool: str, at: datetime) -> Speed | None:
    """As it was measured last by then, else first after; None where it never was."""
    rows = Calibration.objects.filter(pool=pool)
    row = rows.filter(at__lte=at).order_by("-at", "-id").first() or rows.order_by("at", "id").first()
    if row is None:
        return None
    return Speed(StepTime(**row.step_time), row.token_budget, row.overhead_s)


def predicted(row: LedgerEntry) -> float | None:
    """How long its own prompt takes in its engine [s], beside what was decoding there at its grant; None: unknown."""
    own = prompt_of(row)
    speed = speed_of(row.pool, row.received_at)
    if own is None or speed is None or row.granted_at is None:
        return None
    beside = LedgerEntry.objects.filter(
        pool=row.pool, received_at__gte=row.granted_at - LONGEST, received_at__lt=row.granted_at, backend=row.backend,
        first_token_at__lte=row.granted_at, done_at__gt=row.granted_at,
    ).values_list("input_tokens", flat=True)[:MAX_ROWS]  # fmt: skip
    contexts = list(beside)
    return speed.predicted_s(own.tokens, len(contexts), sum(contexts))


def split(own: Prompt, ahead: Ahead, predicted_s: float | None = None) -> tuple[float, float]:
    """``(queue, prefill)`` [s] of the time from grant to first token: what its own prompt was predicted to take is
    prefill; without a prediction, by prompt tokens. Without prompts ahead there was no queue."""
    whole_s = max(0.0, own.computed_s - own.granted_s)
    if predicted_s is not None and ahead.tokens:
        own_s = min(whole_s, predicted_s)
        return whole_s - own_s, own_s
    share = ahead.tokens / (ahead.tokens + own.tokens) if ahead.tokens + own.tokens > 0 else 0.0
    return whole_s * share, whole_s * (1 - share)


def ahead_of_tenant(tenant: str, prompts: Iterable[Prompt], speed: Speed | None = None) -> tuple[Ahead, float, int]:
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
            waited_s += split(own, mine, speed.predicted_s(own.tokens) if speed else None)[0]
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
