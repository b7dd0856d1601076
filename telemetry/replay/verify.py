"""Whether the ledger tells the same story as the clients: request by request, then in sums.

Only for an instance whose database this command can read. A request without an id (its connection broke before an
answer came) cannot be looked up and is counted apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from telemetry.models import LedgerEntry
from telemetry.replay.report import Sent

CHUNK = 500


@dataclass(slots=True)
class Comparison:
    """``sent`` requests with an id, how many the ledger has, and each difference (at most ``MOST`` are kept)."""

    sent: int = 0
    found: int = 0
    without_id: int = 0
    client: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0))
    ledger: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0))
    differences: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return self.sent == self.found and self.client == self.ledger and not self.differences

    def as_json(self) -> dict[str, Any]:
        return {"equal": self.equal, **asdict(self)}


FIGURES = ("completed", "refused", "failed", "cancelled", "input_tokens", "output_tokens")
MOST = 20


def compare(rows: Iterable[Sent], patience_s: float = 15.0) -> Comparison:
    """Waits until the ledger holds every request that got an id (it is written in bulk), then compares.

    Tokens are compared for completed requests; for the others only how they ended.
    """
    rows = list(rows)
    known = {row.request_id: row for row in rows if row.request_id}
    result = Comparison(sent=len(known), without_id=len(rows) - len(known))
    deadline = time.monotonic() + patience_s
    while True:
        entries = {entry.request_id: entry for entry in _entries(known)}
        if len(entries) == len(known) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    result.found = len(entries)
    for request_id, row in known.items():
        _count(result.client, row.outcome, row.input_tokens, row.output_tokens)
        entry = entries.get(request_id)
        if entry is None:
            _note(result, f"{request_id}: not in the ledger, the client saw {row.outcome} ({row.reason})")
            continue
        done = entry.outcome == "completed"
        tokens = (entry.input_tokens, entry.output_tokens) if done else (0, 0)
        _count(result.ledger, entry.outcome, *tokens)
        if entry.outcome != row.outcome or tokens != (row.input_tokens, row.output_tokens):
            _note(
                result,
                f"{request_id}: the client saw {row.outcome} {row.input_tokens}+{row.output_tokens}, "
                f"the ledger says {entry.outcome} ({entry.reason}) {tokens[0]}+{tokens[1]}",
            )
    return result


def _entries(known: dict[str, Sent]) -> Iterator[LedgerEntry]:
    ids = list(known)
    fields = ("request_id", "outcome", "reason", "input_tokens", "output_tokens")
    for start in range(0, len(ids), CHUNK):
        yield from LedgerEntry.objects.filter(request_id__in=ids[start : start + CHUNK]).only(*fields)


def _count(figures: dict[str, int], outcome: str, input_tokens: int, output_tokens: int) -> None:
    figures[outcome] += 1
    figures["input_tokens"] += input_tokens
    figures["output_tokens"] += output_tokens


def _note(result: Comparison, difference: str) -> None:
    if len(result.differences) < MOST:
        result.differences.append(difference)
